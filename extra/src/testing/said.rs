//! The parts of an outcome that both twins must agree on, and their text in a report.

use std::{cmp::Reverse, fmt, time::Duration};

use tower_ratelimit::{
    Decision, Error,
    decision::{Outcome, Verdict},
};

/// A store's outcome of one charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) verdict: Verdict,
    pub(super) granted: u64,
    pub(super) remaining: u64,
    pub(super) reset: Duration,
}

impl Said {
    pub(super) fn of(outcome: &Outcome) -> Self {
        Self {
            verdict: outcome.verdict(),
            granted: outcome.granted(),
            remaining: outcome.remaining(),
            reset: outcome.reset_after(),
        }
    }

    pub(super) const fn is_admitted(&self) -> bool {
        !self.verdict.is_denied()
    }

    /// The order in which equal requests were decided.
    pub(super) fn order(&self) -> impl Ord + use<> {
        let delay = match self.verdict {
            Verdict::Delay(delay) => delay,
            _ => Duration::ZERO,
        };
        (!self.is_admitted(), Reverse(self.remaining), delay)
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.verdict {
            Verdict::Admit => write!(f, "admitted with {} units", self.granted)?,
            Verdict::Delay(delay) => {
                write!(f, "admitted with {} units after {} µs", self.granted, delay.as_micros())?;
            }
            Verdict::Deny { retry_after: Some(wait), .. } => write!(f, "denied for {} µs", wait.as_micros())?,
            Verdict::Deny { retry_after: None, .. } => f.write_str("denied without a retry time")?,
            other => write!(f, "{other:?}")?,
        }
        write!(f, "; {} units remain, reset in {} µs", self.remaining, self.reset.as_micros())
    }
}

/// A store's decision, in words.
pub(super) fn in_words(decided: &Result<Decision, Error>) -> String {
    match decided {
        Ok(decision) => {
            let said: Vec<_> =
                decision.outcomes().iter().map(|outcome| Said::of(outcome).to_string()).collect();
            said.join(" | ")
        }
        Err(error) => format!("error: {error}"),
    }
}
