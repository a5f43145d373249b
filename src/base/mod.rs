//! What every other part uses: errors, quotas, results that may come later, time, locks.

mod answer;
#[cfg(feature = "redis")]
mod boxed;
mod error;
mod hidden;
mod outage;
pub(crate) mod panics;
mod quota;
pub(crate) mod random;
#[cfg(feature = "serde")]
pub(crate) mod serde_text;
pub(crate) mod sync;
pub(crate) mod time;
mod under_way;
pub(crate) mod watched;

#[cfg(feature = "serde")]
pub(crate) use self::serde_text::{from_text, from_text_or_number, to_text};
pub use self::{
    answer::Answer,
    error::{Error, ErrorKind},
    hidden::is_hidden,
    quota::Quota,
};
pub(crate) use self::{
    answer::Now,
    error::valid,
    outage::OutageWatch,
    quota::{CalendarPeriod, duration_text},
    under_way::{Guard, UnderWay},
};
#[cfg(feature = "redis")]
pub(crate) use self::{answer::SharedResult, boxed::box_in_place, error::Fault};
