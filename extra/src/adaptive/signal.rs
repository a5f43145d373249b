//! [`Signal`]: anything that an adaptive policy can follow, as one type.

use std::fmt;

use super::{closure::Followed, source::Source};

/// What an [`Adaptive`](super::Adaptive) policy follows: a closure, or one of [`Aimd`](super::Aimd),
/// [`Gradient`](super::Gradient) and [`Vegas`](super::Vegas), which convert into it.
///
/// A closure returns the share of the quota to admit, from 0 to 1: `|| 1.0 - cpu_load()`. It is called once
/// per [interval](super::Adaptive::every). It must not block: let it read a value that is already known.
///
/// * The share follows in steps: in one interval, it falls by at most half and rises by at most a tenth of
///   the full quota.
/// * Values below 0 count as 0, values above 1 as 1.
/// * If the closure panics or returns NaN, the share stays. After ten such intervals it rises to the full
///   quota, in steps, until the next valid value.
pub struct Signal(Box<dyn Source>);

impl Signal {
    pub(super) fn of(source: impl Source + 'static) -> Self {
        Self(Box::new(source))
    }

    pub(super) fn into_source(self) -> Box<dyn Source> {
        self.0
    }
}

impl<F: FnMut() -> f64 + Send + 'static> From<F> for Signal {
    fn from(signal: F) -> Self {
        Self::of(Followed::new(signal))
    }
}

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signal").finish_non_exhaustive()
    }
}
