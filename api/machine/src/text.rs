//! Values that are written as text and checked where they are read.

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};

/// A text that isn't what it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed {
    /// The text.
    pub text: String,
    /// What was expected.
    pub expected: &'static str,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not {}", self.text, self.expected)
    }
}

impl std::error::Error for Malformed {}

/// Makes a type readable from text; it has a `fn read(&str) -> Option<Self>`.
macro_rules! read_from_text {
    ($type:ty, $expected:literal) => {
        impl FromStr for $type {
            type Err = Malformed;

            fn from_str(text: &str) -> Result<Self, Malformed> {
                Self::read(text).ok_or_else(|| Malformed { text: text.to_owned(), expected: $expected })
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct FromText;

                impl Visitor<'_> for FromText {
                    type Value = $type;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expected)
                    }

                    fn visit_str<E: Error>(self, text: &str) -> Result<$type, E> {
                        <$type>::read(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
                    }
                }

                deserializer.deserialize_str(FromText)
            }
        }
    };
}

/// Exactly `digits` hexadecimal digits.
fn hex(text: &str, digits: usize) -> Option<u32> {
    (text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit()))
        .then(|| u32::from_str_radix(text, 16).ok())?
}

fn hex_byte(text: &str, digits: usize) -> Option<u8> {
    hex(text, digits)?.try_into().ok()
}

fn decimal(text: &str) -> Option<u32> {
    // `parse` would take a sign.
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// A PCIe root complex, under the name that Linux gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "PCI's own terms")]
pub struct PcieRoot {
    pub domain: u32,
    pub bus: u8,
}

impl PcieRoot {
    fn read(text: &str) -> Option<Self> {
        let (domain, bus) = text.strip_prefix("pci")?.split_once(':')?;
        Some(Self { domain: hex(domain, 4).or_else(|| hex(domain, 8))?, bus: hex_byte(bus, 2)? })
    }
}

impl fmt::Display for PcieRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pci{:04x}:{:02x}", self.domain, self.bus)
    }
}

read_from_text!(PcieRoot, "a PCIe root such as \"pci0000:17\"");

/// Thirty-two hexadecimal digits in five groups.
fn uuid(text: &str) -> Option<[u8; 16]> {
    let groups = text.split('-').collect::<Vec<_>>();
    let digits = groups.concat();
    if !groups.iter().map(|group| group.len()).eq(UUID_GROUPS) || !digits.is_ascii() {
        return None;
    }
    let mut bytes = [0; 16];
    for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
        *byte = hex_byte(digits.get(at..at + 2)?, 2)?;
    }
    Some(bytes)
}

const UUID_GROUPS: [usize; 5] = [8, 4, 4, 4, 12];

/// The UUID of an NVLink fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClusterUuid([u8; 16]);

impl ClusterUuid {
    /// The UUID as NVML has it.
    pub fn bytes(self) -> [u8; 16] {
        self.0
    }

    fn read(text: &str) -> Option<Self> {
        uuid(text).map(Self)
    }
}

read_from_text!(ClusterUuid, "a UUID such as \"01234567-89ab-cdef-0123-456789abcdef\"");

/// A GPU's UUID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct GpuUuid(pub(crate) [u8; 16]);

impl GpuUuid {
    fn read(text: &str) -> Option<Self> {
        uuid(text.strip_prefix("GPU-")?).map(Self)
    }
}

impl fmt::Display for GpuUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU")?;
        let mut bytes = self.0.iter();
        for digits in UUID_GROUPS {
            f.write_str("-")?;
            for byte in bytes.by_ref().take(digits / 2) {
                write!(f, "{byte:02x}")?;
            }
        }
        Ok(())
    }
}

read_from_text!(GpuUuid, "a GPU's UUID such as \"GPU-01234567-89ab-cdef-0123-456789abcdef\"");

/// A version of the GPU driver. It is part of the names of the driver's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverVersion(String);

impl DriverVersion {
    fn read(text: &str) -> Option<Self> {
        let parts = text.split('.').collect::<Vec<_>>();
        let numbers = parts.iter().all(|part| decimal(part).is_some());
        (numbers && (2..=3).contains(&parts.len())).then(|| Self(text.to_owned()))
    }
}

impl fmt::Display for DriverVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

read_from_text!(DriverVersion, "a driver's version such as \"580.95.05\"");

/// A version of two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the name of the type says it")]
pub struct MajorMinor {
    pub major: u16,
    pub minor: u16,
}

impl MajorMinor {
    fn read(text: &str) -> Option<Self> {
        let (major, minor) = text.split_once('.')?;
        Some(Self { major: decimal(major)?.try_into().ok()?, minor: decimal(minor)?.try_into().ok()? })
    }
}

impl fmt::Display for MajorMinor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

read_from_text!(MajorMinor, "a version of two numbers such as \"9.0\"");

/// An amount of memory: mebibytes, as NVIDIA's tools print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemorySize {
    mebibytes: u32,
}

impl MemorySize {
    /// How many bytes that is.
    pub fn bytes(self) -> u64 {
        u64::from(self.mebibytes) << 20
    }

    fn read(text: &str) -> Option<Self> {
        let mebibytes = match text.strip_suffix("Gi") {
            Some(number) => decimal(number)?.checked_mul(1024)?,
            None => decimal(text.strip_suffix("Mi")?)?,
        };
        Some(Self { mebibytes })
    }
}

impl fmt::Display for MemorySize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mebibytes {
            gibibytes if gibibytes.is_multiple_of(1024) => write!(f, "{}Gi", gibibytes / 1024),
            mebibytes => write!(f, "{mebibytes}Mi"),
        }
    }
}

read_from_text!(MemorySize, "an amount of memory such as \"81559Mi\" or \"24Gi\"");

/// A folder for libraries, below `/usr`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LibraryDir(String);

impl LibraryDir {
    /// The same without the leading slash, to be put behind another folder.
    pub fn below_root(&self) -> &str {
        self.0.trim_start_matches('/')
    }

    fn read(text: &str) -> Option<Self> {
        let folders = text.strip_prefix("/usr/")?;
        let sound = folders.split('/').all(|folder| !matches!(folder, "" | "." | ".."));
        sound.then(|| Self(text.to_owned()))
    }
}

impl Default for LibraryDir {
    /// Debian's.
    fn default() -> Self {
        Self("/usr/lib/x86_64-linux-gnu".to_owned())
    }
}

impl fmt::Display for LibraryDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

read_from_text!(LibraryDir, "a folder below /usr such as \"/usr/lib64\"");

#[cfg(test)]
mod tests {
    use super::*;

    fn same<T: FromStr<Err = Malformed> + fmt::Display>(text: &str) {
        assert_eq!(text.parse::<T>().unwrap().to_string(), text);
    }

    fn refused<T: FromStr<Err = Malformed> + fmt::Debug>(texts: &[&str]) {
        for text in texts {
            assert_eq!(text.parse::<T>().unwrap_err().text, *text);
        }
    }

    #[test]
    fn what_is_written_is_what_was_read() {
        same::<PcieRoot>("pci0000:17");
        same::<GpuUuid>("GPU-01234567-89ab-cdef-0123-456789abcdef");
        same::<DriverVersion>("580.95.05");
        same::<MajorMinor>("12.1");
        same::<MemorySize>("81559Mi");
        same::<MemorySize>("24Gi");
        same::<LibraryDir>("/usr/lib64");
    }

    #[test]
    fn what_is_malformed_is_refused() {
        refused::<PcieRoot>(&["0000:17", "pci0000", "pci0000:1", "pci0000:zz"]);
        refused::<GpuUuid>(&[
            "01234567-89ab-cdef-0123-456789abcdef",
            "GPU-0123456789abcdef0123456789abcdef",
            "GPU-01234567-89ab-cdef-0123-456789abcdeg",
            "GPU-0123456é-89ab-cdef-0123-456789abcde",
        ]);
        refused::<DriverVersion>(&["580", "580.", "580.95.05.1", "580.9x", "../580.1"]);
        refused::<MajorMinor>(&["9", "9.", "9.x", "9.0.1", "+9.0", "9.65536"]);
        refused::<MemorySize>(&["81559", "80GB", "Mi", "-1Mi", "4194304Gi"]);
        refused::<LibraryDir>(&["/usr", "/usr/", "/lib64", "usr/lib", "/usr/lib/../../etc", "/usr//lib"]);
    }
}
