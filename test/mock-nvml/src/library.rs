//! What the library knows in this process between `nvmlInit` and `nvmlShutdown`.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr};
use std::fs::OpenOptions;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::abi::{Answer, EventData, Failure};
use crate::caps::{self, Caps};
use crate::handle::{Handle, Ids, Kind};
use crate::mig::{self, NoRoom};
use crate::state::{
    ComputeInstance, Error, Event, FILE_PREFIX, Gpu, GpuInstance, MigTable, Process, Profile, Reader, State, Text,
    Writer,
};

static LIBRARY: Mutex<Library> = Mutex::new(Library { users: 0, sessions: 0, path: None, session: None });

pub(crate) struct Library {
    /// How many `nvmlInit` have no `nvmlShutdown` yet.
    users: u32,
    /// How many sessions there have been.
    sessions: u32,
    /// The state file. The name under which this library was loaded may become that of a newer one.
    pub(crate) path: Option<PathBuf>,
    pub(crate) session: Option<Session>,
}

pub(crate) fn library() -> MutexGuard<'static, Library> {
    LIBRARY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The time between the first `nvmlInit` and the last `nvmlShutdown`.
pub(crate) struct Session {
    number: u32,
    pub(crate) path: PathBuf,
    pub(crate) reader: Arc<Reader>,
    pub(crate) sequence: u32,
    state: Box<State>,
    /// The UUIDs of the GPUs that this process could open when it began, in the order of their indices.
    visible: Vec<Text<48>>,
    event_sets: BTreeMap<u32, EventSet>,
    next_event_set: u32,
}

/// The GPUs whose events a program waits for.
#[derive(Default)]
pub(crate) struct EventSet {
    watches: Vec<Watch>,
}

struct Watch {
    index: u32,
    types: u64,
    /// The number of the first event that the program hasn't seen.
    next: u64,
}

pub(crate) fn init() -> Answer {
    let mut library = library();
    if library.session.is_none() {
        let sessions = library.sessions;
        library.session = Some(Session::begin(sessions, &mut library.path)?);
        library.sessions = library.sessions.wrapping_add(1);
    }
    library.users += 1;
    Ok(())
}

pub(crate) fn shutdown() -> Answer {
    let mut library = library();
    library.users = library.users.checked_sub(1).ok_or(Failure::Uninitialized)?;
    if library.users == 0 {
        library.session = None;
    }
    Ok(())
}

/// Runs a call that needs the library to be initialised.
pub(crate) fn session<T>(call: impl FnOnce(&mut Session) -> Result<T, Failure>) -> Result<T, Failure> {
    let mut library = library();
    let session = library.session.as_mut().ok_or(Failure::Uninitialized)?;
    session.refresh()?;
    call(session)
}

/// Runs a call about a GPU.
pub(crate) fn gpu(device: Handle, call: impl FnOnce(&Gpu) -> Answer) -> Answer {
    session(|session| call(session.gpu(session.index(device)?)?))
}

/// Runs a call that changes a GPU.
pub(crate) fn change(device: Handle, change: impl FnOnce(&mut Gpu)) -> Answer {
    session(|session| {
        let index = session.index(device)?;
        session.gpu(index)?;
        session.change(index, change)
    })
}

/// What a device's handle stands for.
pub(crate) enum Device<'a> {
    Gpu(&'a Gpu),
    Mig(Partition<'a>),
}

/// A GPU instance, and a compute instance in it.
#[derive(Clone, Copy)]
pub(crate) struct Partition<'a> {
    pub(crate) gpu: &'a Gpu,
    pub(crate) profile: &'a Profile,
    pub(crate) gpu_instance: &'a GpuInstance,
    pub(crate) compute_instance: &'a ComputeInstance,
    pub(crate) ids: Ids,
}

impl<'a> Device<'a> {
    /// The GPU that the device is, or is part of.
    pub(crate) fn gpu(&self) -> &'a Gpu {
        match self {
            Self::Gpu(gpu) => gpu,
            Self::Mig(partition) => partition.gpu,
        }
    }
}

/// Runs a call about a GPU or a MIG device.
pub(crate) fn device(device: Handle, call: impl FnOnce(Device<'_>) -> Answer) -> Answer {
    session(|session| call(session.device(device)?))
}

impl From<NoRoom> for Failure {
    fn from(NoRoom: NoRoom) -> Self {
        Self::InsufficientResources
    }
}

/// Waits until something happens to a GPU of the event set.
pub(crate) fn wait(set: Handle, timeout: Duration) -> Result<EventData, Failure> {
    let end = Instant::now() + timeout;
    loop {
        // The library isn't locked while it waits.
        let found = session(|session| match session.next_event(set)? {
            Some(event) => Ok(Ok(event)),
            None => Ok(Err((Arc::clone(&session.reader), session.sequence))),
        })?;
        let (reader, sequence) = match found {
            Ok(event) => return Ok(event),
            Err(nothing_yet) => nothing_yet,
        };
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Failure::Timeout);
        }
        reader.wait(sequence, left);
    }
}

/// The state file, mapped and read. Remembers where it is.
pub(crate) fn open_state(path: &mut Option<PathBuf>) -> Result<(PathBuf, Reader, u32, Box<State>), Failure> {
    let path = match path {
        Some(path) => path.clone(),
        None => path.insert(state_file().ok_or(Failure::DriverNotLoaded)?).clone(),
    };
    let reader = Reader::open(&path).map_err(|error| match error {
        Error::Io(_) if is_replaced(&path) => Failure::VersionMismatch,
        Error::Io(_) => Failure::DriverNotLoaded,
        error => failure(&error),
    })?;
    let (sequence, state) = reader.read().map_err(|error| failure(&error))?;
    Ok((path, reader, sequence, state))
}

/// Whether a driver of another version is where that of the state file was.
fn is_replaced(path: &Path) -> bool {
    let is_state = |name: &OsStr| name.to_str().is_some_and(|name| name.starts_with(FILE_PREFIX));
    let mut entries = path.parent().and_then(|folder| std::fs::read_dir(folder).ok()).into_iter().flatten().flatten();
    entries.any(|entry| is_state(&entry.file_name()))
}

impl Session {
    fn begin(number: u32, path: &mut Option<PathBuf>) -> Result<Self, Failure> {
        let (path, reader, sequence, state) = open_state(path)?;
        let dev = Path::new(state.dev.as_str());
        match open(&dev.join("nvidiactl")) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Err(Failure::DriverNotLoaded),
            Err(Errno::ACCESS) => return Err(Failure::NoPermission),
            Err(_) => return Err(Failure::Unknown),
        }
        let can_open = |gpu: &Gpu| open(&dev.join(format!("nvidia{}", gpu.minor))).is_ok();
        let visible = state.gpus().iter().filter(|gpu| can_open(gpu)).map(|gpu| gpu.uuid).collect();
        let reader = Arc::new(reader);
        Ok(Self { number, path, reader, sequence, state, visible, event_sets: BTreeMap::new(), next_event_set: 0 })
    }

    /// Fails if the driver has gone.
    pub(crate) fn refresh(&mut self) -> Answer {
        if self.reader.sequence() != self.sequence {
            (self.sequence, self.state) = self.reader.read().map_err(|error| failure(&error))?;
        }
        match self.state.gone {
            0 => Ok(()),
            9 => Err(Failure::DriverNotLoaded),
            _ => Err(Failure::VersionMismatch),
        }
    }

    pub(crate) fn state(&self) -> &State {
        &self.state
    }

    /// How many GPUs this process sees.
    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.visible.len()).unwrap_or(u32::MAX)
    }

    /// The handle of the GPU of an index, if it is well.
    pub(crate) fn handle(&self, index: u32) -> Result<Handle, Failure> {
        if index >= self.count() {
            return Err(Failure::InvalidArgument);
        }
        self.gpu(index)?;
        Ok(Handle::new(Kind::Gpu, self.number, index))
    }

    /// The handle of the first GPU that is like this.
    pub(crate) fn find(&self, like: impl Fn(&Gpu) -> bool) -> Result<Handle, Failure> {
        let gpu = |index: &u32| self.place(*index).ok().and_then(|place| self.state.gpus().get(place));
        let index = (0..self.count()).find(|index| gpu(index).is_some_and(&like));
        self.handle(index.ok_or(Failure::NotFound)?)
    }

    /// The index of a GPU.
    pub(crate) fn index(&self, device: Handle) -> Result<u32, Failure> {
        device.number(Kind::Gpu, self.number).filter(|index| *index < self.count()).ok_or(Failure::InvalidArgument)
    }

    /// The place of the GPU that a handle of any kind is about.
    pub(crate) fn place_of(&self, handle: Handle) -> Option<usize> {
        let instances = [Kind::MigDevice, Kind::GpuInstance, Kind::ComputeInstance];
        let instance = instances.into_iter().find_map(|kind| handle.number(kind, self.number));
        let index = instance.map(|number| Ids::from_number(number).index);
        self.place(index.or_else(|| handle.number(Kind::Gpu, self.number))?).ok()
    }

    /// The place in the state of the GPU of an index.
    pub(crate) fn place(&self, index: u32) -> Result<usize, Failure> {
        let uuid = self.visible.get(index as usize).ok_or(Failure::InvalidArgument)?;
        place(&self.state, uuid).ok_or(Failure::GpuIsLost)
    }

    /// The GPU of an index, if it is well. Every call about a GPU comes through here.
    pub(crate) fn gpu(&self, index: u32) -> Result<&Gpu, Failure> {
        let gpu = self.state.gpus().get(self.place(index)?).ok_or(Failure::GpuIsLost)?;
        match gpu.fault {
            0 => Ok(gpu),
            15 => Err(Failure::GpuIsLost),
            _ => Err(Failure::Unknown),
        }
    }

    /// What a device's handle stands for.
    pub(crate) fn device(&self, device: Handle) -> Result<Device<'_>, Failure> {
        match device.number(Kind::MigDevice, self.number) {
            Some(number) => Ok(Device::Mig(self.partition(Ids::from_number(number))?)),
            None => Ok(Device::Gpu(self.gpu(self.index(device)?)?)),
        }
    }

    /// A GPU that can be partitioned, and how.
    pub(crate) fn mig_gpu(&self, index: u32) -> Result<(&Gpu, &MigTable), Failure> {
        let gpu = self.gpu(index)?;
        Ok((gpu, self.state.mig_table(gpu).ok_or(Failure::NotSupported)?))
    }

    /// The compute instance that a handle was made of, if it is still that one.
    fn partition(&self, ids: Ids) -> Result<Partition<'_>, Failure> {
        let (gpu, table) = self.mig_gpu(ids.index)?;
        let (_, gpu_instance, profile) =
            gpu.instances(table).find(|(id, ..)| *id == ids.gpu_instance).ok_or(Failure::InvalidArgument)?;
        let is_same =
            |(id, there): &(usize, &ComputeInstance)| *id == ids.compute_instance && there.generation == ids.generation;
        let found = gpu_instance.compute_instances().find(is_same);
        let (_, compute_instance) = found.ok_or(Failure::InvalidArgument)?;
        Ok(Partition { gpu, profile, gpu_instance, compute_instance, ids })
    }

    /// The compute instance of a handle.
    pub(crate) fn compute_instance(&self, handle: Handle) -> Result<Partition<'_>, Failure> {
        let number = handle.number(Kind::ComputeInstance, self.number).ok_or(Failure::InvalidArgument)?;
        self.partition(Ids::from_number(number))
    }

    /// The GPU instance of a handle.
    pub(crate) fn gpu_instance(&self, handle: Handle) -> Result<(Ids, &GpuInstance, &Profile), Failure> {
        let number = handle.number(Kind::GpuInstance, self.number).ok_or(Failure::InvalidArgument)?;
        let ids = Ids::from_number(number);
        let (gpu, table) = self.mig_gpu(ids.index)?;
        let is_same = |(id, there, _): &(usize, &GpuInstance, &Profile)| {
            *id == ids.gpu_instance && there.generation == ids.generation
        };
        let (_, instance, profile) = gpu.instances(table).find(is_same).ok_or(Failure::InvalidArgument)?;
        Ok((ids, instance, profile))
    }

    /// The handle of an instance.
    pub(crate) fn instance_handle(&self, kind: Kind, instance: Ids) -> Handle {
        Handle::new(kind, self.number, instance.number())
    }

    /// The handle of the GPU that an instance is part of.
    pub(crate) fn parent_handle(&self, instance: Ids) -> Handle {
        Handle::new(Kind::Gpu, self.number, instance.index)
    }

    /// The MIG devices of a GPU that this process can use: those whose device nodes it can open.
    pub(crate) fn mig_devices(&self, index: u32) -> Result<Vec<Partition<'_>>, Failure> {
        let (gpu, table) = self.mig_gpu(index)?;
        let mut found = Vec::new();
        for (of, gpu_instance, profile) in gpu.instances(table) {
            if !self.may(caps::gpu_instance(gpu.minor, of)) {
                continue;
            }
            for (id, compute_instance) in gpu_instance.compute_instances() {
                if self.may(caps::compute_instance(gpu.minor, of, id)) {
                    let generation = compute_instance.generation;
                    let ids = Ids { index, gpu_instance: of, compute_instance: id, generation };
                    found.push(Partition { gpu, profile, gpu_instance, compute_instance, ids });
                }
            }
        }
        Ok(found)
    }

    /// The processes on a device. Those on a GPU's MIG devices are also on the GPU.
    pub(crate) fn processes<'a>(&'a self, handle: Handle, device: &Device<'_>) -> impl Iterator<Item = &'a Process> {
        let ids = match device {
            Device::Gpu(_) => None,
            Device::Mig(Partition { ids, .. }) => Some((ids.gpu_instance, ids.compute_instance)),
        };
        let on_gpu = self.place_of(handle).into_iter().flat_map(|place| self.state.processes(place));
        on_gpu.filter(move |process| {
            ids.is_none_or(|ids| ids == (process.gpu_instance as usize, process.compute_instance as usize))
        })
    }

    /// The MIG device with that UUID.
    pub(crate) fn mig_device_by_uuid(&self, uuid: &str) -> Result<Handle, Failure> {
        let devices = (0..self.count()).filter_map(|index| self.mig_devices(index).ok()).flatten();
        let found = devices.into_iter().find(|device| device.uuid() == uuid).ok_or(Failure::NotFound)?;
        Ok(self.instance_handle(Kind::MigDevice, found.ids))
    }

    /// Whether the process has what a device node grants.
    fn may(&self, minor: u32) -> bool {
        let node = caps::node(Path::new(self.state.dev.as_str()), minor);
        open_as(&node, OpenOptions::new().read(true)).is_ok()
    }

    /// Changes how a GPU is partitioned, in view of the processes on it. Files come before the change, and go after it.
    pub(crate) fn change_mig<T>(
        &mut self,
        index: u32,
        change: impl FnOnce(&MigTable, &mut Gpu, &[Process]) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.mig_gpu(index)?;
        if !self.may(caps::CONFIG) {
            return Err(Failure::NoPermission);
        }
        let place = self.place(index)?;
        let writer = Writer::open(&self.path).map_err(|error| failure(&error))?;
        let mut state = writer.read().map_err(|error| failure(&error))?;
        let table = *state.gpus.get(place).and_then(|gpu| state.mig_table(gpu)).ok_or(Failure::GpuIsLost)?;
        let caps = Caps::open(&self.root()?, Path::new(state.dev.as_str())).map_err(|error| io_failure(&error))?;
        let processes = state.processes(place).copied().collect::<Vec<_>>();
        let gpu = state.gpus.get_mut(place).ok_or(Failure::GpuIsLost)?;
        let result = change(&table, gpu, &processes)?;
        let gpu = *gpu;
        caps.add(&gpu).map_err(|error| io_failure(&error))?;
        writer.put(&state);
        caps.prune(&gpu).map_err(|error| io_failure(&error))?;
        self.refresh()?;
        Ok(result)
    }

    /// The driver's root: the library is in a folder that the state knows.
    fn root(&self) -> Result<PathBuf, Failure> {
        let folder = self.path.parent().and_then(Path::to_str).ok_or(Failure::Unknown)?;
        let root = folder.strip_suffix(self.state.library_dir.as_str()).ok_or(Failure::Unknown)?;
        Ok(PathBuf::from(if root.is_empty() { "/" } else { root }))
    }

    fn change(&mut self, index: u32, change: impl FnOnce(&mut Gpu)) -> Answer {
        let place = self.place(index)?;
        let mut writer = Writer::open(&self.path).map_err(|error| failure(&error))?;
        let changed = writer.update(|state| state.gpus_mut().get_mut(place).map(change));
        changed.map_err(|error| failure(&error))?.ok_or(Failure::GpuIsLost)?;
        self.refresh()
    }

    pub(crate) fn new_event_set(&mut self) -> Handle {
        let number = self.next_event_set;
        self.next_event_set += 1;
        self.event_sets.insert(number, EventSet::default());
        Handle::new(Kind::EventSet, self.number, number)
    }

    fn event_set_number(&self, set: Handle) -> Result<u32, Failure> {
        set.number(Kind::EventSet, self.number).ok_or(Failure::InvalidArgument)
    }

    /// Adds a GPU to an event set.
    pub(crate) fn register(&mut self, set: Handle, index: u32, types: u64) -> Answer {
        let number = self.event_set_number(set)?;
        let next = self.state.event_count;
        let set = self.event_sets.get_mut(&number).ok_or(Failure::InvalidArgument)?;
        match set.watches.iter_mut().find(|watch| watch.index == index) {
            Some(watch) => watch.types |= types,
            None => set.watches.push(Watch { index, types, next }),
        }
        Ok(())
    }

    /// The oldest event that a program waits for and hasn't seen.
    fn next_event(&mut self, set: Handle) -> Result<Option<EventData>, Failure> {
        let number = self.event_set_number(set)?;
        let Self { visible, state, .. } = self;
        let set = self.event_sets.get_mut(&number).ok_or(Failure::InvalidArgument)?;
        let mut oldest: Option<(u64, usize)> = None;
        for (at, watch) in set.watches.iter().enumerate() {
            let place = visible.get(watch.index as usize).and_then(|uuid| place(state, uuid));
            let is_for = |event: &Event| Some(event.gpu as usize) == place && u64::from(event.types) & watch.types != 0;
            let first = state.events(watch.next).find(|(_, event)| is_for(event));
            if let Some((number, _)) = first
                && oldest.is_none_or(|(other, _)| number < other)
            {
                oldest = Some((number, at));
            }
        }
        if let Some((number, at)) = oldest {
            let watch = &mut set.watches[at];
            watch.next = number + 1;
            let event = state.events(number).next().ok_or(Failure::Unknown)?.1;
            return Ok(Some(EventData {
                device: Handle::new(Kind::Gpu, self.number, watch.index),
                types: event.types.into(),
                data: event.data,
                gpu_instance_id: event.gpu_instance,
                compute_instance_id: event.compute_instance,
            }));
        }
        for index in set.watches.iter().map(|watch| watch.index).collect::<Vec<_>>() {
            self.gpu(index)?;
        }
        Ok(None)
    }

    pub(crate) fn free_event_set(&mut self, set: Handle) -> Answer {
        let number = self.event_set_number(set)?;
        self.event_sets.remove(&number).map(|_| ()).ok_or(Failure::InvalidArgument)
    }
}

/// The place of the GPU with that UUID.
fn place(state: &State, uuid: &Text<48>) -> Option<usize> {
    state.gpus().iter().position(|gpu| gpu.uuid == *uuid)
}

impl Partition<'_> {
    /// The MIG device's UUID.
    pub(crate) fn uuid(&self) -> String {
        mig::uuid(self.gpu.uuid.as_str(), self.ids.gpu_instance, self.ids.compute_instance)
    }
}

fn io_failure(error: &io::Error) -> Failure {
    match Errno::from_io_error(error) {
        Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => Failure::NoPermission,
        _ => Failure::Unknown,
    }
}

fn failure(error: &Error) -> Failure {
    match error {
        Error::Io(error) => io_failure(error),
        Error::Format | Error::Size(_) => Failure::VersionMismatch,
        Error::Damaged => Failure::Unknown,
    }
}

/// Opens a device node. That there is no driver behind it is no obstacle.
fn open(node: &Path) -> Result<(), Errno> {
    open_as(node, OpenOptions::new().read(true).write(true))
}

fn open_as(node: &Path, options: &OpenOptions) -> Result<(), Errno> {
    match options.open(node) {
        Ok(_) => Ok(()),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::NXIO) => Ok(()),
            errno => Err(errno.unwrap_or(Errno::IO)),
        },
    }
}

/// The state file beside this library.
fn state_file() -> Option<PathBuf> {
    let library = std::fs::canonicalize(path_of_this_library()?).ok()?;
    let version = library.file_name()?.to_str()?.strip_prefix("libnvidia-ml.so.")?;
    Some(library.with_file_name(format!("{FILE_PREFIX}{version}")))
}

fn path_of_this_library() -> Option<PathBuf> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `dladdr` looks the address up without following it, and fills `info` if it finds it.
    let found = unsafe { libc::dladdr((&raw const LIBRARY).cast(), info.as_mut_ptr()) };
    // SAFETY: zeroes are a valid `Dl_info`.
    let info = unsafe { info.assume_init() };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's name of a library that is loaded, since this code is in it.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}
