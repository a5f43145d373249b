//! The entry `quota`.

use serde::{Deserialize, Deserializer};
#[cfg(not(feature = "time-zones"))]
use tower_ratelimit::ErrorKind;
use tower_ratelimit::{
    Error, Quota,
    algorithm::{FixedWindow, Weekday},
};

use super::{
    algorithm::UtcOffset,
    table::{Table, deserialize_text},
};

/// A quota, and the calendar windows that count it, if it is a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct QuotaEntry {
    pub(super) quota: Quota,
    pub(super) windows: Option<FixedWindow>,
}

/// A limit per calendar period.
#[derive(Debug, Deserialize)]
#[serde(rename = "a quota", deny_unknown_fields)]
struct QuotaTable {
    limit: u64,
    per: String,
    #[serde(default, deserialize_with = "weekday")]
    from_weekday: Option<Weekday>,
    from_day: Option<u8>,
    from_month: Option<u8>,
    zone: Option<String>,
    utc_offset: Option<UtcOffset>,
}

fn weekday<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Weekday>, D::Error> {
    deserialize_text(deserializer, "a weekday such as \"monday\"").map(Some)
}

impl QuotaTable {
    fn entry(self) -> Result<QuotaEntry, Error> {
        let quota: Quota = format!("{}/{}", self.limit, self.per).parse()?;
        let mut windows = self.utc_offset.map_or(FixedWindow::aligned(), |UtcOffset(windows)| windows);
        if let Some(day) = self.from_weekday {
            windows = windows.from_weekday(day);
        }
        if let Some(day) = self.from_day {
            windows = windows.from_day(day);
        }
        if let Some(month) = self.from_month {
            windows = windows.from_month(month);
        }
        if let Some(zone) = self.zone {
            windows = in_zone(windows, &zone)?;
        }
        Ok(QuotaEntry { quota, windows: Some(windows) })
    }
}

#[cfg(feature = "time-zones")]
fn in_zone(windows: FixedWindow, zone: &str) -> Result<FixedWindow, Error> {
    windows.try_time_zone(zone)
}

#[cfg(not(feature = "time-zones"))]
fn in_zone(_: FixedWindow, zone: &str) -> Result<FixedWindow, Error> {
    let message = format!("the time zone `{zone}` needs the feature `time-zones`; an offset is `utc_offset`");
    Err(Error::new(ErrorKind::InvalidConfig, message))
}

impl Table for QuotaEntry {
    const EXPECTED: &'static str = "a quota such as \"100/min\" or \"10/s burst 20\", or a table with its `limit` and the calendar period `per`";

    fn of_text<E: serde::de::Error>(text: &str) -> Result<Self, E> {
        let quota = text.parse().map_err(E::custom)?;
        Ok(Self { quota, windows: None })
    }
}

impl<'de> Deserialize<'de> for QuotaEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        QuotaTable::deserialize(deserializer)?.entry().map_err(serde::de::Error::custom)
    }
}
