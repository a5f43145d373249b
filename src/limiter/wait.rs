//! Waits until a request is admitted.

use std::{mem, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::decider::{Decider, counted};
use crate::{
    base::{Error, ErrorKind, random::random_time},
    decision::{Charge, Decision},
    store::Action,
};

/// How long a denied request has waited, and how long it waits next.
#[derive(Clone, Copy)]
pub(crate) struct WaitState {
    since: Instant,
    /// How long it may wait in total.
    patience: Duration,
    /// The next wait for a permit, or the longest pause after a failure.
    next: Duration,
}

const FIRST_WAIT: Duration = Duration::from_millis(10);
const MAX_WAIT: Duration = Duration::from_millis(250);

impl WaitState {
    pub(crate) fn new(patience: Duration) -> Self {
        Self { since: Instant::now(), patience, next: FIRST_WAIT }
    }

    /// Decides `charges`, again until they are admitted or cannot be in time. Calls `waits` before each wait.
    pub(super) async fn check(
        &mut self,
        decider: &Arc<Decider>,
        charges: &[Charge],
        mut waits: impl FnMut(),
    ) -> Result<Decision, Error> {
        if self.patience.is_zero() {
            return decider.decide(Action::Charge, charges).await;
        }
        // A penalty counts each request that is denied, so it does not count the denials that this one waits
        // out.
        let uncounted = |charge: &Charge| match charge.policy().counts_denials() {
            true => charge.clone().under(&charge.policy().with_manual_bans()),
            false => charge.clone(),
        };
        let tries: Vec<Charge> = charges.iter().map(uncounted).collect();
        loop {
            decider.background.check_overdue();
            let (answer, asked) = decider.ask(Action::Charge, tries.clone());
            let decided = answer.await;
            let pause = decided.as_ref().err().and_then(|error| self.pause_after(error));
            let wait = match pause {
                Some(pause) => {
                    // The failure is counted, and another try makes the decision.
                    drop(counted(Action::Charge, decided));
                    pause
                }
                None => {
                    let decision = decider.complete(Action::Charge, &asked, decided)?;
                    match self.next(&decision) {
                        Some(wait) => wait,
                        None => return end_wait(decider, charges, decision).await,
                    }
                }
            };
            waits();
            sleep(wait).await;
        }
    }

    pub(super) fn left(&self) -> Duration {
        self.patience.saturating_sub(self.since.elapsed())
    }

    /// The wait after `decision`, before the next try. `None` if the request is admitted, or cannot be in
    /// time.
    fn next(&mut self, decision: &Decision) -> Option<Duration> {
        if !decision.is_denied() {
            return None;
        }
        let left = self.left();
        let mut wait = Duration::ZERO;
        let mut needs_permit = false;
        for outcome in decision.outcomes().iter().filter(|outcome| outcome.is_denied()) {
            let retry_after = outcome.retry_after()?;
            if outcome.charge().evaluated() > outcome.policy().capacity() {
                // Only a larger quota admits it, and the next try is under the same policy.
                return None;
            }
            if outcome.policy().has_permits() && !outcome.is_banned() {
                // The denial names when a permit expires if its holder is gone. It may be released earlier.
                needs_permit = true;
            } else {
                wait = wait.max(retry_after);
            }
        }
        if left.is_zero() || wait > left {
            return None;
        }
        if needs_permit {
            wait = wait.max(self.growing()).min(left);
        }
        Some(wait)
    }

    /// The pause after a failure of the store, before the next try. `None` if waiting does not end the
    /// failure, or if the time is over.
    fn pause_after(&mut self, error: &Error) -> Option<Duration> {
        let left = self.left();
        let passes = matches!(
            error.kind(),
            ErrorKind::StoreTimeout
                | ErrorKind::StoreBusy
                | ErrorKind::StoreUnreachable
                | ErrorKind::StoreDisconnected
        );
        if left.is_zero() || !passes {
            return None;
        }
        // Random, so that not all requests that wait for a store ask it in the same moment.
        let half = self.growing() / 2;
        Some((half + random_time(half)).min(left))
    }

    fn growing(&mut self) -> Duration {
        let longer = (self.next * 2).min(MAX_WAIT);
        mem::replace(&mut self.next, longer)
    }
}

/// Ends a wait for `charges` with the decision of its last try. A penalty counts a denial.
async fn end_wait(decider: &Arc<Decider>, charges: &[Charge], tried: Decision) -> Result<Decision, Error> {
    if tried.is_denied() && charges.iter().any(|charge| charge.policy().counts_denials()) {
        let (answer, asked) = decider.ask(Action::Charge, charges.to_vec());
        match answer.await {
            // The request stays denied, and the failure is counted instead of the denial.
            Err(error) if tried.failure().is_none() => drop(counted(Action::Charge, Err(error))),
            decided => return decider.complete(Action::Charge, &asked, decided),
        }
    }
    Ok(tried.map(|outcome| {
        let is_same = |charge: &&Charge| {
            charge.key() == outcome.key() && charge.policy().label() == outcome.policy().label()
        };
        match charges.iter().find(is_same) {
            Some(charge) => outcome.under(charge.policy()),
            None => outcome,
        }
    }))
}
