//! What one call of the script says: several decisions in one `EVALSHA`.

use std::{sync::Arc, time::Duration};

use redis::{Cmd, Value};

use super::{
    denied::{Asked, Denied},
    error,
    leases::{Granted, Terms},
    reply::{self, Reader},
};
use crate::{Action, Charge, Decision, Error, Policy, script::Script};

/// One decision to be made.
pub(super) struct Job {
    pub(super) action: Action,
    pub(super) charges: Vec<Charge>,
    pub(super) prefix: Arc<str>,
    /// A manual clock's time, in microseconds. The server's own where there is none.
    pub(super) time: Option<u64>,
    pub(super) script: Arc<Script>,
    pub(super) deadline: Duration,
    /// Who remembers a refusal, and forgets one when units are given back.
    pub(super) denied: Option<(Arc<Denied>, Asked)>,
    /// What is leased and given back besides. Of a job with one charge.
    pub(super) lease: Option<Terms>,
}

/// More than any key can have been charged, and exact in Lua.
const MOST: u64 = 1 << 50;
/// More units than any holder can have.
const MOST_HELD: u64 = 1_000_000;
/// How many of the policies a call has named already are looked through for the next charge's.
const REMEMBERED: usize = 8;

impl Job {
    /// Whether both can be made in one call.
    pub(super) fn goes_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.script, &other.script) && self.time == other.time
    }

    /// A part of this one, or what follows from it, with nothing to remember of its own.
    #[cfg(feature = "cluster")]
    pub(super) fn part(&self, action: Action, charges: Vec<Charge>) -> Self {
        let (prefix, script) = (self.prefix.clone(), self.script.clone());
        Self { action, charges, prefix, script, denied: None, lease: None, ..*self }
    }

    /// What is remembered of its decision, or forgotten for it.
    pub(super) fn settle(&self, decision: Option<&Decision>) {
        let Some((denied, asked)) = &self.denied else { return };
        // One that fetches a lease may give an older one back.
        if self.action != Action::Take || self.lease.as_ref().is_some_and(Terms::frees_some) {
            self.charges.iter().for_each(|charge| denied.forget(&charge.policy, &charge.key));
        } else if let Some(decision) = decision {
            denied.remember(decision, *asked);
        }
    }

    /// About how many microseconds of Redis it takes at worst.
    pub(super) fn micros(&self) -> u64 {
        let refund = self.action == Action::Refund;
        // A denial looks at no more holders than units are missing.
        let holders = |charge: &Charge| if charge.is_held() { charge.cost.min(1_000) } else { 0 };
        self.charges.iter().map(|charge| charge.policy.redis_micros(refund) + holders(charge)).sum()
    }

    /// Whether it may be sent again where it is not known that it was carried out: what is charged twice is admitted
    /// once, and a holder is released once. What is refunded twice is admitted twice, and units that are leased twice
    /// are missed until the second lease ends.
    pub(super) fn may_be_repeated(&self) -> bool {
        self.lease.is_none() && (self.action != Action::Refund || self.charges.iter().all(Charge::is_held))
    }

    /// What is given back or renewed may be more than the capacity, if that was lowered since.
    fn cost(&self, charge: &Charge) -> u64 {
        match self.action {
            Action::Refund | Action::Renew if charge.is_held() => charge.cost.min(MOST_HELD),
            Action::Refund | Action::Renew => charge.cost.min(MOST),
            Action::Take | Action::TakeUpTo | Action::Peek => charge.bounded_cost(),
        }
    }

    const fn mode(&self) -> &'static str {
        if self.lease.is_some() {
            return "lease";
        }
        match self.action {
            Action::Take => "take",
            Action::TakeUpTo => "up-to",
            Action::Peek => "peek",
            Action::Refund => "refund",
            Action::Renew => "renew",
        }
    }

    /// Whether both are of one form, see `lua/decide.lua`.
    fn is_like(&self, other: &Self) -> bool {
        self.mode() == other.mode() && self.charges.len() == other.charges.len()
    }
}

/// `prefix:policy:algorithm:{identity}`
pub(super) fn write_key(to: &mut String, prefix: &str, policy: &Policy, key: &crate::Key) {
    for part in [prefix, ":", policy.label(), ":{", key.as_str(), "}"] {
        to.push_str(part);
    }
}

/// The call that makes `jobs`, which all go with the first.
pub(super) fn command(jobs: &[&Job]) -> Cmd {
    let charges: usize = jobs.iter().map(|job| job.charges.len()).sum();
    let mut command = Cmd::with_capacity(
        8 + 3 * jobs.len() + 8 * charges.min(REMEMBERED) + 3 * charges,
        128 + 96 * charges,
    );
    let Some(first) = jobs.first() else { return command };
    command.arg("EVALSHA").arg(first.script.hash()).arg(charges);
    let mut key = String::with_capacity(128);
    for (job, charge) in each(jobs) {
        key.clear();
        write_key(&mut key, &job.prefix, &charge.policy, &charge.key);
        command.arg(&key);
    }
    match first.time {
        Some(time) => command.arg(time),
        None => command.arg(""),
    };

    let mut policies: Vec<&Charge> = Vec::with_capacity(charges.min(REMEMBERED));
    let mut places = Vec::with_capacity(charges);
    for (_, charge) in each(jobs) {
        // A holder is an argument too, so who holds has a policy of his own.
        let same = |known: &&Charge| !charge.is_held() && known.policy.counts_as(&charge.policy);
        let from = policies.len().saturating_sub(REMEMBERED);
        let place = policies[from..].iter().position(same).map(|place| from + place);
        places.push(place.unwrap_or(policies.len()) + 1);
        if place.is_none() {
            policies.push(charge);
        }
    }
    command.arg(policies.len());
    for charge in policies {
        let (arguments, held) = (charge.policy.arguments(), charge.is_held());
        command.arg(charge.policy.counting().name()).arg(arguments.len() + usize::from(held)).arg(arguments);
        if held {
            command.arg(format!("{:032x}", charge.holder()));
        }
    }

    let mut places = places.into_iter();
    for run in jobs.chunk_by(|one, next| one.is_like(next)) {
        let Some(first) = run.first() else { continue };
        command.arg(first.mode()).arg(run.len()).arg(first.charges.len());
        for ((job, charge), place) in each(run).zip(places.by_ref()) {
            command.arg(place).arg(job.cost(charge));
            if job.mode() == "refund" {
                // An administrator's refund is of no charge.
                let (made, mark) = charge.refund_of().map_or((0, 0), |charge| (charge.made, charge.mark));
                command.arg(made).arg(mark);
            }
            if let Some(lease) = &job.lease {
                let back = lease.send();
                command.arg(lease.wanted).arg(back.name).arg(back.units).arg(back.spent);
            }
        }
    }
    command
}

fn each<'a>(jobs: &[&'a Job]) -> impl Iterator<Item = (&'a Job, &'a Charge)> {
    jobs.iter().flat_map(|&job| job.charges.iter().map(move |charge| (job, charge)))
}

/// What became of each of `jobs`, in their order.
pub(super) fn decode(reply: &Value, jobs: &[&Job]) -> Vec<Result<Decision, Error>> {
    let all_unexpected = || jobs.iter().map(|_| Err(reply::unexpected())).collect();
    let Some(mut reader) = Reader::new(reply) else { return all_unexpected() };
    let said: Vec<_> = jobs.iter().map(|job| reader.next(job)).collect();
    if !reader.is_done() {
        // Where something is too much or too little, nothing of it is to be believed.
        return all_unexpected();
    }
    let settle = |(&job, said): (&&Job, Result<(Decision, Option<Granted>), Error>)| {
        if let (Some(lease), Ok((decision, Some(granted)))) = (&job.lease, &said) {
            lease.came(*granted, decision);
        }
        let decision = said.map(|(decision, _)| decision);
        job.settle(decision.as_ref().ok());
        decision
    };
    jobs.iter().zip(said).map(settle).collect()
}

/// Whether a decision failed because the server is a replica.
pub(super) fn is_read_only(reply: &Value) -> bool {
    let is = |text: &str| error::code(text) == Some("READONLY");
    let says_so = |value: &Value| match value {
        Value::BulkString(text) => str::from_utf8(text).is_ok_and(is),
        Value::SimpleString(text) => is(text),
        _ => false,
    };
    matches!(reply, Value::Array(values) if values.iter().any(says_so))
}
