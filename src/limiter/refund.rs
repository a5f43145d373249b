//! Refunds of what a decision has charged.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use super::{background::Work, decider::Decider, limiter::Limiter, store_call::StoreCall};
use crate::{
    base::Answer,
    decision::{Decision, Outcome},
    store::Action,
};

/// A refund under way. It is completed in the background if this is dropped.
pub(crate) struct Refund(Option<(Work, Answer<Decision>)>);

impl Refund {
    /// A refund of all that `decision` charged.
    pub(crate) fn of(limiter: &Limiter, decision: &Decision) -> Self {
        let decider = &limiter.decider;
        Self(Some((decider.background.begin_work(), decider.refund_each(decision, |_| u64::MAX).1)))
    }
}

/// The decision after the refund; `None` if it failed.
impl Future for Refund {
    type Output = Option<Decision>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Decision>> {
        let Some((_, answer)) = &mut self.0 else { return Poll::Ready(None) };
        let refunded = ready!(Pin::new(answer).poll(cx));
        self.0 = None;
        Poll::Ready(refunded.ok())
    }
}

impl Drop for Refund {
    fn drop(&mut self) {
        if let Some((work, answer)) = self.0.take() {
            work.end_with(answer);
        }
    }
}

impl Decider {
    /// Refunds the given number of units of each outcome. Also returns how many are refunded.
    pub(super) fn refund_each(
        self: &Arc<Self>,
        decision: &Decision,
        units: impl Fn(&Outcome) -> u64,
    ) -> (Vec<u64>, Answer<Decision>) {
        let (mut refunded, mut claims) = (Vec::new(), Vec::new());
        let (mut charges, mut here) = (Vec::new(), Vec::new());
        for outcome in decision.all_outcomes() {
            // A denial charges nothing: a Cluster refunds what was charged in some slots before it returns
            // the denial.
            let units = if decision.is_denied() { 0 } else { units(outcome) };
            if outcome.verdict().is_denied() && outcome.charge().degrades() {
                // It was not charged, and its outcome stays.
                refunded.push(0);
                continue;
            }
            let claim = outcome.claim_refund(units);
            if let Some(local) = outcome.local() {
                refunded.push(claim.units);
                let (remains, of_store) = self.local.refund(outcome, local, claim.units);
                match of_store {
                    Some(charge) => charges.push(charge),
                    None => here.push(remains),
                }
                continue;
            }
            // If there is nothing to refund, a charge of 0 shows what remains.
            let charge = outcome.refund(claim.units);
            refunded.push(if charge.is_some() { claim.units } else { 0 });
            claims.push(claim);
            charges.push(charge.unwrap_or_else(|| outcome.charge().asking()));
        }
        let here = (!here.is_empty()).then(|| Decision::refunded_locally(here, decision));
        if charges.is_empty() {
            return (refunded, Answer::ready(Ok(here.unwrap_or_else(|| decision.clone()))));
        }
        let answer = self.dispatch(Action::Refund, &charges);
        let answer = StoreCall::refund(&self.background, &charges, claims).track(answer);
        let decider = self.clone();
        let answer = answer.then(move |decided| decider.complete(Action::Refund, &charges, decided));
        let answer = match here {
            Some(here) => answer.map(move |refunded| here.updated(&refunded)),
            None => answer,
        };
        (refunded, answer)
    }
}
