//! Decisions over several slots, made slot by slot.

use std::sync::Arc;

use bb8_redis::bb8::ManageConnection;
use redis::RedisError;
use tokio::{
    task::JoinHandle,
    time::{Instant, timeout_at},
};

use super::{clustered::Clustered, connection::ToCluster};
use crate::{
    decision::{Charge, Decision, Outcome},
    error::Error,
    store::{
        Action,
        redis::{
            transport::{
                background::Finish,
                deadline::{REPLY_TIMEOUT, deadline_in, timed_out},
            },
            wire::{Job, Reply},
        },
    },
};

impl<M> Clustered<M>
where
    M: ManageConnection<Connection: ToCluster, Error = RedisError>,
{
    pub(super) async fn decide_in_several_slots(self: &Arc<Self>, job: Job) -> Result<Decision, Error> {
        let (allowed, deadline) = (job.deadline, deadline_in(job.deadline));
        let link = self.clone();
        // Finished in the background if the caller drops it, because units to refund must not be lost.
        let finish = async move { link.slot_by_slot(job, deadline).await };
        timeout_at(deadline, Finish(Some(Box::pin(finish)))).await.unwrap_or_else(|_| Err(timed_out(allowed)))
    }

    /// The caller waits until `deadline`.
    async fn slot_by_slot(self: &Arc<Self>, job: Job, deadline: Instant) -> Result<Decision, Error> {
        let latest = deadline.max(deadline_in(REPLY_TIMEOUT));
        let is_charge = matches!(job.action, Action::Charge | Action::ChargeUpTo);
        let mut outcomes: Vec<Option<Outcome>> = vec![None; job.charges.len()];
        let mut charged: Vec<Vec<usize>> = Vec::new();
        let mut first_error = None;
        let mut denied = false;
        for positions in self.by_slot(&job.charges) {
            let (action, until) = match job.action {
                _ if denied => (Action::Peek, halfway_to(deadline)),
                // Charges stop at the caller's deadline, because they are refunded after it.
                action if is_charge => (action, deadline),
                action => (action, latest),
            };
            let mut part =
                job.part(action, positions.iter().map(|&position| job.charges[position].clone()).collect());
            part.deadline = until.saturating_duration_since(Instant::now());
            match self.decide_in_slot(part).await {
                Ok(decision) => {
                    for (&position, outcome) in positions.iter().zip(decision.outcomes()) {
                        outcomes[position] = Some(outcome.clone());
                    }
                    if !is_charge || denied {
                        continue;
                    }
                    if decision.is_allowed() {
                        charged.push(positions);
                        continue;
                    }
                    denied = true;
                    let refund = self.refund_charged(&job, &charged, &outcomes);
                    if let Ok(Ok(refunded)) = timeout_at(halfway_to(deadline), refund).await {
                        refunded
                            .into_iter()
                            .for_each(|(position, outcome)| outcomes[position] = Some(outcome));
                    }
                }
                // The request is denied anyway.
                Err(_) if denied => {}
                Err(error) if is_charge => {
                    self.refund_charged(&job, &charged, &outcomes);
                    return Err(error);
                }
                // Refund and renew as much as possible.
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        if let Some(first_error) = first_error {
            // Some units may have been refunded.
            job.settled(None);
            return Err(first_error);
        }
        let reply = Reply { decision: Decision::new(outcomes.into_iter().flatten()), leased: None };
        job.settled(Some(&reply));
        Ok(reply.decision)
    }

    /// Refunds the charges of a decision that is not admitted, even if the caller is dropped. Returns the new outcomes
    /// with the positions of their charges.
    fn refund_charged(
        self: &Arc<Self>,
        job: &Job,
        charged: &[Vec<usize>],
        outcomes: &[Option<Outcome>],
    ) -> JoinHandle<Vec<(usize, Outcome)>> {
        let charged = charged.iter().map(|positions| {
            let charged: Vec<_> = positions
                .iter()
                .filter_map(|&position| Some((position, outcomes[position].clone()?)))
                .collect();
            let charges = charged.iter().map(|(_, outcome)| outcome.undo());
            let mut part = job.part(Action::Refund, charges.collect());
            part.deadline = job.deadline.max(REPLY_TIMEOUT);
            part.observer = job.observer.as_ref().and_then(|observer| observer.undoing());
            (part, charged)
        });
        let (charged, link): (Vec<_>, _) = (charged.collect(), self.clone());
        tokio::spawn(async move {
            let mut all = Vec::new();
            for (part, charged) in charged {
                // If a refund fails, that much less is admitted until the quota is replenished.
                let Ok(decision) = link.decide_in_slot(part).await else { continue };
                let refunded = charged.into_iter().zip(decision.outcomes());
                all.extend(
                    refunded.map(|((position, outcome), now)| (position, with_values_of(&outcome, now))),
                );
            }
            all
        })
    }

    /// The positions of the charges in each slot, in the order of their first charges.
    fn by_slot(&self, charges: &[Charge]) -> Vec<Vec<usize>> {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for (position, charge) in charges.iter().enumerate() {
            match groups.iter_mut().find(|group| self.share_a_slot(charges[group[0]].key(), charge.key())) {
                Some(group) => group.push(position),
                None => groups.push(vec![position]),
            }
        }
        groups
    }
}

/// Half of the remaining time, so there is time to answer.
fn halfway_to(deadline: Instant) -> Instant {
    let now = Instant::now();
    now + deadline.saturating_duration_since(now) / 2
}

/// `outcome` with the remaining units and the reset of `now`, after its refund.
fn with_values_of(outcome: &Outcome, now: &Outcome) -> Outcome {
    Outcome::new(outcome.charge(), outcome.verdict(), now.remaining(), now.reset_after())
        .granting(outcome.granted())
}
