//! Decodes the script's records. The protocol's special numbers, 0 and -1, become types here.
//!
//! Replies are not trusted: a number out of range fails its decision, and no other.

use std::{mem, time::Duration};

use bytes::Bytes;
use redis::{RedisResult, Value};

use crate::{
    algorithm::twin::Receipt,
    base::{Error, ErrorKind, Fault},
    decision::{Charge, Decision, Outcome, Verdict},
    store::{
        Action, ServerClock, Spec,
        redis::{
            codes, error,
            job::{Job, LeaseRequest, Leased, Records, Reply},
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

/// Answers `jobs` with the reply to their call. Returns those that failed, for the caller to answer or to send
/// again: see [`is_of_another_window`]. `clock` follows the server's time, or is `None` for a call without
/// windows of a calendar.
pub(crate) fn answer<'a>(
    reply: Value,
    jobs: &[&'a Job],
    clock: Option<&ServerClock>,
) -> Vec<(&'a Job, Error)> {
    let mut failed = Vec::new();
    decode(reply, jobs, clock, |job, reply| match reply {
        Err(error) => failed.push((job, error)),
        reply => job.answer(reply),
    });
    failed
}

/// How a call with a reply ended in which these of all `jobs` have `failed`: with an error if all have.
#[cold]
pub(crate) fn ended(failed: &[(&Job, Error)], jobs: usize) -> Result<(), Error> {
    match failed.first() {
        Some((_, error)) if failed.len() == jobs => Err(error.clone()),
        _ => Ok(()),
    }
}

/// Whether the script did not make a decision because the windows in the call do not include the server's time.
/// The clock has that time, so another call has the right windows.
pub(crate) fn is_of_another_window(error: &Error) -> bool {
    error.fault() == Some(Fault::OtherWindow)
}

/// Splits the reply to `jobs` into a reply for each job, in their order. Denials, leases and errors are
/// decoded now; the caller of a job decodes an admission with [`decision`]. `clock` gets the server's time.
pub(crate) fn decode<'a>(
    reply: Value,
    jobs: &[&'a Job],
    clock: Option<&ServerClock>,
    mut each: impl FnMut(&'a Job, Result<Reply, Error>),
) {
    let expected = jobs.iter().map(|job| records_of(job)).sum::<usize>();
    let mut reader = Reader::new(reply, expected);
    if let (Some(clock), Some(reader)) = (clock, &reader)
        && let Some(time) = reader.records.time()
    {
        clock.report(time);
    }
    for (i, &job) in jobs.iter().enumerate() {
        let is_last = i + 1 == jobs.len();
        each(job, reader.as_mut().map_or_else(|| Err(unexpected()), |reader| reader.next(job, is_last)));
    }
}

/// The decision of a job with this reply.
#[inline]
pub(crate) fn decision(job: &Job, reply: Reply) -> Result<Decision, Error> {
    match reply {
        Reply::Admitted(records) => admitted(job, &records).ok_or_else(unexpected),
        Reply::Decided(decision, _) => Ok(decision),
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

/// The number of records of `job`.
pub(super) fn records_of(job: &Job) -> usize {
    // A lease has a record in addition to its charge's.
    job.width() + usize::from(job.lease.is_some())
}

type Record = [f64; 5];

/// The decision of a job whose records all admit.
fn admitted(job: &Job, records: &Records) -> Option<Decision> {
    let made = records.time()?;
    for place in job.charges.len()..job.width() {
        integer(records.get(place)?[0])?;
    }
    let count = |place, charge| {
        let (count, mark) = count(job.action, charge, &records.get(place)?)?;
        Some((count, Receipt { made, mark }))
    };
    // Outcomes are made where they are needed, because a closure that returns them would copy them.
    if let [charge] = &job.charges[..] {
        let (count, receipt) = count(0, charge)?;
        return Some(Decision::one(count.outcome(charge).with_receipt(receipt), made));
    }
    let mut outcomes = Vec::with_capacity(job.charges.len());
    for (place, charge) in job.charges.iter().enumerate() {
        let (count, receipt) = count(place, charge)?;
        outcomes.push(count.outcome(charge).with_receipt(receipt));
    }
    Some(Decision::new(outcomes))
}

impl Records {
    /// The server's time of the decisions, in microseconds.
    fn time(&self) -> Option<u64> {
        integer(f64::from_le_bytes(*self.reply.first_chunk()?))
    }

    #[inline]
    fn get(&self, place: usize) -> Option<Record> {
        let bytes = self.reply.get(NUMBER + (self.first + place) * RECORD..)?.first_chunk::<RECORD>()?;
        let (numbers, _) = bytes.as_chunks();
        let mut record = [f64::NAN; 5];
        for (number, bytes) in record.iter_mut().zip(numbers) {
            *number = f64::from_le_bytes(*bytes);
        }
        Some(record)
    }

    /// Whether a charge fits, if the record can be read.
    #[inline]
    fn admits(&self, place: usize) -> bool {
        let granted =
            self.reply.get(NUMBER + (self.first + place) * RECORD..).and_then(|bytes| bytes.first_chunk());
        granted.is_some_and(|granted| f64::from_le_bytes(*granted) >= 1.0)
    }
}

/// Reads a reply, job by job.
struct Reader {
    /// The records that are still to be read.
    records: Records,
    /// The errors of decisions: the number of the first record, then the text, in any order.
    errors: Vec<Value>,
}

impl Reader {
    /// `None` if it is not a reply of the script with that many records. None of the records of such a reply
    /// can be trusted.
    fn new(reply: Value, records: usize) -> Option<Self> {
        let (bytes, errors) = match reply {
            Value::BulkString(bytes) => (bytes, Vec::new()),
            Value::Array(mut values) if !values.is_empty() => match values.remove(0) {
                Value::BulkString(bytes) => (bytes, values),
                _ => return None,
            },
            _ => return None,
        };
        if bytes.len() != NUMBER + records * RECORD {
            return None;
        }
        // Its first clone allocates, and a lone job needs none.
        let records = Records { reply: Bytes::from(bytes), first: 0 };
        records.time().map(|_| Self { records, errors })
    }

    /// The reply to the next job.
    fn next(&mut self, job: &Job, is_last: bool) -> Result<Reply, Error> {
        let next = self.records.first + records_of(job);
        let all = &mut self.records.reply;
        let reply = if is_last { mem::take(all) } else { all.clone() };
        let records = Records { reply, first: mem::replace(&mut self.records.first, next) };
        if !self.errors.is_empty()
            && let Some(text) = self.error_of(records.first)
        {
            return Err(error::from_server(&text));
        }
        let reply = match (&job.lease, &job.charges[..]) {
            (Some(lease), [charge]) => leased(charge, lease, &records),
            _ if job.action == Action::Charge && (0..job.width()).all(|place| records.admits(place)) => {
                Some(Reply::Admitted(records))
            }
            _ => decided(job, &records).map(|decision| Reply::Decided(decision, None)),
        };
        reply.ok_or_else(unexpected)
    }

    /// The error of the decision whose first record has this number.
    fn error_of(&self, record: usize) -> Option<String> {
        let is_it = |pair: &&[Value]| matches!(pair, [Value::Int(number), _] if usize::try_from(*number) == Ok(record));
        let pair = self.errors.chunks_exact(2).find(is_it)?;
        Some(text(&pair[1]).unwrap_or_default())
    }
}

/// The decision of a job without a lease.
fn decided(job: &Job, records: &Records) -> Option<Decision> {
    let (made, charges) = (records.time()?, &*job.charges);
    let count = |place, charge| count(job.action, charge, &records.get(place)?);
    let mut is_admitted = true;
    for (place, charge) in charges.iter().enumerate() {
        is_admitted &= !count(place, charge)?.0.verdict.is_denied() || charge.never_denies();
    }
    let mut bans = Vec::new();
    for (place, penalty) in job.penalties.iter().enumerate() {
        let [granted, _, _, rest, _] = records.get(charges.len() + place)?;
        if integer(granted)? == 0 {
            bans.push((penalty.place, micros(rest)?));
        }
    }
    is_admitted &= bans.is_empty();
    let outcome = |(place, charge)| {
        let (count, mark) = count(place, charge)?;
        let mut outcome = count.outcome(charge);
        // A charge is refundable if the whole decision is admitted.
        if is_admitted && !outcome.is_denied() && job.action.charges_units() {
            outcome = outcome.with_receipt(Receipt { made, mark });
        }
        let own = bans.iter().filter(|(of, _)| *of == place);
        Some(own.fold(outcome, |outcome, (_, rest)| outcome.banning(*rest)))
    };
    if let [charge] = charges {
        return outcome((0, charge)).map(|outcome| Decision::one(outcome, made));
    }
    let outcomes = charges.iter().enumerate().map(outcome).collect::<Option<Vec<Outcome>>>()?;
    Some(Decision::new(outcomes).at(made))
}

/// The decision of a charge, and its lease.
fn leased(charge: &Charge, lease: &LeaseRequest, records: &Records) -> Option<Reply> {
    let (count, _) = count(Action::Charge, charge, &records.get(0)?)?;
    if count.verdict.is_denied() {
        let decision = Decision::one(count.outcome(charge), records.time()?);
        return Some(Reply::Decided(decision, Some(Leased::default())));
    }
    let [units, lifetime, name, mark, _] = records.get(1)?;
    let units = integer(units).filter(|units| *units <= lease.wanted)?;
    let receipt = Receipt { made: records.time()?, mark: integer(mark)? };
    let leased = Leased { units, lifetime: integer(lifetime)?, name: integer(name)?, receipt };
    // Leased units remain too, because they can be charged in this process.
    let remaining = count.remaining.saturating_add(units);
    let outcome = Count { remaining, ..count }.outcome(charge);
    let decision = Decision::one(outcome.with_lease_receipt(receipt), receipt.made).with_lease(units > 0);
    Some(Reply::Decided(decision, Some(leased)))
}

/// The content of the record of a charge.
#[derive(Clone, Copy)]
struct Count {
    verdict: Verdict,
    granted: u64,
    remaining: u64,
    reset_after: Duration,
}

impl Count {
    #[inline]
    fn outcome(self, charge: &Charge) -> Outcome {
        Outcome::new(charge, self.verdict, self.remaining, self.reset_after).with_granted(self.granted)
    }
}

/// Reads the record of a charge, and its mark.
#[inline]
fn count(action: Action, charge: &Charge, record: &Record) -> Option<(Count, u64)> {
    let [granted, remaining, reset, retry_or_mark, delay] = *record;
    let (granted, delay) = (integer(granted)?, micros(delay)?);
    let Spec { change, least, .. } = action.spec();
    // A change plans a cost of 0, except for a stamp.
    let is_planned = change.is_none() || charge.stamp().is_some();
    let cost = if is_planned { charge.bounded_cost() } else { 0 };
    let (verdict, mark) = match granted {
        0 if retry_or_mark == NEVER => (Verdict::Deny { retry_after: charge.retry_once_grown() }, 0),
        0 => (Verdict::Deny { retry_after: Some(micros(retry_or_mark)?) }, 0),
        _ if delay.is_zero() => (Verdict::Admit, integer(retry_or_mark)?),
        _ => (Verdict::Delay(delay), integer(retry_or_mark)?),
    };
    let granted = granted.saturating_sub(1);
    let is_complete = granted == cost || verdict.is_denied() || least.is_some();
    if granted > cost || !is_complete {
        return None;
    }
    let (remaining, reset_after) = (integer(remaining)?, micros(reset)?);
    Some((Count { verdict, granted, remaining, reset_after }, mark))
}

/// `None` if the number is negative, too large or not whole.
fn integer(number: f64) -> Option<u64> {
    // The conversion is exact in this range. `fract` would be a call of the C library, and `as u64` is
    // slower.
    let integer = number as i64;
    ((0.0..=MAX_EXACT).contains(&number) && integer as f64 == number).then_some(integer.cast_unsigned())
}

fn micros(number: f64) -> Option<Duration> {
    integer(number).map(Duration::from_micros)
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(text) => Some(String::from_utf8_lossy(text).into_owned()),
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

    fn decode(reply: &Value, jobs: &[&Job]) -> Vec<Result<Decision, Error>> {
        let mut decisions = Vec::new();
        super::decode(reply.clone(), jobs, None, |job, reply| {
            decisions.push(reply.and_then(|reply| decision(job, reply)));
        });
        decisions
    }

    fn job(cost: u64) -> Job {
        Job::for_tests(cost, Duration::ZERO)
    }

    #[test]
    fn records_become_verdicts() {
        let second = |seconds| Some(Duration::from_secs(seconds));
        let rows = [
            ("admitted", [2.0, 4.0, 1e6, 0.0, 0.0], Verdict::Admit),
            ("admitted after a delay", [2.0, 4.0, 1e6, 7.0, 2e6], Verdict::Delay(Duration::from_secs(2))),
            ("denied", [0.0, 4.0, 1e6, 3e6, 0.0], Verdict::Deny { retry_after: second(3) }),
            ("denied for good", [0.0, 4.0, 1e6, -1.0, 0.0], Verdict::Deny { retry_after: None }),
        ];
        for (name, record, verdict) in rows {
            let decision = decode(&numbers(&record), &[&job(1)]).remove(0).unwrap();
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
            let is_error = |reply: &Result<Decision, Error>| {
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
