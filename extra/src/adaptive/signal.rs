use std::fmt;

use super::{closure::Followed, source::Source};

/// What an [`Adaptive`](super::Adaptive) policy follows: a closure, or one of [`Aimd`](super::Aimd),
/// [`Gradient`](super::Gradient) and [`Vegas`](super::Vegas), which convert into it.
///
/// A closure returns the share of the quota to admit, from 0 to 1: `|| 1.0 - cpu_load()`. It is called once in every
/// [interval](super::Adaptive::every), so let it read a value that is there, and not wait for one.
///
/// * The share follows in steps: in one interval it falls by half at most, and rises by a tenth of the full quota at most.
/// * A value below 0 counts as 0, one above 1 as 1.
/// * If the closure panics or returns NaN, the share stays. After ten such intervals it rises to the full quota, in steps. The
///   next value ends this.
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
