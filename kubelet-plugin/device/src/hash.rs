//! SHA-256 as text, for names that are too long and files that may be damaged.

use std::fmt::Write;

use sha2::{Digest, Sha256};

/// The hash in 64 hexadecimal digits.
pub fn sha256(content: &[u8]) -> String {
    Sha256::digest(content).iter().fold(String::new(), |mut text, byte| {
        // Writing to a String can't fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
