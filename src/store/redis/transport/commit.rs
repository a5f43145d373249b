//! Group commit: a decision is sent at once if it can be, and otherwise shares a batch with others.

use std::{sync::Arc, time::Duration};

use tokio::{task::coop::consume_budget, time::Instant};

use super::{
    deadline::TimeLeft,
    lane::{Lane, open_another},
    probe::probe,
    queue::Ticket,
    target::Target,
    waiting::STUCK,
};
use crate::{base::Error, decision::Decision, store::redis::job::Job};

/// Makes a decision, alone or in a batch. Call it in a runtime.
pub(super) async fn decide<T: Target>(target: Arc<T>, job: Job) -> Result<Decision, Error> {
    if let Some(error) = target.breaker().error() {
        probe(&target, || job.first_key());
        let failed = Err(error);
        target.health().record(&failed);
        // A caller in a loop would never let another task run, not even the probe.
        consume_budget().await;
        return failed;
    }
    let (allowed, entered) = (job.deadline, Instant::now());
    let decision = match target.queue().enter(job, entered) {
        Ok(ticket) if ticket.is_alone => {
            let lane = target.queue().lone.open(Lane::new(target.clone()).carry(true));
            // An error if the lane was dropped with its runtime: the decision may have been made.
            lane.answer(ticket.reply).await.unwrap_or_else(|_| Err(target.health().late()))
        }
        Ok(ticket) => {
            if ticket.opens_lane {
                tokio::spawn(Lane::new(target.clone()).carry(false));
            }
            wait(&target, ticket, allowed).await
        }
        Err(full) => Err(full),
    };
    metric!(waited(entered.elapsed()));
    target.health().record(&decision);
    decision
}

async fn wait<T: Target>(target: &Arc<T>, mut ticket: Ticket, allowed: Duration) -> Result<Decision, Error> {
    let reply = if ticket.is_watched {
        Some((&mut ticket.reply).await)
    } else {
        let (mut left, mut pause, mut reply) = (allowed, STUCK, None);
        while reply.is_none() && !left.is_zero() {
            let time = pause.min(left);
            reply = TimeLeft::new(time).spend_on(&mut ticket.reply).await;
            (left, pause) = (left - time, pause * 2);
            if reply.is_none() && !left.is_zero() {
                open_another(target);
            }
        }
        reply
    };
    match reply {
        Some(Ok(reply)) => reply,
        None if target.queue().withdraw(&ticket) => Err(target.health().no_connection()),
        // Also if the lane was dropped with its runtime: the decision may have been made.
        _ => Err(target.health().late()),
    }
}
