//! What is prepared on this node, as it must survive a restart: one small file per claim.
//!
//! ```text
//! 64 digits {"format":"aliquot-claim","version":1,"uid":…,"holds":["0000:1b:00.0"],"body":64 digits}
//! {"bootId":…,"uid":…,"namespace":…,"name":…,"devices":[…]}
//! ```
//!
//! The digits are SHA-256: in front of the first line's JSON, of that JSON; in it, of all that follows. They are of the bytes as they stand,
//! not of what they mean: a later version may add fields, which this one ignores. The version rises only for what an older
//! program would get wrong. Whatever a claim's file says that can't be read, its first line tells which GPUs nobody else may have.
//!
//! The files are the truth, and two processes may use them at once while one replaces the other. They take turns by a lock, and a
//! number in the lock's file says when the other has changed something.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aliquot_api::ids::{ClaimUid, PciAddress};
use aliquot_device::prepare::PlannedDevice;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::cluster::ClaimRef;
use crate::files::{self, At, FileError, Unsynced};
use aliquot_device::hash::sha256;

const FORMAT: &str = "aliquot-claim";

/// The newest version that this program reads, and the one that it writes.
const VERSION: u32 = 1;

/// How long another process may have its turn. It takes milliseconds, unless the process is stopped or its disk is.
const TURN: Duration = Duration::from_secs(10);

/// A claim whose devices are prepared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PreparedClaim {
    /// Which boot of the machine: after another one, nothing of this is left.
    pub boot_id: String,
    /// The claim.
    #[serde(flatten)]
    pub claim: ClaimRef,
    /// What it got.
    pub devices: Vec<PlannedDevice>,
}

/// A claim's file that is no [`PreparedClaim`] (any more).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unreadable {
    /// Why.
    pub reason: String,
    /// The GPUs that it holds, as far as it says.
    pub holds: Vec<PciAddress>,
    /// Whether a newer program wrote it, which knows how to release it.
    pub is_too_new: bool,
}

/// What a claim's file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    /// What is prepared.
    Prepared(PreparedClaim),
    /// Nothing that can be read, or not by this program.
    Unreadable(Unreadable),
}

impl Entry {
    /// Whether it holds what a device needs.
    pub(crate) fn excludes(&self, device: &PlannedDevice) -> bool {
        match self {
            Self::Prepared(claim) => claim.devices.iter().any(|other| other.excludes(device)),
            Self::Unreadable(file) => !device.admin_access && file.holds.contains(&device.pci),
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    format: String,
    version: u32,
    uid: ClaimUid,
    holds: Vec<PciAddress>,
    body: String,
}

/// The claims' files can't be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// The file system failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// It can't be written down.
    #[error("{}: encode: {cause}", .path.display())]
    Encode {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        cause: serde_json::Error,
    },
    /// Another process keeps its turn.
    #[error("{}: another process of this plugin has had the lock for {} s", .path.display(), TURN.as_secs())]
    Busy {
        /// The lock.
        path: PathBuf,
    },
}

/// The claims' files.
#[derive(Debug)]
pub(crate) struct ClaimStore {
    folder: PathBuf,
    lock: PathBuf,
    lock_file: File,
    known: Mutex<Known>,
}

/// What the files said when they were last read.
#[derive(Debug)]
struct Known {
    /// The number in the lock's file then. None before the first time.
    number: Option<u64>,
    entries: BTreeMap<ClaimUid, Entry>,
}

impl ClaimStore {
    /// Opens the store, creating its folder. Its lock lies beside the folder.
    pub(crate) fn open(folder: PathBuf) -> Result<Self, FileError> {
        files::create_folder(&folder)?;
        let lock = folder.with_extension("lock");
        let lock_file = files::open_lock(&lock)?;
        Ok(Self { folder, lock, lock_file, known: Mutex::new(Known { number: None, entries: BTreeMap::new() }) })
    }

    /// Takes a turn, which ends with the value. Blocks.
    pub(crate) fn turn(&self) -> Result<Turn<'_>, StoreError> {
        // Nothing that happens under this lock can panic halfway through a change.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let end = Instant::now() + TURN;
        loop {
            match flock(&self.lock_file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) if Instant::now() < end => std::thread::sleep(Duration::from_millis(2)),
                Err(Errno::WOULDBLOCK) => return Err(StoreError::Busy { path: self.lock.clone() }),
                Err(error) => return Err(error).at("lock", &self.lock)?,
            }
        }
        let released = Released(&self.lock_file);
        let number = self.number()?;
        if known.number != Some(number) {
            known.entries = self.load()?;
            known.number = Some(number);
        }
        Ok(Turn { store: self, _released: released, known })
    }

    fn number(&self) -> Result<u64, FileError> {
        let mut bytes = [0; 8];
        match self.lock_file.read_exact_at(&mut bytes, 0) {
            Ok(()) => Ok(u64::from_le_bytes(bytes)),
            // It is new.
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(0),
            Err(error) => Err(error).at("read", &self.lock),
        }
    }

    fn load(&self) -> Result<BTreeMap<ClaimUid, Entry>, FileError> {
        let mut entries = BTreeMap::new();
        for name in files::list(&self.folder)? {
            let path = self.folder.join(&name);
            if let Some(uid) = name.strip_suffix(".json").and_then(|uid| uid.parse::<ClaimUid>().ok()) {
                if let Some(content) = files::read(&path)? {
                    let entry = decode(&uid, &content);
                    entries.insert(uid, entry);
                }
            } else if name.starts_with('.') {
                // What a write left that was cut off. Nobody else is writing now.
                files::remove(&path)?;
            }
        }
        Ok(entries)
    }

    fn path(&self, uid: &ClaimUid) -> PathBuf {
        self.folder.join(format!("{uid}.json"))
    }
}

/// Gives the lock back.
#[derive(Debug)]
struct Released<'a>(&'a File);

impl Drop for Released<'_> {
    fn drop(&mut self) {
        // It can't fail for a lock that we have, and ends with the process at the latest.
        let _ = flock(self.0, FlockOperation::Unlock);
    }
}

/// A turn: nobody else reads or changes the files.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    store: &'a ClaimStore,
    // Fields are dropped in this order: the files' lock is this process's, so it goes before another thread may take it.
    _released: Released<'a>,
    known: MutexGuard<'a, Known>,
}

impl Turn<'_> {
    /// What the files say.
    pub(crate) fn entries(&self) -> &BTreeMap<ClaimUid, Entry> {
        &self.known.entries
    }

    /// Records a claim. Nobody may be told of it before it is synced, which is best done when the turn is over.
    pub(crate) fn save(&mut self, claim: &PreparedClaim) -> Result<Unsynced, StoreError> {
        let uid = &claim.claim.uid;
        let path = self.store.path(uid);
        let content = encode(claim).map_err(|cause| StoreError::Encode { path: path.clone(), cause })?;
        self.announce()?;
        let unsynced = files::put(&path, &content, 0o600)?;
        self.known.entries.insert(uid.clone(), Entry::Prepared(claim.clone()));
        Ok(unsynced)
    }

    /// Forgets a claim. The same holds.
    pub(crate) fn remove(&mut self, uid: &ClaimUid) -> Result<Unsynced, StoreError> {
        self.announce()?;
        let unsynced = files::take_away(&self.store.path(uid))?;
        self.known.entries.remove(uid);
        Ok(unsynced)
    }

    /// Tells other processes that there will be something new, also if we don't get to finish it.
    fn announce(&mut self) -> Result<(), FileError> {
        let number = self.known.number.unwrap_or_default().wrapping_add(1);
        self.known.number = None;
        self.store.lock_file.write_all_at(&number.to_le_bytes(), 0).at("write", &self.store.lock)?;
        self.known.number = Some(number);
        Ok(())
    }
}

fn encode(claim: &PreparedClaim) -> Result<Vec<u8>, serde_json::Error> {
    let body = serde_json::to_vec(claim)?;
    let mut holds: Vec<PciAddress> =
        claim.devices.iter().filter(|device| !device.admin_access).map(|device| device.pci).collect();
    holds.sort_unstable();
    holds.dedup();
    let header = Header {
        format: FORMAT.to_owned(),
        version: VERSION,
        uid: claim.claim.uid.clone(),
        holds,
        body: sha256(&body),
    };
    let header = serde_json::to_vec(&header)?;
    Ok([sha256(&header).as_bytes(), b" ", &header, b"\n", &body].concat())
}

fn decode(uid: &ClaimUid, content: &[u8]) -> Entry {
    let unreadable = |reason: String, holds: Vec<PciAddress>, is_too_new| {
        Entry::Unreadable(Unreadable { reason, holds, is_too_new })
    };
    let damaged = |reason: &str, holds| unreadable(format!("damaged: {reason}"), holds, false);

    let end = content.iter().position(|byte| *byte == b'\n').unwrap_or(content.len());
    let (line, body) = (&content[..end], content.get(end + 1..).unwrap_or_default());
    let Some((sum, header)) = line.split_at_checked(64).and_then(|(sum, rest)| Some((sum, rest.strip_prefix(b" ")?)))
    else {
        return damaged("it has no header", vec![]);
    };
    if sha256(header).as_bytes() != sum {
        return damaged("the header's checksum doesn't match", vec![]);
    }
    let header: Header = match serde_json::from_slice(header) {
        Ok(header) => header,
        Err(error) => return damaged(&format!("header: {error}"), vec![]),
    };
    if header.format != FORMAT || header.uid != *uid {
        return damaged(&format!("it is a {:?} of {}", header.format, header.uid), header.holds);
    }
    if header.version > VERSION {
        let reason = format!("it is of version {}, this program reads up to {VERSION}", header.version);
        return unreadable(reason, header.holds, true);
    }
    if header.body != sha256(body) {
        return damaged("the checksum doesn't match", header.holds);
    }
    match serde_json::from_slice(body) {
        Ok(claim) => Entry::Prepared(claim),
        Err(error) => damaged(&error.to_string(), header.holds),
    }
}

/// A claim's file as a newer program would write it, for the tests of other modules.
#[cfg(test)]
pub(crate) fn encode_as(version: u32, claim: &PreparedClaim) -> Vec<u8> {
    let content = String::from_utf8(encode(claim).unwrap()).unwrap();
    let (line, body) = content.split_once('\n').unwrap();
    let header = line[65..].replace("\"version\":1", &format!("\"version\":{version}"));
    format!("{} {header}\n{body}", sha256(header.as_bytes())).into_bytes()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn claim(uid: &str) -> PreparedClaim {
        PreparedClaim {
            boot_id: "boot-1".to_owned(),
            claim: ClaimRef::parse(uid, "default".to_owned(), "train-gpu-x7k2p".to_owned()).unwrap(),
            devices: vec![PlannedDevice {
                request: "gpu".to_owned(),
                device: "gpu-3".parse().unwrap(),
                uuid: "GPU-a".parse().unwrap(),
                pci: "0000:1b:00.0".parse().unwrap(),
                minor: 3,
                mig: None,
                admin_access: false,
                share_id: None,
            }],
        }
    }

    fn store() -> (tempfile::TempDir, ClaimStore) {
        let folder = tempfile::tempdir().unwrap();
        let store = ClaimStore::open(folder.path().join("claims")).unwrap();
        (folder, store)
    }

    /// What another process finds.
    fn found(store: &ClaimStore) -> BTreeMap<String, Entry> {
        let other = ClaimStore::open(store.folder.clone()).unwrap();
        let turn = other.turn().unwrap();
        turn.entries().iter().map(|(uid, entry)| (uid.to_string(), entry.clone())).collect()
    }

    fn prepared(uids: &[&str]) -> BTreeMap<String, Entry> {
        uids.iter().map(|uid| ((*uid).to_owned(), Entry::Prepared(claim(uid)))).collect()
    }

    #[test]
    fn the_format_is_this() {
        let (_folder, store) = store();
        store.turn().unwrap().save(&claim("uid-1")).unwrap().sync().unwrap();
        let text = fs::read_to_string(store.folder.join("uid-1.json")).unwrap();
        let expected = concat!(
            "4a5fd69d1c5b0c5e ",
            r#"{"format":"aliquot-claim","version":1,"uid":"uid-1","holds":["0000:1b:00.0"],"body":"#,
            "\n",
            r#"{"bootId":"boot-1","uid":"uid-1","namespace":"default","name":"train-gpu-x7k2p","devices":"#,
            r#"[{"request":"gpu","device":"gpu-3","uuid":"GPU-a","pci":"0000:1b:00.0","minor":3}]}"#,
        );
        let without_sums = |text: &str| {
            let (line, body) = text.split_once('\n').unwrap();
            let (sum, header) = line.split_once(' ').unwrap();
            assert!(sum.bytes().all(|digit| digit.is_ascii_hexdigit()));
            (header.split_once("\"body\":").unwrap().0.to_owned(), body.to_owned())
        };
        assert_eq!(without_sums(&text), without_sums(expected));
    }

    #[test]
    fn what_was_saved_is_found_until_removed_by_every_process() {
        let (_folder, store) = store();
        let other = ClaimStore::open(store.folder.clone()).unwrap();
        for uid in ["uid-2", "uid-1"] {
            store.turn().unwrap().save(&claim(uid)).unwrap().sync().unwrap();
            assert!(other.turn().unwrap().entries().contains_key(&uid.parse().unwrap()));
        }
        assert_eq!(found(&store), prepared(&["uid-1", "uid-2"]));
        for _ in 0..2 {
            other.turn().unwrap().remove(&"uid-1".parse().unwrap()).unwrap().sync().unwrap();
            assert_eq!(store.turn().unwrap().entries().len(), 1);
            assert_eq!(found(&store), prepared(&["uid-2"]));
        }
    }

    #[test]
    fn a_file_cut_off_or_changed_at_any_byte_harms_only_its_claim() {
        let (_folder, store) = store();
        for uid in ["good", "bad"] {
            store.turn().unwrap().save(&claim(uid)).unwrap().sync().unwrap();
        }
        let path = store.folder.join("bad.json");
        let whole = fs::read(&path).unwrap();
        let header = whole.iter().position(|byte| *byte == b'\n').unwrap();
        let cuts = (0..whole.len()).map(|length| (length, whole[..length].to_vec()));
        let flips = (0..whole.len()).map(|at| {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            (at, bytes)
        });
        for (at, bytes) in cuts.chain(flips) {
            fs::write(&path, &bytes).unwrap();
            let mut all = found(&store);
            let bad = all.remove("bad").unwrap();
            assert_eq!(all, prepared(&["good"]), "{at}");
            let Entry::Unreadable(file) = bad else { panic!("{at}: {}", String::from_utf8_lossy(&bytes)) };
            assert!(file.reason.starts_with("damaged: ") && !file.is_too_new, "{at}: {}", file.reason);
            // While the first line is whole, the GPU is nobody else's.
            let holds =
                if at > header { claim("bad").devices.iter().map(|device| device.pci).collect() } else { vec![] };
            if at != header {
                assert_eq!(file.holds, holds, "{at}");
            }
        }
    }

    #[test]
    fn a_later_addition_is_read_and_a_later_version_keeps_its_gpus() {
        let (_folder, store) = store();
        let path = store.folder.join("uid-1.json");
        fs::write(&path, encode_as(1, &claim("uid-1"))).unwrap();
        assert_eq!(found(&store), prepared(&["uid-1"]));
        let with_more = String::from_utf8(encode(&claim("uid-1")).unwrap()).unwrap();
        let (line, body) = with_more.split_once('\n').unwrap();
        let body = body.replacen('{', r#"{"later":true,"#, 1);
        let old_sum = line.rsplit('"').nth(1).unwrap();
        let header = line[65..].replace(old_sum, &sha256(body.as_bytes())).replacen('{', r#"{"later":1,"#, 1);
        fs::write(&path, format!("{} {header}\n{body}", sha256(header.as_bytes()))).unwrap();
        assert_eq!(found(&store), prepared(&["uid-1"]));

        fs::write(&path, encode_as(2, &claim("uid-1"))).unwrap();
        let Some(Entry::Unreadable(file)) = found(&store).remove("uid-1") else { panic!() };
        assert_eq!(file.reason, "it is of version 2, this program reads up to 1");
        assert!(file.is_too_new);
        assert!(Entry::Unreadable(file).excludes(&claim("uid-2").devices[0]));
    }

    #[test]
    fn leftovers_of_a_cut_off_write_are_cleaned_away() {
        let (_folder, store) = store();
        fs::write(store.folder.join(".uid-1.json.new"), "{").unwrap();
        assert_eq!(found(&store), BTreeMap::new());
        assert_eq!(files::list(&store.folder).unwrap(), Vec::<String>::new());
    }

    /// A file system in an image, mounted. What is copied of the image is what a power cut leaves: all that was synced, and of the
    /// rest nothing for sure.
    struct Disk {
        folder: tempfile::TempDir,
    }

    impl Disk {
        fn new(features: &str) -> Self {
            let disk = Self { folder: tempfile::tempdir().unwrap() };
            run("truncate", &["-s", "16M", &disk.path("image")]);
            run("mkfs.ext4", &["-q", "-O", features, &disk.path("image")]);
            disk.mount("image", "now");
            disk
        }

        fn path(&self, name: &str) -> String {
            self.folder.path().join(name).to_str().unwrap().to_owned()
        }

        fn mount(&self, image: &str, at: &str) {
            fs::create_dir_all(self.path(at)).unwrap();
            run("mount", &["-o", "loop", &self.path(image), &self.path(at)]);
        }

        /// What is there when the power comes back.
        fn after_power_cut<T>(&self, look: impl FnOnce(PathBuf) -> T) -> T {
            fs::copy(self.path("image"), self.path("image-then")).unwrap();
            self.mount("image-then", "then");
            let seen = look(self.path("then").into());
            run("umount", &[&self.path("then")]);
            seen
        }
    }

    impl Drop for Disk {
        fn drop(&mut self) {
            run("umount", &[&self.path("now")]);
        }
    }

    fn run(program: &str, args: &[&str]) {
        let output = std::process::Command::new(program).args(args).output().unwrap();
        assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    #[test]
    fn what_was_saved_survives_a_power_cut_and_what_was_removed_stays_removed() {
        for features in ["has_journal", "^has_journal"] {
            let disk = Disk::new(features);
            let store = ClaimStore::open(PathBuf::from(disk.path("now")).join("claims")).unwrap();
            let left = || disk.after_power_cut(|root| found(&ClaimStore::open(root.join("claims")).unwrap()));
            for uid in ["uid-1", "uid-2"] {
                store.turn().unwrap().save(&claim(uid)).unwrap().sync().unwrap();
                assert!(left().contains_key(uid), "{features}: {uid}");
            }
            assert_eq!(left(), prepared(&["uid-1", "uid-2"]), "{features}");
            store.turn().unwrap().remove(&"uid-1".parse().unwrap()).unwrap().sync().unwrap();
            assert_eq!(left(), prepared(&["uid-2"]), "{features}");

            // What isn't synced is lost indeed.
            fs::write(store.folder.join("uid-3.json"), encode(&claim("uid-3")).unwrap()).unwrap();
            let lost = left().remove("uid-3");
            assert!(!matches!(lost, Some(Entry::Prepared(_))), "{features}");
        }
    }
}
