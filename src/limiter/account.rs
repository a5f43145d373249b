//! What a reservation is charged, and the calls that change it.

use std::{
    collections::VecDeque,
    future::Future,
    mem,
    pin::Pin,
    sync::{Arc, Mutex},
};

use futures_util::future::{FutureExt as _, Shared, WeakShared};
use tokio::{runtime::Handle, task::yield_now};

#[cfg(feature = "settlement-tokens")]
use super::token::{Refundable, TokenRule};
use super::{
    background::{Work, runtime},
    decider::{Decider, enforced},
    limiter::Limiter,
};
#[cfg(feature = "settlement-tokens")]
use crate::decision::Claim;
use crate::{
    base::{
        Answer, Error, ErrorKind,
        panics::{answer_of, begun},
        sync::lock,
    },
    decision::{Decision, Outcome},
    policy::Enforcement,
};

/// How many debits of a reservation are kept, to refund them. Earlier ones stay charged.
const MAX_ADDITIONS: usize = 16;

/// The units that the outcomes of a decision are charged in total.
pub(super) struct Account {
    decider: Arc<Decider>,
    enforcement: Enforcement,
    pub(super) decision: Decision,
    /// Where it was made, because it may be settled outside a runtime.
    runtime: Option<Handle>,
    state: Mutex<AccountState>,
}

struct AccountState {
    /// One total for each outcome, in their order. Empty if the decision is a denial.
    totals: Vec<Total>,
    /// The latest debits and charges of `charge_more`, which may be refunded.
    additions: VecDeque<Decision>,
    /// The latest round. Weak, because a round has the account; an answer or the background keeps it.
    latest: Option<WeakShared<Round>>,
    /// Whether the latest round has begun its calls, so that later changes need another round.
    has_begun: bool,
    /// Whether a token has the units, so that another process settles them.
    has_token: bool,
}

/// Calls that make the charges equal to the totals. They begin after the calls of the round before.
type Round = Pin<Box<dyn Future<Output = Result<Decision, Error>> + Send>>;

/// The units of one outcome.
#[derive(Clone, Copy)]
struct Total {
    wanted: u64,
    /// The units that the store has granted and that are not refunded.
    charged: u64,
    /// Units of calls that are under way or have no answer. Such units are neither debited again nor
    /// refunded.
    unsure: u64,
    /// The units of each [`ChargedMore`] that is not decided yet. They are among `charged` or `unsure`, and not among
    /// `wanted`.
    more: u64,
    /// Whether nothing is debited or refunded: a permit is held and not charged, and what a shadow denies is
    /// not charged.
    is_fixed: bool,
    /// Whether the layer refunds its charge, so nothing more is debited.
    is_refunded: bool,
}

impl Total {
    const fn can_grow(&self) -> bool {
        !(self.is_fixed || self.is_refunded)
    }

    const fn missing(&self) -> u64 {
        let wanted = self.wanted.saturating_add(self.more);
        if self.can_grow() { wanted.saturating_sub(self.charged.saturating_add(self.unsure)) } else { 0 }
    }

    const fn surplus(&self) -> u64 {
        let wanted = self.wanted.saturating_add(self.more);
        if self.is_fixed { 0 } else { self.charged.saturating_sub(wanted) }
    }
}

impl Account {
    pub(super) fn new(limiter: &Limiter, decision: Decision) -> Arc<Self> {
        let total = |outcome: &Outcome| {
            let charged = outcome.granted();
            let is_fixed = outcome.policy().has_permits() || outcome.is_denied();
            Total { wanted: charged, charged, unsure: 0, more: 0, is_fixed, is_refunded: false }
        };
        let totals = match denies(&decision) {
            true => Vec::new(),
            false => decision.all_outcomes().iter().map(total).collect(),
        };
        let additions = VecDeque::new();
        let state = AccountState { totals, additions, latest: None, has_begun: false, has_token: false };
        Arc::new(Self {
            decider: limiter.decider.clone(),
            enforcement: limiter.enforcement,
            decision,
            runtime: Handle::try_current().ok(),
            state: Mutex::new(state),
        })
    }

    /// The decision of `decide`, which admits unless the limiter enforces it.
    pub(super) fn enforced(&self, decide: impl FnOnce() -> Answer<Decision>) -> Answer<Decision> {
        enforced(self.enforcement, decide)
    }

    /// Debits no more for the outcomes of `refunded`, which is refunded.
    pub(super) fn stop_charging(&self, refunded: &Decision) {
        let refunded = self.by_place(refunded.all_outcomes().iter().map(|outcome| (outcome, 1)));
        self.change(&refunded, |total, refunded| total.is_refunded |= refunded > 0);
    }

    /// Replaces the wanted total of each outcome by what `units` makes of it, and makes the calls for that, even if the
    /// answer is dropped.
    pub(super) fn set_total(self: &Arc<Self>, units: impl Fn(u64) -> u64) -> Answer<Decision> {
        let (round, is_first) = {
            let state = &mut *lock(&self.state);
            if let Err(error) = state.check_no_token() {
                return Answer::ready(Err(error));
            }
            for total in &mut state.totals {
                total.wanted = units(total.wanted);
            }
            let is_even = |total: &Total| total.missing() == 0 && total.surplus() == 0;
            match state.latest() {
                None if state.totals.iter().all(is_even) => {
                    return Answer::ready(Ok(self.decision.clone()));
                }
                Some(round) if !state.has_begun => return Answer::pending(round),
                earlier => {
                    let is_first = earlier.is_none();
                    let (account, work) = (self.clone(), self.decider.background.begin_work());
                    let calls = Calls { account, settled: None, was_polled: false };
                    // A store that panics is a failure, because a destructor may poll the round.
                    let settled = answer_of(|| Answer::pending(calls.run(earlier, work)));
                    let round = settled.boxed().shared();
                    (state.latest, state.has_begun) = (round.downgrade(), false);
                    (round, is_first)
                }
            }
        };
        // The calls that the store answers immediately need no runtime.
        if is_first && let Some(settled) = round.clone().now_or_never() {
            // Other threads may have started rounds by then, which wait for this one: polls them to their end.
            let latest = || lock(&self.state).latest();
            while latest().and_then(|round| round.now_or_never()).is_some() {}
            return Answer::ready(settled);
        }
        let call = round.clone().map(drop).boxed().shared();
        self.decider.background.call(runtime(self.runtime.as_ref()).as_ref(), call);
        Answer::pending(round)
    }

    /// Charges `units` more to each outcome that can be charged, or denies and charges nothing.
    pub(super) async fn charge_more(self: &Arc<Self>, units: u64) -> Result<(Decision, ChargedMore), Error> {
        let grow: Vec<u64> = {
            let state = lock(&self.state);
            state.check_no_token()?;
            state.totals.iter().map(|total| u64::from(total.can_grow())).collect()
        };
        let mut more = ChargedMore { account: self.clone(), units: Vec::new() };
        let Some(charged) = self.decision.of_outcomes(|outcome| self.units_of(outcome, &grow) > 0) else {
            return Ok((self.decision.clone(), more));
        };
        let ended = self.enforced(|| self.decider.charge_more(&charged, units)).await;
        let failure = ended.as_ref().map_or_else(Some, Decision::failure).map(Error::kind);
        if failure.is_some_and(ErrorKind::may_have_charged) {
            more.units = grow.iter().map(|grow| grow.saturating_mul(units)).collect();
            self.change(&more.units, |total, units| {
                total.more = total.more.saturating_add(units);
                total.unsure = total.unsure.saturating_add(units);
            });
        } else if let Ok(decision) = &ended
            && !denies(decision)
        {
            more.units = self.granted(decision);
            self.charged(decision, true);
        }
        Ok((ended?, more))
    }

    /// Records what `debit` charged. `is_more` is whether it is a part of [`ChargedMore`].
    fn charged(&self, debit: &Decision, is_more: bool) {
        self.change(&self.granted(debit), |total, units| {
            total.charged = total.charged.saturating_add(units);
            total.more = total.more.saturating_add(if is_more { units } else { 0 });
        });
        let additions = &mut lock(&self.state).additions;
        if is_refundable(debit) {
            if additions.len() == MAX_ADDITIONS {
                additions.pop_front();
            }
            additions.push_back(debit.clone());
        }
    }

    /// The units that `debit` granted, by the place of their outcome.
    fn granted(&self, debit: &Decision) -> Vec<u64> {
        self.by_place(debit.all_outcomes().iter().map(|outcome| (outcome, outcome.granted())))
    }

    /// The place of the outcome with the key and the policy name of `outcome`.
    fn place(&self, outcome: &Outcome) -> Option<usize> {
        self.decision.all_outcomes().iter().position(|one| one.charge().is_of_same_count(outcome.charge()))
    }

    /// The units at the place of `outcome`.
    fn units_of(&self, outcome: &Outcome, units: &[u64]) -> u64 {
        self.place(outcome).and_then(|place| units.get(place).copied()).unwrap_or_default()
    }

    /// The units of each outcome at its place.
    fn by_place<'a>(&self, units: impl Iterator<Item = (&'a Outcome, u64)>) -> Vec<u64> {
        let mut by_place = vec![0; self.decision.all_outcomes().len()];
        for (outcome, units) in units {
            if let Some(place) = self.place(outcome).and_then(|place| by_place.get_mut(place)) {
                *place = units;
            }
        }
        by_place
    }

    /// Applies `change` to each total and its number of `units`.
    fn change(&self, units: &[u64], change: impl Fn(&mut Total, u64)) {
        lock(&self.state).totals.iter_mut().zip(units).for_each(|(total, units)| change(total, *units));
    }
}

/// What [`Account::charge_more`] has charged beside the totals. It becomes a part of them when this is
/// dropped, so what others set until then is neither lowered nor refunded if it is undone.
pub(super) struct ChargedMore {
    account: Arc<Account>,
    /// The units of each outcome, in their order.
    units: Vec<u64>,
}

impl ChargedMore {
    /// Refunds these units.
    pub(super) fn undo(mut self) -> Answer<Decision> {
        let units = mem::take(&mut self.units);
        self.account.change(&units, |total, units| total.more = total.more.saturating_sub(units));
        self.account.set_total(|wanted| wanted)
    }
}

impl Drop for ChargedMore {
    fn drop(&mut self) {
        self.account.change(&self.units, |total, units| {
            total.more = total.more.saturating_sub(units);
            total.wanted = total.wanted.saturating_add(units);
        });
    }
}

impl AccountState {
    /// # Errors
    ///
    /// [`InvalidConfig`](ErrorKind::InvalidConfig) if a token has the units.
    fn check_no_token(&self) -> Result<(), Error> {
        ensure!(!self.has_token, "the reservation is a token: settle it with `Limiter::settle_token`");
        Ok(())
    }

    /// The latest round, unless it has ended.
    fn latest(&self) -> Option<Shared<Round>> {
        self.latest.as_ref()?.upgrade().filter(|round| round.peek().is_none())
    }
}

/// The units of an account that a token gets.
#[cfg(feature = "settlement-tokens")]
pub(super) struct HandedOver {
    account: Arc<Account>,
    /// The name of the store.
    pub(super) store: String,
    pub(super) rules: Vec<TokenRule>,
    claims: Vec<Claim>,
}

#[cfg(feature = "settlement-tokens")]
impl Account {
    /// Hands what is charged over to a token: this process charges and refunds nothing more of it, not even
    /// the layer's refund of the request.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](ErrorKind::InvalidConfig) if another process cannot settle it.
    pub(super) fn hand_over(self: &Arc<Self>, unit: Option<&str>) -> Result<HandedOver, Error> {
        let store = self.decider.store_name()?.to_owned();
        let state = &mut *lock(&self.state);
        state.check_no_token()?;
        let is_sure = |total: &Total| total.unsure == 0 && total.more == 0;
        ensure!(
            state.latest().is_none() && state.totals.iter().all(is_sure),
            "a call that changes the reservation is under way or was not answered: settle it here"
        );
        let outcomes = self.decision.all_outcomes();
        ensure!(
            !outcomes.iter().any(|outcome| outcome.policy().has_permits()),
            "a permit is released by the process that holds it: make the token of the other policies"
        );
        let is_local = |outcome: &Outcome| outcome.local().is_some();
        ensure!(
            self.decision.failure().is_none()
                && !outcomes
                    .iter()
                    .chain(state.additions.iter().flat_map(Decision::all_outcomes))
                    .any(is_local),
            "the reservation was made while the store failed, so no other process can settle it"
        );
        // Rules are settled in separate steps, and a guarantee is refunded only together with its pool.
        let can_change = |(outcome, total): &(&Outcome, &Total)| {
            !(total.is_fixed || total.is_refunded || outcome.charge().is_guarantee())
        };
        let changeable: Vec<_> = outcomes.iter().zip(&state.totals).filter(can_change).collect();
        ensure!(
            changeable.iter().all(|(outcome, _)| outcome.charge().receipt().is_some()),
            "the store has given no receipt of the charge: settle the reservation here"
        );
        let (mut rules, mut claims) = (Vec::new(), Vec::new());
        for (outcome, total) in changeable {
            let mut refundable = Vec::new();
            let is_it = |debit: &&Outcome| debit.charge().is_of_same_count(outcome.charge());
            for charged in [outcome]
                .into_iter()
                .chain(state.additions.iter().flat_map(Decision::all_outcomes).filter(is_it))
            {
                let Some(receipt) = charged.charge().receipt() else { continue };
                let claim = charged.claim_refund(u64::MAX);
                refundable.push(Refundable { units: claim.units, receipt });
                claims.push(claim);
            }
            let (label, key) = (outcome.policy().label().to_owned(), outcome.key().clone());
            let unit = unit.map(str::to_owned);
            rules.push(TokenRule { label, key, unit, charged: total.charged, refundable });
        }
        state.has_token = true;
        Ok(HandedOver { account: self.clone(), store, rules, claims })
    }
}

#[cfg(feature = "settlement-tokens")]
impl HandedOver {
    /// Takes the units back, because there is no token.
    pub(super) fn take_back(self) {
        self.claims.into_iter().for_each(Claim::release);
        lock(&self.account.state).has_token = false;
    }
}

/// The calls of one round.
struct Calls {
    account: Arc<Account>,
    /// The decision after the calls that are made.
    settled: Option<Result<Decision, Error>>,
    /// Whether the round was polled before, so that no caller outside a runtime polls it.
    was_polled: bool,
}

impl Calls {
    /// Makes the calls, after the calls of `earlier`. `_work` ends with them.
    async fn run(mut self, earlier: Option<Shared<Round>>, _work: Work) -> Result<Decision, Error> {
        if let Some(earlier) = earlier {
            // The earlier calls may have charged all that is wanted, so their decision is kept unless it failed.
            self.settled = Some(earlier.await).filter(|settled| !has_failed(settled));
        }
        {
            let state = &mut *lock(&self.account.state);
            state.has_begun = true;
            state.additions.retain(is_refundable);
        }
        self.make_calls().await;
        self.settled.unwrap_or_else(|| Ok(self.account.decision.clone()))
    }

    /// Debits what is missing, and refunds what is too much.
    async fn make_calls(&mut self) {
        let account = self.account.clone();
        let Account { decider, decision, state, .. } = &*account;
        let missing: Vec<u64> = lock(state).totals.iter().map(Total::missing).collect();
        if missing.iter().any(|units| *units > 0) {
            let debit = || decider.debit_each(decision, |outcome| account.units_of(outcome, &missing));
            let answer = begun(debit);
            if !self.call(&missing, false, answer).await {
                return;
            }
        }
        // The latest additions are refunded first, and then the estimate.
        let additions: Vec<Decision> = lock(state).additions.iter().rev().cloned().collect();
        for (source, is_debit) in additions.iter().map(|addition| (addition, true)).chain([(decision, false)])
        {
            let surplus: Vec<u64> = lock(state).totals.iter().map(Total::surplus).collect();
            let units = |outcome: &Outcome| account.units_of(outcome, &surplus);
            let outcomes = source.all_outcomes();
            // The decision of the estimate shows what remains, even if nothing of it can be refunded.
            if !outcomes.iter().any(|one| units(one) > 0 && (!is_debit || one.refundable() > 0)) {
                continue;
            }
            let (refunded, answer) = decider.refund_each(source, units);
            let mut refunded = account.by_place(outcomes.iter().zip(refunded));
            let is_local = outcomes.iter().any(|outcome| outcome.local().is_some());
            if is_local {
                // An outage's charge is refunded in this process, or once the store answers.
                account.change(&refunded, |total, units| total.charged = total.charged.saturating_sub(units));
                refunded.fill(0);
            }
            if !self.call(&refunded, true, answer).await && !is_local {
                return;
            }
        }
    }

    /// Waits for a call that debits or refunds `units`, which are unsure until it ends, even if that is
    /// never. Returns whether other calls may follow.
    async fn call(&mut self, units: &[u64], is_refund: bool, answer: Answer<Decision>) -> bool {
        if !answer.is_ready() && !mem::replace(&mut self.was_polled, true) {
            // The first poll may be outside a runtime, so the next one makes the call.
            yield_now().await;
        }
        let account = &self.account;
        account.change(units, |total, units| {
            total.unsure = total.unsure.saturating_add(units);
            if is_refund {
                total.charged = total.charged.saturating_sub(units);
            }
        });
        let ended = answer.await;
        let failure = ended.as_ref().map_or_else(Some, Decision::failure).map(Error::kind);
        // Units that were counted in this process, or are refunded once the store answers, need no other
        // call.
        let is_done = ended.as_ref().is_ok_and(|decision| !decision.all_outcomes().is_empty());
        if !failure.is_some_and(ErrorKind::may_have_charged) {
            account.change(units, |total, units| {
                total.unsure = total.unsure.saturating_sub(units);
                if is_refund && !is_done {
                    total.charged = total.charged.saturating_add(units);
                }
            });
            if let (Ok(debit), false) = (&ended, is_refund) {
                account.charged(debit, false);
            }
        }
        self.settled = Some(match (self.settled.take(), ended) {
            (Some(Ok(before)), Ok(now)) => Ok(before.updated(&now)),
            (_, now) => now,
        });
        failure.is_none() || is_done
    }
}

fn has_failed(ended: &Result<Decision, Error>) -> bool {
    ended.as_ref().map_or(true, |decision| decision.failure().is_some())
}

/// Whether a policy denies, so nothing is charged, even if the denial is only reported.
fn denies(decision: &Decision) -> bool {
    decision.outcomes().iter().any(Outcome::is_denied)
}

fn is_refundable(debit: &Decision) -> bool {
    debit.all_outcomes().iter().any(|one| one.refundable() > 0)
}
