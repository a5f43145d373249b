//! The task that follows a file or a hash.

use std::{future::Future, sync::Arc, thread, time::Duration};

use tokio::{
    runtime::Handle,
    task::{JoinError, JoinHandle},
    time::{sleep, timeout},
};
use tower_ratelimit::{Error, ErrorKind};

use super::{health::Health, parsed::Position};

/// The longest time for which the task outlives the last handle.
const LINGER: Duration = Duration::from_millis(500);
/// A content that takes longer to parse is reported, and parsed further.
const PATIENCE: Duration = Duration::from_millis(300);
/// The same for the first content, which the caller waits for.
const FIRST_PATIENCE: Duration = Duration::from_secs(5);

/// Where policies or prices are read from.
pub(crate) trait Origin: Send + 'static {
    type Content: PartialEq + Send + Sync + 'static;
    /// What a content is parsed into.
    type Update: Clone + Send + Sync + 'static;

    /// The current content of the origin.
    fn read(&mut self) -> impl Future<Output = Result<Self::Content, Error>> + Send;

    /// Where `content` moves the switch, even if the rest of it is invalid or waits. `None` if it must be
    /// valid as a whole.
    fn position(&self, _content: &Self::Content) -> Option<Position> {
        None
    }

    /// Why `content` is not to be applied after `before`, if it must wait.
    fn waits(&self, _before: &Self::Content, _content: &Self::Content) -> Option<Error> {
        None
    }

    /// Reads `content`. Takes up to seconds of processor time, so it runs outside the runtime's workers.
    fn parse(&self, content: Arc<Self::Content>) -> JoinHandle<Result<Self::Update, Error>>;
}

/// What is active, which a change of the origin is applied to.
pub(crate) trait Target: Send + Sync + 'static {
    type Update;

    fn health(&self) -> &Health;

    /// Whether a handle or a source is left.
    fn is_used(&self) -> bool;

    /// Applies `update`. With an error, the origin is not followed yet: the update is applied again after each read.
    fn apply(&self, update: Self::Update) -> Result<(), Error>;

    /// Moves the switch, independently of the rest of the content.
    fn switch(&self, _position: Position) {}
}

/// An origin, and what was read from it.
pub(crate) struct Follower<O: Origin> {
    origin: O,
    /// The content that is active.
    accepted: Option<Arc<O::Content>>,
    rejected: Option<Rejected<O>>,
    /// The latest content, if its parsing takes long.
    parsing: Option<Parsing<O>>,
    patience: Duration,
}

/// A content that is being parsed.
struct Parsing<O: Origin> {
    content: Arc<O::Content>,
    result: JoinHandle<Result<O::Update, Error>>,
}

/// The latest content, if it could not be applied. After it, every change may be the correction.
struct Rejected<O: Origin> {
    content: Arc<O::Content>,
    /// The result of the content. A valid one is applied again, because a policy that it lacks may no longer
    /// be in use.
    parsed: Result<O::Update, Error>,
}

impl<O: Origin> Follower<O> {
    pub(crate) fn new(origin: O, accepted: Option<O::Content>) -> Self {
        let patience = if accepted.is_some() { PATIENCE } else { FIRST_PATIENCE };
        Self { origin, accepted: accepted.map(Arc::new), rejected: None, parsing: None, patience }
    }

    /// Reads the origin once, and applies to `set` what is new.
    pub(super) async fn poll(&mut self, set: &impl Target<Update = O::Update>) {
        match self.origin.read().await {
            Ok(content) => self.consider(set, content).await,
            Err(error) => set.health().failed(error),
        }
        self.patience = PATIENCE;
    }

    async fn consider(&mut self, set: &impl Target<Update = O::Update>, content: O::Content) {
        let position = self.origin.position(&content);
        let applied = self.apply(set, content).await;
        // After a valid change of all, this changes nothing.
        if let Some(position) = position {
            set.switch(position);
        }
        match applied {
            Ok(()) => set.health().succeeded(),
            Err(error) => set.health().failed(error),
        }
    }

    async fn apply(
        &mut self,
        set: &impl Target<Update = O::Update>,
        content: O::Content,
    ) -> Result<(), Error> {
        let (known, parsing) = (self.rejected.take(), self.parsing.take());
        let is_settled = known.is_none() && parsing.is_none();
        // A rejected content may have been applied in part.
        if is_settled && self.accepted.as_deref() == Some(&content) {
            return Ok(());
        }
        if is_settled
            && let Some(error) =
                self.accepted.as_deref().and_then(|accepted| self.origin.waits(accepted, &content))
        {
            return Err(error);
        }
        let rejected = match known {
            Some(rejected) if *rejected.content == content => rejected,
            _ => {
                let mut parsing = match parsing {
                    Some(parsing) if *parsing.content == content => parsing,
                    // Another content is not waited for: this one may be its correction.
                    _ => {
                        let content = Arc::new(content);
                        Parsing { result: self.origin.parse(content.clone()), content }
                    }
                };
                let Ok(parsed) = timeout(self.patience, &mut parsing.result).await else {
                    self.parsing = Some(parsing);
                    return Err(slow(set.health().origin(), self.patience));
                };
                let parsed = parsed.unwrap_or_else(|error| Err(unfinished(&error)));
                Rejected { content: parsing.content, parsed }
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
    pub(crate) fn run<T: Target<Update = O::Update>>(
        mut self,
        set: Arc<T>,
    ) -> impl Future<Output = ()> + Send {
        // Done outside of the future, which a runtime may drop before it polls it.
        let followed = Followed(set);
        async move {
            let Followed(set) = &followed;
            loop {
                let mut left = jittered(set.health().interval());
                while !left.is_zero() {
                    let pause = left.min(LINGER);
                    sleep(pause).await;
                    left -= pause;
                    if !set.is_used() {
                        return;
                    }
                }
                self.poll(&**set).await;
            }
        }
    }
}

/// The target of an origin that is followed. If this is dropped while the target is in use, it does not
/// change again.
struct Followed<T: Target>(Arc<T>);

impl<T: Target> Drop for Followed<T> {
    fn drop(&mut self) {
        if self.0.is_used() {
            self.0.health().stopped(thread::panicking());
        }
    }
}

/// `interval`, up to a tenth shorter or longer, so that instances which start together do not read together.
fn jittered(interval: Duration) -> Duration {
    interval - interval / 10 + (interval / 5).mul_f64(fastrand::f64())
}

/// The runtime that the task runs on. `what` is what changes: "policies".
pub(crate) fn runtime(what: &str) -> Result<Handle, Error> {
    Handle::try_current().map_err(|_| {
        let message = format!(
            "live {what} need a Tokio runtime to follow their source: make them in an async function, or inside \
             `runtime.enter()`"
        );
        Error::new(ErrorKind::MissingSetup, message)
    })
}

/// The error of a content that is not parsed within `patience`.
fn slow(origin: &str, patience: Duration) -> Error {
    let message = format!(
        "{origin} is still being parsed after {patience:?}: if this lasts, make it smaller, or give the process more \
         processor time"
    );
    Error::new(ErrorKind::InvalidConfig, message)
}

/// The error of work that did not end with a result.
pub(super) fn unfinished(error: &JoinError) -> Error {
    let problem =
        if error.is_panic() { "reading the source panicked" } else { "the Tokio runtime was shut down" };
    Error::new(ErrorKind::MissingSetup, problem)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use parking_lot::Mutex;
    use tokio::{sync::Notify, task::spawn_blocking};

    use super::{
        super::{parsed::Parsed, set::Set},
        *,
    };
    use tower_ratelimit::{Policy, Quota};

    /// Names of policies. `!` is an error.
    #[derive(Clone, Default)]
    struct Names {
        content: Arc<Mutex<&'static str>>,
        parsed: Arc<AtomicUsize>,
    }

    impl Origin for Names {
        type Content = &'static str;
        type Update = Parsed;

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

    /// Names of policies. The first content is parsed until it is let go.
    #[derive(Clone, Default)]
    struct SlowNames {
        names: Names,
        first: Arc<Notify>,
    }

    impl Origin for SlowNames {
        type Content = &'static str;
        type Update = Parsed;

        async fn read(&mut self) -> Result<&'static str, Error> {
            self.names.read().await
        }

        fn parse(&self, content: Arc<&'static str>) -> JoinHandle<Result<Parsed, Error>> {
            let is_first = self.names.parsed.fetch_add(1, Ordering::Relaxed) == 0;
            let first = self.first.clone();
            tokio::spawn(async move {
                if is_first {
                    first.notified().await;
                }
                update(&content)
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_parser_is_reported_and_the_corrected_content_is_followed() {
        let origin = SlowNames::default();
        let set = Set::new("names".to_owned(), update("a").unwrap());
        let mut follower = Follower::new(origin.clone(), Some("a"));
        let mut poll = async |content| {
            *origin.names.content.lock() = content;
            follower.poll(&set).await;
            let policies = set.policies().iter().map(|policy| policy.name().to_owned()).collect::<Vec<_>>();
            let parsed = origin.names.parsed.load(Ordering::Relaxed);
            (policies.join(" "), parsed, set.health().error().map(|error| error.to_string()))
        };
        let slow = Some(slow("names", PATIENCE).to_string());
        // The same is not parsed twice.
        assert_eq!(poll("a slow").await, ("a".to_owned(), 1, slow.clone()));
        assert_eq!(poll("a slow").await, ("a".to_owned(), 1, slow.clone()));
        assert_eq!(poll("a b").await, ("a b".to_owned(), 2, None));
        assert_eq!(poll("a b").await, ("a b".to_owned(), 2, None));

        origin.names.parsed.store(0, Ordering::Relaxed);
        assert_eq!(poll("a c").await, ("a b".to_owned(), 1, slow.clone()));
        // The content before is back.
        assert_eq!(poll("a b").await, ("a b".to_owned(), 2, None));

        origin.names.parsed.store(0, Ordering::Relaxed);
        assert_eq!(poll("a d").await, ("a b".to_owned(), 1, slow));
        origin.first.notify_waiters();
        assert_eq!(poll("a d").await, ("a d".to_owned(), 1, None));
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
            (names.parsed.load(Ordering::Relaxed), set.health().error().map(|error| error.to_string()))
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
