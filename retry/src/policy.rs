//! [`RetryPolicy`]: decides which rejections are retried, and after which wait.

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::Arc,
    time::Duration,
};

use http::{Request, Response};
use tokio::time::Sleep;
use tower::retry::{
    Policy,
    budget::{Budget as _, TpsBudget},
};

use crate::{advice::Advice, body::RetryBody};

/// Retries rejected requests after the wait the server asks for: a policy for [`tower::retry::RetryLayer`].
///
/// It works with every server that sends standard headers or a common dialect, not only with
/// `tower-ratelimit`.
///
/// # What is retried
///
/// | response | retried |
/// |---|---|
/// | 429 | yes: the request was not carried out |
/// | 429 with `application/problem+json`, a `RateLimit` list in which no policy has a `t`, and no `Retry-After` | no: the cost exceeds the quota |
/// | 403 | with a `Retry-After` that can be read, or with `X-RateLimit-Remaining: 0`, also spelled `X-Rate-Limit-` |
/// | 503 | with a `Retry-After` that can be read, or if the method is idempotent (RFC 9110, section 9.2.2) |
/// | gRPC `RESOURCE_EXHAUSTED` (8) and `UNAVAILABLE` (14) | with a `RetryInfo`, a `grpc-retry-pushback-ms` or a `Retry-After` |
/// | any, with a `grpc-retry-pushback-ms` that is negative or malformed, or `x-should-retry: false` over HTTP | no: the server asks not to |
/// | everything else, and every error | no |
///
/// A gRPC status is read from a `tonic::Status` (feature `tonic`) and from the headers of an HTTP response
/// whose content type is `application/grpc`. Without a wait, `RESOURCE_EXHAUSTED` may mean a message above
/// its size limit, and `UNAVAILABLE` a call that was partly carried out, so neither is retried.
///
/// A 403 usually means a missing permission. If the request was also the last one that the limit admitted,
/// its `X-RateLimit-Remaining: 0` causes one retry after the reset.
///
/// The body is not read. So over HTTP, a rejection by a blocklist of `tower-ratelimit` looks like any 429
/// without a wait, and is retried after the backoff. The same holds for a cost above the capacity if the
/// server's headers have no list. If this matters, give these rejections another status on the server.
///
/// A response that is not retried is returned unchanged. When the [retries](Self::max_retries) are used up,
/// the last rejection is returned.
///
/// # How long it waits
///
/// The first of these that the response contains:
///
/// 1. `grpc-retry-pushback-ms`, exactly;
/// 2. in a gRPC response, the `RetryInfo` of `grpc-status-details-bin`;
/// 3. `Retry-After` and the headers whose names end with it, such as `X-RateLimit-Retry-After`; and in milliseconds,
///    those that end with `retry-after-ms`, such as `x-ms-retry-after-ms`. A wait of 0 does not hide what follows;
/// 4. the resets: `RateLimit` in drafts 07 (`limit=100, remaining=0, reset=30`), 08 to 11 (`"burst";r=0;t=30`) and the
///    unfinished text after them (`"burst";a=0;w=30`), and every header whose name contains `limit` and `reset`, such as
///    `RateLimit-Reset`, `X-RateLimit-Reset-After`, `x-ratelimit-reset-tokens` or `anthropic-ratelimit-tokens-reset`;
/// 5. none of them: the [backoff](Self::backoff).
///
/// In gRPC responses, only 1 to 3 are read. If 3 or 4 apply several times, in several headers, on several
/// lines or in one line with commas, the longest wait counts. A reset does not count if the header named
/// `remaining` in place of `reset` is above 0: that limit is not the one that denied.
///
/// A wait in 3 or 4 can be written as:
///
/// * seconds, with fractions rounded up (`7`, `6.493`);
/// * seconds since 1970, if above 1,000,000,000, and milliseconds since 1970, from 100,000,000,000 on;
/// * a duration with the units `d`, `h`, `m`, `s` and `ms` (`6m0s`, `20ms`);
/// * an HTTP date, or a timestamp of RFC 3339, also without its seconds.
///
/// Times are relative to the response's `Date` if it has one, or else to the local clock.
///
/// **What cannot be read means a longer wait.** If one of these headers has another form, it counts as the
/// longest backoff (the cap, 10 seconds by default), within [`max_wait`](Self::max_wait), and at least one
/// second. The same holds for a 429 whose limits all have units left, and for a 403 without a reset.
///
/// [Jitter](Self::jitter) is added to all but 1 and 5. A wait of 0 becomes the first bound of the backoff, so
/// that a server that always sends 0 is not flooded. If the wait is above `max_wait`, the rejection is
/// returned.
///
/// [The forms of large APIs](crate#large-apis) lists what this means for each.
///
/// # How many retries
///
/// Each request is retried at most [`max_retries`](Self::max_retries) times. All requests together are
/// retried as often as the [budget](Self::budget) allows: by default for a fifth of the requests, and ten
/// more times per second. So clients do not multiply the load of a server that rejects everything.
///
/// # What it does not do
///
/// It reacts only to rejections. It does not slow down because of the `RateLimit` headers of successful
/// responses: that would delay requests that the server is ready to answer, and those headers promise
/// nothing.
///
/// # Requests
///
/// The request is cloned before it is sent, so its body must be a [`RetryBody`]: any body that is `Clone`,
/// such as `String` or `http_body_util::Full<Bytes>`. Other bodies, such as tonic's, are for
/// [`BufferedRetryLayer`](crate::BufferedRetryLayer). Over HTTP the body of the rejection is dropped unread.
///
/// A timeout of one request is cloned with the request, such as `grpc-timeout`
/// ([`set_timeout`](https://docs.rs/tonic/0.14/tonic/struct.Request.html#method.set_timeout)) or reqwest's. So it
/// bounds each attempt, but not the waits between attempts. To bound all of them together, put tower's `TimeoutLayer`
/// outside the retry.
///
/// # Example
///
/// ```
/// use std::{
///     convert::Infallible,
///     sync::atomic::{AtomicU32, Ordering},
///     time::Duration,
/// };
///
/// use http::{Request, Response};
/// use tokio::time::Instant;
/// use tower::{ServiceBuilder, ServiceExt, retry::RetryLayer};
/// use tower_ratelimit_retry::RetryPolicy;
///
/// // The clock is tokio's paused one: the example takes no time.
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// static ASKED: AtomicU32 = AtomicU32::new(0);
/// let server = tower::service_fn(|_: Request<String>| async {
///     let response = match ASKED.fetch_add(1, Ordering::Relaxed) {
///         0 => Response::builder().status(429).header("retry-after", "20"),
///         _ => Response::builder().status(200),
///     };
///     Ok::<_, Infallible>(response.body(String::new()).unwrap())
/// });
///
/// let client = ServiceBuilder::new().layer(RetryLayer::new(RetryPolicy::new())).service(server);
/// let start = Instant::now();
/// let response = client.oneshot(Request::post("/").body("order".to_owned())?).await?;
/// assert_eq!(response.status(), 200);
/// assert!((20..=22).contains(&start.elapsed().as_secs()));
/// assert_eq!(ASKED.load(Ordering::Relaxed), 2);
///
/// // A wait above the client's longest is not waited for.
/// ASKED.store(0, Ordering::Relaxed);
/// let hasty = RetryPolicy::new().max_wait(Duration::from_secs(5));
/// let client = ServiceBuilder::new().layer(RetryLayer::new(hasty)).service(server);
/// let response = client.oneshot(Request::post("/").body("order".to_owned())?).await?;
/// assert_eq!(response.status(), 429);
/// assert_eq!(ASKED.load(Ordering::Relaxed), 1);
/// # Ok(())
/// # }
/// ```
///
/// # Panics
///
/// A retry waits with [`tokio::time::sleep`], which panics outside a Tokio runtime with its timer enabled.
#[derive(Clone, Debug)]
pub struct RetryPolicy {
    max_retries: u32,
    max_wait: Duration,
    first: Duration,
    cap: Duration,
    /// Percent.
    jitter: u32,
    /// Shared by all clones.
    budget: Option<Arc<TpsBudget>>,
    // tower clones the policy for each request: the counts below belong to one request.
    retries: u32,
    backoffs: u32,
}

impl RetryPolicy {
    /// Creates a policy with a budget, whose clones share it.
    #[must_use]
    pub fn new() -> Self {
        Self {
            max_retries: 4,
            max_wait: Duration::from_secs(60),
            first: Duration::from_millis(100),
            cap: Duration::from_secs(10),
            jitter: 10,
            budget: Some(Arc::default()),
            retries: 0,
            backoffs: 0,
        }
    }

    /// The maximum number of retries per request. 0 turns retries off. Defaults to 4.
    #[must_use]
    pub fn max_retries(mut self, retries: u32) -> Self {
        self.max_retries = retries;
        self
    }

    /// The longest single wait. Defaults to 60 seconds.
    ///
    /// If the server requests a longer wait, its rejection is returned. Jitter and backoff do not exceed this
    /// wait.
    #[must_use]
    pub fn max_wait(mut self, wait: Duration) -> Self {
        self.max_wait = wait;
        self
    }

    /// The wait after a rejection that states none. Defaults to 100 milliseconds and 10 seconds.
    ///
    /// The wait is a random time between zero and a bound. The bound is `first` for a request's first such
    /// rejection, doubles with each further one, and is at most `cap`.
    ///
    /// `cap` is also the wait after a header that cannot be read, but that wait is at least one second.
    ///
    /// # Panics
    ///
    /// If `first` is zero or above `cap`.
    #[must_use]
    #[track_caller]
    pub fn backoff(mut self, first: Duration, cap: Duration) -> Self {
        assert!(!first.is_zero(), "a backoff must start above zero");
        assert!(first <= cap, "a backoff must not start above its cap");
        self.first = first;
        self.cap = cap;
        self
    }

    /// The most that is added to the server's wait, in percent of it. Defaults to 10.
    ///
    /// The addition is random, so clients with the same wait do not retry together. With 0, the wait is
    /// exactly the server's.
    #[must_use]
    pub fn jitter(mut self, percent: u32) -> Self {
        self.jitter = percent;
        self
    }

    /// The retry budget of all requests together. `None` for no limit. Defaults to `TpsBudget::default()`:
    /// one retry for every five requests of the last ten seconds, plus ten per second, at most 100 in one
    /// burst.
    ///
    /// Clones of a policy share its budget. So make one policy per server, and clone it for several services.
    /// If the budget does not cover a retry, the rejection is returned.
    #[must_use]
    pub fn budget(mut self, budget: impl Into<Option<TpsBudget>>) -> Self {
        self.budget = budget.into().map(Arc::new);
        self
    }

    /// Waits as advised, and counts the retry. `None` to return the response.
    fn follow(&mut self, advice: Advice) -> Option<Sleep> {
        // Each request is a deposit, once: after its first response.
        if let Some(budget) = self.budget.as_ref().filter(|_| self.retries == 0) {
            budget.deposit();
        }
        if self.retries >= self.max_retries {
            return None;
        }
        let wait = match advice {
            Advice::Leave => return None,
            Advice::Exactly(wait) | Advice::AtLeast(wait) if wait > self.max_wait => return None,
            Advice::Exactly(Duration::ZERO) | Advice::AtLeast(Duration::ZERO) => self.first,
            Advice::Exactly(wait) => wait,
            Advice::AtLeast(wait) => {
                wait.saturating_add(random_time(wait.saturating_mul(self.jitter) / 100)).min(self.max_wait)
            }
            Advice::Unsaid => random_time(self.next_bound()),
        };
        let wait = wait.min(self.max_wait);
        if self.budget.as_ref().is_some_and(|budget| !budget.withdraw()) {
            log!("rejected, the budget covers no retry");
            return None;
        }
        self.retries += 1;
        log!(retry = self.retries, wait_ms = wait.as_millis(), "rejected, retries after a wait");
        Some(tokio::time::sleep(wait))
    }

    /// The wait after a header that cannot be read.
    fn unclear_wait(&self) -> Duration {
        self.cap.min(self.max_wait).max(Duration::from_secs(1))
    }

    /// The bound of the next backoff.
    // tower's `ExponentialBackoff` gives a future instead of a duration, so it cannot be bounded by
    // `max_wait`.
    fn next_bound(&mut self) -> Duration {
        let factor = 1_u128.checked_shl(self.backoffs).unwrap_or(u128::MAX);
        self.backoffs = self.backoffs.saturating_add(1);
        let nanos = self.first.as_nanos().saturating_mul(factor).min(self.cap.as_nanos());
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)).min(self.cap)
    }
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self::new()
    }
}

/// A random time from zero to `most`, and at most 584 years.
fn random_time(most: Duration) -> Duration {
    // Each `RandomState` has its own random keys.
    let random = RandomState::new().hash_one(());
    let nanos = most.as_nanos().min(u64::MAX.into());
    Duration::from_nanos(u64::try_from((nanos * u128::from(random)) >> 64).unwrap_or(u64::MAX))
}

impl<B: RetryBody, R, E> Policy<Request<B>, Response<R>, E> for RetryPolicy {
    type Future = Sleep;

    fn retry(&mut self, request: &mut Request<B>, result: &mut Result<Response<R>, E>) -> Option<Sleep> {
        let (idempotent, unclear) = (request.method().is_idempotent(), self.unclear_wait());
        self.follow(result.as_ref().map_or(Advice::Leave, |response| {
            Advice::of_response(response.status(), response.headers(), idempotent, unclear)
        }))
    }

    fn clone_request(&mut self, request: &Request<B>) -> Option<Request<B>> {
        let mut clone = Request::new(request.body().try_clone()?);
        clone.method_mut().clone_from(request.method());
        clone.uri_mut().clone_from(request.uri());
        *clone.version_mut() = request.version();
        clone.headers_mut().clone_from(request.headers());
        clone.extensions_mut().clone_from(request.extensions());
        Some(clone)
    }
}

#[cfg(feature = "reqwest")]
#[cfg_attr(docsrs, doc(cfg(feature = "reqwest")))]
impl<E> Policy<reqwest::Request, reqwest::Response, E> for RetryPolicy {
    type Future = Sleep;

    fn retry(
        &mut self,
        request: &mut reqwest::Request,
        result: &mut Result<reqwest::Response, E>,
    ) -> Option<Sleep> {
        let (idempotent, unclear) = (request.method().is_idempotent(), self.unclear_wait());
        self.follow(result.as_ref().map_or(Advice::Leave, |response| {
            Advice::of_response(response.status(), response.headers(), idempotent, unclear)
        }))
    }

    /// `None` for a streaming body.
    fn clone_request(&mut self, request: &reqwest::Request) -> Option<reqwest::Request> {
        request.try_clone()
    }
}

#[cfg(feature = "tonic")]
#[cfg_attr(docsrs, doc(cfg(feature = "tonic")))]
impl<T: Clone, U> Policy<tonic::Request<T>, tonic::Response<U>, tonic::Status> for RetryPolicy {
    type Future = Sleep;

    fn retry(
        &mut self,
        _: &mut tonic::Request<T>,
        result: &mut Result<tonic::Response<U>, tonic::Status>,
    ) -> Option<Sleep> {
        let unclear = self.unclear_wait();
        self.follow(result.as_ref().err().map_or(Advice::Leave, |status| match status.code() {
            tonic::Code::ResourceExhausted | tonic::Code::Unavailable => {
                Advice::of_call(status.metadata().as_ref(), status.details(), unclear)
            }
            _ => Advice::Leave,
        }))
    }

    /// Metadata, extensions and message; `tonic::Request` is not `Clone`.
    fn clone_request(&mut self, request: &tonic::Request<T>) -> Option<tonic::Request<T>> {
        Some(tonic::Request::from_parts(
            request.metadata().clone(),
            request.extensions().clone(),
            request.get_ref().clone(),
        ))
    }
}
