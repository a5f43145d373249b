//! Explanations as JSON and the like.

use std::time::Duration;

use serde::{Serialize, Serializer};
use tower_ratelimit::decision::{Outcome, Verdict};

use super::explanation::{ExplainedCharge, Explanation};
use crate::{
    answer::{Explained, ExplainedKey, VerdictWord},
    config::PolicySummary,
};

/// See [above](Self#as-json).
impl Serialize for Explanation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Explained::from(self).serialize(serializer)
    }
}

impl From<&Explanation> for Explained {
    fn from(explanation: &Explanation) -> Self {
        let decision = explanation.decision();
        Self {
            verdict: decision.verdict().into(),
            retry_after: decision.retry_after().map(seconds),
            source: decision.source().as_str().to_owned(),
            failure: decision.failure().map(ToString::to_string),
            charges: explanation.charges().iter().map(Into::into).collect(),
        }
    }
}

/// See [`Explanation`](Explanation#as-json).
impl Serialize for ExplainedCharge {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        ExplainedKey::from(self).serialize(serializer)
    }
}

impl From<&ExplainedCharge> for ExplainedKey {
    fn from(charge: &ExplainedCharge) -> Self {
        let outcome = charge.outcome();
        let verdict = outcome.map(Outcome::verdict);
        Self {
            policy: PolicySummary::of(charge.policy()),
            key: charge.key().as_str().to_owned(),
            identity: charge.identity().map(Into::into),
            key_hash: charge.key_hash(),
            stored_as: charge.stored_name().map(Into::into),
            cost: charge.cost(),
            is_shadow: charge.is_shadow(),
            degrades: charge.degrades(),
            verdict: verdict.map(Into::into),
            delay: verdict.and_then(|verdict| match verdict {
                Verdict::Delay(delay) => Some(seconds(delay)),
                _ => None,
            }),
            retry_after: verdict.and_then(|verdict| verdict.retry_after()).map(seconds),
            banned_for: outcome.and_then(Outcome::banned_for).map(seconds),
            remaining: outcome.map(Outcome::remaining),
            headroom: outcome.map_or(0, |outcome| outcome.charge().headroom()),
            is_shed: outcome.is_some_and(Outcome::is_shed),
            reset_after: outcome.map(|outcome| seconds(outcome.reset_after())),
            owed: outcome.map(|_| charge.owed()),
        }
    }
}

impl From<Verdict> for VerdictWord {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Admit => Self::Admitted,
            Verdict::Delay(_) => Self::Delayed,
            _ => Self::Denied,
        }
    }
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}
