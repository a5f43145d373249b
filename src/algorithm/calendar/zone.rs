//! When a date begins: in UTC, at an offset from it, or in a time zone with its rules for summer time.

#[cfg(feature = "time-zones")]
use std::{
    collections::BTreeMap,
    fmt,
    sync::{LazyLock, Mutex},
};

#[cfg(feature = "time-zones")]
use jiff::{Timestamp, civil, tz::TimeZone};

use super::{DAY, civil::Date};
#[cfg(feature = "time-zones")]
use crate::base::{Error, sync::lock};

/// What the dates of a calendar are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::algorithm) enum Zone {
    /// Microseconds ahead of UTC.
    Offset(i64),
    #[cfg(feature = "time-zones")]
    Named(&'static NamedZone),
}

impl Zone {
    #[cfg(test)]
    pub(super) const UTC: Self = Self::Offset(0);

    /// The local time at `now`, as microseconds since 1970-01-01 of that time.
    pub(super) fn local(self, now: i64) -> i64 {
        match self {
            Self::Offset(ahead) => now.saturating_add(ahead),
            #[cfg(feature = "time-zones")]
            Self::Named(zone) => now.saturating_add(zone.ahead(now)),
        }
    }

    /// The first moment of `date`. If the zone skipped it, of the date after it.
    pub(super) fn start_of(self, date: Date) -> i64 {
        match self {
            Self::Offset(ahead) => date.days() * DAY - ahead,
            #[cfg(feature = "time-zones")]
            Self::Named(zone) => zone.start_of(date),
        }
    }

    /// A number that two zones share if they are the same, and others only by chance.
    pub(super) fn hash(self) -> u64 {
        match self {
            Self::Offset(ahead) => fnv(&ahead.to_le_bytes()),
            #[cfg(feature = "time-zones")]
            Self::Named(zone) => fnv(zone.name.as_bytes()),
        }
    }
}

/// The hash FNV-1a, the same in each instance. Its high bits are mixed into the low ones, which are used.
fn fnv(bytes: &[u8]) -> u64 {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix);
    hash ^ hash >> 37
}

/// A time zone of the IANA database.
#[cfg(feature = "time-zones")]
#[derive(PartialEq, Eq)]
pub(in crate::algorithm) struct NamedZone {
    /// The name as the database writes it.
    name: String,
    zone: TimeZone,
}

/// The name.
#[cfg(feature = "time-zones")]
impl fmt::Debug for NamedZone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

#[cfg(feature = "time-zones")]
impl NamedZone {
    /// The zone `name`, from the system's database, or from the one that is compiled in if the system has
    /// none. It lives as long as the process: there are few zones, and each is kept once.
    pub(in crate::algorithm) fn find(name: &str) -> Result<&'static Self, Error> {
        static KNOWN: LazyLock<Mutex<BTreeMap<String, &'static NamedZone>>> = LazyLock::new(Mutex::default);
        let zone = TimeZone::get(name).map_err(|_| {
            invalid!("unknown time zone `{name}`: write a name of the IANA database, such as `Europe/Berlin`")
        })?;
        // A zone that was found by its name has one.
        let name = zone.iana_name().unwrap_or(name).to_owned();
        let mut known = lock(&KNOWN);
        if let Some(known) = known.get(&name) {
            return Ok(known);
        }
        let found: &'static Self = Box::leak(Box::new(Self { name: name.clone(), zone }));
        known.insert(name, found);
        Ok(found)
    }

    /// How many microseconds the zone is ahead of UTC at `now`.
    fn ahead(&self, now: i64) -> i64 {
        let now = Timestamp::from_microsecond(now).unwrap_or(Timestamp::MAX);
        i64::from(self.zone.to_offset(now).seconds()) * 1_000_000
    }

    fn start_of(&self, date: Date) -> i64 {
        let start = || {
            let date = civil::Date::new(
                i16::try_from(date.year).ok()?,
                date.month.cast_signed(),
                date.day.cast_signed(),
            );
            Some(
                date.ok()?
                    .to_zoned(self.zone.clone())
                    .ok()?
                    .start_of_day()
                    .ok()?
                    .timestamp()
                    .as_microsecond(),
            )
        };
        // A store has no times outside of the years that jiff has.
        start().unwrap_or_else(|| date.days() * DAY)
    }
}
