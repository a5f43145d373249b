//! How a layer settles charges.

use std::{fmt, sync::Arc};

use http::{Extensions, response::Parts};

use super::{
    rule::CountIf,
    settle::{Counted, Settling, Unsettled},
};
use crate::{
    decision::Decision,
    limiter::{Limiter, Reservation},
};

/// What happens to a request's charge once its response is known: see
/// [`RateLimitLayer::settle`](crate::RateLimitLayer::settle). Without any of these settings the charge stays.
///
/// | setting | the request is charged |
/// |---|---|
/// | [`count_if`](Self::count_if) | only if its response counts |
/// | [`refund_cancelled`](Self::refund_cancelled) | only if it is not cancelled |
/// | [`reserve`](Self::reserve), [`reserve_or_refund`](Self::reserve_or_refund) | what its handler settles |
/// | [`response_bytes`](Self::response_bytes) | the bytes of its response |
#[derive(Clone, Default)]
#[must_use = "it does nothing until a layer has it"]
pub struct Settlement {
    counts: Option<CountIf>,
    refunds_cancelled: bool,
    pub(super) reserved: Vec<Reserved>,
}

/// A policy whose charge is settled later.
#[derive(Clone)]
pub(super) struct Reserved {
    pub(super) policy: String,
    or_refund: bool,
    /// Whether the bytes of the response's body settle it.
    pub(super) by_bytes: bool,
}

impl Settlement {
    /// All charges stay.
    pub const fn new() -> Self {
        Self { counts: None, refunds_cancelled: false, reserved: Vec::new() }
    }

    /// Counts only requests whose response `counts`, and refunds the others. Defaults to counting every request.
    ///
    /// The request is charged first, so concurrent ones stay within the limit. If its response does not count, the
    /// charge is refunded before the response is sent, under all policies of the layer. The charge is also refunded if
    /// the service fails with an error. Units that the handler charged itself are not refunded. What is
    /// [reserved](Self::reserve) is not charged after that, nor are [bytes](Self::response_bytes). For one of several
    /// policies, see [`Rule::count_if`](crate::Rule::count_if).
    ///
    /// `counts` sees the status and the headers. A gRPC error without a message has its status in the header `grpc-status`.
    /// It does not see rejections by this layer, which keep
    /// [what they charge](crate::RateLimitLayer#guesses-are-charged). One that the handler returns counts.
    ///
    /// # Example
    ///
    /// Only failed logins count:
    ///
    /// ```
    /// use http::{Request, Response, StatusCode};
    /// use tower::{Layer, ServiceExt};
    /// use tower_ratelimit::{Key, MemoryStore, Policy, Quota, RateLimitLayer, layer::Settlement};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let failures = Policy::new("failed-logins", Quota::per_hour(2));
    /// let layer = RateLimitLayer::new(MemoryStore::new(), failures, Key::new("all"))
    ///     .settle(Settlement::new().count_if(|response| response.status == StatusCode::UNAUTHORIZED));
    /// let login = layer.layer(tower::service_fn(|password: Request<String>| async move {
    ///     let status = if password.body() == "secret" { 200 } else { 401 };
    ///     Ok::<_, std::convert::Infallible>(Response::builder().status(status).body(String::new()).unwrap())
    /// }));
    /// for (password, status) in
    ///     [("secret", 200), ("guess", 401), ("secret", 200), ("guess", 401), ("secret", 429), ("guess", 429)]
    /// {
    ///     assert_eq!(login.clone().oneshot(Request::new(password.into())).await?.status(), status);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn count_if(mut self, counts: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.counts = Some(Arc::new(counts));
        self
    }

    /// Refunds requests that are cancelled before the service responds: the client closed its connection, or an outer
    /// layer's timeout is over. Defaults to charging them. A request whose handler panics stays charged.
    ///
    /// A client can then start any amount of work without a charge, by cancelling it. Use it only if the service stops
    /// its work too. The refund covers what the request was charged at first under all policies of the layer, even
    /// [reserved](Self::reserve) ones of which units were recorded.
    pub const fn refund_cancelled(mut self) -> Self {
        self.refunds_cancelled = true;
        self
    }

    /// Reserves the cost of each request under `policy`: its handler finds a [`Reservation`](crate::Reservation) in the
    /// request's extensions and [settles](crate::Reservation::settle) the actual cost, or
    /// [records](crate::Reservation::record) what it has used so far. If the response's body ends or is dropped before
    /// anything is settled, the request is charged what was recorded; if nothing was, the estimate stays charged.
    ///
    /// The estimate is the [cost](crate::Rule::cost) of the rule. Other policies are charged as usual. With several
    /// calls, one reservation covers all the policies that are named. A request that the layer does not charge has a
    /// reservation that covers nothing: an exempt one, one over the limit that is only reported, or any while the layer is off.
    ///
    /// # Example
    ///
    /// ```
    /// # #[cfg(feature = "axum")] mod example {
    /// use axum::{Router, body::Body, routing::post};
    /// use http::Request;
    /// use tower::ServiceExt;
    /// use tower_ratelimit::{Key, MemoryStore, Policy, Quota, RateLimitLayer, Reservation, Rule, layer::Settlement};
    ///
    /// async fn complete(reservation: Reservation, prompt: String) -> Result<String, tower_ratelimit::Rejection> {
    ///     let answer = prompt.to_uppercase();
    ///     reservation.settle(answer.len() as u64).await?;
    ///     Ok(answer)
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # pub async fn main() {
    /// let tokens = Rule::new(Policy::new("tokens", Quota::per_hour(1_000)), Key::new("all")).cost(|_| 400);
    /// let requests = Policy::new("requests", Quota::per_hour(10));
    /// let layer = RateLimitLayer::new(MemoryStore::new(), requests, Key::new("all"))
    ///     .and(tokens)
    ///     .settle(Settlement::new().reserve("tokens"));
    /// let app = Router::new().route("/", post(complete)).layer(layer);
    /// for remaining in [r#""tokens";r=600"#, r#""tokens";r=595"#] {
    ///     let response = app.clone().oneshot(Request::post("/").body(Body::from("hello")).unwrap()).await.unwrap();
    ///     // The headers show the estimate.
    ///     let header = response.headers()["ratelimit"].to_str().unwrap();
    ///     assert!(header.contains(remaining), "{header}");
    /// }
    /// # }
    /// # }
    /// # #[cfg(feature = "axum")] example::main();
    /// ```
    pub fn reserve(self, policy: &str) -> Self {
        self.reserving(policy, false, false)
    }

    /// [`reserve`](Self::reserve), and refunds the estimate if nothing was settled or recorded when the response's body
    /// ends, even if the client has closed its connection or the handler has panicked.
    pub fn reserve_or_refund(self, policy: &str) -> Self {
        self.reserving(policy, true, false)
    }

    /// Charges the bytes of each response's body under `policy`, as they are sent.
    ///
    /// A request is admitted if its [cost](crate::Rule::cost), by default one unit, remains. It pays its cost, or the bytes of the
    /// body if they are more, even if it is cancelled or panics before the response, or the response has no body. The
    /// body is charged every 256 KiB and at its end. When the quota is used up, the rest becomes the policy's
    /// [debt](crate::Policy::debt). So one large response is sent as a whole, and the client's next request is denied until its bytes are
    /// replenished. The service's body counts, before an outer layer compresses it. If the client leaves,
    /// the bytes that were sent until then are charged.
    ///
    /// # Example
    ///
    /// ```
    /// use http::{Request, Response};
    /// use http_body_util::{BodyExt, Full};
    /// use tower::{Layer, ServiceExt};
    /// use tower_ratelimit::{Key, MemoryStore, Policy, Quota, RateLimitLayer, layer::Settlement};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let bytes = Policy::new("bytes", Quota::per_minute(100_000)).debt(1_000_000);
    /// let layer = RateLimitLayer::new(MemoryStore::new(), bytes, Key::new("all"))
    ///     .settle(Settlement::new().response_bytes("bytes"));
    /// let download = layer.layer(tower::service_fn(|_: Request<()>| async {
    ///     Ok::<_, std::convert::Infallible>(Response::new(Full::<bytes::Bytes>::from(vec![0; 301_000])))
    /// }));
    ///
    /// let response = download.clone().oneshot(Request::new(())).await?;
    /// assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), 301_000);
    /// // 201,000 bytes of debt take two minutes.
    /// let denied = download.oneshot(Request::new(())).await?;
    /// assert_eq!((denied.status().as_u16(), &denied.headers()["retry-after"]), (429, &"121".parse()?));
    /// # Ok(())
    /// # }
    /// ```
    pub fn response_bytes(self, policy: &str) -> Self {
        self.reserving(policy, false, true)
    }

    fn reserving(mut self, policy: &str, or_refund: bool, by_bytes: bool) -> Self {
        self.reserved.push(Reserved { policy: policy.to_owned(), or_refund, by_bytes });
        self
    }

    /// Whether charges always stay.
    pub(super) fn is_none(&self) -> bool {
        self.counts.is_none() && !self.refunds_cancelled && self.reserved.is_empty()
    }

    /// What is not settled of a request, with the rules that count only some requests. Inserts the reservation into its
    /// extensions. `None` if the request is denied, and the layer only reports.
    pub(super) fn start(
        &self,
        limiter: &Limiter,
        decision: &Decision,
        mut counted: Vec<Counted>,
        extensions: &mut Extensions,
    ) -> Option<Box<Unsettled>> {
        if decision.is_denied() {
            self.cover_nothing(limiter, extensions);
            return None;
        }
        let [reservation, of_bytes] = self.reserve_units(limiter, decision);
        match &reservation {
            Some(reservation) => drop(extensions.insert(reservation.clone())),
            None => self.cover_nothing(limiter, extensions),
        }
        counted.extend(self.counts.clone().map(|counts| Counted { counts, policies: None }));
        let settling = Settling::new(reservation, of_bytes);
        Some(Unsettled::new(limiter, decision, counted, self.refunds_cancelled, settling))
    }

    /// Inserts a reservation that covers nothing, for a handler that takes one, unless an outer layer has reserved units.
    pub(super) fn cover_nothing(&self, limiter: &Limiter, extensions: &mut Extensions) {
        let is_taken = self.reserved.iter().any(|reserved| !reserved.by_bytes);
        if is_taken && extensions.get::<Reservation>().is_none() {
            extensions.insert(Reservation::new(limiter, &Decision::not_limited()));
        }
    }

    /// The reservations: for the request's extensions, and for the bytes of its response.
    fn reserve_units(&self, limiter: &Limiter, decision: &Decision) -> [Option<Reservation>; 2] {
        let reserve = |by_bytes: bool| {
            let reserved = || self.reserved.iter().filter(move |reserved| reserved.by_bytes == by_bytes);
            let is_reserved = |name: &str| reserved().any(|reserved| reserved.policy == name);
            let decision = decision.of_policies(is_reserved).filter(|decision| !decision.is_denied())?;
            let reservation = Reservation::new(limiter, &decision);
            Some(if reserved().any(|reserved| reserved.or_refund) {
                reservation.or_refund()
            } else {
                reservation
            })
        };
        [reserve(false), reserve(true)]
    }
}

impl fmt::Debug for Settlement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reserved: Vec<_> = self.reserved.iter().map(|reserved| &reserved.policy).collect();
        f.debug_struct("Settlement")
            .field("refunds_cancelled", &self.refunds_cancelled)
            .field("reserved", &reserved)
            .finish_non_exhaustive()
    }
}
