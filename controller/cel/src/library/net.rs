//! IP addresses and networks.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use super::strings::text;
use super::{rewrite, scan, size, tenth};
use crate::error::EvaluationError;
use crate::functions::Cost::{Better, Name, One};
use crate::functions::Row;
use crate::functions::Style::{Global, Member};
use crate::value::{Opaque, Other, Value};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ip(IpAddr);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cidr {
    ip: IpAddr,
    bits: u8,
}

pub(crate) const ROWS: &[Row] = &[
    Row("ip", Global, "string -> ip", Name(scan), |args| Ok(ip_value(parsed_ip(args, 0)?))),
    Row("isIP", Global, "string -> bool", Name(scan), |args| Ok(Value::Bool(parse_ip(text(args, 0)?).is_some()))),
    Row("ip.isCanonical", Global, "string -> bool", Name(rewrite), |args| {
        Ok(Value::Bool(parsed_ip(args, 0)?.to_string() == **text(args, 0)?))
    }),
    Row("family", Member, "ip -> int", One, |args| Ok(Value::Int(if ip(args, 0)?.is_ipv4() { 4 } else { 6 }))),
    Row("isUnspecified", Member, "ip -> bool", One, |args| Ok(Value::Bool(ip(args, 0)?.is_unspecified()))),
    Row("isLoopback", Member, "ip -> bool", One, |args| Ok(Value::Bool(ip(args, 0)?.is_loopback()))),
    Row("isLinkLocalMulticast", Member, "ip -> bool", One, |args| {
        Ok(Value::Bool(match ip(args, 0)? {
            IpAddr::V4(ip) => ip.octets()[..3] == [224, 0, 0],
            IpAddr::V6(ip) => ip.segments()[0] & 0xff0f == 0xff02,
        }))
    }),
    Row("isLinkLocalUnicast", Member, "ip -> bool", One, |args| Ok(Value::Bool(is_link_local(ip(args, 0)?)))),
    Row("isGlobalUnicast", Member, "ip -> bool", One, |args| {
        let ip = ip(args, 0)?;
        let is_special = ip == IpAddr::V4(Ipv4Addr::BROADCAST) || ip.is_unspecified() || ip.is_loopback();
        Ok(Value::Bool(!is_special && !ip.is_multicast() && !is_link_local(ip)))
    }),
    Row("cidr", Global, "string -> cidr", Name(scan), |args| Ok(cidr_value(parsed_cidr(args, 0)?))),
    Row("isCIDR", Global, "string -> bool", Name(scan), |args| Ok(Value::Bool(parse_cidr(text(args, 0)?).is_some()))),
    Row("containsIP", Member, "cidr string -> bool", Better(ip_cost, ip_text_cost), |args| {
        Ok(Value::Bool(cidr(args)?.contains(parsed_ip(args, 1)?)))
    }),
    Row("containsIP", Member, "cidr ip -> bool", Name(ip_cost), |args| {
        Ok(Value::Bool(cidr(args)?.contains(ip(args, 1)?)))
    }),
    Row("containsCIDR", Member, "cidr string -> bool", Better(cidr_cost, cidr_text_cost), |args| {
        Ok(Value::Bool(cidr(args)?.contains_cidr(parsed_cidr(args, 1)?)))
    }),
    Row("containsCIDR", Member, "cidr cidr -> bool", Name(cidr_cost), |args| match &args[1] {
        Value::Other(Other(Opaque::Cidr(other))) => Ok(Value::Bool(cidr(args)?.contains_cidr(*other))),
        _ => Err(EvaluationError::NO_OVERLOAD),
    }),
    Row("ip", Member, "cidr -> ip", One, |args| Ok(ip_value(cidr(args)?.ip))),
    Row("prefixLength", Member, "cidr -> int", One, |args| Ok(Value::Int(cidr(args)?.bits.into()))),
    Row("masked", Member, "cidr -> cidr", One, |args| Ok(cidr_value(cidr(args)?.masked()))),
];

fn ip_cost(args: &[Value], _: &Value) -> u64 {
    tenth(size(args, 0) * 2)
}

fn cidr_cost(args: &[Value], result: &Value) -> u64 {
    ip_cost(args, result) + tenth(size(args, 0)) + 1
}

/// The text is read, too.
fn ip_text_cost(args: &[Value], result: &Value) -> u64 {
    ip_cost(args, result) + tenth(size(args, 1))
}

fn cidr_text_cost(args: &[Value], result: &Value) -> u64 {
    cidr_cost(args, result) + tenth(size(args, 1))
}

fn ip_value(ip: IpAddr) -> Value {
    Value::Other(Other(Opaque::Ip(Ip(ip))))
}

fn cidr_value(cidr: Cidr) -> Value {
    Value::Other(Other(Opaque::Cidr(cidr)))
}

fn ip(args: &[Value], at: usize) -> Result<IpAddr, EvaluationError> {
    match args.get(at) {
        Some(Value::Other(Other(Opaque::Ip(ip)))) => Ok(ip.0),
        _ => Err(EvaluationError::NO_OVERLOAD),
    }
}

fn cidr(args: &[Value]) -> Result<Cidr, EvaluationError> {
    match args.first() {
        Some(Value::Other(Other(Opaque::Cidr(cidr)))) => Ok(*cidr),
        _ => Err(EvaluationError::NO_OVERLOAD),
    }
}

fn parsed_ip(args: &[Value], at: usize) -> Result<IpAddr, EvaluationError> {
    parse_ip(text(args, at)?).ok_or(EvaluationError::fixed("this is no IP address"))
}

fn parsed_cidr(args: &[Value], at: usize) -> Result<Cidr, EvaluationError> {
    parse_cidr(text(args, at)?).ok_or(EvaluationError::fixed("this is no network"))
}

/// No zones, and no IPv4 addresses in IPv6.
fn parse_ip(text: &str) -> Option<IpAddr> {
    let ip: IpAddr = text.parse().ok()?;
    (!matches!(ip, IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some())).then_some(ip)
}

fn parse_cidr(text: &str) -> Option<Cidr> {
    let (ip, bits) = text.rsplit_once('/')?;
    let ip = parse_ip(ip)?;
    if (bits.len() > 1 && bits.starts_with('0')) || !bits.bytes().all(|c| c.is_ascii_digit()) {
        return None;
    }
    let bits: u8 = bits.parse().ok()?;
    (bits <= width(ip)).then_some(Cidr { ip, bits })
}

fn width(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.segments()[0] & 0xffc0 == 0xfe80,
    }
}

impl Ip {
    pub(crate) fn size(self) -> usize {
        usize::from(width(self.0) / 8)
    }
}

impl Cidr {
    pub(crate) fn size(self) -> usize {
        usize::from(self.bits.div_ceil(8))
    }

    fn masked(self) -> Self {
        let mask = |width: u32| u128::MAX.checked_shl(width - u32::from(self.bits)).unwrap_or(0);
        let ip = match self.ip {
            #[allow(clippy::cast_possible_truncation)]
            IpAddr::V4(ip) => IpAddr::V4((ip.to_bits() & mask(32) as u32).into()),
            IpAddr::V6(ip) => IpAddr::V6((ip.to_bits() & mask(128)).into()),
        };
        Self { ip, bits: self.bits }
    }

    fn contains(self, ip: IpAddr) -> bool {
        self.ip.is_ipv4() == ip.is_ipv4() && Self { ip, bits: self.bits }.masked() == self.masked()
    }

    fn contains_cidr(self, other: Self) -> bool {
        self.bits <= other.bits && self.contains(other.ip)
    }
}

impl fmt::Display for Ip {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.ip, self.bits)
    }
}
