//! Stores whose behavior a test chooses.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::sync::Semaphore;
use tower_ratelimit::{
    Answer, Charge, Decision, Error, ErrorKind, Key, MemoryStore, Policy,
    decision::{Outcome, Verdict},
    store::{Action, Store},
};

/// An answer that is ready: an error of this kind, which contains more than a client should see.
pub fn fails<T>(kind: ErrorKind) -> Answer<T> {
    Answer::ready(Err(Error::new(kind, "secret of the store")))
}

/// [`fails`], after a wait.
pub fn fails_after(wait: impl Future<Output = ()> + Send + 'static, kind: ErrorKind) -> Answer<Decision> {
    Answer::pending(async move {
        wait.await;
        fails(kind).await
    })
}

/// What `store` decides after a wait.
pub fn decides_after(
    wait: impl Future<Output = ()> + Send + 'static,
    store: &Arc<dyn Store>,
    action: Action,
    charges: &[Charge],
) -> Answer<Decision> {
    let (store, charges) = (store.clone(), charges.to_vec());
    Answer::pending(async move {
        wait.await;
        store.decide(action, &charges).await
    })
}

/// A store that is unavailable.
#[derive(Clone)]
pub struct Down;

impl Store for Down {
    fn decide(&self, _: Action, _: &[Charge]) -> Answer<Decision> {
        fails(ErrorKind::StoreUnreachable)
    }
    fn reset(&self, _: &Policy, _: &Key) -> Answer<()> {
        fails(ErrorKind::StoreUnreachable)
    }
}

/// A store that decides with a function, which can ask the store behind it.
///
/// While it [fails](Self::fail), no call reaches the function. The others are [counted](Self::asked). Clones share all
/// of that.
#[derive(Clone)]
pub struct Fake {
    store: Arc<dyn Store>,
    decides: Arc<dyn Fn(&Arc<dyn Store>, Action, &[Charge]) -> Answer<Decision> + Send + Sync>,
    failure: Arc<Mutex<Option<ErrorKind>>>,
    asked: Arc<Mutex<Vec<(Action, Key)>>>,
}

impl Fake {
    pub fn new(
        store: impl Store,
        decides: impl Fn(&Arc<dyn Store>, Action, &[Charge]) -> Answer<Decision> + Send + Sync + 'static,
    ) -> Self {
        Self {
            store: Arc::new(store),
            decides: Arc::new(decides),
            failure: Arc::default(),
            asked: Arc::default(),
        }
    }

    /// Asks `store`.
    pub fn over(store: impl Store) -> Self {
        Self::new(store, |store, action, charges| store.decide(action, charges))
    }

    /// Each call fails with an error of this kind.
    pub fn failing(kind: ErrorKind) -> Self {
        let fake = Self::over(Down);
        fake.fail(kind);
        fake
    }

    /// Asks `store` for one of `actions` when the gate has a permit, which that uses up.
    pub fn gated(store: impl Store, actions: &'static [Action]) -> (Self, Arc<Semaphore>) {
        let gate = Arc::new(Semaphore::new(0));
        let opens = gate.clone();
        let decides = move |store: &Arc<dyn Store>, action, charges: &[Charge]| {
            if !actions.contains(&action) {
                return store.decide(action, charges);
            }
            let gate = opens.clone();
            decides_after(async move { gate.acquire().await.unwrap().forget() }, store, action, charges)
        };
        (Self::new(store, decides), gate)
    }

    /// Fails all further calls with an error of this kind, or none.
    pub fn fail(&self, kind: impl Into<Option<ErrorKind>>) {
        *self.failure.lock().unwrap() = kind.into();
    }

    /// The key of the first charge of each call for `action`, in their order.
    pub fn asked(&self, action: Action) -> Vec<Key> {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|(asked, _)| *asked == action).map(|(_, key)| key.clone()).collect()
    }

    fn failure<T>(&self) -> Option<Answer<T>> {
        self.failure.lock().unwrap().map(fails)
    }
}

impl Default for Fake {
    fn default() -> Self {
        Self::over(MemoryStore::new())
    }
}

impl Store for Fake {
    fn decide(&self, action: Action, charges: &[Charge]) -> Answer<Decision> {
        self.failure().unwrap_or_else(|| {
            let key = charges.first().map(|charge| (action, charge.key().clone()));
            self.asked.lock().unwrap().extend(key);
            (self.decides)(&self.store, action, charges)
        })
    }
    fn reset(&self, policy: &Policy, key: &Key) -> Answer<()> {
        self.failure().unwrap_or_else(|| self.store.reset(policy, key))
    }
    fn inner(&self) -> Option<&dyn Store> {
        Some(&*self.store)
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

/// A store that answers decision number n, from 0 on, with `says(n)`, and the number of decisions.
pub fn store_that(says: fn(usize) -> Verdict) -> (impl Store, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let store = Says(move |charge: &Charge| {
        let number = count.fetch_add(1, Ordering::Relaxed);
        assert!(number < 100, "the layer retries without end");
        Outcome::new(charge, says(number), 0, Duration::ZERO)
    });
    (store, asked)
}

pub const fn deny(seconds: u64) -> Verdict {
    Verdict::deny(Some(Duration::from_secs(seconds)))
}
