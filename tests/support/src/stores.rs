//! Stores with a fixed behavior.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tower_ratelimit::{
    Answer, Charge, Decision, Error, ErrorKind, Key, Policy,
    decision::Outcome,
    store::{Action, Store},
};

/// A store that is unavailable, and whose error contains more than a client should see.
#[derive(Clone)]
pub struct Down;

impl Store for Down {
    fn decide(&self, _: Action, _: &[Charge]) -> Answer<Decision> {
        Answer::ready(Err(Error::new(ErrorKind::StoreUnreachable, "secret of the store")))
    }
    fn reset(&self, _: &Policy, _: &Key) -> Answer<()> {
        Answer::ready(Ok(()))
    }
}

/// Answers every charge with the outcome that the function returns. No test resets a key in it.
#[derive(Clone)]
pub struct Says<F>(pub F);

impl<F: Fn(&Charge) -> Outcome + Send + Sync + 'static> Store for Says<F> {
    fn decide(&self, _: Action, charges: &[Charge]) -> Answer<Decision> {
        Answer::ready(Ok(Decision::new(charges.iter().map(&self.0))))
    }
    fn reset(&self, _: &Policy, _: &Key) -> Answer<()> {
        panic!("a layer does not reset")
    }
}

/// Counts the decisions of the store, over all clones.
#[derive(Clone)]
pub struct Counted<S> {
    store: S,
    asked: Arc<AtomicUsize>,
}

impl<S> Counted<S> {
    pub fn new(store: S) -> Self {
        Self { store, asked: Arc::default() }
    }

    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

impl<S: Store> Store for Counted<S> {
    fn decide(&self, action: Action, charges: &[Charge]) -> Answer<Decision> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let answer = self.store.decide(action, charges);
        // Not ready immediately, so the future that waits for it is polled again.
        Answer::pending(async {
            tokio::task::yield_now().await;
            answer.await
        })
    }
    fn reset(&self, policy: &Policy, key: &Key) -> Answer<()> {
        self.store.reset(policy, key)
    }
}
