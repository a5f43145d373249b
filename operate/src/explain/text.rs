//! Explanations as text.

use std::{fmt, time::Duration};

use tower_ratelimit::decision::{Outcome, Verdict};

use super::explanation::{ExplainedCharge, Explanation};

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, charge) in self.charges.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            write!(f, "{charge}")?;
        }
        if self.charges.len() > 1 {
            writeln!(f, "\nall together: {}", Words(self.decision.verdict()))?;
        }
        if let Some(error) = self.decision.failure() {
            let decides = if self.decision.outcomes().is_empty() {
                "the request is admitted"
            } else {
                "this process counts"
            };
            writeln!(f, "the store failed, and {decides}: {error}")?;
        }
        Ok(())
    }
}

impl fmt::Display for ExplainedCharge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "policy {}: {}", self.policy().name(), self.policy())?;
        write!(f, "key {}", self.key().as_str())?;
        if let Some(identity) = self.identity().filter(|identity| *identity != self.key().as_str()) {
            // Escaped, because a client may have chosen it.
            write!(f, " of {identity:?}")?;
        }
        if let Some(name) = self.stored_name() {
            write!(f, ", stored as {name}")?;
        }
        writeln!(f)?;
        let Some(outcome) = self.outcome() else { return writeln!(f, "its state is unknown") };
        self.state(f, outcome)?;
        write!(f, "a request of {} is {}", Units(self.cost()), Words(outcome.verdict()))?;
        if self.degrades() {
            f.write_str("; a request that is denied goes on without it")?;
        } else if self.is_guarantee() {
            f.write_str("; it is a guarantee, and a request beyond it borrows from the pool")?;
        } else if self.is_shadow() {
            f.write_str("; the policy is a shadow for this key and denies nothing")?;
        }
        writeln!(f)
    }
}

impl ExplainedCharge {
    fn state(&self, f: &mut fmt::Formatter<'_>, outcome: &Outcome) -> fmt::Result {
        let (remaining, capacity) = (outcome.remaining(), outcome.policy().capacity());
        if let Some(rest) = outcome.banned_for() {
            return writeln!(f, "the key is banned for {}", Span(rest));
        }
        if self.policy().has_permits() {
            writeln!(f, "{remaining} of {capacity} permits are free")?;
            return self.kept(f, outcome);
        }
        let verb = if remaining == 1 { "remains" } else { "remain" };
        write!(f, "{remaining} of {} {verb}", Units(capacity))?;
        if self.owed() > 0 {
            write!(f, ", and {} are owed", Units(self.owed()))?;
        }
        if !outcome.reset_after().is_zero() {
            write!(f, "; fully replenished in {}", Span(outcome.reset_after()))?;
        }
        writeln!(f)?;
        self.kept(f, outcome)
    }

    /// What is kept from a request that is not one of the most critical.
    fn kept(&self, f: &mut fmt::Formatter<'_>, outcome: &Outcome) -> fmt::Result {
        let headroom = outcome.charge().headroom();
        if headroom == 0 {
            return Ok(());
        }
        let state = if outcome.is_shed() { "kept for more critical requests" } else { "not available to it" };
        writeln!(
            f,
            "the request is {}: {} of headroom, {state}",
            outcome.charge().criticality(),
            Units(headroom)
        )
    }
}

/// A verdict in words.
struct Words(Verdict);

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Verdict::Admit => f.write_str("admitted"),
            Verdict::Delay(delay) => write!(f, "admitted after {}", Span(delay)),
            Verdict::Deny { retry_after: Some(wait), .. } => write!(f, "denied; admitted in {}", Span(wait)),
            _ => f.write_str("denied; waiting does not help"),
        }
    }
}

struct Units(u64);

impl fmt::Display for Units {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} unit{}", self.0, if self.0 == 1 { "" } else { "s" })
    }
}

/// A time, rounded up: to milliseconds below a minute, and to seconds above.
struct Span(Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_micros().div_ceil(1_000);
        if millis < 60_000 {
            // Prints no more digits than there are.
            return write!(f, "{}s", millis as f64 / 1e3);
        }
        let mut rest = millis.div_ceil(1_000);
        let mut separator = "";
        for (seconds, unit) in [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")] {
            if rest >= seconds {
                write!(f, "{separator}{}{unit}", rest / seconds)?;
                (rest, separator) = (rest % seconds, " ");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_up() {
        for (micros, text) in [
            (0, "0s"),
            (1, "0.001s"),
            (250_000, "0.25s"),
            (12_000_000, "12s"),
            (59_999_000, "59.999s"),
            (59_999_001, "1m"),
            (60_000_001, "1m 1s"),
            (90_061_000_000, "1d 1h 1m 1s"),
            (86_400_000_000, "1d"),
        ] {
            assert_eq!(Span(Duration::from_micros(micros)).to_string(), text);
        }
    }
}
