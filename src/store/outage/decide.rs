//! Decides in place of a store that fails.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::time::timeout;

use super::{LocalCounts, counts::MAX_KEYS};
use crate::{
    base::{Error, ErrorKind, Now, sync::lock},
    decision::{Charge, Decision, LocalCharge, Outcome, Permit, Verdict},
    key::Key,
    policy::{FailureMode, Policy},
    store::{Action, MemoryStore, Store},
};

/// The most shares that are kept. Further ones are computed for each decision.
const MAX_SHARES: usize = 64;
/// The longest wait for a call. No connection waits longer for a reply.
const MAX_CALL_TIME: Duration = Duration::from_secs(2);

/// Grants the permits of charges that this store has made with a decision.
type Hold<'a> = &'a dyn Fn(&Arc<dyn Store>, &[Charge], &Decision) -> Option<Permit>;

impl LocalCounts<dyn Store> {
    /// The decision over `charges`, or the error, in place of a decision that the store failed to make.
    pub(crate) fn decide(
        &self,
        action: Action,
        charges: &[Charge],
        error: Error,
        hold: Hold<'_>,
    ) -> Result<Decision, Error> {
        match mode(charges) {
            _ if is_mistake(&error) => Err(error),
            FailureMode::Closed => Err(error),
            FailureMode::Local { .. }
                if matches!(action, Action::Charge | Action::ChargeUpTo | Action::Debit | Action::Peek) =>
            {
                Ok(self.decide_locally(action, charges, error, hold))
            }
            FailureMode::Local { .. } if action == Action::Refund && charges.iter().all(is_of_a_decision) => {
                Ok(self.refund_later(charges, error))
            }
            _ => Ok(Decision::failed_open(error)),
        }
    }

    fn decide_locally(&self, action: Action, charges: &[Charge], error: Error, hold: Hold<'_>) -> Decision {
        let is_local = |charge: &&Charge| is_local(charge.policy().settings().failure_mode);
        let (all, charges): (_, Vec<&Charge>) = (charges, charges.iter().filter(is_local).collect());
        let shares: Vec<Charge> = charges
            .iter()
            .map(|charge| {
                let share = Charge::new(&self.share(charge.policy()), charge.key(), charge.cost());
                share.on_terms_of(charge)
            })
            .collect();
        let counts =
            self.counts.get_or_init(|| Arc::new(MemoryStore::of(self.clock.clone()).capacity(MAX_KEYS)));
        let owing = &mut *lock(&self.owing);
        // The twin of a custom algorithm may fail.
        let Now::Ready(Ok(local)) = counts.decide(action, &shares).now() else {
            return Decision::failed_open(error);
        };
        let is_closed = |charge: &&Charge| {
            let is_closed = charge.policy().settings().failure_mode == FailureMode::Closed;
            is_closed && charge.degrades() && charge.cost() > 0 && action.spec().denies
        };
        let closed = all.iter().filter(is_closed).map(Outcome::undecided);
        let charged = !local.is_denied() && action != Action::Peek;
        let is_owed = !error.kind().may_have_charged();
        let outcomes = charges.iter().zip(local.all_outcomes()).map(|(charge, share)| {
            let (remaining, reset_after) = (remaining_under(charge, share), share.reset_after());
            let outcome =
                Outcome::new(charge, share.verdict(), remaining, reset_after).with_granted(share.granted());
            if let Some(rest) = share.banned_for() {
                return outcome.banning(rest);
            }
            // A permit is held and not charged.
            if !charged || share.granted() == 0 || charge.needs_permit() {
                return outcome;
            }
            let units = if is_owed { owing.owe(charge, share) } else { None };
            self.owes.store(true, Ordering::Relaxed);
            outcome.counted_by(LocalCharge { made: share.charge().clone(), units })
        });
        let mut decision =
            Decision::failed_local(outcomes.chain(closed), error).at(local.made_at().unwrap_or(0));
        if charged {
            decision.hold(hold(counts, &shares, &local));
        }
        decision
    }

    /// Bans `key` in this process for `time` microseconds, if keys are counted here, for the rest of this
    /// outage and for later ones. 0 ends its ban.
    pub(crate) fn set_ban(&self, policy: &Policy, key: &Key, time: u64) {
        if let Some(counts) = self.counts.get().filter(|_| is_local(policy.settings().failure_mode)) {
            // The answer is ready. Only the twin of a custom algorithm may fail, which does not affect the
            // ban.
            drop(counts.decide(Action::Ban, &[Charge::new(&self.share(policy), key, time)]));
        }
    }

    /// The policy that counts for `policy` in this process.
    fn share(&self, policy: &Policy) -> Policy {
        let share = {
            let mut shares = lock(&self.shares);
            if let Some((_, share)) = shares.iter().find(|(known, _)| known.is(policy)) {
                return share.clone();
            }
            let share = policy.local_share(self.instances());
            if shares.len() < MAX_SHARES {
                shares.push((policy.clone(), share.clone()));
            }
            share
        };
        // The lock is free here, because a subscriber may make a decision.
        if policy.settings().failure_mode == (FailureMode::Local { instances: 0 }) {
            self.warn_if_unknown();
        }
        share
    }

    /// Refunds `units` units of `charged`, which was made in this process. Returns what remains here, and the
    /// refund for the store, if the charge was reconciled.
    pub(crate) fn refund(
        &self,
        charged: &Outcome,
        local: &LocalCharge,
        units: u64,
    ) -> (Outcome, Option<Charge>) {
        let mut remains = Outcome::new(
            charged.charge(),
            Verdict::Admit,
            charged.remaining_for_all(),
            charged.reset_after(),
        );
        let mut rest = units;
        if let Some(counts) = self.counts.get() {
            let _owing = lock(&self.owing);
            let state = |action, units| {
                let decided = counts.decide(action, &[local.made.clone().with_cost(units)]);
                decided.if_ready()?.as_ref().ok()?.all_outcomes().first().cloned()
            };
            let here = local.units.as_ref().map_or(units, |owed| owed.local().min(units));
            if let (Some(before), Some(after)) = (state(Action::Peek, 0), state(Action::Refund, here)) {
                // Only units that still counted were released.
                let released = after.remaining_for_all().saturating_sub(before.remaining_for_all()).min(here);
                if let Some(owed) = &local.units {
                    owed.release(released);
                }
                rest -= released;
                let remaining = remaining_under(charged.charge(), &after);
                remains = Outcome::new(charged.charge(), Verdict::Admit, remaining, after.reset_after());
            }
        }
        // If the store has nothing to refund, a charge of 0 shows what remains in the store.
        let of_store = local.units.as_ref().and_then(|owed| owed.refund(rest));
        let terms = charged.charge();
        (remains, of_store.map(|refund| refund.under(charged.policy()).on_terms_of(terms)))
    }

    /// Sends refunds of decisions again once the store answers, if they were not sent.
    fn refund_later(&self, refunds: &[Charge], error: Error) -> Decision {
        if !error.kind().may_have_charged() {
            let owing = &mut *lock(&self.owing);
            let room = MAX_KEYS.saturating_sub(owing.len());
            owing.refunds.extend(refunds.iter().filter(|refund| refund.cost() > 0).take(room).cloned());
            self.owes.store(true, Ordering::Relaxed);
        }
        let nothing: Vec<Charge> = refunds.iter().map(|refund| refund.clone().with_cost(0)).collect();
        self.decide_locally(Action::Peek, &nothing, error, &|_, _, _| None)
    }

    /// Forgets what `key` was charged in this process under `policy`, and what is owed to the store for it.
    /// Waits for the calls that are under way for `key`, because a charge that reached the store after a
    /// reset would undo it.
    pub(crate) async fn forget(&self, policy: &Policy, key: &Key) {
        let Some(counts) = self.counts.get() else { return };
        let nothing = Charge::new(&self.share(policy), key, 0);
        let key = nothing.key();
        loop {
            let call = {
                let owing = &mut *lock(&self.owing);
                drop(counts.reset(nothing.policy(), key));
                owing.forget(policy, key)
            };
            // The wait is bounded, because the runtime of the call may not be driven.
            match call {
                Some(call) if timeout(MAX_CALL_TIME, call.ended()).await.is_ok() => {}
                _ => return,
            }
        }
    }
}

/// What remains under an instance's `share` for all requests, so that as much as there remains for one with the headroom of
/// `charge`, and it is shed if it is shed there.
fn remaining_under(charge: &Charge, share: &Outcome) -> u64 {
    let remaining = share.remaining().saturating_add(charge.headroom());
    let is_exhausted = share.verdict().is_denied() && !share.is_shed();
    if is_exhausted { remaining.min(charge.cost().saturating_sub(1)) } else { remaining }
}

/// Whether `refund` belongs to a decision, and is not an operator's refund of any units of the key.
fn is_of_a_decision(refund: &Charge) -> bool {
    refund.cost() == 0 || refund.receipt().is_some()
}

/// Whether the program made a mistake, and the store did not fail.
pub(crate) fn is_mistake(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::InvalidConfig | ErrorKind::MissingSetup)
}

pub(crate) const fn is_local(mode: FailureMode) -> bool {
    matches!(mode, FailureMode::Local { .. })
}

/// The strictest failure mode of the policies, without shadows. One that [degrades](Charge::degrades) the request rejects nothing, so
/// with `Closed` it is decided here too.
pub(crate) fn mode(charges: &[Charge]) -> FailureMode {
    let denies = |charge: &&Charge| !(charge.is_shadow() || charge.is_guarantee());
    let modes = charges.iter().filter(denies).map(|charge| match charge.policy().settings().failure_mode {
        FailureMode::Closed if charge.degrades() => FailureMode::Local { instances: 0 },
        mode => mode,
    });
    let strictness = |mode: &FailureMode| match mode {
        FailureMode::Open => 0,
        FailureMode::Local { .. } => 1,
        FailureMode::Closed => 2,
    };
    modes.max_by_key(strictness).unwrap_or(FailureMode::Open)
}
