//! Identities that no file needs to write down.

use aliquot_api::ids::PciAddress;

use crate::GpuUuid;

const FNV_OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
const FNV_PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;

/// FNV-1a, then a multiply and a fold, because FNV alone leaves the top bits of similar texts alike.
fn hash(node: &str, address: PciAddress) -> u128 {
    let text = format!("{node}/{address}");
    let hash = text.bytes().fold(FNV_OFFSET, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(FNV_PRIME));
    let spread = (hash ^ (hash >> 64)).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    spread ^ (spread >> 71)
}

pub(crate) fn uuid(node: &str, address: PciAddress) -> GpuUuid {
    let mut bytes = hash(node, address).to_be_bytes();
    // Version 8, "custom", of RFC 9562.
    bytes[6] = bytes[6] & 0x0f | 0x80;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    GpuUuid(bytes)
}

/// Thirteen digits, as data centre GPUs have.
pub(crate) fn serial(node: &str, address: PciAddress) -> String {
    format!("165{:010}", hash(node, address) % 10_000_000_000)
}
