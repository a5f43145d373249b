use std::{fmt, sync::OnceLock};

use ::metrics::{Counter, Label};

use super::{handle::Shared, names::DECISIONS_TOTAL};

const VERDICTS: [&str; 5] = ["admitted", "delayed", "denied", "shadow_denied", "banned"];
/// With two in reserve. A source beyond them would be counted slowly.
const SOURCES: usize = 6;

/// The counters of a policy's decisions. A clone begins without any, because its policy may get another name.
#[derive(Default)]
pub(crate) struct PolicyCounters(OnceLock<Box<[Shared<Counter>; VERDICTS.len() * SOURCES]>>);

/// A label's value, and its number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    pub(crate) name: &'static str,
    pub(crate) number: usize,
}

/// A label's value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Verdict {
    Admitted,
    Delayed,
    Denied,
    ShadowDenied,
    Banned,
}

impl PolicyCounters {
    pub(crate) const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// Counts a decision of the policy `name`.
    pub(crate) fn count(&self, name: &str, verdict: Verdict, source: Source) {
        self.add(name, verdict, source, 1);
    }

    /// Adds `decisions` of the policy `name`. With 0, the counter is shown from then on.
    #[inline]
    pub(crate) fn add(&self, name: &str, verdict: Verdict, source: Source, decisions: u64) {
        let counters = self.0.get_or_init(|| Box::new([const { Shared::new() }; VERDICTS.len() * SOURCES]));
        let verdict = verdict as usize;
        let labels = || {
            vec![
                Label::new("policy", name.to_owned()),
                Label::from_static_parts("verdict", VERDICTS[verdict]),
                Label::from_static_parts("source", source.name),
            ]
        };
        let count = |counter: &Counter| counter.increment(decisions);
        match counters.get(source.number * VERDICTS.len() + verdict) {
            Some(counter) => counter.with(DECISIONS_TOTAL, labels, count),
            None => Shared::new().with(DECISIONS_TOTAL, labels, count),
        }
    }
}

impl Clone for PolicyCounters {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl fmt::Debug for PolicyCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyCounters").finish_non_exhaustive()
    }
}
