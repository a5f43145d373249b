//! Decodes the script's records. No sentinel value leaves this file.
//!
//! Replies are not trusted: a number out of range fails its decision, and no other.

use std::{slice::ChunksExact, time::Duration};

use redis::{RedisResult, Value};

use crate::{
    algorithm::twin::Receipt,
    base::{Error, ErrorKind, Fault},
    decision::{Charge, Decision, Outcome, Verdict},
    store::{
        Action, Spec,
        redis::{
            codes, error,
            job::{Job, LeaseRequest, Leased, Reply},
        },
    },
};

/// The bytes of a number, which is a double.
const NUMBER: usize = size_of::<f64>();
/// The bytes of a record.
const RECORD: usize = 5 * NUMBER;
/// The retry time of a charge that is never admitted.
const NEVER: f64 = -1.0;
/// The largest exact integer in Lua.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

/// Decodes the replies to `jobs`, in their order.
pub(crate) fn decode(reply: &Value, jobs: &[&Job], mut each: impl FnMut(&Job, Result<Reply, Error>)) {
    let expected = jobs.iter().map(|job| job.records()).sum::<usize>();
    let mut reader = Reader::new(reply, expected);
    for job in jobs {
        each(job, reader.as_mut().map_or_else(|| Err(unexpected()), |reader| reader.next(job)));
    }
}

/// Whether the call or a decision failed with this fault of the server.
pub(crate) fn has_fault(reply: &RedisResult<Value>, fault: Fault) -> bool {
    match reply {
        Ok(Value::Array(values)) => values.iter().filter_map(text).any(|text| codes::parse(&text).0 == fault),
        Ok(_) => false,
        Err(error) => error::from_redis(error).fault() == Some(fault),
    }
}

impl Job {
    /// The number of its records.
    fn records(&self) -> usize {
        // A lease has a record in addition to its charge's.
        self.width() + usize::from(self.lease.is_some())
    }
}

/// Reads a reply, job by job.
struct Reader<'a> {
    /// The server's time of the decisions, in microseconds.
    time: u64,
    records: ChunksExact<'a, u8>,
    /// The number of the next record.
    number: usize,
    /// The errors of decisions: the number of the first record, then the text, in any order.
    errors: &'a [Value],
}

type Record = [f64; 5];

impl<'a> Reader<'a> {
    /// `None` if it is not a reply of the script with that many records. Then none of them can be trusted.
    fn new(reply: &'a Value, records: usize) -> Option<Self> {
        let (bytes, errors) = match reply {
            Value::BulkString(bytes) => (bytes, &[][..]),
            Value::Array(values) => match values.split_first()? {
                (Value::BulkString(bytes), errors) => (bytes, errors),
                _ => return None,
            },
            _ => return None,
        };
        let (time, bytes) = bytes.split_at_checked(NUMBER)?;
        if bytes.len() != records * RECORD {
            return None;
        }
        let time = integer(f64::from_le_bytes(time.try_into().ok()?))?;
        Some(Self { time, records: bytes.chunks_exact(RECORD), number: 0, errors })
    }

    /// The reply to the next job.
    fn next(&mut self, job: &Job) -> Result<Reply, Error> {
        if !self.errors.is_empty()
            && let Some(text) = self.error_of(self.number)
        {
            self.skip(job.records());
            return Err(error::from_server(&text));
        }
        let reply = match (&job.lease, &job.charges[..]) {
            // The most frequent one.
            (None, [charge]) if job.penalties.is_empty() => self
                .record()
                .and_then(|record| self.outcome(job.action, charge, &record, true))
                .map(|outcome| Reply::of(Decision::of_one(outcome))),
            (Some(lease), [charge]) => self.leased(charge, lease),
            _ => self.decision(job).map(Reply::of),
        };
        reply.ok_or_else(unexpected)
    }

    fn record(&mut self) -> Option<Record> {
        self.number += 1;
        self.records.next().map(record)
    }

    fn skip(&mut self, records: usize) {
        for _ in 0..records {
            self.record();
        }
    }

    /// The error of the decision whose first record has this number.
    fn error_of(&self, record: usize) -> Option<String> {
        let is_it = |pair: &&[Value]| matches!(pair, [Value::Int(number), _] if usize::try_from(*number) == Ok(record));
        let pair = self.errors.chunks_exact(2).find(is_it)?;
        Some(text(&pair[1]).unwrap_or_default())
    }

    fn decision(&mut self, job: &Job) -> Option<Decision> {
        let charges = &*job.charges;
        let records = self.records.clone().map(record);
        let mut bans = job.penalties.iter().zip(records.clone().skip(charges.len())).peekable();
        // Even if one of them is invalid, because the records of the next job follow.
        self.skip(job.width());
        let fits = |(charge, record): (&Charge, Record)| record[0] != 0.0 || charge.is_shadow();
        let is_banned = bans.clone().any(|(_, record)| record[0] == 0.0);
        let is_admitted = !is_banned && charges.iter().zip(records.clone()).all(fits);
        let mut outcome = |place: usize, charge: &Charge, record: &Record| {
            let mut outcome = self.outcome(job.action, charge, record, is_admitted)?;
            while let Some((_, [granted, _, _, rest, _])) = bans.next_if(|(ban, _)| ban.place == place) {
                if integer(granted)? == 0 {
                    outcome = outcome.banning(micros(rest)?);
                }
            }
            Some(outcome)
        };
        if let ([charge], Some(record)) = (charges, records.clone().next()) {
            return outcome(0, charge, &record).map(Decision::of_one);
        }
        let mut outcomes = Vec::with_capacity(charges.len());
        for (place, (charge, record)) in charges.iter().zip(records).enumerate() {
            outcomes.push(outcome(place, charge, &record)?);
        }
        Some(Decision::new(outcomes))
    }

    /// The outcome of a charge. It has a receipt if all of its decision `is_admitted`.
    fn outcome(
        &self,
        action: Action,
        charge: &Charge,
        record: &Record,
        is_admitted: bool,
    ) -> Option<Outcome> {
        let (outcome, mark) = outcome(action, charge, record)?;
        let is_charged = is_admitted && !outcome.is_denied() && action.charges_units();
        Some(if is_charged { outcome.with_receipt(Receipt { made: self.time, mark }) } else { outcome })
    }

    fn leased(&mut self, charge: &Charge, lease: &LeaseRequest) -> Option<Reply> {
        let (decision, leased) = (self.record()?, self.record()?);
        let (outcome, _) = outcome(Action::Charge, charge, &decision)?;
        if outcome.is_denied() {
            return Some(Reply { decision: Decision::of_one(outcome), leased: Some(Leased::default()) });
        }
        let [units, lifetime, name, mark, _] = leased;
        let units = integer(units).filter(|units| *units <= lease.wanted)?;
        let receipt = Receipt { made: self.time, mark: integer(mark)? };
        let leased = Leased { units, lifetime: integer(lifetime)?, name: integer(name)?, receipt };
        // Leased units can be charged too, in this process.
        let remaining = outcome.remaining().saturating_add(units);
        let outcome = Outcome::new(charge, Verdict::Allow, remaining, outcome.reset_after())
            .granting(outcome.granted());
        let decision = Decision::of_one(outcome.with_lease_receipt(receipt));
        Some(Reply { decision, leased: Some(leased) })
    }
}

/// The outcome of a charge, and its mark.
fn outcome(action: Action, charge: &Charge, record: &Record) -> Option<(Outcome, u64)> {
    let [granted, remaining, reset, retry_or_mark, delay] = *record;
    let (granted, delay) = (integer(granted)?, micros(delay)?);
    let Spec { change, least, .. } = action.spec();
    let cost = if change.is_none() { charge.bounded_cost() } else { 0 };
    let (verdict, mark) = match granted {
        0 if retry_or_mark == NEVER => (Verdict::Deny { retry_after: None }, 0),
        0 => (Verdict::Deny { retry_after: Some(micros(retry_or_mark)?) }, 0),
        _ if delay.is_zero() => (Verdict::Allow, integer(retry_or_mark)?),
        _ => (Verdict::Delay(delay), integer(retry_or_mark)?),
    };
    let granted = granted.saturating_sub(1);
    let is_complete = granted == cost || verdict.is_denied() || least.is_some();
    if granted > cost || !is_complete {
        return None;
    }
    Some((Outcome::new(charge, verdict, integer(remaining)?, micros(reset)?).granting(granted), mark))
}

fn record(bytes: &[u8]) -> Record {
    let mut record = [f64::NAN; 5];
    for (number, bytes) in record.iter_mut().zip(bytes.chunks_exact(NUMBER)) {
        *number = bytes.try_into().map_or(f64::NAN, f64::from_le_bytes);
    }
    record
}

/// `None` if the number is negative, too large or not whole.
fn integer(number: f64) -> Option<u64> {
    // Exact in this range. `fract` would be a call of the C library, and `as u64` takes three times as many instructions.
    let integer = number as i64;
    ((0.0..=MAX_EXACT).contains(&number) && integer as f64 == number).then_some(integer.cast_unsigned())
}

fn micros(number: f64) -> Option<Duration> {
    integer(number).map(Duration::from_micros)
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(text) => Some(String::from_utf8_lossy(text).into_owned()),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    }
}

/// The error for a reply that is not the script's.
pub(crate) fn unexpected() -> Error {
    Error::new(
        ErrorKind::StoreReply,
        "the reply of the rate limit script is not a decision; does the server run another script under its hash?",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reply with these numbers after a time.
    fn numbers(numbers: &[f64]) -> Value {
        let all = [1_790_000_000_000_000.0].iter().chain(numbers);
        Value::BulkString(all.flat_map(|number| number.to_le_bytes()).collect())
    }

    fn decode(reply: &Value, jobs: &[&Job]) -> Vec<Result<Reply, Error>> {
        let mut replies = Vec::new();
        super::decode(reply, jobs, |_, reply| replies.push(reply));
        replies
    }

    fn job(cost: u64) -> Job {
        Job::for_tests(cost, Duration::ZERO)
    }

    #[test]
    fn records_become_verdicts() {
        let second = |seconds| Some(Duration::from_secs(seconds));
        let rows = [
            ("admitted", [2.0, 4.0, 1e6, 0.0, 0.0], Verdict::Allow),
            ("admitted after a delay", [2.0, 4.0, 1e6, 7.0, 2e6], Verdict::Delay(Duration::from_secs(2))),
            ("denied", [0.0, 4.0, 1e6, 3e6, 0.0], Verdict::Deny { retry_after: second(3) }),
            ("denied for good", [0.0, 4.0, 1e6, -1.0, 0.0], Verdict::Deny { retry_after: None }),
        ];
        for (name, record, verdict) in rows {
            let decision = decode(&numbers(&record), &[&job(1)]).remove(0).unwrap().decision;
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
            ("no time", Value::BulkString(Vec::new())),
            ("an integer", Value::Int(7)),
            ("too short", numbers(&[2.0, 4.0, 0.0, 0.0])),
            ("too long", numbers(&[2.0, 4.0, 0.0, 0.0, 0.0, 2.0, 4.0, 0.0, 0.0, 0.0, 0.0])),
            ("a list without records", Value::Array(vec![Value::Int(0), Value::BulkString(b"OOM".to_vec())])),
        ];
        for (name, reply) in rows {
            let replies = decode(&reply, &[&job(1), &job(1)]);
            let is_error = |reply: &Result<Reply, Error>| {
                reply.as_ref().is_err_and(|error| error.kind() == ErrorKind::StoreReply)
            };
            assert!(replies.iter().all(is_error), "{name}");
        }
    }

    const FINE: Record = [2.0, 4.0, 1e6, 0.0, 0.0];

    #[test]
    fn a_record_that_cannot_be_read_fails_its_decision_and_no_other() {
        let most = f64::MAX;
        let rows = [
            ("a negative grant", [-1.0, 4.0, 0.0, 0.0, 0.0]),
            ("the least grant", [f64::MIN, 4.0, 0.0, 0.0, 0.0]),
            ("more than the cost", [3.0, 4.0, 0.0, 0.0, 0.0]),
            ("less than the cost", [1.0, 4.0, 0.0, 0.0, 0.0]),
            ("half a unit", [1.5, 4.0, 0.0, 0.0, 0.0]),
            ("no number", [2.0, f64::NAN, 0.0, 0.0, 0.0]),
            ("a negative wait", [0.0, 4.0, 0.0, -2.0, 0.0]),
            ("a wait without end", [0.0, 4.0, 0.0, f64::INFINITY, 0.0]),
            ("a negative delay", [2.0, 4.0, 0.0, 0.0, -1.0]),
            ("a delay without end", [2.0, 4.0, 0.0, 0.0, most]),
            ("a negative rest", [2.0, -1.0, 0.0, 0.0, 0.0]),
            ("a rest without end", [2.0, most, 0.0, 0.0, 0.0]),
            ("a negative reset", [2.0, 4.0, f64::MIN, 0.0, 0.0]),
            ("a negative mark", [2.0, 4.0, 0.0, -1.0, 0.0]),
        ];
        for (name, record) in rows {
            let reply = numbers(&[FINE, record, FINE].concat());
            let replies = decode(&reply, &[&job(1), &job(1), &job(1)]);
            let read: Vec<bool> = replies.iter().map(Result::is_ok).collect();
            assert_eq!(read, [true, false, true], "{name}");
            assert_eq!(replies[1].as_ref().unwrap_err().kind(), ErrorKind::StoreReply, "{name}");
        }
    }

    #[test]
    fn a_grant_above_the_cost_is_an_error_where_less_may_be_granted_too() {
        let rows = [(0.0, true), (1.0, true), (2.0, true), (3.0, false)];
        for (granted, fine) in rows {
            let up_to = Job { action: Action::ChargeUpTo, ..job(2) };
            let replies = decode(&numbers(&[1.0 + granted, 4.0, 1e6, 0.0, 0.0]), &[&up_to]);
            assert_eq!(replies[0].is_ok(), fine, "{granted}");
        }
    }

    #[test]
    fn an_error_concerns_the_decision_of_its_record() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let reply =
            Value::Array(vec![numbers(&[FINE, FINE, FINE].concat()), Value::Int(1), text("OOM memory")]);
        let replies = decode(&reply, &[&job(1), &job(1), &job(1)]);
        let read: Vec<bool> = replies.iter().map(Result::is_ok).collect();
        assert_eq!(read, [true, false, true]);
        assert_eq!(replies[1].as_ref().unwrap_err().kind(), ErrorKind::StoreFailed);
        assert!(!has_fault(&Ok(reply), Fault::ReadOnly));
        let read_only = Value::Array(vec![numbers(&FINE), Value::Int(0), text("READONLY You can't write")]);
        assert!(has_fault(&Ok(read_only), Fault::ReadOnly));
    }
}
