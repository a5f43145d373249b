//! Limits the attempts to connect to a server that does not accept them.
//!
//! A pool, and each connection that is being replaced, tries again separately. So while attempts fail, at most two are
//! under way, with a pause after each that failed. Two, so that one that hangs does not delay the first that succeeds.
//! All others fail immediately with the error of the last one, so no caller waits for its turn.

use std::{future::Future, sync::Mutex, time::Duration};

use redis::{RedisError, RedisResult};
use tokio::time::Instant;

use crate::base::sync::lock;

/// The most attempts under way while they fail.
const MOST: usize = 2;
/// The pause after an attempt that failed: first this one, then twice as long each time, up to the longer one.
const PAUSE: Duration = Duration::from_millis(25);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

#[derive(Debug, Default)]
pub(super) struct Gate(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    under_way: usize,
    failed: Option<Failed>,
}

/// The last attempt failed.
#[derive(Debug)]
struct Failed {
    error: RedisError,
    pause: Duration,
    next: Instant,
}

impl Gate {
    /// The output of `attempt`, if it may be made now.
    ///
    /// # Errors
    ///
    /// The result of `attempt`, or of the last one if it may not.
    pub(super) async fn pass<T>(&self, attempt: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
        let _guard = self.enter()?;
        let ended = attempt.await;
        let failed = &mut lock(&self.0).failed;
        match &ended {
            Ok(_) => *failed = None,
            Err(error) => {
                let pause = failed.take().map_or(PAUSE, |failed| (failed.pause * 2).min(LONGEST_PAUSE));
                *failed = Some(Failed { error: error.clone(), pause, next: Instant::now() + pause });
            }
        }
        ended
    }

    fn enter(&self) -> RedisResult<UnderWay<'_>> {
        let mut state = lock(&self.0);
        let is_full = state.under_way >= MOST;
        if let Some(failed) = state.failed.as_ref().filter(|failed| is_full || Instant::now() < failed.next) {
            return Err(failed.error.clone());
        }
        state.under_way += 1;
        Ok(UnderWay(self))
    }
}

/// An attempt, also one that is dropped before it ends.
struct UnderWay<'a>(&'a Gate);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        lock(&self.0.0).under_way -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::{pending, ready},
        io,
    };

    use tokio::time::timeout;

    use super::*;

    async fn attempt_fails(gate: &Gate) -> Option<bool> {
        let mut was_made = false;
        let attempt = async {
            was_made = true;
            Err::<(), _>(io::Error::from(io::ErrorKind::ConnectionRefused).into())
        };
        let error = gate.pass(attempt).await.unwrap_err();
        error.is_connection_refusal().then_some(was_made)
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_that_fail_have_pauses_that_grow_until_one_succeeds() {
        let (gate, started) = (Gate::default(), Instant::now());
        let mut made = Vec::new();
        while started.elapsed() < Duration::from_secs(1) {
            if attempt_fails(&gate).await.unwrap() {
                made.push(started.elapsed().as_millis());
            }
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!(made, [0, 25, 75, 175, 375, 625, 875]);
        tokio::time::advance(LONGEST_PAUSE).await;
        gate.pass(ready(Ok(()))).await.unwrap();
        assert_eq!([attempt_fails(&gate).await, attempt_fails(&gate).await], [Some(true), Some(false)]);
        tokio::time::advance(PAUSE).await;
        assert_eq!(attempt_fails(&gate).await, Some(true), "the pause is short again");
    }

    #[tokio::test(start_paused = true)]
    async fn one_attempt_that_hangs_leaves_room_for_another() {
        let gate = Gate::default();
        assert_eq!(attempt_fails(&gate).await, Some(true));
        tokio::time::advance(PAUSE).await;
        let mut hangs = Box::pin(gate.pass(pending::<RedisResult<()>>()));
        assert!(timeout(Duration::ZERO, &mut hangs).await.is_err());
        assert_eq!(attempt_fails(&gate).await, Some(true), "another one is under way");
        tokio::time::advance(PAUSE * 2).await;
        let mut hangs_too = Box::pin(gate.pass(pending::<RedisResult<()>>()));
        assert!(timeout(Duration::ZERO, &mut hangs_too).await.is_err());
        assert_eq!(attempt_fails(&gate).await, Some(false), "two others are under way");
        drop((hangs, hangs_too));
        gate.pass(ready(Ok(()))).await.unwrap();
    }
}
