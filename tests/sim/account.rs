//! What is known about the units of one identity under one rule.

use std::{collections::BTreeMap, mem, time::Duration};

use tokio::time::Instant;

use super::{
    bans::Bans,
    rules::{Kind, Rule},
};

/// The units of one identity under one rule.
#[derive(Default)]
pub(super) struct Account {
    /// The most units that the store can have charged, ever.
    pub(super) possible: u64,
    /// Units that the store admitted, in total.
    pub(super) admitted: u64,
    /// The certain part of this since the data was lost.
    pub(super) counted: u64,
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
}

/// What an instance admitted without the store.
#[derive(Default)]
pub(super) struct Local {
    pub(super) admitted: u64,
    /// Units that it will charge once the store answers.
    pub(super) owed: u64,
    /// When it charged such units, and how many, since the data was lost.
    pub(super) reconciled: Vec<(Instant, u64)>,
    /// All units that it charged or will charge then, so they may no longer count in its process.
    pub(super) moved: u64,
}

impl Account {
    /// The most units that the store may admit in `elapsed`, after its data was lost so often.
    pub(super) fn allowance(&self, rule: &Rule, losses: u64, elapsed: Duration) -> u64 {
        // The debt of a window ends with it.
        let in_a_period = rule.largest + if rule.kind == Kind::Window { rule.debt } else { 0 };
        (rule.largest + rule.debt) * (1 + losses) + rule.replenished(in_a_period, elapsed) + self.refunded
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
        self.counted + local.map(|local| charged(local) + local.owed).sum::<u64>()
    }

    /// All data of the store was lost.
    pub(super) fn data_lost(&mut self) {
        // A refund of an older charge may still arrive, so those stay.
        self.counted = 0;
        self.bans.forget();
        self.local.values_mut().for_each(|local| local.reconciled.clear());
    }

    /// The store made a decision of `instance`.
    pub(super) fn store_decided(&mut self, instance: &str) {
        let Some(local) = self.local.get_mut(instance) else { return };
        // What it owes is reconciled now.
        if local.owed > 0 {
            local.moved += local.owed;
            local.reconciled.push((Instant::now(), mem::take(&mut local.owed)));
        }
    }
}
