//! What the script's integers mean. No number that stands for something else leaves this file.

use std::time::Duration;

use redis::Value;

use super::leases::Granted;
use crate::{Charge, Decision, Error, ErrorKind, Outcome, Verdict};

/// Integers for each charge, see `lua/decide.lua`.
const FIELDS: usize = 5;
const NEVER: i64 = -1;

/// The decision over `charges` with which `rest` begins, and takes it from there. Sets `rest` to `None` where
/// it begins with something else.
pub(super) fn decision(rest: &mut Option<&[Value]>, charges: &[Charge]) -> Result<Decision, Error> {
    let (values, others) = split(rest, charges.len())?;
    let mut outcomes = Vec::with_capacity(charges.len());
    for (charge, fields) in charges.iter().zip(values.chunks_exact(FIELDS)) {
        outcomes.push(outcome(charge, fields).ok_or_else(unexpected)?);
    }
    *rest = Some(others);
    Ok(Decision::new(outcomes))
}

/// The same of one charge, with what was leased besides.
pub(super) fn leased(rest: &mut Option<&[Value]>, charge: &Charge) -> Result<(Decision, Granted), Error> {
    let (values, others) = split(rest, 1)?;
    let (outcome, granted) = lease(charge, values).ok_or_else(unexpected)?;
    *rest = Some(others);
    Ok((Decision::new([outcome]), granted))
}

/// What is said of so many charges, and the rest of it.
fn split<'a>(rest: &mut Option<&'a [Value]>, charges: usize) -> Result<(&'a [Value], &'a [Value]), Error> {
    let values = rest.take().unwrap_or_default();
    // A text in place of the integers is what went wrong with this one.
    let problem = match values.first() {
        Some(Value::BulkString(text)) => Some(String::from_utf8_lossy(text)),
        Some(Value::SimpleString(text)) => Some(text.as_str().into()),
        _ => None,
    };
    if let Some(problem) = problem {
        *rest = values.get(1..);
        return Err(refused(&problem));
    }
    values.split_at_checked(charges * FIELDS).ok_or_else(unexpected)
}

fn lease(charge: &Charge, fields: &[Value]) -> Option<(Outcome, Granted)> {
    let [Value::Int(granted), Value::Int(remaining), Value::Int(reset), Value::Int(lasts), Value::Int(name)] =
        fields
    else {
        return None;
    };
    if *granted == 0 {
        return Some((outcome(charge, fields)?, Granted { units: 0, lasts: 0, name: 0 }));
    }
    let cost = charge.bounded_cost();
    let units = u64::try_from(*granted - 1).ok()?.checked_sub(cost)?;
    let granted = Granted { units, lasts: u64::try_from(*lasts).ok()?, name: u64::try_from(*name).ok()? };
    // What is leased can be taken too, here.
    let remaining = u64::try_from(*remaining).ok()?.saturating_add(units);
    let outcome = Outcome::new(charge, Verdict::Allow, remaining, micros(*reset)?);
    Some((outcome.granting(cost), granted))
}

fn outcome(charge: &Charge, fields: &[Value]) -> Option<Outcome> {
    let [Value::Int(granted), Value::Int(remaining), Value::Int(reset), Value::Int(retry), Value::Int(delay)] =
        fields
    else {
        return None;
    };
    let granted = u64::try_from(*granted).ok()?;
    let delay = micros(*delay)?;
    let verdict = match granted {
        0 if *retry == NEVER => Verdict::Deny { retry_after: None },
        0 => Verdict::Deny { retry_after: Some(micros(*retry)?) },
        _ if delay.is_zero() => Verdict::Allow,
        _ => Verdict::Delay(delay),
    };
    let remaining = u64::try_from(*remaining).ok()?;
    Some(Outcome::new(charge, verdict, remaining, micros(*reset)?).granting(granted.saturating_sub(1)))
}

pub(super) fn unexpected() -> Error {
    Error::new(
        ErrorKind::StoreReply,
        "the reply of the rate limit script is not one of its decisions; is another script kept under its name?",
    )
}

/// What one decision of several failed with.
fn refused(problem: &str) -> Error {
    Error::new(ErrorKind::StoreRefused, format!("Redis refused the command: {problem}"))
}

fn micros(value: i64) -> Option<Duration> {
    u64::try_from(value).ok().map(Duration::from_micros)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Action, Key, Policy, Quota,
        script::Script,
        store::redis::call::{self, Job},
    };

    /// Of a reply that has nothing else in it.
    fn decode(reply: &Value, charges: &[Charge]) -> Result<Decision, Error> {
        let job = Job {
            action: Action::Take,
            charges: charges.to_vec(),
            prefix: "rl".into(),
            time: None,
            script: Script::built_in(),
            deadline: Duration::ZERO,
            denied: None,
            lease: None,
        };
        call::decode(reply, &[job]).remove(0)
    }

    fn ints(values: &[i64]) -> Value {
        Value::Array(values.iter().copied().map(Value::Int).collect())
    }

    #[test]
    fn integers_become_verdicts() {
        let second = |seconds| Some(Duration::from_secs(seconds));
        let rows = [
            ("admitted", [1, 4, 1_000_000, 0, 0], Verdict::Allow),
            ("admitted, but later", [1, 4, 1_000_000, 0, 2_000_000], Verdict::Delay(Duration::from_secs(2))),
            ("refused", [0, 4, 1_000_000, 3_000_000, 0], Verdict::Deny { retry_after: second(3) }),
            ("refused for good", [0, 4, 1_000_000, -1, 0], Verdict::Deny { retry_after: None }),
        ];
        let charges = [Charge::new(&Policy::new("p", Quota::per_second(5)), &Key::new("k"), 1)];
        for (name, reply, verdict) in rows {
            let decision = decode(&ints(&reply), &charges).unwrap();
            assert_eq!(decision.verdict(), verdict, "{name}");
            assert_eq!(decision.outcomes()[0].remaining(), 4, "{name}");
            assert_eq!(decision.outcomes()[0].reset_after(), Duration::from_secs(1), "{name}");
        }
    }

    #[test]
    fn anything_else_is_an_error_and_no_panic() {
        let rows = [
            ("nothing", Value::Nil),
            ("too short", ints(&[1, 4, 0, 0])),
            ("too long", ints(&[1, 4, 0, 0, 0, 0])),
            ("text", Value::Array(vec![Value::SimpleString("OK".into()); 5])),
            ("a negative grant", ints(&[-1, 4, 0, 0, 0])),
            ("a negative wait", ints(&[0, 4, 0, -2, 0])),
            ("a negative delay", ints(&[1, 4, 0, 0, -1])),
            ("a negative rest", ints(&[1, -1, 0, 0, 0])),
            ("a negative reset", ints(&[1, 4, i64::MIN, 0, 0])),
        ];
        let charges = [Charge::new(&Policy::new("p", Quota::per_second(5)), &Key::new("k"), 1)];
        for (name, reply) in rows {
            assert_eq!(decode(&reply, &charges).unwrap_err().kind(), ErrorKind::StoreReply, "{name}");
        }
    }
}
