use redis::Cmd;

use super::job::Job;
use crate::{decision::Charge, key::Key, policy::Policy, store::Action};

/// More than any key can be charged, and exact in Lua.
const MAX_REFUND: u64 = 1 << 50;
/// More units than a permit can have.
const MAX_PERMIT_UNITS: u64 = 1_000_000;
/// How many of the last policies are searched for that of the next charge.
const POLICY_LOOKBACK: usize = 8;

impl Job {
    /// A refund or a renewal may exceed the capacity, if that was lowered since.
    fn cost(&self, charge: &Charge) -> u64 {
        match self.action {
            Action::Refund | Action::Renew if charge.needs_permit() => charge.cost().min(MAX_PERMIT_UNITS),
            Action::Refund | Action::Renew => charge.cost().min(MAX_REFUND),
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

    /// Whether both jobs can share a group, see `lua/decide.lua`.
    fn shares_group(&self, other: &Self) -> bool {
        self.mode() == other.mode() && self.charges.len() == other.charges.len()
    }
}

/// Writes the Redis key, `prefix:policy:algorithm:{identity}`.
pub(crate) fn write_key(out: &mut String, prefix: &str, policy: &Policy, key: &Key) {
    for part in [prefix, ":", policy.label(), ":{", key.as_str(), "}"] {
        out.push_str(part);
    }
}

/// Encodes the script call for `jobs`, which must be able to share a batch.
pub(crate) fn encode(jobs: &[&Job]) -> Cmd {
    let charges: usize = jobs.iter().map(|job| job.charges.len()).sum();
    let mut command = Cmd::with_capacity(
        8 + 3 * jobs.len() + 8 * charges.min(POLICY_LOOKBACK) + 3 * charges,
        128 + 96 * charges,
    );
    let Some(first) = jobs.first() else { return command };
    command.arg("EVALSHA").arg(first.script.hash()).arg(charges);
    let mut key = String::with_capacity(128);
    for (job, charge) in each_charge(jobs) {
        key.clear();
        write_key(&mut key, &job.prefix, charge.policy(), charge.key());
        command.arg(&key);
    }
    match first.time {
        Some(time) => command.arg(time),
        None => command.arg(""),
    };

    let mut policies: Vec<&Charge> = Vec::with_capacity(charges.min(POLICY_LOOKBACK));
    let mut indices = Vec::with_capacity(charges);
    for (_, charge) in each_charge(jobs) {
        // The holder is an argument of its policy, so charges with a holder share no policy.
        let same = |known: &&Charge| !charge.needs_permit() && known.policy().counts_as(charge.policy());
        let from = policies.len().saturating_sub(POLICY_LOOKBACK);
        let index = policies[from..].iter().position(same).map(|index| from + index);
        indices.push(index.unwrap_or(policies.len()) + 1);
        if index.is_none() {
            policies.push(charge);
        }
    }
    command.arg(policies.len());
    for charge in policies {
        let (arguments, has_holder) = (charge.policy().arguments(), charge.needs_permit());
        command
            .arg(charge.policy().counting().name())
            .arg(arguments.len() + usize::from(has_holder))
            .arg(arguments);
        if has_holder {
            command.arg(format!("{:032x}", charge.holder()));
        }
    }

    let mut indices = indices.into_iter();
    for group in jobs.chunk_by(|one, next| one.shares_group(next)) {
        let Some(first) = group.first() else { continue };
        command.arg(first.mode()).arg(group.len()).arg(first.charges.len());
        for ((job, charge), index) in each_charge(group).zip(indices.by_ref()) {
            command.arg(index).arg(job.cost(charge));
            if job.mode() == "refund" {
                // An administrator's refund has no receipt.
                let (made, mark) = charge.receipt().map_or((0, 0), |receipt| (receipt.made, receipt.mark));
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

fn each_charge<'a>(jobs: &[&'a Job]) -> impl Iterator<Item = (&'a Job, &'a Charge)> {
    jobs.iter().flat_map(|&job| job.charges.iter().map(move |charge| (job, charge)))
}
