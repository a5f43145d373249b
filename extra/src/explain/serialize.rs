//! Explanations as JSON and the like.

use std::time::Duration;

use serde::{Serialize, Serializer};
use tower_ratelimit::decision::{Outcome, Verdict};

use super::explanation::{ExplainedCharge, Explanation};
use crate::config::PolicySummary;

/// See [above](Self#as-json).
impl Serialize for Explanation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields<'a> {
            verdict: &'static str,
            retry_after: Option<f64>,
            source: &'static str,
            failure: Option<String>,
            charges: &'a [ExplainedCharge],
        }
        let decision = self.decision();
        let fields = Fields {
            verdict: name(decision.verdict()),
            retry_after: decision.retry_after().map(seconds),
            source: decision.source().as_str(),
            failure: decision.failure().map(ToString::to_string),
            charges: self.charges(),
        };
        fields.serialize(serializer)
    }
}

/// See [`Explanation`](Explanation#as-json).
impl Serialize for ExplainedCharge {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields<'a> {
            policy: PolicySummary,
            key: &'a str,
            identity: Option<&'a str>,
            key_hash: String,
            stored_as: Option<&'a str>,
            cost: u64,
            is_shadow: bool,
            verdict: Option<&'static str>,
            delay: Option<f64>,
            retry_after: Option<f64>,
            banned_for: Option<f64>,
            remaining: Option<u64>,
            reset_after: Option<f64>,
            owed: Option<u64>,
        }
        let outcome = self.outcome();
        let verdict = outcome.map(Outcome::verdict);
        let fields = Fields {
            policy: PolicySummary::of(self.policy()),
            key: self.key().as_str(),
            identity: self.identity(),
            key_hash: self.key_hash(),
            stored_as: self.stored_name(),
            cost: self.cost(),
            is_shadow: self.is_shadow(),
            verdict: verdict.map(name),
            delay: verdict.and_then(|verdict| match verdict {
                Verdict::Delay(delay) => Some(seconds(delay)),
                _ => None,
            }),
            retry_after: outcome.and_then(|outcome| outcome.verdict().retry_after()).map(seconds),
            banned_for: outcome.and_then(Outcome::banned_for).map(seconds),
            remaining: outcome.map(Outcome::remaining),
            reset_after: outcome.map(|outcome| seconds(outcome.reset_after())),
            owed: outcome.map(|_| self.owed()),
        };
        fields.serialize(serializer)
    }
}

const fn name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Admit => "admitted",
        Verdict::Delay(_) => "delayed",
        _ => "denied",
    }
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}
