//! What is known about the units of one identity under one rule.

use std::{collections::BTreeMap, mem, time::Duration};

use tokio::time::Instant;

use super::{bans::Bans, rules::Rule};

/// The units of one identity under one rule.
#[derive(Default)]
pub(super) struct Account {
    /// The most units that the store can have charged, ever.
    pub(super) possible: u64,
    /// Units that the store admitted, in total.
    pub(super) admitted: u64,
    /// The certain part of this since the data was lost.
    pub(super) counted: u64,
    /// Units that callers tried to debit, so the most that can be debt.
    pub(super) debited: u64,
    /// Units that callers tried to refund.
    pub(super) refunded: u64,
    /// Units that are not charged in the end: the instance that refunded them, since when no call may have failed, and
    /// how many.
    pub(super) given_back: Vec<(String, Instant, u64)>,
    pub(super) local: BTreeMap<String, Local>,
    /// Permits in use by the number of losses when they were granted, and permits in use by instance.
    pub(super) held: BTreeMap<u64, u64>,
    pub(super) held_locally: BTreeMap<String, u64>,
    pub(super) bans: Bans,
    pub(super) resets: Resets,
}

/// The resets of an account.
#[derive(Default)]
pub(super) struct Resets {
    /// How many were tried.
    pub(super) tried: u64,
    /// How many have begun or ended: a decision before such a moment may be made after it, or the other way round.
    pub(super) moments: u64,
    /// The latest moment.
    pub(super) latest: Option<Instant>,
    /// Whether one failed, so it may still come.
    pub(super) failed: bool,
    /// Those under way, each with the most units that can be charged after it.
    under_way: BTreeMap<u64, u64>,
    /// When those under way began, and how often data had been lost then.
    begun: BTreeMap<u64, (Instant, u64)>,
    /// The latest of these that was done.
    done: Option<(Instant, u64)>,
    /// Decisions under way, and the most units that each can charge.
    open: BTreeMap<u64, u64>,
    /// Units that a call without an answer may still charge, and when it failed.
    unanswered: Vec<(Instant, u64)>,
}

impl Resets {
    /// Whether one that began after `time` was done, and its mark was not lost since.
    pub(super) fn is_after(&self, time: Instant, losses: u64) -> bool {
        self.done.is_some_and(|(began, then)| time < began && then == losses)
    }
}

/// Longer than a call without an answer may be repeated by its instance.
const REPEATED: Duration = Duration::from_secs(3);

impl Account {
    /// A decision may charge up to `units`.
    pub(super) fn asked(&mut self, number: u64, units: u64) {
        self.possible += units;
        self.resets.under_way.values_mut().for_each(|possible| *possible += units);
        if units > 0 {
            self.resets.open.insert(number, units);
        }
    }

    /// Of the decision `number`, `units` were not charged.
    pub(super) fn not_charged(&mut self, number: u64, units: u64) {
        self.possible -= units;
        if let Some(open) = self.resets.open.get_mut(&number) {
            *open -= units;
            self.resets.under_way.values_mut().for_each(|possible| *possible -= units);
        }
    }

    /// The decision `number` was answered, or dropped.
    pub(super) fn ended(&mut self, number: u64, is_certain: bool) {
        let units = self.resets.open.remove(&number).unwrap_or_default();
        if !is_certain && units > 0 {
            self.resets.unanswered.push((Instant::now(), units));
        }
    }

    fn moment_of_reset(&mut self) {
        self.resets.moments += 1;
        self.resets.latest = Some(Instant::now());
        self.counted = 0;
        self.given_back.clear();
        for local in self.local.values_mut() {
            local.reconciled.clear();
            local.forgotten = local.owed;
        }
    }

    /// A reset begins. Returns its number.
    pub(super) fn resetting(&mut self, losses: u64) -> u64 {
        self.moment_of_reset();
        self.resets.tried += 1;
        self.resets.begun.insert(self.resets.tried, (Instant::now(), losses));
        self.resets.unanswered.retain(|(time, _)| time.elapsed() < REPEATED);
        let unanswered = self.resets.unanswered.iter().map(|(_, units)| units).sum::<u64>();
        let possible = self.resets.open.values().sum::<u64>() + unanswered;
        self.resets.under_way.insert(self.resets.tried, possible);
        self.resets.tried
    }

    /// The reset `number` by `instance` has ended: done, unless calls from before may still arrive; or failed.
    pub(super) fn reset(&mut self, number: u64, instance: &str, is_done: bool, may_fail: bool) {
        self.moment_of_reset();
        self.resets.failed |= may_fail;
        let begun = self.resets.begun.remove(&number);
        let Some(possible) = self.resets.under_way.remove(&number).filter(|_| is_done) else { return };
        self.resets.done = self.resets.done.max(begun);
        // It does not know what others owe.
        let others = self.local.iter().filter(|(other, _)| *other != instance);
        let owed = others.map(|(_, local)| local.admitted).sum::<u64>();
        self.possible = self.possible.min(possible + owed);
    }
}

/// What an instance admitted without the store.
#[derive(Default)]
pub(super) struct Local {
    pub(super) admitted: u64,
    /// Units that it will charge once the store answers.
    pub(super) owed: u64,
    /// The part of this that a reset may have forgotten.
    forgotten: u64,
    /// When it charged such units, and how many, since the data was lost.
    pub(super) reconciled: Vec<(Instant, u64)>,
    /// All units that it charged or will charge then, so they may no longer count in its process.
    pub(super) moved: u64,
}

impl Account {
    /// The most units that the store may admit in `elapsed`, after its data was lost so often.
    pub(super) fn allowance(&self, rule: &Rule, losses: u64, elapsed: Duration) -> u64 {
        let in_a_period = rule.largest + if rule.forgets_debt() { rule.debt } else { 0 };
        // After a reset, other instances may spend what they have leased before.
        let leases = rule.leased * 3 * self.resets.tried;
        (rule.largest + rule.debt) * (1 + losses + self.resets.tried)
            + leases
            + rule.replenished(in_a_period, elapsed)
            + self.refunded
    }

    /// The units that `instances` certainly gave back, if the last call that failed did at `trouble`.
    pub(super) fn certainly_given_back(&self, instances: &[String], trouble: Option<Instant>) -> u64 {
        let is_certain = |(by, since, _): &&(String, Instant, u64)| {
            instances.contains(by) && trouble.is_none_or(|last| last < *since)
        };
        self.given_back.iter().filter(is_certain).map(|(.., units)| units).sum()
    }

    /// The least units that must be used if `instances` reconcile what they owe, of which some was lost at `trouble`.
    pub(super) fn least_used(&self, instances: &[String], trouble: Option<Instant>) -> u64 {
        let local = instances.iter().filter_map(|instance| self.local.get(instance));
        let is_certain = |(time, _): &&(Instant, u64)| trouble.is_none_or(|last| last < *time);
        let charged = |local: &Local| -> u64 {
            local.reconciled.iter().filter(is_certain).map(|(_, units)| units).sum()
        };
        self.counted + local.map(|local| charged(local) + local.owed - local.forgotten).sum::<u64>()
    }

    /// All data of the store was lost.
    pub(super) fn data_lost(&mut self) {
        // A refund of an older charge may still arrive, so those stay.
        self.counted = 0;
        self.bans.forget();
        self.local.values_mut().for_each(|local| local.reconciled.clear());
    }

    /// The store made a decision of `instance`. Returns whether it charges now what it owes.
    pub(super) fn store_decided(&mut self, instance: &str) -> bool {
        let Some(local) = self.local.get_mut(instance) else { return false };
        let owes = local.owed > 0;
        // What it owes is reconciled now.
        if local.owed > 0 {
            local.moved += local.owed;
            let forgotten = mem::take(&mut local.forgotten);
            local.reconciled.push((Instant::now(), mem::take(&mut local.owed) - forgotten));
        }
        owes
    }
}
