//! A provider of redis-rs as one of this crate.

use std::{
    fmt,
    future::poll_fn,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::Stream;
use redis::{
    RedisResult,
    auth::{BasicAuth, StreamingCredentialsProvider},
};

use super::credentials::{Credentials, CredentialsProvider};
use crate::base::{Answer, Error, ErrorKind, sync::lock};

/// The credentials that a provider of redis-rs sends, such as its `EntraIdCredentialsProvider`.
///
/// The stream tells no end of the credentials. The store looks every second whether newer ones have come, and
/// then authenticates its connections.
///
/// # Example
///
/// ```no_run
/// use tower_ratelimit::{
///     RedisStore, bb8_redis::redis::auth::StreamingCredentialsProvider, store::StreamedCredentials,
/// };
///
/// # async fn example(
/// #     entra_id: impl StreamingCredentialsProvider + 'static,
/// # ) -> Result<(), tower_ratelimit::Error> {
/// let store = RedisStore::builder()
///     .credentials(StreamedCredentials::new(entra_id))
///     .connect("rediss://limits.redis.cache.windows.net:6380")
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct StreamedCredentials(Arc<Mutex<Subscription>>);

struct Subscription {
    stream: Pin<Box<dyn Stream<Item = RedisResult<BasicAuth>> + Send>>,
    latest: Option<Credentials>,
    /// It may stop to send when it is dropped.
    _provider: Box<dyn StreamingCredentialsProvider>,
}

/// The time between two looks.
const LOOK: Duration = Duration::from_secs(1);

impl StreamedCredentials {
    /// Subscribes to `provider`, and keeps it.
    pub fn new(provider: impl StreamingCredentialsProvider + 'static) -> Self {
        let (stream, latest, _provider) = (provider.subscribe(), None, Box::new(provider));
        Self(Arc::new(Mutex::new(Subscription { stream, latest, _provider })))
    }
}

impl Subscription {
    /// The latest credentials, once some have come.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Credentials, Error>> {
        let mut failure = None;
        loop {
            match self.stream.as_mut().poll_next(cx) {
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
    }

    fn latest(&self, problem: String) -> Result<Credentials, Error> {
        self.latest.clone().ok_or_else(|| Error::new(ErrorKind::StoreFailed, problem))
    }
}

impl CredentialsProvider for StreamedCredentials {
    fn credentials(&self) -> Answer<Credentials> {
        let subscription = self.0.clone();
        Answer::pending(poll_fn(move |cx| {
            let credentials = ready!(lock(&subscription).poll(cx));
            Poll::Ready(credentials)
        }))
    }
}

impl fmt::Debug for StreamedCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamedCredentials").finish_non_exhaustive()
    }
}
