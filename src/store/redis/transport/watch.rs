//! Who keeps the deadlines of waiting decisions.
//!
//! A timer for each decision would cost 660 of its instructions, and a lock that all threads share. So the lanes of one
//! runtime keep the deadlines of that runtime's decisions: each lane has one timer, and answers late decisions whenever
//! it waits. Decisions of other runtimes have a timer of their own, because a runtime that is not driven runs no lane:
//! one whose `block_on` has returned, for example. For the same reason, lanes of other runtimes leave watched decisions
//! to the lanes that watch them.
//!
//! A lane looks at the deadlines every [`TICK`]. What a tick takes longer than that does not count, see
//! [`deadline`](super::deadline).

use std::{future::Future, mem, pin::pin, time::Duration};

use tokio::{runtime, sync::oneshot, time::Instant};

use super::deadline::{TICK, TOLERANCE, run_for};
use crate::{decision::Decision, error::Error};

/// The runtime whose lanes keep deadlines, and how many of its lanes are open.
#[derive(Default)]
pub(super) struct Watch {
    runtime: Option<runtime::Id>,
    lanes: usize,
    /// The time in which the runtime ran while lanes were open.
    time: Duration,
    last_tick: Option<Instant>,
}

/// An open lane's place in the queue.
#[derive(Default)]
pub(super) struct Place {
    /// Whether it keeps deadlines.
    watches: bool,
}

impl Watch {
    /// The place of a new lane in the runtime `here`.
    pub(super) fn join(&mut self, here: Option<runtime::Id>) -> Place {
        if self.lanes == 0 {
            self.runtime = here;
        }
        let watches = here.is_some() && self.runtime == here;
        self.lanes += usize::from(watches);
        Place { watches }
    }

    /// The time that deadlines are points in.
    pub(super) const fn time(&self) -> Duration {
        self.time
    }

    /// Counts the time since the latest tick of any lane. Returns all that was counted.
    pub(super) fn tick(&mut self, place: &Place, now: Instant) -> Duration {
        if place.watches {
            let since = self.last_tick.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
            self.time += since.min(TICK + TOLERANCE);
            self.last_tick = Some(now);
        }
        self.time
    }

    /// Removes a lane. Returns whether it was the last one that kept deadlines.
    pub(super) fn leave(&mut self, place: &mut Place) -> bool {
        let watched = mem::take(&mut place.watches);
        self.lanes -= usize::from(watched);
        let is_last = watched && self.lanes == 0;
        if is_last {
            self.last_tick = None;
        }
        is_last
    }

    /// Whether another lane may take all that the lane in `place` may.
    pub(super) const fn has_others(&self, place: &Place) -> bool {
        !place.watches || self.lanes > 1
    }

    /// Whether lanes keep a `deadline` of a caller in the runtime `here` that waits behind others with deadlines up to
    /// `latest`. They only look at the oldest decision, so a deadline that is earlier is not kept.
    pub(super) fn covers(
        &self,
        here: Option<runtime::Id>,
        deadline: Duration,
        latest: Option<Duration>,
    ) -> bool {
        self.lanes > 0 && self.runtime == here && latest.is_none_or(|latest| latest <= deadline + TICK)
    }
}

impl Place {
    pub(super) fn may_take(&self, caller: &Caller) -> bool {
        self.watches || !caller.is_watched
    }
}

/// A caller that waits for its decision.
pub(super) struct Caller {
    pub(super) entered: Instant,
    /// A point in the time of the [`Watch`].
    pub(super) deadline: Duration,
    pub(super) allowed: Duration,
    /// Whether lanes answer it at its deadline.
    pub(super) is_watched: bool,
    /// `None` once it is answered.
    pub(super) reply: Option<oneshot::Sender<Result<Decision, Error>>>,
}

impl Caller {
    pub(super) fn is_gone(&self) -> bool {
        self.reply.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    /// Sends the first answer; later ones are ignored.
    pub(super) fn answer(&mut self, answer: Result<Decision, Error>) {
        if let Some(reply) = self.reply.take() {
            // The error means that the caller was dropped.
            let _ = reply.send(answer);
        }
    }
}

/// Answers the `callers` whose deadlines have passed at the time `now`. Returns the last one's error.
pub(super) fn expire(
    callers: &mut [Caller],
    now: Duration,
    error: impl Fn(Duration) -> Error,
) -> Option<Error> {
    let mut last = None;
    for caller in callers.iter_mut().filter(|caller| caller.deadline <= now && caller.reply.is_some()) {
        let late = error(caller.allowed);
        caller.answer(Err(late.clone()));
        last = Some(late);
    }
    last
}

/// Runs `work` to its end, and `tick` from time to time meanwhile.
pub(super) async fn while_ticking<T>(work: impl Future<Output = T>, mut tick: impl FnMut()) -> T {
    let mut work = pin!(work);
    loop {
        match run_for(TICK, work.as_mut()).await {
            Some(done) => return done,
            None => tick(),
        }
    }
}
