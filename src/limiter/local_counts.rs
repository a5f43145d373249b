//! What decides while the store fails.
//!
//! The [`FailureMode`]s of the policies define it. Policies that are [`Local`](FailureMode::Local) are counted in a
//! store in this process, at this instance's share. When the store answers again, what was admitted during the outage
//! and still counts is charged to it, and counts here only if the store had no room for it. So neither one outage nor
//! several are a second quota. Units that are refunded are not charged, or refunded to the store.

use std::{
    fmt,
    pin::pin,
    slice,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::stream::{self, StreamExt as _};
use indexmap::map::Entry;
use tokio::{
    runtime::Handle,
    time::{Instant, sleep, timeout},
};

use super::background::{Background, PermitRequest};
use crate::{
    base::{Error, ErrorKind, sync::lock},
    decision::{Charge, Decision, LocalCharge, Outcome, Reconciliation, Verdict},
    key::Key,
    policy::{FailureMode, Policy},
    store::{Action, LocalCounts, MemoryStore, Owed, Owing, Store},
};

/// The most keys that are counted in this process, which takes at most about 30 MB.
const MAX_KEYS: usize = 100_000;
/// The most shares that are kept. Further ones are computed for each decision.
const MAX_SHARES: usize = 64;
/// How many charges are reconciled concurrently: about as many as fit into a call.
const MOST_CONCURRENT: usize = 128;
/// The pause after the start of a round's last call before the next round, unless `drain` waits for it.
const PAUSE: Duration = Duration::from_millis(250);
/// Longer than any connection waits for a reply.
const MAX_CALL_TIME: Duration = Duration::from_secs(2);

impl Owing {
    /// Postpones the next round.
    fn pause(&mut self, time: Duration) {
        self.pause_until = self.pause_until.max(Some(Instant::now() + time));
    }

    /// Remembers what `share` granted in place of `charge`.
    fn owe(&mut self, charge: &Charge, share: &Outcome) -> Option<Arc<Reconciliation>> {
        let is_full = self.len() >= MAX_KEYS;
        let policy = charge.policy();
        let name = (policy.label().into(), charge.key().clone(), policy.counts_debits(), 0);
        let policy = || (charge.policy().clone(), share.policy().clone());
        let owed = match self.charges.entry(name) {
            Entry::Occupied(entry) => {
                let owed = entry.into_mut();
                // The quota has changed, and units above the old one still count.
                if !owed.share.is(share.policy()) {
                    (owed.policy, owed.share) = policy();
                }
                owed
            }
            Entry::Vacant(_) if is_full => return None,
            Entry::Vacant(entry) => {
                let (policy, share) = policy();
                entry.insert(Owed { policy, share, units: Arc::default() })
            }
        };
        owed.units.add(share.granted());
        Some(owed.units.clone())
    }
}

impl LocalCounts {
    /// The decision over `charges`, or the error, in place of a decision that the store failed to make.
    pub(super) fn decide(
        &self,
        action: Action,
        charges: &[Charge],
        error: Error,
        background: &Arc<Background>,
    ) -> Result<Decision, Error> {
        match mode(charges) {
            _ if is_mistake(&error) => Err(error),
            FailureMode::Closed => Err(error),
            FailureMode::Local { .. }
                if matches!(action, Action::Charge | Action::ChargeUpTo | Action::Debit | Action::Peek) =>
            {
                Ok(self.decide_locally(action, charges, error, background))
            }
            FailureMode::Local { .. } if action == Action::Refund && charges.iter().all(is_of_a_decision) => {
                Ok(self.refund_later(charges, error, background))
            }
            _ => Ok(Decision::failed_open(error)),
        }
    }

    fn decide_locally(
        &self,
        action: Action,
        charges: &[Charge],
        error: Error,
        background: &Arc<Background>,
    ) -> Decision {
        let is_local = |charge: &&Charge| is_local(charge.policy().failure_mode());
        let charges: Vec<&Charge> = charges.iter().filter(is_local).collect();
        let shares: Vec<Charge> = charges
            .iter()
            .map(|charge| Charge::new(&self.share(charge.policy()), charge.key(), charge.cost()))
            .collect();
        let counts = self.counts.get_or_init(|| Arc::new(MemoryStore::new().capacity(MAX_KEYS)));
        let owing = &mut *lock(&self.owing);
        // A twin of the user's may fail.
        let Ok(Ok(local)) = counts.decide(action, &shares).now() else {
            return Decision::failed_open(error);
        };
        let charged = !local.is_denied() && action != Action::Peek;
        let is_owed = !error.kind().may_have_charged();
        let outcomes = charges.iter().zip(local.all_outcomes()).map(|(charge, share)| {
            let (remaining, reset_after) = (share.remaining(), share.reset_after());
            let outcome =
                Outcome::new(charge, share.verdict(), remaining, reset_after).granting(share.granted());
            if let Some(rest) = share.banned_for() {
                return outcome.banning(rest);
            }
            // A permit is not charged but held.
            if !charged || share.granted() == 0 || charge.needs_permit() {
                return outcome;
            }
            let units = if is_owed { owing.owe(charge, share) } else { None };
            self.owes.store(true, Ordering::Relaxed);
            outcome.counted_by(LocalCharge { made: share.charge().clone(), units })
        });
        let mut decision = Decision::failed_local(outcomes, error);
        let counts: Arc<dyn Store> = counts.clone();
        if charged && let Some(permits) = PermitRequest::of(&counts, background, &shares) {
            decision.hold(permits.grant(&local));
        }
        decision
    }

    /// Bans `key` in this process for `time` microseconds, if keys are counted here, for the rest of this outage and for
    /// later ones. 0 ends its ban.
    pub(super) fn set_ban(&self, policy: &Policy, key: &Key, time: u64) {
        if let Some(counts) = self.counts.get().filter(|_| is_local(policy.failure_mode())) {
            // Done immediately. Only the user's twin of an algorithm may fail, and it does not affect the ban.
            drop(counts.decide_one(Action::Ban, Charge::new(&self.share(policy), key, time)));
        }
    }

    /// The policy that counts for `policy` in this process.
    fn share(&self, policy: &Policy) -> Policy {
        let mut shares = lock(&self.shares);
        if let Some((_, share)) = shares.iter().find(|(known, _)| known.is(policy)) {
            return share.clone();
        }
        if policy.failure_mode() == (FailureMode::Local { instances: 0 }) {
            self.warn_if_unknown();
        }
        let share = policy.local_share(self.instances());
        if shares.len() < MAX_SHARES {
            shares.push((policy.clone(), share.clone()));
        }
        share
    }

    /// Refunds `units` units of `charged`, which was made in this process. Returns what remains here, and what is left to
    /// refund of the charge to the store, if it was reconciled.
    pub(super) fn refund(
        &self,
        charged: &Outcome,
        local: &LocalCharge,
        units: u64,
    ) -> (Outcome, Option<Charge>) {
        let mut remains =
            Outcome::new(charged.charge(), Verdict::Allow, charged.remaining(), charged.reset_after());
        let mut rest = units;
        if let Some(counts) = self.counts.get() {
            let _owing = lock(&self.owing);
            let state = |action, units| {
                let decided = counts.decide_one(action, local.made.clone().with_cost(units)).now();
                decided.ok()?.ok()?.all_outcomes().first().cloned()
            };
            let here = local.units.as_ref().map_or(units, |owed| owed.local().min(units));
            if let (Some(before), Some(after)) = (state(Action::Peek, 0), state(Action::Refund, here)) {
                // Those that still counted.
                let released = after.remaining().saturating_sub(before.remaining()).min(here);
                if let Some(owed) = &local.units {
                    owed.release(released);
                }
                rest -= released;
                remains =
                    Outcome::new(charged.charge(), Verdict::Allow, after.remaining(), after.reset_after());
            }
        }
        // With nothing to refund there, a charge of 0 shows what remains there.
        let of_store = local.units.as_ref().and_then(|owed| owed.refund(rest));
        (remains, of_store.map(|refund| refund.under(charged.policy())))
    }

    /// Sends refunds of decisions again once the store answers, if they were not sent.
    fn refund_later(&self, refunds: &[Charge], error: Error, background: &Arc<Background>) -> Decision {
        if !error.kind().may_have_charged() {
            let owing = &mut *lock(&self.owing);
            let room = MAX_KEYS.saturating_sub(owing.len());
            owing.refunds.extend(refunds.iter().filter(|refund| refund.cost() > 0).take(room).cloned());
            self.owes.store(true, Ordering::Relaxed);
        }
        let nothing: Vec<Charge> = refunds.iter().map(|refund| refund.clone().with_cost(0)).collect();
        self.decide_locally(Action::Peek, &nothing, error, background)
    }

    /// Forgets what `key` was charged in this process under `policy`, and what is owed to the store for it. Waits for calls
    /// that are under way for it: a charge that reached the store after a reset there would undo the reset.
    pub(super) async fn forget(&self, policy: &Policy, key: &Key) {
        let Some(counts) = self.counts.get() else { return };
        let nothing = Charge::new(&self.share(policy), key, 0);
        let key = nothing.key();
        loop {
            let mut ended = pin!(self.ended.notified());
            ended.as_mut().enable();
            {
                let owing = &mut *lock(&self.owing);
                owing.charges.retain(|(label, owed, ..), _| **label != *policy.label() || owed != key);
                owing
                    .refunds
                    .retain(|refund| refund.policy().label() != policy.label() || refund.key() != key);
                drop(counts.reset(nothing.policy(), key));
                if !owing.sent.iter().any(|(label, sent)| **label == *policy.label() && sent == key) {
                    return;
                }
            }
            // Its runtime may not be driven.
            if timeout(MAX_CALL_TIME, ended).await.is_err() {
                return;
            }
        }
    }

    /// Notes a call for something that has left the table, until the guard is dropped.
    fn sent(&self, owing: &mut Owing, policy: &Policy, key: &Key) -> Sent<'_> {
        let name = (policy.label().into(), key.clone());
        owing.sent.push(name.clone());
        Sent { local: self, name }
    }

    /// Charges to `store`, which has just answered, what is owed to it, unless a call for that has just begun.
    pub(super) fn start_reconciling(self: &Arc<Self>, store: &Arc<dyn Store>) {
        let Ok(runtime) = Handle::try_current() else { return };
        {
            let owing = &mut *lock(&self.owing);
            if owing.len() == 0 {
                // A round under way may put something back.
                return self.owes.store(Arc::strong_count(&self.reconciling) > 1, Ordering::Relaxed);
            }
            if owing.pause_until.is_some_and(|end| Instant::now() < end) {
                return;
            }
            // Longer for each round whose calls hang, perhaps because its runtime is not driven.
            let rounds = Arc::strong_count(&self.reconciling).min(4) as u32;
            owing.pause(PAUSE * rounds * rounds);
        }
        let (local, store) = (self.clone(), store.clone());
        // The runtime may end, or not be driven: everything stays owed until the call for it is made.
        runtime.spawn(async move {
            let _under_way = local.reconciling.clone();
            // They make room for what is charged.
            let refunds = stream::iter(0..lock(&local.owing).refunds.len());
            refunds.for_each_concurrent(MOST_CONCURRENT, |_| local.refund_next(&store)).await;
            let charges = {
                let charges = &mut lock(&local.owing).charges;
                // From the end, where those that are not sent are put back. So the oldest go there.
                charges.reverse();
                stream::iter((0..charges.len()).rev())
            };
            charges.for_each_concurrent(MOST_CONCURRENT, |place| local.reconcile_one(&store, place)).await;
        });
    }

    /// Charges to `store` what is owed to it, again until that succeeds.
    pub(super) async fn reconcile(self: &Arc<Self>, store: &Arc<dyn Store>) {
        loop {
            {
                let owing = &mut *lock(&self.owing);
                if Arc::strong_count(&self.reconciling) == 1 {
                    if owing.len() == 0 {
                        return;
                    }
                    owing.pause_until = None;
                }
            }
            self.start_reconciling(store);
            sleep(PAUSE / 10).await;
        }
    }

    /// Refunds the next of what `store` charged. Remembers it again if it was not sent.
    async fn refund_next(&self, store: &Arc<dyn Store>) {
        let (refund, _sent) = {
            let owing = &mut *lock(&self.owing);
            owing.pause(PAUSE);
            let Some(refund) = owing.refunds.pop_front() else { return };
            let sent = self.sent(owing, refund.policy(), refund.key());
            (refund, sent)
        };
        let refunded = store.decide(Action::Refund, slice::from_ref(&refund)).await;
        if refunded.is_err_and(|error| !error.kind().may_have_charged()) {
            lock(&self.owing).refunds.push_back(refund);
        }
    }

    /// Charges to `store` what it is owed at `place`. Remembers it again if it was not sent.
    async fn reconcile_one(&self, store: &Arc<dyn Store>, place: usize) {
        let Some(counts) = self.counts.get() else { return };
        let (mut name, owed, units, _sent) = {
            let owing = &mut *lock(&self.owing);
            owing.pause(PAUSE);
            let Some((name, owed)) = owing.charges.swap_remove_index(place) else { return };
            // Units that have been replenished no longer count.
            let peek = Charge::new(&owed.share, &name.1, 0);
            let Ok(Ok(local)) = counts.decide_one(Action::Peek, peek).now() else { return };
            let counted = owed.share.capacity().saturating_sub(local.remaining().unwrap_or_default());
            let units = owed.units.send(counted);
            let sent = self.sent(owing, &owed.policy, &name.1);
            (name, owed, units, sent)
        };
        if units == 0 {
            return;
        }
        // It is not a request, which could be denied and counted.
        let charge = Charge::new(&owed.policy.without_penalty(), &name.1, units);
        let charged = match store.decide(Action::ChargeUpTo, &[charge]).await {
            Ok(decision) => decision.all_outcomes().first().cloned(),
            // If it may have been charged, another attempt could charge it twice.
            Err(error) if error.kind().may_have_charged() => None,
            Err(_) => {
                let owing = &mut *lock(&self.owing);
                owed.units.not_charged();
                // What is admitted from now on is charged together with it.
                name.3 = 0;
                if owing.charges.contains_key(&name) {
                    owing.number += 1;
                    name.3 = owing.number;
                }
                owing.charges.insert(name, owed);
                return;
            }
        };
        let Some(charged) = charged else { return owed.units.not_charged() };
        {
            let owing = &mut *lock(&self.owing);
            let (taken, surplus) = owed.units.charged(charged.charge(), charged.granted());
            // What the store did not take still counts here, or every outage would be a new quota. Units that were
            // admitted during the call do, too.
            drop(counts.decide_one(Action::Refund, Charge::new(&owed.share, &name.1, taken)));
            let Some(surplus) = charged.refund(charged.claim_refund(surplus).units) else { return };
            owing.refunds.push_front(surplus);
        }
        self.refund_next(store).await;
    }
}

/// A call under way for what is owed of a key.
struct Sent<'a> {
    local: &'a LocalCounts,
    name: (Box<str>, Key),
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        let sent = &mut lock(&self.local.owing).sent;
        if let Some(place) = sent.iter().position(|name| *name == self.name) {
            sent.swap_remove(place);
        }
        self.local.ended.notify_waiters();
    }
}

/// Whether it refunds a decision, not any units of the key.
fn is_of_a_decision(refund: &Charge) -> bool {
    refund.cost() == 0 || refund.receipt().is_some()
}

/// Whether the error is one of the program, and not a failure of the store.
pub(super) const fn is_mistake(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::InvalidConfig | ErrorKind::MissingSetup)
}

pub(super) const fn is_local(mode: FailureMode) -> bool {
    matches!(mode, FailureMode::Local { .. })
}

/// The strictest failure mode of the policies.
pub(super) fn mode(charges: &[Charge]) -> FailureMode {
    let enforced = || charges.iter().filter(|charge| !charge.is_shadow());
    let modes = || enforced().map(|charge| charge.policy().failure_mode());
    modes()
        .find(|mode| *mode == FailureMode::Closed)
        .or_else(|| modes().find(|mode| is_local(*mode)))
        .unwrap_or(FailureMode::Open)
}

impl fmt::Debug for LocalCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalCounts").finish_non_exhaustive()
    }
}
