//! A credentials provider of redis-rs as one of a store.

use std::{
    fmt,
    future::poll_fn,
    mem,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use futures_util::{
    StreamExt as _,
    stream::{BoxStream, Fuse},
};
use parking_lot::Mutex;
use redis::{
    RedisResult,
    auth::{BasicAuth, StreamingCredentialsProvider},
};
use tower_ratelimit::{
    Answer, Error, ErrorKind,
    store::{Credentials, CredentialsProvider},
};

/// The credentials that a provider of redis-rs sends, such as its `EntraIdCredentialsProvider`.
///
/// The stream tells no end of the credentials. The store looks every second whether newer ones have come, and
/// then authenticates its connections.
///
/// # Example
///
/// `EntraIdCredentialsProvider` is a type of the crate `redis` 1 with its feature `entra-id`. Call its method
/// `start`, and pass it where this example passes `Tokens`:
///
/// ```
/// use std::{pin::Pin, time::Duration};
///
/// use futures_util::{Stream, stream};
/// use redis::{
///     RedisResult,
///     auth::{BasicAuth, StreamingCredentialsProvider},
/// };
/// use tower_ratelimit::{
///     Error, RedisStore,
///     store::{Credentials, CredentialsProvider},
/// };
/// use tower_ratelimit_extra::credentials::StreamedCredentials;
///
/// /// Sends one token, which has no end.
/// struct Tokens;
///
/// impl StreamingCredentialsProvider for Tokens {
///     fn subscribe(&self) -> Pin<Box<dyn Stream<Item = RedisResult<BasicAuth>> + Send>> {
///         let token = BasicAuth::new("limits".to_owned(), "a token".to_owned());
///         Box::pin(stream::iter([Ok(token)]))
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Error> {
/// let provider = StreamedCredentials::new(Tokens);
/// let sent = Credentials::new("limits", "a token").refresh_after(Duration::from_secs(1));
/// assert_eq!(provider.credentials().await?, sent);
///
/// // With the feature `tls-rustls` of `tower-ratelimit`, a URL of a server with TLS starts with `rediss://`.
/// let store =
///     RedisStore::builder().credentials(provider).connect_lazy("redis://limits.example.com:6379")?;
/// # drop(store);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct StreamedCredentials(Arc<Shared>);

struct Shared {
    subscription: Mutex<Subscription>,
    waiting: Arc<Waiting>,
}

/// The stores that wait for the first credentials. The stream wakes only the last one that has polled it, so that is
/// this, and it wakes all.
#[derive(Default)]
struct Waiting(Mutex<Vec<Waker>>);

impl Wake for Waiting {
    fn wake(self: Arc<Self>) {
        let all = mem::take(&mut *self.0.lock());
        all.into_iter().for_each(Waker::wake);
    }
}

struct Subscription {
    /// Fused, because a store asks for credentials after its end too.
    stream: Fuse<BoxStream<'static, RedisResult<BasicAuth>>>,
    latest: Option<Credentials>,
    /// It may stop to send when it is dropped.
    _provider: Box<dyn StreamingCredentialsProvider>,
}

/// The most items that one look takes from the stream. The rest waits for the next one, so that a stream that is always
/// ready keeps no thread.
const ITEMS: usize = 256;
/// The time between two looks.
const LOOK: Duration = Duration::from_secs(1);

impl StreamedCredentials {
    /// Subscribes to `provider`, and keeps it.
    pub fn new(provider: impl StreamingCredentialsProvider + 'static) -> Self {
        let (stream, latest, _provider) = (provider.subscribe().fuse(), None, Box::new(provider));
        let subscription = Mutex::new(Subscription { stream, latest, _provider });
        Self(Arc::new(Shared { subscription, waiting: Arc::default() }))
    }
}

impl Shared {
    fn poll(&self, waker: &Waker) -> Poll<Result<Credentials, Error>> {
        let forget = |waiting: &mut Vec<Waker>| waiting.retain(|other| !other.will_wake(waker));
        {
            let mut waiting = self.waiting.0.lock();
            forget(&mut waiting);
            waiting.push(waker.clone());
        }
        let all = Waker::from(self.waiting.clone());
        let latest = self.subscription.lock().poll(&mut Context::from_waker(&all));
        if latest.is_ready() {
            forget(&mut self.waiting.0.lock());
        }
        latest
    }
}

impl Subscription {
    /// The latest credentials, once some have come.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Credentials, Error>> {
        let mut failure = None;
        for _ in 0..ITEMS {
            match self.stream.poll_next_unpin(cx) {
                Poll::Ready(Some(Ok(auth))) => {
                    self.latest =
                        Some(Credentials::new(auth.username(), auth.password()).refresh_after(LOOK));
                }
                Poll::Ready(Some(Err(error))) => failure = Some(error.to_string()),
                // Without newer ones, the latest are used until the server does not accept them.
                Poll::Ready(None) => {
                    let ended = || "the stream of credentials has ended".to_owned();
                    return Poll::Ready(self.latest(failure.unwrap_or_else(ended)));
                }
                Poll::Pending => {
                    if self.latest.is_none() && failure.is_none() {
                        return Poll::Pending;
                    }
                    return Poll::Ready(self.latest(failure.unwrap_or_default()));
                }
            }
        }
        Poll::Ready(self.latest(failure.unwrap_or_default()))
    }

    fn latest(&self, problem: String) -> Result<Credentials, Error> {
        self.latest.clone().ok_or_else(|| Error::new(ErrorKind::StoreFailed, problem))
    }
}

impl CredentialsProvider for StreamedCredentials {
    fn credentials(&self) -> Answer<Credentials> {
        let shared = self.0.clone();
        Answer::pending(poll_fn(move |cx| shared.poll(cx.waker())))
    }
}

impl fmt::Debug for StreamedCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamedCredentials").finish_non_exhaustive()
    }
}
