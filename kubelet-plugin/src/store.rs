//! What is prepared on this node, as it must survive a restart: one small file per claim.
//!
//! ```text
//! {"format":"aliquot-claim","version":1,"sha256":"…"}     a line about the rest, so that any version can tell damage from news
//! {"bootId":…,"uid":…,"namespace":…,"name":…,"devices":[…]}
//! ```
//!
//! The checksum is of the bytes as they stand, after the format and version: not of what they mean, so a later version may add fields,
//! which this one ignores. The version rises only when an older reader would be wrong. A damaged file harms its own claim alone.

use std::path::{Path, PathBuf};

use aliquot_api::ids::ClaimUid;
use aliquot_device::prepare::PlannedDevice;
use serde::{Deserialize, Serialize};

use crate::files::{self, Durability, FileError};
use crate::hash::sha256;

const FORMAT: &str = "aliquot-claim";

/// The newest version that this program reads, and the one that it writes.
const VERSION: u32 = 1;

/// A claim whose devices are prepared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PreparedClaim {
    /// Which boot of the machine: after another one, nothing of this is left.
    pub boot_id: String,
    /// The claim.
    pub uid: ClaimUid,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What it got.
    pub devices: Vec<PlannedDevice>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    format: String,
    version: u32,
    sha256: String,
}

/// A claim's file can't be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// The file system failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// It isn't what was written.
    #[error("{}: damaged: {reason}", .path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A newer program wrote it.
    #[error("{}: written in version {found}, this program reads up to {VERSION}", .path.display())]
    TooNew {
        /// Which file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
}

/// The folder of the claims' files.
#[derive(Debug)]
pub(crate) struct ClaimStore {
    folder: PathBuf,
}

impl ClaimStore {
    /// Opens the store, creating its folder.
    pub(crate) fn open(folder: PathBuf) -> Result<Self, FileError> {
        files::create_folder(&folder)?;
        Ok(Self { folder })
    }

    /// All claims, and the files that are none (any more).
    pub(crate) fn load(&self) -> Result<(Vec<PreparedClaim>, Vec<StoreError>), FileError> {
        let (mut claims, mut damaged) = (Vec::new(), Vec::new());
        for name in files::list(&self.folder)? {
            let path = self.folder.join(&name);
            let Some(uid) = name.strip_suffix(".json").and_then(|uid| uid.parse::<ClaimUid>().ok()) else {
                // What a write left that was cut off.
                if name.starts_with('.') {
                    files::remove(&path, Durability::UntilReboot)?;
                }
                continue;
            };
            match read(&path, &uid) {
                Ok(Some(claim)) => claims.push(claim),
                Ok(None) => {}
                Err(error) => damaged.push(error),
            }
        }
        Ok((claims, damaged))
    }

    /// Records a claim. It is on the disk when this returns.
    pub(crate) fn save(&self, claim: &PreparedClaim) -> Result<(), StoreError> {
        let path = self.path(&claim.uid);
        let unwritable =
            |error: serde_json::Error| StoreError::Damaged { path: path.clone(), reason: error.to_string() };
        let body = serde_json::to_vec(claim).map_err(unwritable)?;
        let header = Header { format: FORMAT.to_owned(), version: VERSION, sha256: checksum(VERSION, &body) };
        let mut content = serde_json::to_vec(&header).map_err(unwritable)?;
        content.push(b'\n');
        content.extend(body);
        Ok(files::replace(&path, &content, 0o600, Durability::OnDisk)?)
    }

    /// Forgets a claim.
    pub(crate) fn remove(&self, uid: &ClaimUid) -> Result<(), FileError> {
        files::remove(&self.path(uid), Durability::OnDisk).map(|_| ())
    }

    fn path(&self, uid: &ClaimUid) -> PathBuf {
        self.folder.join(format!("{uid}.json"))
    }
}

fn read(path: &Path, uid: &ClaimUid) -> Result<Option<PreparedClaim>, StoreError> {
    let Some(content) = files::read(path)? else { return Ok(None) };
    let damaged = |reason: String| StoreError::Damaged { path: path.to_owned(), reason };
    let end = content.iter().position(|byte| *byte == b'\n').ok_or_else(|| damaged("it has no header".to_owned()))?;
    let (header, body) = (&content[..end], &content[end + 1..]);
    let header: Header = serde_json::from_slice(header).map_err(|error| damaged(format!("header: {error}")))?;
    if header.format != FORMAT {
        return Err(damaged(format!("its format is {:?}", header.format)));
    }
    if header.version > VERSION {
        return Err(StoreError::TooNew { path: path.to_owned(), found: header.version });
    }
    if header.sha256 != checksum(header.version, body) {
        return Err(damaged("the checksum doesn't match".to_owned()));
    }
    let claim: PreparedClaim = serde_json::from_slice(body).map_err(|error| damaged(error.to_string()))?;
    if claim.uid != *uid {
        return Err(damaged(format!("it is about claim {}", claim.uid)));
    }
    Ok(Some(claim))
}

fn checksum(version: u32, body: &[u8]) -> String {
    sha256(&[format!("{FORMAT} {version}\n").as_bytes(), body].concat())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn claim(uid: &str) -> PreparedClaim {
        PreparedClaim {
            boot_id: "boot-1".to_owned(),
            uid: uid.parse().unwrap(),
            namespace: "default".to_owned(),
            name: "train-gpu-x7k2p".to_owned(),
            devices: vec![PlannedDevice {
                request: "gpu".to_owned(),
                device: "gpu-3".parse().unwrap(),
                uuid: "GPU-a".parse().unwrap(),
                pci: "0000:1b:00.0".parse().unwrap(),
                minor: 3,
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

    #[test]
    fn the_format_is_this() {
        let (_folder, store) = store();
        store.save(&claim("uid-1")).unwrap();
        let text = fs::read_to_string(store.folder.join("uid-1.json")).unwrap();
        let expected = concat!(
            r#"{"format":"aliquot-claim","version":1,"sha256":"1a8c5b58b0c3ba0b5f9e3ba7e4d2b4d7"#,
            "\n",
            r#"{"bootId":"boot-1","uid":"uid-1","namespace":"default","name":"train-gpu-x7k2p","devices":"#,
            r#"[{"request":"gpu","device":"gpu-3","uuid":"GPU-a","pci":"0000:1b:00.0","minor":3}]}"#,
        );
        let without_sum = |text: &str| {
            let (head, body) = text.split_once('\n').map(|(head, body)| (head.to_owned(), body.to_owned())).unwrap();
            (head.split("\"sha256\"").next().unwrap().to_owned(), body)
        };
        assert_eq!(without_sum(&text), without_sum(expected));
    }

    #[test]
    fn what_was_saved_is_loaded_until_removed() {
        let (_folder, store) = store();
        for uid in ["uid-2", "uid-1"] {
            store.save(&claim(uid)).unwrap();
        }
        assert_eq!(store.load().unwrap().0, [claim("uid-1"), claim("uid-2")]);
        store.remove(&"uid-1".parse().unwrap()).unwrap();
        store.remove(&"uid-1".parse().unwrap()).unwrap();
        assert_eq!(store.load().unwrap().0, [claim("uid-2")]);
    }

    #[test]
    fn a_file_cut_off_or_changed_at_any_byte_harms_only_its_claim() {
        let (_folder, store) = store();
        store.save(&claim("good")).unwrap();
        store.save(&claim("bad")).unwrap();
        let path = store.folder.join("bad.json");
        let whole = fs::read(&path).unwrap();
        let cuts = (0..whole.len()).map(|length| whole[..length].to_vec());
        let flips = (0..whole.len()).map(|at| {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            bytes
        });
        for bytes in cuts.chain(flips) {
            fs::write(&path, &bytes).unwrap();
            let (claims, damaged) = store.load().unwrap();
            assert_eq!(claims, [claim("good")], "{}", String::from_utf8_lossy(&bytes));
            assert_eq!(damaged.len(), 1);
            assert!(damaged[0].to_string().contains("bad.json"), "{}", damaged[0]);
        }
    }

    #[test]
    fn a_later_minor_change_is_read_and_a_later_version_is_told() {
        let (_folder, store) = store();
        let body = serde_json::to_string(&claim("uid-1")).unwrap().replacen('{', r#"{"later":true,"#, 1);
        let write = |version| {
            let sum = checksum(version, body.as_bytes());
            let header = format!(r#"{{"format":"aliquot-claim","version":{version},"sha256":"{sum}","later":1}}"#);
            fs::write(store.folder.join("uid-1.json"), format!("{header}\n{body}")).unwrap();
        };
        write(1);
        assert_eq!(store.load().unwrap().0, [claim("uid-1")]);
        write(2);
        let (claims, errors) = store.load().unwrap();
        assert_eq!(claims, []);
        assert!(errors[0].to_string().ends_with("written in version 2, this program reads up to 1"), "{}", errors[0]);
    }

    #[test]
    fn leftovers_of_a_cut_off_write_are_cleaned_away() {
        let (_folder, store) = store();
        fs::write(store.folder.join(".uid-1.json.new"), "{").unwrap();
        assert_eq!(store.load().unwrap().0, []);
        assert_eq!(files::list(&store.folder).unwrap(), Vec::<String>::new());
    }
}
