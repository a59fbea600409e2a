//! Ids, each parsed once.

use std::fmt;
use std::str::FromStr;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Why a text is no such id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// Too long, or empty.
    #[error("{what} {value:?} has {length} characters, 1 to {max} are allowed")]
    Length {
        /// What it should have been.
        what: &'static str,
        /// The text.
        value: String,
        /// Its length in bytes.
        length: usize,
        /// The longest allowed.
        max: usize,
    },
    /// Has another form.
    #[error("{what} {value:?} is not {form}")]
    Form {
        /// What it should have been.
        what: &'static str,
        /// The text.
        value: String,
        /// The form in words.
        form: &'static str,
    },
}

fn check_length(what: &'static str, value: &str, max: usize) -> Result<(), IdError> {
    if value.is_empty() || value.len() > max {
        return Err(IdError::Length { what, value: value.to_owned(), length: value.len(), max });
    }
    Ok(())
}

/// A DNS label of at most 63 characters.
fn is_label(text: &str) -> bool {
    let inside = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && bytes.first().is_some_and(|c| inside(*c))
        && bytes.last().is_some_and(|c| inside(*c))
        && bytes.iter().all(|c| inside(*c) || *c == b'-')
}

/// An object in a namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl fmt::Display for ObjectName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.namespace, self.name)
    }
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $what:literal, $max:literal, $form:literal, $check:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(value: &str) -> Result<Self, IdError> {
                check_length($what, value, $max)?;
                let right: fn(&str) -> bool = $check;
                if !right(value) {
                    return Err(IdError::Form { what: $what, value: value.to_owned(), form: $form });
                }
                Ok(Self(value.to_owned()))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(&self.0)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
            }
        }
    };
}

text_id!(
    /// The UID of a claim. It is part of file names and CDI device names, so it holds nothing that a path could mean.
    ClaimUid,
    "claim UID",
    63,
    "made of letters, digits and '-'",
    |value| value.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-')
);

text_id!(
    /// A driver's name: a DNS subdomain of at most 63 characters.
    DriverName,
    "driver name",
    63,
    "a DNS subdomain, such as gpu.aliquot.dev",
    |value| value.split('.').all(is_label)
);

text_id!(
    /// The name of a device in its pool: a DNS label.
    DeviceName,
    "device name",
    63,
    "a DNS label, such as gpu-0",
    is_label
);

text_id!(
    /// The name of a pool: DNS subdomains, separated by `/`.
    PoolName,
    "pool name",
    253,
    "one or more DNS subdomains separated by '/'",
    |value| value.split('/').all(|part| part.split('.').all(is_label))
);

text_id!(
    /// A GPU's UUID as the driver prints it, `GPU-` and 36 characters.
    GpuUuid,
    "GPU UUID",
    80,
    "made of letters, digits and '-'",
    |value| value.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-')
);

/// The address of a PCI function. Prints as sysfs does: `0000:1b:00.0`. Ordered as the bus is walked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// Segment group; 16 bits on most machines, 32 behind some bridges.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device, 0 to 31.
    pub device: u8,
    /// Function, 0 to 7.
    pub function: u8,
}

impl FromStr for PciAddress {
    type Err = IdError;

    /// Reads sysfs's spelling and NVML's, which has a domain of eight digits and capitals.
    fn from_str(value: &str) -> Result<Self, IdError> {
        let parse = || {
            let (rest, function) = value.rsplit_once('.')?;
            let mut parts = rest.split(':');
            let (domain, bus, device) = (parts.next()?, parts.next()?, parts.next()?);
            let hex = |text: &str, digits: std::ops::RangeInclusive<usize>| {
                (digits.contains(&text.len()) && text.bytes().all(|c| c.is_ascii_hexdigit()))
                    .then(|| u32::from_str_radix(text, 16).ok())
                    .flatten()
            };
            let address = Self {
                domain: hex(domain, 4..=8)?,
                bus: u8::try_from(hex(bus, 2..=2)?).ok()?,
                device: u8::try_from(hex(device, 2..=2)?).ok()?,
                function: u8::try_from(hex(function, 1..=1)?).ok()?,
            };
            (parts.next().is_none() && address.device < 32 && address.function < 8).then_some(address)
        };
        parse().ok_or_else(|| IdError::Form {
            what: "PCI address",
            value: value.to_owned(),
            form: "domain:bus:device.function, such as 0000:1b:00.0",
        })
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

impl Serialize for PciAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PciAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FromText;

        // YAML names the path of a field only in errors of its visitor.
        impl Visitor<'_> for FromText {
            type Value = PciAddress;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a PCI address")
            }

            fn visit_str<E: Error>(self, value: &str) -> Result<PciAddress, E> {
                value.parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_str(FromText)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pci_address_reads_both_spellings_and_prints_sysfs() {
        for text in ["0000:1b:00.0", "00000000:1B:00.0"] {
            assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), "0000:1b:00.0");
        }
        assert_eq!("10000:01:1f.7".parse::<PciAddress>().unwrap().to_string(), "10000:01:1f.7");
        for wrong in ["", "1b:00.0", "0000:1b:00", "0000:1b:20.0", "0000:1b:00.8", "0000:+b:00.0", "0000:1b:00:00.0"] {
            assert!(wrong.parse::<PciAddress>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn pci_addresses_sort_as_the_bus_is_walked() {
        let mut addresses: Vec<PciAddress> = ["0001:00:00.0", "0000:ff:00.0", "0000:1b:00.1", "0000:1b:00.0"]
            .iter()
            .map(|a| a.parse().unwrap())
            .collect();
        addresses.sort();
        let sorted: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        assert_eq!(sorted, ["0000:1b:00.0", "0000:1b:00.1", "0000:ff:00.0", "0001:00:00.0"]);
    }

    #[test]
    fn an_id_holds_nothing_that_a_path_could_mean() {
        for wrong in ["", "../etc", "a/b", "a\0b", ".", "a.b", &"x".repeat(64)] {
            let error = wrong.parse::<ClaimUid>().unwrap_err().to_string();
            assert!(error.starts_with("claim UID"), "{error}");
        }
        assert!("7d1c6f0e-6f0a-4c39-9a3e-0f2c5a5f9d11".parse::<ClaimUid>().is_ok());
        for wrong in ["", "Gpu.aliquot.dev", "gpu..dev", "-gpu.dev", "gpu/dev", &"x".repeat(64)] {
            assert!(wrong.parse::<DriverName>().is_err(), "{wrong}");
        }
        assert!("node-0.example.com/rack-1".parse::<PoolName>().is_ok());
        assert!("node-0//x".parse::<PoolName>().is_err());
    }
}
