//! Calls to the store that end well even if their caller is dropped.

use std::{
    future::{Future, poll_fn},
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use super::{
    background::Work,
    decider::{Decider, Deciding},
    limiter::Limiter,
};
use crate::{base::Answer, decision::Decision};

/// A charge under way, which is polled as soon as it is made. It is refunded under some rules if this is
/// dropped.
pub(crate) struct Undecided {
    decider: Arc<Decider>,
    /// `None` once it is decided.
    charge: Option<Deciding>,
    /// The places of the rules under which it is refunded.
    rules: Vec<usize>,
}

impl Undecided {
    /// The decision of `charge`, which `limiter` makes, and which is refunded under `rules` if nothing awaits
    /// the decision.
    pub(crate) fn watch(limiter: &Limiter, charge: Deciding, rules: Vec<usize>) -> Answer<Decision> {
        let mut undecided = Self { decider: limiter.decider.clone(), charge: Some(charge), rules };
        Answer::pending(poll_fn(move |cx| {
            let Self { decider, charge, .. } = &mut undecided;
            let Some(deciding) = charge else { panic!("a charge was polled after its decision") };
            let decided = ready!(decider.poll_charge(deciding, cx));
            *charge = None;
            Poll::Ready(decided)
        }))
    }
}

impl Drop for Undecided {
    fn drop(&mut self) {
        let Some(mut charge) = self.charge.take() else { return };
        let (decider, rules) = (self.decider.clone(), mem::take(&mut self.rules));
        let refund = async move {
            let decided = poll_fn(|cx| decider.poll_charge(&mut charge, cx)).await?;
            match decided.of_outcomes(|outcome| rules.contains(&outcome.charge().rule())) {
                // A denial has charged nothing under the other rules either.
                Some(part) if !decided.is_denied() => decider.refund_each(&part, |_| u64::MAX).1.await,
                _ => Ok(decided),
            }
        };
        self.decider.background.begin_work().end_with(Answer::pending(refund));
    }
}

/// A refund under way. It is completed in the background if this is dropped.
pub(crate) struct Refund(Option<(Work, Answer<Decision>)>);

impl Refund {
    /// A refund of all that `decision` charged.
    pub(crate) fn of(limiter: &Limiter, decision: &Decision) -> Self {
        Self(Some((limiter.decider.background.begin_work(), limiter.refund(decision, u64::MAX))))
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
