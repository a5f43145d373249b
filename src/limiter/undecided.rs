//! Charges that are refunded if their caller is dropped before the decision.

use std::{
    future::poll_fn,
    mem,
    sync::Arc,
    task::{Poll, ready},
};

use super::{
    decider::{Decider, Deciding},
    limiter::Limiter,
};
use crate::{base::Answer, decision::Decision};

/// A charge whose decision is pending, which is polled as soon as this is made. If this is dropped, the charge is refunded
/// under the rules that refund cancelled requests.
pub(crate) struct Undecided {
    decider: Arc<Decider>,
    /// `None` once it is decided.
    deciding: Option<Deciding>,
    /// The places of the rules under which it is refunded.
    rules: Vec<usize>,
}

impl Undecided {
    /// The decision of a charge, which `limiter` makes, and which is refunded under `rules` if nothing awaits
    /// the decision.
    pub(crate) fn watch(limiter: &Limiter, deciding: Deciding, rules: Vec<usize>) -> Answer<Decision> {
        let mut undecided = Self { decider: limiter.decider.clone(), deciding: Some(deciding), rules };
        Answer::pending(poll_fn(move |cx| {
            let Self { decider, deciding, .. } = &mut undecided;
            let Some(under_way) = deciding else { panic!("a charge was polled after its decision") };
            let decided = ready!(decider.poll_charge(under_way, cx));
            *deciding = None;
            Poll::Ready(decided)
        }))
    }
}

impl Drop for Undecided {
    fn drop(&mut self) {
        let Some(mut deciding) = self.deciding.take() else { return };
        let (decider, rules) = (self.decider.clone(), mem::take(&mut self.rules));
        let refund = async move {
            let decided = poll_fn(|cx| decider.poll_charge(&mut deciding, cx)).await?;
            match decided.of_outcomes(|outcome| rules.contains(&outcome.charge().rule())) {
                // A denial has charged nothing under the other rules either.
                Some(part) if !decided.is_denied() => decider.refund_each(&part, |_| u64::MAX).1.await,
                _ => Ok(decided),
            }
        };
        self.decider.background.begin_work().end_with(Answer::pending(refund));
    }
}
