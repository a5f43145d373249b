//! What a reservation is charged, and the calls that change it.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    iter, mem,
    pin::Pin,
    sync::{Arc, Mutex, Weak},
    task::{Context, Poll, Wake, Waker},
};

use tokio::{
    runtime::{Handle, Id},
    sync::oneshot,
};

use super::{
    background::{Work, runtime},
    limiter::Limiter,
};
use crate::{
    base::{Answer, Error, ErrorKind, sync::lock},
    decision::{Decision, Outcome},
};

/// How many debits of a reservation are kept, to refund them. Earlier ones stay charged.
const MAX_DEBITS: usize = 16;

/// What the outcomes of a decision are charged in total.
pub(super) struct Account {
    limiter: Limiter,
    decision: Decision,
    /// Where it was made, because it may be settled outside a runtime.
    runtime: Option<Handle>,
    state: Mutex<State>,
}

struct State {
    /// By the place of the outcome. Empty if the decision is a denial.
    totals: Vec<Total>,
    /// The latest debits, which may be refunded.
    debits: VecDeque<Decision>,
    /// The round that makes calls, and the runtimes that have a task for it.
    round: Option<(Weak<SharedRound>, Vec<Id>)>,
    /// What waits for the next round.
    waiting: Vec<Waiting>,
}

type Waiting = oneshot::Sender<Result<Decision, Error>>;

/// The units of one outcome.
#[derive(Clone, Copy)]
struct Total {
    wanted: u64,
    /// Those that are charged: granted by the store and not refunded.
    charged: u64,
    /// Units of calls without an answer. They are neither debited again nor refunded.
    unsure: u64,
    /// Whether nothing is debited or refunded: a permit is held and not charged, what a shadow denies is not charged, and a
    /// charge that is refunded because of the response stays so.
    is_fixed: bool,
}

impl Total {
    const fn missing(&self) -> u64 {
        if self.is_fixed { 0 } else { self.wanted.saturating_sub(self.charged.saturating_add(self.unsure)) }
    }

    const fn surplus(&self) -> u64 {
        if self.is_fixed { 0 } else { self.charged.saturating_sub(self.wanted) }
    }
}

impl Account {
    pub(super) fn new(limiter: &Limiter, decision: Decision) -> Arc<Self> {
        let total = |outcome: &Outcome| {
            let charged = outcome.granted();
            let is_fixed = outcome.policy().has_permits() || outcome.is_denied();
            Total { wanted: charged, charged, unsure: 0, is_fixed }
        };
        // A denial that is only reported has charged nothing either.
        let totals = match decision.outcomes().iter().any(Outcome::is_denied) {
            true => Vec::new(),
            false => decision.all_outcomes().iter().map(total).collect(),
        };
        let state = State { totals, debits: VecDeque::new(), round: None, waiting: Vec::new() };
        Arc::new(Self {
            limiter: limiter.clone(),
            decision,
            runtime: Handle::try_current().ok(),
            state: Mutex::new(state),
        })
    }

    pub(super) const fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    pub(super) const fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Leaves the totals of the outcomes of `refunded`, which is refunded, as they are.
    pub(super) fn fix(&self, refunded: &Decision) {
        let state = &mut *lock(&self.state);
        for outcome in refunded.all_outcomes() {
            let total = place(&self.decision, outcome).and_then(|place| state.totals.get_mut(place));
            if let Some(total) = total {
                total.is_fixed = true;
            }
        }
    }

    /// Sets the total of each outcome to `units` of its total, and makes the calls for it, even if the answer is
    /// dropped.
    pub(super) fn charge(self: &Arc<Self>, units: impl Fn(u64) -> u64) -> Answer<Decision> {
        let (sender, mut receiver) = oneshot::channel();
        let runtime = runtime(self.runtime.as_ref());
        let (round, starts, joins) = {
            let state = &mut *lock(&self.state);
            for total in &mut state.totals {
                total.wanted = units(total.wanted);
            }
            let is_even = |total: &Total| total.missing() == 0 && total.surplus() == 0;
            if state.round.is_none() && state.totals.iter().all(is_even) {
                return Answer::ready(Ok(self.decision.clone()));
            }
            state.waiting.push(sender);
            let mut started = None;
            let (round, runtimes) = state.round.get_or_insert_with(|| {
                let round = started.insert(Arc::new(SharedRound::new(Round::new(self.clone()))));
                (Arc::downgrade(round), Vec::new())
            });
            let joins = runtime.as_ref().filter(|runtime| !runtimes.contains(&runtime.id()));
            runtimes.extend(joins.map(Handle::id));
            // `None` while another thread drops it, which fails what waits.
            (round.upgrade(), started.is_some(), joins)
        };
        // The calls that the store answers immediately need no runtime.
        let is_over = starts
            && round
                .as_ref()
                .is_some_and(|round| round.poll(&mut Context::from_waker(Waker::noop())).is_ready());
        if let (Some(runtime), Some(round), false) = (joins, round.clone(), is_over) {
            // Each runtime makes the calls: another one may not be driven.
            runtime.spawn(poll_fn(move |cx| round.poll(cx)));
        }
        if let Ok(settled) = receiver.try_recv() {
            return Answer::ready(settled);
        }
        let mut round = round.filter(|_| runtime.is_none());
        Answer::pending(poll_fn(move |cx| {
            // Without a runtime, each answer makes the calls: another one may be kept and not polled.
            round.take_if(|round| round.poll(cx).is_ready());
            Pin::new(&mut receiver).poll(cx).map(|settled| settled.unwrap_or_else(|_| Err(dropped(true))))
        }))
    }
}

/// A round that each of its pollers drives.
struct SharedRound {
    /// `None` once it is over.
    running: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    pollers: Arc<Pollers>,
}

/// What is woken to poll a round. Apart from it: what the round waits for keeps this.
#[derive(Default)]
struct Pollers(Mutex<Vec<Waker>>);

impl Wake for Pollers {
    fn wake(self: Arc<Self>) {
        for waker in mem::take(&mut *lock(&self.0)) {
            waker.wake();
        }
    }
}

impl SharedRound {
    fn new(round: Round) -> Self {
        Self { running: Mutex::new(Some(Box::pin(round.run()))), pollers: Arc::default() }
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        {
            // Before the poll, so no wake is missed.
            let wakers = &mut *lock(&self.pollers.0);
            if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
                wakers.push(cx.waker().clone());
            }
        }
        let waker = Waker::from(self.pollers.clone());
        let slot = &mut *lock(&self.running);
        // Taken out, so it is dropped if it panics.
        if let Some(mut running) = slot.take()
            && running.as_mut().poll(&mut Context::from_waker(&waker)).is_pending()
        {
            *slot = Some(running);
            return Poll::Pending;
        }
        waker.wake();
        Poll::Ready(())
    }
}

/// The error of a call that is dropped with its runtime.
fn dropped(is_sent: bool) -> Error {
    let kind = if is_sent { ErrorKind::StoreDisconnected } else { ErrorKind::StoreUnreachable };
    Error::new(kind, "the Tokio runtime ended before the reservation was settled")
}

impl State {
    /// Records how `change` ended.
    fn apply(&mut self, decision: &Decision, change: Change, ended: &Result<Decision, Error>) {
        let failure = ended.as_ref().map_or_else(Some, Decision::failure).map(Error::kind);
        let is_unsure = failure.is_some_and(ErrorKind::may_have_charged);
        match change {
            Change::Debit(units) if is_unsure => {
                for (total, units) in self.totals.iter_mut().zip(units) {
                    total.unsure = total.unsure.saturating_add(units);
                }
            }
            Change::Debit(_) => {
                let Ok(debited) = ended else { return };
                for outcome in debited.all_outcomes() {
                    if let Some(total) = place(decision, outcome).and_then(|place| self.totals.get_mut(place))
                    {
                        total.charged = total.charged.saturating_add(outcome.granted());
                    }
                }
                if debited.all_outcomes().iter().any(|outcome| outcome.refundable() > 0) {
                    if self.debits.len() == MAX_DEBITS {
                        self.debits.pop_front();
                    }
                    self.debits.push_back(debited.clone());
                }
            }
            Change::Refund(units, is_local) => {
                let is_unsure = is_unsure && !is_local;
                let is_refunded =
                    is_local || ended.as_ref().is_ok_and(|refunded| !refunded.all_outcomes().is_empty());
                for (total, units) in self.totals.iter_mut().zip(units) {
                    if is_refunded || is_unsure {
                        total.charged = total.charged.saturating_sub(units);
                    }
                    if is_unsure {
                        total.unsure = total.unsure.saturating_add(units);
                    }
                }
            }
        }
    }
}

/// The place of the outcome of the same policy and key.
fn place(decision: &Decision, outcome: &Outcome) -> Option<usize> {
    decision.all_outcomes().iter().position(|one| one.charge().is_of_same_count(outcome.charge()))
}

/// A call of a round: the units by place.
enum Change {
    Debit(Vec<u64>),
    /// With whether this process had granted them. They are refunded in any case.
    Refund(Vec<u64>, bool),
}

/// The calls until an account is charged what is wanted. An account has at most one round, so each call knows how the
/// earlier ones ended.
struct Round {
    account: Arc<Account>,
    /// What waits for the calls under way.
    waiting: Vec<Waiting>,
    /// What the call under way changes.
    change: Option<Change>,
    /// Whether the store may have been asked: a pending answer asks it when it is polled.
    is_sent: bool,
    /// What the calls returned.
    settled: Option<Result<Decision, Error>>,
    is_over: bool,
    #[expect(dead_code, reason = "only dropped")]
    work: Work,
}

impl Round {
    fn new(account: Arc<Account>) -> Self {
        let work = account.limiter.begin_work();
        Self {
            account,
            waiting: Vec::new(),
            change: None,
            is_sent: false,
            settled: None,
            is_over: false,
            work,
        }
    }

    async fn run(mut self) {
        while self.begin() {
            self.make_calls().await;
            let settled = || self.settled.clone().unwrap_or_else(|| Ok(self.account.decision.clone()));
            for waiting in mem::take(&mut self.waiting) {
                // Its answer may have been dropped.
                drop(waiting.send(settled()));
            }
        }
    }

    /// Takes over what waits. Returns whether anything does.
    fn begin(&mut self) -> bool {
        let mut state = lock(&self.account.state);
        state.debits.retain(|debit| debit.all_outcomes().iter().any(|one| one.refundable() > 0));
        self.waiting = mem::take(&mut state.waiting);
        self.is_over = self.waiting.is_empty();
        if self.is_over {
            state.round = None;
        }
        // The earlier calls may have done all.
        self.settled = self.settled.take().filter(|settled| !has_failed(settled));
        !self.is_over
    }

    /// Makes the calls until the account is even, or one has failed.
    async fn make_calls(&mut self) {
        let account = self.account.clone();
        let Account { limiter, decision, state, .. } = &*account;
        let missing: Vec<u64> = lock(state).totals.iter().map(Total::missing).collect();
        if missing.iter().any(|units| *units > 0) {
            let answer =
                limiter.debit_each(decision, |place| missing.get(place).copied().unwrap_or_default());
            if !self.call(Change::Debit(missing), answer).await {
                return;
            }
        }
        // The latest debits are refunded first, and then the estimate.
        let debits: Vec<Decision> = lock(state).debits.iter().rev().cloned().collect();
        let sources =
            debits.into_iter().map(|debit| (debit, true)).chain(iter::once((decision.clone(), false)));
        for (source, is_debit) in sources {
            let surplus: Vec<u64> = lock(state).totals.iter().map(Total::surplus).collect();
            let places: Vec<Option<usize>> =
                source.all_outcomes().iter().map(|outcome| place(decision, outcome)).collect();
            let units = |number: usize| {
                let place = places.get(number).copied().flatten()?;
                surplus.get(place).copied()
            };
            let refunds = |(number, outcome): (usize, &Outcome)| {
                // The decision of the estimate shows what remains, even if nothing of it can be refunded.
                units(number).is_some_and(|units| units > 0) && (!is_debit || outcome.refundable() > 0)
            };
            if !source.all_outcomes().iter().enumerate().any(refunds) {
                continue;
            }
            let (refunded, answer) = limiter.refund_each(&source, |number| units(number).unwrap_or_default());
            let mut by_place = vec![0; surplus.len()];
            for (place, units) in places.iter().zip(refunded) {
                if let Some(total) = place.and_then(|place| by_place.get_mut(place)) {
                    *total = units;
                }
            }
            let is_local = source.all_outcomes().iter().any(|outcome| outcome.local().is_some());
            if !self.call(Change::Refund(by_place, is_local), answer).await {
                return;
            }
        }
    }

    /// Waits for a call, and records how it ended. Returns whether another one may follow.
    async fn call(&mut self, change: Change, answer: Answer<Decision>) -> bool {
        let is_local = matches!(change, Change::Refund(_, true));
        self.change = Some(change);
        let ended = match answer.now() {
            Ok(ended) => ended,
            Err(answer) => {
                if !self.is_sent {
                    // The caller polls the round once, perhaps outside a runtime. What polls it next makes the call.
                    let mut was_polled = false;
                    let again = |_: &mut Context<'_>| match mem::replace(&mut was_polled, true) {
                        false => Poll::Pending,
                        true => Poll::Ready(()),
                    };
                    poll_fn(again).await;
                    self.is_sent = true;
                }
                answer.await
            }
        };
        if let Some(change) = self.change.take() {
            lock(&self.account.state).apply(&self.account.decision, change, &ended);
        }
        // What was counted in this process, or is refunded once the store answers, is done.
        let is_done = ended.as_ref().is_ok_and(|decision| !decision.all_outcomes().is_empty());
        let goes_on = !has_failed(&ended) || is_done || is_local;
        self.settled = Some(match (self.settled.take(), ended) {
            (Some(Ok(before)), Ok(now)) => Ok(before.updated(&now)),
            (_, now) => now,
        });
        goes_on
    }
}

fn has_failed(ended: &Result<Decision, Error>) -> bool {
    ended.as_ref().map_or(true, |decision| decision.failure().is_some())
}

/// A round that is dropped with its runtime leaves the account to the next one.
impl Drop for Round {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let state = &mut *lock(&self.account.state);
        let failed = Err(dropped(self.is_sent));
        if let Some(change) = self.change.take() {
            state.apply(&self.account.decision, change, &failed);
        }
        state.round = None;
        for waiting in self.waiting.drain(..).chain(state.waiting.drain(..)) {
            drop(waiting.send(failed.clone()));
        }
    }
}
