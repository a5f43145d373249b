//! Decodes the script's integers. No sentinel value leaves this file.
//!
//! Replies are not trusted: a number out of range fails its decision, and no other.

use std::time::Duration;

use redis::Value;

use super::{
    job::{Job, LeaseRequest},
    reply::{Leased, Reply},
};
use crate::{
    algorithm::twin::Receipt,
    decision::{Charge, Decision, Outcome, Verdict},
    error::{Error, ErrorKind},
    store::{Action, redis::error},
};

/// Integers per charge, and per lease; see `lua/decide.lua`.
const FIELDS: usize = 5;
const FIELDS_OF_A_LEASE: usize = 6;
const NEVER: i64 = -1;
/// The largest exact integer in Lua.
const MAX_EXACT: u64 = 1 << 53;

/// Decodes the replies to `jobs`, in their order.
pub(crate) fn decode(reply: &Value, jobs: &[&Job]) -> Vec<Result<Reply, Error>> {
    let all_unexpected = || jobs.iter().map(|_| Err(unexpected())).collect();
    let Some(mut reader) = Reader::new(reply) else { return all_unexpected() };
    let replies: Vec<_> = jobs.iter().map(|job| reader.next(job)).collect();
    // If the number of values is wrong, none of them can be trusted.
    if reader.is_done() { replies } else { all_unexpected() }
}

/// Whether a decision failed because the server is a read-only replica.
pub(crate) fn is_read_only(reply: &Value) -> bool {
    let is = |text: &str| error::code(text) == Some("READONLY");
    let is_read_only_error = |value: &Value| match value {
        Value::BulkString(text) => str::from_utf8(text).is_ok_and(is),
        Value::SimpleString(text) => is(text),
        _ => false,
    };
    matches!(reply, Value::Array(values) if values.iter().any(is_read_only_error))
}

/// Reads a reply, job by job.
struct Reader<'a> {
    rest: &'a [Value],
    /// The server's time of the decisions, in microseconds.
    time: u64,
    /// Whether the reply was too short for the jobs.
    truncated: bool,
}

impl<'a> Reader<'a> {
    /// `None` if it is not a reply of the script.
    fn new(reply: &'a Value) -> Option<Self> {
        let Value::Array(values) = reply else { return None };
        let (time, rest) = values.split_last()?;
        Some(Self { rest, time: int(time)?, truncated: false })
    }

    /// Whether the whole reply was read and nothing is missing.
    const fn is_done(&self) -> bool {
        self.rest.is_empty() && !self.truncated
    }

    /// The reply to the next job.
    fn next(&mut self, job: &Job) -> Result<Reply, Error> {
        let fields = match &job.lease {
            Some(_) => FIELDS_OF_A_LEASE,
            None => FIELDS * job.charges.len(),
        };
        // An error text in place of the integers.
        let error_text = match self.rest.first() {
            Some(Value::BulkString(text)) => Some(String::from_utf8_lossy(text)),
            Some(Value::SimpleString(text)) => Some(text.as_str().into()),
            _ => None,
        };
        if let Some(error_text) = error_text {
            self.rest = &self.rest[1..];
            return Err(error::decision_error(&error_text));
        }
        let Some((values, rest)) = self.rest.split_at_checked(fields) else {
            (self.rest, self.truncated) = (&[], true);
            return Err(unexpected());
        };
        self.rest = rest;
        let reply = match (&job.lease, &*job.charges) {
            (Some(lease), [charge]) => self.leased(charge, lease, values),
            _ => self.decision(job, values).map(|decision| Reply { decision, leased: None }),
        };
        reply.ok_or_else(unexpected)
    }

    fn decision(&self, job: &Job, values: &[Value]) -> Option<Decision> {
        let is_charge = matches!(job.action, Action::Charge | Action::ChargeUpTo);
        let mut outcomes = Vec::with_capacity(job.charges.len());
        let mut marks = Vec::with_capacity(job.charges.len());
        for (charge, fields) in job.charges.iter().zip(values.chunks_exact(FIELDS)) {
            let (outcome, mark) = outcome(job.action, charge, fields)?;
            outcomes.push(outcome);
            marks.push(mark);
        }
        if is_charge && outcomes.iter().all(Outcome::is_allowed) {
            let marked = outcomes.into_iter().zip(marks);
            outcomes = marked
                .map(|(outcome, mark)| outcome.with_receipt(Receipt { made: self.time, mark }))
                .collect();
        }
        Some(Decision::new(outcomes))
    }

    fn leased(&self, charge: &Charge, lease: &LeaseRequest, values: &[Value]) -> Option<Reply> {
        let [granted, remaining, reset, lifetime, name, mark] = values else { return None };
        if int(granted)? == 0 {
            let (outcome, _) = outcome(Action::Charge, charge, &values[..FIELDS])?;
            return Some(Reply { decision: Decision::of_one(outcome), leased: Some(Leased::default()) });
        }
        let cost = charge.bounded_cost();
        let units = int(granted)?.checked_sub(1)?.checked_sub(cost)?;
        if units > lease.wanted {
            return None;
        }
        let receipt = Receipt { made: self.time, mark: int(mark)? };
        let leased = Leased { units, lifetime: int(lifetime)?, name: int(name)?, receipt };
        // Leased units can be charged too, in this process.
        let remaining = int(remaining)?.saturating_add(units);
        let outcome = Outcome::new(charge, Verdict::Allow, remaining, micros(reset)?).granting(cost);
        let decision = Decision::of_one(outcome.with_lease_receipt(receipt));
        Some(Reply { decision, leased: Some(leased) })
    }
}

fn outcome(action: Action, charge: &Charge, fields: &[Value]) -> Option<(Outcome, u64)> {
    let [granted, remaining, reset, retry_or_mark, delay] = fields else { return None };
    let (granted, delay) = (int(granted)?, micros(delay)?);
    let cost = match action {
        Action::Charge | Action::Peek | Action::ChargeUpTo => charge.bounded_cost(),
        Action::Refund | Action::Renew => 0,
    };
    let (verdict, mark) = match (granted, retry_or_mark) {
        (0, Value::Int(NEVER)) => (Verdict::Deny { retry_after: None }, 0),
        (0, retry) => (Verdict::Deny { retry_after: Some(micros(retry)?) }, 0),
        (_, mark) if delay.is_zero() => (Verdict::Allow, int(mark)?),
        (_, mark) => (Verdict::Delay(delay), int(mark)?),
    };
    let granted = granted.saturating_sub(1);
    let is_complete = granted == cost || !verdict.is_allowed() || action == Action::ChargeUpTo;
    if granted > cost || !is_complete {
        return None;
    }
    Some((Outcome::new(charge, verdict, int(remaining)?, micros(reset)?).granting(granted), mark))
}

/// The error for a reply that is not the script's.
pub(crate) fn unexpected() -> Error {
    Error::new(
        ErrorKind::StoreReply,
        "the reply of the rate limit script is not a decision; does the server run another script under its hash?",
    )
}

fn int(value: &Value) -> Option<u64> {
    match value {
        Value::Int(value) => u64::try_from(*value).ok().filter(|value| *value <= MAX_EXACT),
        _ => None,
    }
}

fn micros(value: &Value) -> Option<Duration> {
    int(value).map(Duration::from_micros)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{key::Key, policy::Policy, quota::Quota, store::redis::script::Script};

    /// A reply with these integers and a time.
    fn ints(values: &[i64]) -> Value {
        Value::Array(values.iter().chain(&[1_790_000_000_000_000]).copied().map(Value::Int).collect())
    }

    fn job(cost: u64) -> Job {
        Job {
            action: Action::Charge,
            charges: vec![Charge::new(&Policy::new("p", Quota::per_second(5)), &Key::new("k"), cost)],
            prefix: "rl".into(),
            time: None,
            script: Script::built_in(),
            deadline: Duration::ZERO,
            lease: None,
            observer: None,
        }
    }

    #[test]
    fn integers_become_verdicts() {
        let second = |seconds| Some(Duration::from_secs(seconds));
        let rows = [
            ("admitted", [2, 4, 1_000_000, 0, 0], Verdict::Allow),
            (
                "admitted after a delay",
                [2, 4, 1_000_000, 7, 2_000_000],
                Verdict::Delay(Duration::from_secs(2)),
            ),
            ("denied", [0, 4, 1_000_000, 3_000_000, 0], Verdict::Deny { retry_after: second(3) }),
            ("denied for good", [0, 4, 1_000_000, -1, 0], Verdict::Deny { retry_after: None }),
        ];
        for (name, reply, verdict) in rows {
            let decision = decode(&ints(&reply), &[&job(1)]).remove(0).unwrap().decision;
            assert_eq!(decision.verdict(), verdict, "{name}");
            assert_eq!(decision.outcomes()[0].remaining(), 4, "{name}");
            assert_eq!(decision.outcomes()[0].reset_after(), Duration::from_secs(1), "{name}");
        }
    }

    #[test]
    fn an_invalid_reply_is_an_error_of_every_decision() {
        let rows = [
            ("nothing", Value::Nil),
            ("an empty list", Value::Array(Vec::new())),
            ("no time", Value::Array(vec![Value::Nil])),
            ("too short", ints(&[2, 4, 0, 0])),
            ("too long", ints(&[2, 4, 0, 0, 0, 2, 4, 0, 0, 0, 0])),
        ];
        for (name, reply) in rows {
            let replies = decode(&reply, &[&job(1), &job(1)]);
            assert!(
                replies
                    .iter()
                    .all(|replies| replies.as_ref().is_err_and(|e| e.kind() == ErrorKind::StoreReply)),
                "{name}"
            );
        }
    }

    #[test]
    fn a_record_that_cannot_be_read_fails_its_decision_and_no_other() {
        let most = i64::MAX;
        let rows = [
            ("a negative grant", [-1, 4, 0, 0, 0]),
            ("the least grant", [i64::MIN, 4, 0, 0, 0]),
            ("more than the cost", [3, 4, 0, 0, 0]),
            ("less than the cost", [1, 4, 0, 0, 0]),
            ("a negative wait", [0, 4, 0, -2, 0]),
            ("a wait without end", [0, 4, 0, most, 0]),
            ("a negative delay", [2, 4, 0, 0, -1]),
            ("a delay without end", [2, 4, 0, 0, most]),
            ("a negative rest", [2, -1, 0, 0, 0]),
            ("a rest without end", [2, most, 0, 0, 0]),
            ("a negative reset", [2, 4, i64::MIN, 0, 0]),
            ("a negative mark", [2, 4, 0, -1, 0]),
        ];
        for (name, record) in rows {
            let fine = [2, 4, 1_000_000, 0, 0];
            let reply = ints(&[fine, record, fine].concat());
            let replies = decode(&reply, &[&job(1), &job(1), &job(1)]);
            let read: Vec<bool> = replies.iter().map(Result::is_ok).collect();
            assert_eq!(read, [true, false, true], "{name}");
            assert_eq!(replies[1].as_ref().unwrap_err().kind(), ErrorKind::StoreReply, "{name}");
        }
    }
}
