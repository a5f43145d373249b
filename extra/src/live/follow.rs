//! The task that follows a file or a hash.

use std::{future::Future, sync::Arc, thread, time::Duration};

use tokio::{
    runtime::Handle,
    task::{JoinError, JoinHandle},
    time::sleep,
};
use tower_ratelimit::{Error, ErrorKind, policy::Enforcement};

use super::{parsed::Parsed, set::Set};

/// The longest time for which the task outlives the last handle.
const LINGER: Duration = Duration::from_millis(500);

/// Where policies are read from.
pub(crate) trait Origin: Send + 'static {
    type Content: PartialEq + Send + Sync + 'static;

    /// The current content of the origin.
    fn read(&mut self) -> impl Future<Output = Result<Self::Content, Error>> + Send;

    /// Where `content` moves the switch, even if the rest of it is invalid or waits. `None` if it must be
    /// valid as a whole.
    fn enforcement(&self, _content: &Self::Content) -> Option<Enforcement> {
        None
    }

    /// Why `content` is not to be applied after `before`, if it must wait.
    fn waits(&self, _before: &Self::Content, _content: &Self::Content) -> Option<Error> {
        None
    }

    /// Reads `content`. Takes up to seconds of processor time, so it runs outside the runtime's workers.
    fn parse(&self, content: Arc<Self::Content>) -> JoinHandle<Result<Parsed, Error>>;
}

/// An origin, and what was read from it.
pub(super) struct Follower<O: Origin> {
    origin: O,
    /// The content that is active.
    accepted: Option<Arc<O::Content>>,
    rejected: Option<Rejected<O::Content>>,
}

/// The latest content, if it could not be applied. After it, every change may be the correction.
struct Rejected<C> {
    content: Arc<C>,
    /// The result of the content. A valid one is applied again, because a policy that it lacks may no longer
    /// be in use.
    parsed: Result<Parsed, Error>,
}

impl<O: Origin> Follower<O> {
    pub(super) fn new(origin: O, accepted: Option<O::Content>) -> Self {
        Self { origin, accepted: accepted.map(Arc::new), rejected: None }
    }

    /// Reads the origin once, and applies to `set` what is new.
    pub(super) async fn poll(&mut self, set: &Set) {
        match self.origin.read().await {
            Ok(content) => self.consider(set, content).await,
            Err(error) => set.failed(error),
        }
    }

    async fn consider(&mut self, set: &Set, content: O::Content) {
        let enforcement = self.origin.enforcement(&content);
        let applied = self.apply(set, content).await;
        // After a valid change of all, this changes nothing.
        if let Some(enforcement) = enforcement {
            set.switch(enforcement);
        }
        match applied {
            Ok(()) => set.succeeded(),
            Err(error) => set.failed(error),
        }
    }

    async fn apply(&mut self, set: &Set, content: O::Content) -> Result<(), Error> {
        if self.accepted.as_deref() == Some(&content) {
            self.rejected = None;
            return Ok(());
        }
        let known = self.rejected.take();
        if known.is_none()
            && let Some(error) =
                self.accepted.as_deref().and_then(|accepted| self.origin.waits(accepted, &content))
        {
            return Err(error);
        }
        let rejected = match known {
            Some(rejected) if *rejected.content == content => rejected,
            _ => {
                let content = Arc::new(content);
                let parsed =
                    self.origin.parse(content.clone()).await.unwrap_or_else(|error| Err(unfinished(&error)));
                Rejected { content, parsed }
            }
        };
        let applied = rejected.parsed.clone().and_then(|update| set.apply(update));
        match applied {
            Ok(()) => self.accepted = Some(rejected.content),
            Err(_) => self.rejected = Some(rejected),
        }
        applied
    }

    /// Follows the origin until `set` is no longer used.
    pub(super) fn run(mut self, set: Arc<Set>) -> impl Future<Output = ()> + Send {
        // Done outside of the future, which a runtime may drop before it polls it.
        let followed = Followed(set);
        async move {
            let Followed(set) = &followed;
            loop {
                let mut left = jittered(set.interval());
                while !left.is_zero() {
                    let pause = left.min(LINGER);
                    sleep(pause).await;
                    left -= pause;
                    if !set.is_used() {
                        return;
                    }
                }
                self.poll(set).await;
            }
        }
    }
}

/// The set of an origin that is followed. If this is dropped while the set is in use, its policies do not
/// change again.
struct Followed(Arc<Set>);

impl Drop for Followed {
    fn drop(&mut self) {
        if self.0.is_used() {
            self.0.stopped(if thread::panicking() {
                "reading it panicked"
            } else {
                "its Tokio runtime was shut down; make live policies in a runtime that runs as long as the service"
            });
        }
    }
}

/// `interval`, up to a tenth shorter or longer, so that instances which start together do not read together.
fn jittered(interval: Duration) -> Duration {
    interval - interval / 10 + (interval / 5).mul_f64(fastrand::f64())
}

/// The runtime that the task runs on.
pub(super) fn runtime() -> Result<Handle, Error> {
    Handle::try_current().map_err(|_| {
        let message = "live policies need a Tokio runtime to follow their source: make them in an async function, or \
                       inside `runtime.enter()`";
        Error::new(ErrorKind::MissingSetup, message)
    })
}

/// The error of work that did not end with a result.
pub(super) fn unfinished(error: &JoinError) -> Error {
    let problem =
        if error.is_panic() { "reading the policies panicked" } else { "the Tokio runtime was shut down" };
    Error::new(ErrorKind::MissingSetup, problem)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use parking_lot::Mutex;
    use tokio::task::spawn_blocking;

    use super::*;
    use tower_ratelimit::{Policy, Quota};

    /// Names of policies. `!` is an error.
    #[derive(Clone, Default)]
    struct Names {
        content: Arc<Mutex<&'static str>>,
        parsed: Arc<AtomicUsize>,
    }

    impl Origin for Names {
        type Content = &'static str;

        async fn read(&mut self) -> Result<&'static str, Error> {
            Ok(*self.content.lock())
        }

        fn parse(&self, content: Arc<&'static str>) -> JoinHandle<Result<Parsed, Error>> {
            self.parsed.fetch_add(1, Ordering::Relaxed);
            spawn_blocking(move || update(&content))
        }
    }

    fn update(names: &str) -> Result<Parsed, Error> {
        let policies = names.split(' ').map(|name| match name {
            "!" => Err(Error::new(ErrorKind::InvalidConfig, "wrong")),
            name => Ok((name.to_owned(), Policy::new(name, Quota::per_second(1)))),
        });
        Ok(Parsed { policies: policies.collect::<Result<_, _>>()?, ..Parsed::default() })
    }

    #[tokio::test]
    async fn an_unchanged_error_is_not_parsed_again() {
        let names = Names::default();
        let set = Set::new("names".to_owned(), update("a b").unwrap());
        let in_use = set.follow("b").unwrap();
        let mut follower = Follower::new(names.clone(), None);
        let mut poll = async |content| {
            *names.content.lock() = content;
            follower.poll(&set).await;
            (names.parsed.load(Ordering::Relaxed), set.error().map(|error| error.to_string()))
        };
        let wrong = Some("wrong".to_owned());
        assert_eq!([poll("a !").await, poll("a !").await], [(1, wrong.clone()), (1, wrong.clone())]);
        assert_eq!(poll("! a").await, (2, wrong));
        // Parsed once, and applied once it can be.
        for _ in 0..2 {
            let (parsed, error) = poll("a").await;
            assert_eq!((parsed, error.unwrap().contains("policy `b` is missing")), (3, true));
        }
        drop(in_use);
        assert_eq!([poll("a").await, poll("a").await], [(3, None), (3, None)]);
    }
}
