use redis::Cmd;

use super::job::Job;
use crate::{decision::Charge, key::Key, policy::Policy, store::Action};

/// More than any key can have been charged, and exact in Lua.
const MOST: u64 = 1 << 50;
/// More units than any holder can have.
const MOST_HELD: u64 = 1_000_000;
/// How many of the policies a call has named already are looked through for the next charge's.
const REMEMBERED: usize = 8;

impl Job {
    /// What is refunded or renewed may be more than the capacity, if that was lowered since.
    fn cost(&self, charge: &Charge) -> u64 {
        match self.action {
            Action::Refund | Action::Renew if charge.needs_permit() => charge.cost().min(MOST_HELD),
            Action::Refund | Action::Renew => charge.cost().min(MOST),
            Action::Charge | Action::ChargeUpTo | Action::Peek => charge.bounded_cost(),
        }
    }

    const fn mode(&self) -> &'static str {
        if self.lease.is_some() {
            return "lease";
        }
        match self.action {
            Action::Charge => "take",
            Action::ChargeUpTo => "up-to",
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
pub(crate) fn write_key(to: &mut String, prefix: &str, policy: &Policy, key: &Key) {
    for part in [prefix, ":", policy.label(), ":{", key.as_str(), "}"] {
        to.push_str(part);
    }
}

/// The call that makes `jobs`, which all go with the first.
pub(crate) fn encode(jobs: &[&Job]) -> Cmd {
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
        write_key(&mut key, &job.prefix, charge.policy(), charge.key());
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
        let same = |known: &&Charge| !charge.needs_permit() && known.policy().counts_as(charge.policy());
        let from = policies.len().saturating_sub(REMEMBERED);
        let place = policies[from..].iter().position(same).map(|place| from + place);
        places.push(place.unwrap_or(policies.len()) + 1);
        if place.is_none() {
            policies.push(charge);
        }
    }
    command.arg(policies.len());
    for charge in policies {
        let (arguments, held) = (charge.policy().arguments(), charge.needs_permit());
        command
            .arg(charge.policy().counting().name())
            .arg(arguments.len() + usize::from(held))
            .arg(arguments);
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
                let returned = lease.returned;
                command.arg(lease.wanted).arg(returned.name).arg(returned.units).arg(returned.spent);
            }
        }
    }
    command
}

fn each<'a>(jobs: &[&'a Job]) -> impl Iterator<Item = (&'a Job, &'a Charge)> {
    jobs.iter().flat_map(|&job| job.charges.iter().map(move |charge| (job, charge)))
}
