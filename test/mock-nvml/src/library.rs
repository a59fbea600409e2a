//! What the library knows in this process between `nvmlInit` and `nvmlShutdown`.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr};
use std::fs::OpenOptions;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::abi::{Answer, Failure};
use crate::handle::{Handle, Kind};
use crate::state::{Error, FILE_PREFIX, Gpu, Reader, State, Writer};

static LIBRARY: Mutex<Library> = Mutex::new(Library { users: 0, sessions: 0, session: None });

struct Library {
    /// How many `nvmlInit` have no `nvmlShutdown` yet.
    users: u32,
    /// How many sessions there have been.
    sessions: u32,
    session: Option<Session>,
}

fn library() -> MutexGuard<'static, Library> {
    LIBRARY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The time between the first `nvmlInit` and the last `nvmlShutdown`.
pub(crate) struct Session {
    number: u32,
    path: PathBuf,
    reader: Arc<Reader>,
    sequence: u32,
    state: Box<State>,
    /// The places in the state of the GPUs that this process can open, in the order of their indices.
    visible: Vec<usize>,
    event_sets: BTreeMap<u32, EventSet>,
    next_event_set: u32,
}

/// The GPUs whose events a program waits for.
#[derive(Default)]
pub(crate) struct EventSet {
    indices: Vec<u32>,
}

pub(crate) fn init() -> Answer {
    let mut library = library();
    if library.session.is_none() {
        library.session = Some(Session::begin(library.sessions)?);
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

/// Waits until something happens to a GPU of the event set.
pub(crate) fn wait(set: Handle, timeout: Duration) -> Answer {
    let end = Instant::now() + timeout;
    loop {
        // The library isn't locked while it waits.
        let (reader, sequence) = session(|session| {
            for index in &session.event_set(set)?.indices {
                session.gpu(*index)?;
            }
            Ok((Arc::clone(&session.reader), session.sequence))
        })?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Failure::Timeout);
        }
        reader.wait(sequence, left);
    }
}

impl Session {
    fn begin(number: u32) -> Result<Self, Failure> {
        let path = state_file().ok_or(Failure::DriverNotLoaded)?;
        let reader = Reader::open(&path).map_err(|error| match error {
            Error::Io(_) => Failure::DriverNotLoaded,
            error => failure(&error),
        })?;
        let (sequence, state) = reader.read().map_err(|error| failure(&error))?;
        let dev = Path::new(state.dev.as_str());
        match open(&dev.join("nvidiactl")) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Err(Failure::DriverNotLoaded),
            Err(Errno::ACCESS) => return Err(Failure::NoPermission),
            Err(_) => return Err(Failure::Unknown),
        }
        let can_open = |gpu: &Gpu| open(&dev.join(format!("nvidia{}", gpu.minor))).is_ok();
        let visible = (0..).zip(state.gpus()).filter(|(_, gpu)| can_open(gpu)).map(|(place, _)| place).collect();
        let reader = Arc::new(reader);
        Ok(Self { number, path, reader, sequence, state, visible, event_sets: BTreeMap::new(), next_event_set: 0 })
    }

    fn refresh(&mut self) -> Answer {
        if self.reader.sequence() != self.sequence {
            (self.sequence, self.state) = self.reader.read().map_err(|error| failure(&error))?;
        }
        Ok(())
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
        let gpu_is = |place: &usize| self.state.gpus().get(*place).is_some_and(&like);
        let index = (0..).zip(&self.visible).find(|(_, place)| gpu_is(place)).map(|(index, _)| index);
        self.handle(index.ok_or(Failure::NotFound)?)
    }

    /// The index of a GPU.
    pub(crate) fn index(&self, device: Handle) -> Result<u32, Failure> {
        device.number(Kind::Gpu, self.number).filter(|index| *index < self.count()).ok_or(Failure::InvalidArgument)
    }

    fn place(&self, index: u32) -> Result<usize, Failure> {
        self.visible.get(index as usize).copied().ok_or(Failure::InvalidArgument)
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

    fn event_set(&self, set: Handle) -> Result<&EventSet, Failure> {
        self.event_sets.get(&self.event_set_number(set)?).ok_or(Failure::InvalidArgument)
    }

    /// Adds a GPU to an event set.
    pub(crate) fn register(&mut self, set: Handle, index: u32) -> Answer {
        let number = self.event_set_number(set)?;
        let set = self.event_sets.get_mut(&number).ok_or(Failure::InvalidArgument)?;
        if !set.indices.contains(&index) {
            set.indices.push(index);
        }
        Ok(())
    }

    pub(crate) fn free_event_set(&mut self, set: Handle) -> Answer {
        let number = self.event_set_number(set)?;
        self.event_sets.remove(&number).map(|_| ()).ok_or(Failure::InvalidArgument)
    }
}

fn failure(error: &Error) -> Failure {
    match error {
        Error::Io(error) => match Errno::from_io_error(error) {
            Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => Failure::NoPermission,
            _ => Failure::Unknown,
        },
        Error::Format | Error::Size(_) => Failure::VersionMismatch,
        Error::Damaged => Failure::Unknown,
    }
}

/// Opens a device node. That there is no driver behind it is no obstacle.
fn open(node: &Path) -> Result<(), Errno> {
    match OpenOptions::new().read(true).write(true).open(node) {
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
