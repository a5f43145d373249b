//! The circuit breaker of a server or a shard.
//!
//! If several calls in a row get no answer, the breaker opens: decisions fail immediately instead of at their
//! deadlines. While it is open, a task probes from time to time. If all PINGs of the probe are answered
//! within the deadline of a decision, the breaker closes. If the first call after that gets no answer, or one
//! of the first eight is late, it opens again, and each time it does, it waits twice as long for its next
//! probe. So requests do not wait for a server that is often, but not always, slower than the deadline.
//!
//! Calls are counted and not decisions: a single broken connection fails all decisions of a batch. An answer
//! counts as one even if it is an error, because the caller did not have to wait for it. `CLUSTERDOWN` does
//! not: other nodes answer it for one that hangs, and calls to that one would keep callers waiting in
//! between.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::base::{Error, ErrorKind, Fault, sync::lock};

/// How many calls in a row get no answer until the breaker opens.
const CALLS: u32 = 3;
/// How many calls Redis must answer after a probe until three late ones are needed again to open the breaker,
/// and the pauses are short again.
const TRIAL: u32 = 8;
/// The pause between two probes.
const PAUSE: Duration = Duration::from_millis(100);
/// The first pause, if connections were closed. Often another one can be opened immediately, and an attempt
/// keeps no caller waiting. Each further pause is twice as long, up to the longer one.
const SHORT_PAUSE: Duration = Duration::from_millis(10);
/// The longest pause of a breaker that opens again and again.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Shared by all runtimes.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    /// Whether an answer changes the state. It does not while all calls are answered.
    watchful: AtomicBool,
    open: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Calls in a row without an answer.
    unanswered: u32,
    /// Why the first of them got none, unless a later one or a probe says more.
    cause: Option<Error>,
    /// The answers that are missing until Redis is trusted again.
    trial: u32,
    /// The pause before the first probe when the breaker opened last. Zero once Redis is trusted.
    first_pause: Duration,
    /// While the breaker is open.
    next_probe: Option<Instant>,
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
                if self.watchful.load(Ordering::Relaxed) {
                    self.answered();
                }
                false
            }
        }
    }

    fn answered(&self) {
        let mut state = lock(&self.state);
        if state.next_probe.is_some() {
            return;
        }
        state.unanswered = 0;
        state.cause = None;
        state.trial = state.trial.saturating_sub(1);
        if state.trial == 0 {
            state.first_pause = Duration::ZERO;
            self.watchful.store(false, Ordering::Relaxed);
        }
    }

    fn failed(&self, error: &Error) -> bool {
        let mut state = lock(&self.state);
        state.unanswered += 1;
        if state.cause.is_none() || error.is_evidence() {
            state.cause = Some(error.clone());
        }
        self.watchful.store(true, Ordering::Relaxed);
        let is_late = error.kind() == ErrorKind::StoreTimeout;
        // A connection that broke while the server was down may be used only now, but a late reply is as
        // before.
        let opens = state.unanswered >= CALLS || state.trial > 0 && is_late;
        if !opens || state.next_probe.is_some() {
            return false;
        }
        let shortest = if is_late { PAUSE } else { SHORT_PAUSE };
        state.pause = (state.first_pause * 2).clamp(shortest, LONGEST_PAUSE);
        state.first_pause = state.pause;
        state.next_probe = Some(Instant::now() + state.pause);
        self.open.store(true, Ordering::Relaxed);
        metric!(open_breakers_changed(1));
        true
    }

    /// Records why a probe failed, if it says more than what failed before.
    pub(super) fn failed_again(&self, cause: &Error) {
        let mut state = lock(&self.state);
        if cause.is_evidence() && state.next_probe.is_some() {
            state.cause = Some(cause.clone());
        }
    }

    /// Whether it opened again before Redis was trusted.
    pub(super) fn has_opened_again(&self) -> bool {
        lock(&self.state).first_pause > PAUSE
    }

    /// The error of a decision while the breaker is open.
    pub(super) fn error(&self) -> Option<Error> {
        if !self.open.load(Ordering::Relaxed) {
            return None;
        }
        let state = lock(&self.state);
        let cause = state.cause.as_ref()?;
        let message = format!("Redis is not asked until it answers again: {cause}");
        Some(Error::new(ErrorKind::StoreSuspended, message).with_source(cause.clone()))
    }

    /// When the next probe is due. `None` unless it is open.
    pub(super) fn next_probe(&self) -> Option<Instant> {
        lock(&self.state).next_probe
    }

    /// Whether it is time for a probe. Then the next one waits for a pause.
    pub(super) fn is_probe_due(&self) -> bool {
        let (mut state, now) = (lock(&self.state), Instant::now());
        let is_due = state.next_probe.is_some_and(|next| next <= now);
        if is_due {
            state.pause = state.pause.max((state.pause * 2).min(PAUSE));
            state.next_probe = Some(now + state.pause);
        }
        is_due
    }

    pub(super) fn close(&self) {
        let mut state = lock(&self.state);
        state.unanswered = CALLS - 1;
        state.cause = None;
        state.next_probe = None;
        state.trial = TRIAL;
        self.watchful.store(true, Ordering::Relaxed);
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

/// Whether the error says nothing about the server: the call was not sent, or another node of a Cluster
/// answered in its place.
pub(super) fn says_nothing(error: &Error) -> bool {
    error.kind() == ErrorKind::StoreBusy || error.fault() == Some(Fault::ClusterDown)
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
            probes.extend(breaker.is_probe_due().then(|| started.elapsed().as_millis()));
        }
        assert_eq!(probes, [10, 30, 70, 150, 250, 350]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_after_each_pause_and_one_silent_call_after_it_opens_the_breaker_again() {
        let breaker = Breaker::default();
        (0..CALLS).for_each(|_| {
            breaker.record(&silence());
        });
        assert!(!breaker.is_probe_due(), "too soon");
        tokio::time::advance(PAUSE).await;
        assert!(breaker.is_probe_due());
        assert!(!breaker.is_probe_due(), "too soon after the first");
        tokio::time::advance(PAUSE).await;
        assert!(breaker.is_probe_due());
        breaker.close();
        assert!(breaker.error().is_none());
        assert!(breaker.record(&silence()));
    }

    /// Closes the breaker as a probe does, once it is time for one. Returns the time until then, in
    /// milliseconds.
    async fn probed(breaker: &Breaker) -> u128 {
        let opened = Instant::now();
        while !breaker.is_probe_due() {
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        breaker.close();
        opened.elapsed().as_millis()
    }

    #[tokio::test(start_paused = true)]
    async fn a_breaker_that_opens_again_waits_twice_as_long_until_redis_is_trusted() {
        let breaker = Breaker::default();
        for _ in 0..CALLS {
            breaker.record(&silence());
        }
        let mut pauses = vec![probed(&breaker).await];
        for answers in [0, 1, 7, 0, 0, 0, 0] {
            for _ in 0..answers {
                breaker.record(&ANSWERED);
            }
            assert!(breaker.record(&silence()), "after {answers} answers");
            pauses.push(probed(&breaker).await);
        }
        assert_eq!(pauses, [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]);
        for _ in 0..TRIAL {
            breaker.record(&ANSWERED);
        }
        assert_eq!([silence(), silence(), silence()].map(|call| breaker.record(&call)), [false, false, true]);
        assert_eq!(probed(&breaker).await, 100);
    }

    #[tokio::test(start_paused = true)]
    async fn connections_that_broke_in_an_outage_do_not_open_the_breaker_after_it() {
        let breaker = Breaker::default();
        let broke =
            || Err::<(), _>(Error::new(ErrorKind::StoreDisconnected, "the connection to Redis broke"));
        for _ in 0..CALLS {
            breaker.record(&broke());
        }
        probed(&breaker).await;
        breaker.record(&ANSWERED);
        assert_eq!([broke(), broke(), broke()].map(|call| breaker.record(&call)), [false, false, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_cause_is_replaced_only_by_what_is_known() {
        let breaker = Breaker::default();
        for _ in 0..CALLS {
            breaker.record(&silence());
        }
        let cause = || breaker.error().unwrap().to_string();
        breaker.failed_again(&Error::new(ErrorKind::StoreUnreachable, "check the firewalls"));
        assert!(cause().ends_with("did not answer within 50ms"), "{}", cause());
        let breaker = Breaker::default();
        let guess = || Err::<(), _>(Error::new(ErrorKind::StoreUnreachable, "check the firewalls"));
        assert_eq!([silence(), guess(), guess()].map(|call| breaker.record(&call)), [false, false, true]);
        let cause = || breaker.error().unwrap().to_string();
        assert!(cause().ends_with("did not answer within 50ms"), "{}", cause());
        breaker.failed_again(&from_server("NOAUTH Authentication required."));
        assert!(cause().contains("NOAUTH"), "{}", cause());
    }
}
