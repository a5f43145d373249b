//! The circuit breaker of a server or a shard.
//!
//! If several calls in a row get no answer, the breaker opens: decisions fail at once instead of at their deadlines.
//! While it is open, a decision that fails starts a probe from time to time, in the background. If the probe is
//! answered, the breaker closes; if the first call after that gets no answer, it opens again.
//!
//! Calls are counted and not decisions: a single broken connection fails all decisions of a batch. An answer counts as
//! one even if it is an error, because the caller did not have to wait for it. `CLUSTERDOWN` does not: other nodes answer it
//! for one that hangs, and calls to that one would keep callers waiting in between.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::background::Exclusive;
use crate::{
    error::{Error, ErrorKind},
    fault::Fault,
    util::sync::lock,
};

/// How many calls in a row get no answer until the breaker opens.
const CALLS: u32 = 3;
/// The pause between two probes.
const PAUSE: Duration = Duration::from_millis(100);
/// The first pause, if connections were closed. Often another one can be opened at once, and an attempt keeps no caller
/// waiting. Each further pause is twice as long, up to the longer one.
const SHORT_PAUSE: Duration = Duration::from_millis(10);

#[derive(Debug, Default)]
pub(super) struct Breaker {
    /// Calls in a row without an answer.
    unanswered: AtomicU32,
    open: AtomicBool,
    /// Set when the breaker opens.
    since: Mutex<Option<Opened>>,
    probing: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Opened {
    /// The error of the last call.
    cause: Error,
    next_probe: Instant,
    /// After the next probe.
    pause: Duration,
}

impl Breaker {
    /// Records how a call ended. Returns whether this opens the breaker.
    pub(super) fn record<T>(&self, result: &Result<T, Error>) -> bool {
        match result {
            Err(cause) if is_silence(cause) => self.failed(cause),
            Err(error) if says_nothing(error) => false,
            _ => {
                if self.unanswered.load(Ordering::Relaxed) > 0 {
                    self.unanswered.store(0, Ordering::Relaxed);
                }
                false
            }
        }
    }

    fn failed(&self, cause: &Error) -> bool {
        if self.unanswered.fetch_add(1, Ordering::Relaxed) + 1 < CALLS {
            return false;
        }
        let pause = if cause.kind() == ErrorKind::StoreTimeout { PAUSE } else { SHORT_PAUSE };
        *lock(&self.since) = Some(Opened { cause: cause.clone(), next_probe: Instant::now() + pause, pause });
        let opens = !self.open.swap(true, Ordering::Relaxed);
        if opens {
            metric!(open_breakers_changed(1));
        }
        opens
    }

    /// The error of a decision while the breaker is open.
    pub(super) fn error(&self) -> Option<Error> {
        if !self.open.load(Ordering::Relaxed) {
            return None;
        }
        lock(&self.since).as_ref().map(|opened| suspended(&opened.cause))
    }

    /// The next probe, if it is time for one and none is under way.
    pub(super) fn next_probe(&self) -> Option<Exclusive> {
        let mut since = lock(&self.since);
        let opened = since.as_mut().filter(|opened| opened.next_probe <= Instant::now())?;
        let probe = Exclusive::acquire(&self.probing)?;
        opened.pause = (opened.pause * 2).min(PAUSE);
        opened.next_probe = Instant::now() + opened.pause;
        Some(probe)
    }

    pub(super) fn close(&self) {
        self.unanswered.store(CALLS - 1, Ordering::Relaxed);
        if self.open.swap(false, Ordering::Relaxed) {
            metric!(open_breakers_changed(-1));
        }
    }
}

impl Drop for Breaker {
    fn drop(&mut self) {
        self.close();
    }
}

/// Whether the server gave no answer.
pub(super) fn is_silence(error: &Error) -> bool {
    use ErrorKind::{StoreDisconnected, StoreTimeout, StoreUnreachable};
    matches!(error.kind(), StoreTimeout | StoreUnreachable | StoreDisconnected)
}

/// Whether the error says nothing about the server: the call was not sent, or another node of a Cluster answered in its
/// place.
pub(super) fn says_nothing(error: &Error) -> bool {
    error.kind() == ErrorKind::StoreBusy || error.fault() == Some(Fault::ClusterDown)
}

/// The error of a decision that was not sent because of `cause`.
fn suspended(cause: &Error) -> Error {
    let message = format!("Redis is not asked until it answers again: {cause}");
    Error::new(ErrorKind::StoreSuspended, message).with_source(cause.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::error::from_server;

    const ANSWERED: Result<(), Error> = Ok(());

    fn silence() -> Result<(), Error> {
        Err(Error::new(ErrorKind::StoreTimeout, "Redis did not answer within 50ms"))
    }

    #[tokio::test(start_paused = true)]
    async fn it_opens_after_three_calls_in_a_row_without_an_answer() {
        let breaker = Breaker::default();
        assert_eq!([silence(), silence()].map(|call| breaker.record(&call)), [false, false]);
        assert!(!breaker.record(&ANSWERED));
        assert_eq!([silence(), silence(), silence()].map(|call| breaker.record(&call)), [false, false, true]);
        let error = breaker.error().unwrap();
        assert_eq!(error.kind(), ErrorKind::StoreSuspended);
        assert!(error.to_string().ends_with("did not answer within 50ms"), "{error}");
        assert!(!breaker.record(&silence()), "it is open already");
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_is_an_answer_but_a_busy_client_and_another_node_say_nothing() {
        let breaker = Breaker::default();
        let failed = Err(Error::new(ErrorKind::StoreFailed, "OOM"));
        let busy = Err(Error::new(ErrorKind::StoreBusy, "busy"));
        let other = Err(from_server("CLUSTERDOWN The cluster is down"));
        for call in [silence(), silence(), failed, silence(), silence(), busy, other] {
            assert!(!breaker.record::<()>(&call));
        }
        assert!(breaker.record(&silence()));
    }

    #[tokio::test(start_paused = true)]
    async fn an_algorithm_that_raises_the_words_of_a_fault_is_an_answer() {
        let breaker = Breaker::default();
        let raised = Err(from_server("RATELIMIT-ALGORITHM foo (CLUSTERDOWN)"));
        for call in [silence(), silence(), raised, silence()] {
            assert!(!breaker.record::<()>(&call));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn closed_connections_are_probed_sooner_at_first() {
        let breaker = Breaker::default();
        let closed = Err(Error::new(ErrorKind::StoreUnreachable, "connection refused"));
        for _ in 0..CALLS {
            breaker.record::<()>(&closed);
        }
        let started = Instant::now();
        let mut probes = Vec::new();
        while probes.len() < 6 {
            tokio::time::advance(Duration::from_millis(1)).await;
            probes.extend(breaker.next_probe().map(|_| started.elapsed().as_millis()));
        }
        assert_eq!(probes, [10, 30, 70, 150, 250, 350]);
    }

    #[tokio::test(start_paused = true)]
    async fn one_probe_at_a_time_after_a_pause_and_one_silent_call_after_it_opens_the_breaker_again() {
        let breaker = Breaker::default();
        (0..CALLS).for_each(|_| {
            breaker.record(&silence());
        });
        assert!(breaker.next_probe().is_none(), "too soon");
        tokio::time::advance(PAUSE).await;
        let probe = breaker.next_probe().unwrap();
        tokio::time::advance(PAUSE).await;
        assert!(breaker.next_probe().is_none(), "one is under way");
        drop(probe);
        assert!(breaker.next_probe().is_some());
        breaker.close();
        assert!(breaker.error().is_none());
        assert!(breaker.record(&silence()));
        breaker.close();
        breaker.record(&ANSWERED);
        assert!(!breaker.record(&silence()));
    }
}
