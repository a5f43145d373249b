//! Group commit: a decision is sent at once if it can be, and otherwise shares a batch with others.

use std::{sync::Arc, time::Duration};

use tokio::{runtime::Handle, task::coop::consume_budget, time::Instant};

use super::{
    deadline::{TimeLeft, queue_full},
    lane::{Lane, open_another},
    probe::probe,
    queue::{Entry, Ticket},
    target::Target,
    watch::Place,
};
use crate::{decision::Decision, error::Error, store::redis::wire::Job};

/// Makes a decision, alone or in a batch.
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
    let here = Handle::try_current().ok().map(|runtime| runtime.id());
    let decision = match target.queue().enter(job, entered, here) {
        // Boxed because most decisions wait and do not need the space.
        Entry::Alone(job) => {
            let lane = Lane::new(target.clone(), Place::default());
            Box::pin(lane.carry_alone(job)).await
        }
        Entry::Open(ticket, place) => {
            tokio::spawn(Lane::new(target.clone(), place).carry());
            wait(&target, ticket, allowed).await
        }
        Entry::Wait(ticket) => wait(&target, ticket, allowed).await,
        Entry::Full => Err(queue_full()),
    };
    metric!(waited(entered.elapsed()));
    target.health().record(&decision);
    decision
}

/// After this time a caller that no lane watches opens another lane, if one may be opened. Then again after twice the
/// time, and so on: the lanes that were open may have ended with their runtime.
const STUCK: Duration = Duration::from_millis(5);

async fn wait<T: Target>(target: &Arc<T>, mut ticket: Ticket, allowed: Duration) -> Result<Decision, Error> {
    let reply = if ticket.is_watched {
        (&mut ticket.reply).await
    } else {
        let (mut left, mut pause, mut reply) = (allowed, STUCK, None);
        while reply.is_none() && !left.is_zero() {
            let time = pause.min(left);
            reply = TimeLeft::new(time).spend_on(&mut ticket.reply).await;
            (left, pause) = (left - time, pause * 2);
            if reply.is_none() && !left.is_zero() {
                // The open lanes may be of a runtime that is not driven.
                open_another(target);
            }
        }
        match reply {
            Some(reply) => reply,
            None if target.queue().withdraw(&ticket) => {
                return Err(target.health().no_connection());
            }
            None => return Err(target.health().late()),
        }
    };
    // If the lane was dropped with its runtime, the decision may have been made.
    reply.unwrap_or_else(|_| Err(target.health().late()))
}
