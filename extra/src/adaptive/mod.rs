//! Quotas that follow the load of a service, or any other signal.
//!
//! A quota that is right today is wrong tomorrow: a database becomes slower, an instance is missing, requests
//! change. If the quota is too high, an overloaded service answers every request too late and does no useful
//! work. [`Adaptive`] lowers a quota when a signal demands it, and raises it again. `docs/adaptive.md` in the
//! repository measures the effect.
//!
//! | question | types |
//! |---|---|
//! | Which policy? | [`Adaptive`] takes any: a rate, or [`Policy::concurrency`](tower_ratelimit::Policy::concurrency) for requests in flight. A source of a policy that changes, such as a live policy, is followed |
//! | Which signal? | a [closure](Signal); or a [`LoadMeter`] around the service, with [`Aimd`], [`Gradient`] or [`Vegas`] |
//! | One instance or all? | each for itself; [`shared`](Adaptive::shared) over Redis, for closures and [`Aimd`] |
//! | What is active? | [`AdaptivePolicy::share`], [`AdaptivePolicy::policy`] |
//!
//! # Which controller
//!
//! | | needs | for |
//! |---|---|---|
//! | [`Aimd`] | a target latency | all cases in which you know a median latency that is too long: **start with this** |
//! | [`Vegas`] | nothing | requests in flight, if all requests take about the same time |
//! | [`Gradient`] | nothing | requests in flight, with more room for requests that differ |
//!
//! To protect a service, limit the **requests in flight** of each instance, as in the example. This limit
//! reacts immediately, because slower requests also stay in flight longer. A rate that follows the latency
//! reacts later; use it for a limit over all instances, and for quotas that fall for every client while the
//! service is busy. A quota per client does not limit the sum over many clients.
//!
//! # What holds for all three
//!
//! * **Windows.** A controller judges one *window* of requests after another. A window ends at the first
//!   [interval](Adaptive::every) after 50 requests have ended in it; after ten intervals, 10 are enough;
//!   after a minute, one. Requests that failed count only if they are more than `failed_up_to` allows.
//! * **Steps.** A reduction is by half at most. While the queue becomes shorter, nothing is reduced, because
//!   requests that began before a reduction would cause the next one. To empty the queue, `Gradient` and
//!   `Vegas` reduce the share by up to three quarters for a moment.
//! * **Use.** A limit on the requests in flight rises only while at least half of it is used, so it stays
//!   near values that were tried. When it falls, it first falls to twice what is used. Its use is the highest
//!   number at a moment, and a request is in flight until its body ends. Let each request cost one unit.
//! * **Hanging requests.** The quota falls if ten or more requests wait and none ends within the target, or
//!   within a multiple of the usual latency. To lower a limit on the requests in flight, they must fill half
//!   of it. A rate falls once for each ten of them.
//! * **Failures.** The quota falls if more than half of the requests fail, and more than half of the requests
//!   in flight are those that fail. See `failed_up_to` of each controller.
//! * **No traffic.** Without any request for ten intervals, the quota rises.
//!
//! # What a few clients can do
//!
//! A client can make its own requests slow, leave them unfinished, or send many quick or failing ones. So
//! each judgment is about the median, or about more than half of the requests:
//!
//! | a few clients | the quota |
//! |---|---|
//! | send bodies slowly, or give up | does not fall while their requests are fewer than the others that end |
//! | read responses slowly | does not fall: the latency ends with the head of the response |
//! | send any number of requests that are answered with 4xx | does not fall, and the usual latency stays what it was |
//! | cause failures, with 500 or above | does not fall while fewer of their requests are in flight than of the others, in each interval |
//! | leave requests unfinished | does not fall unless no other request ends and they fill half of a limit in flight; a rate falls by half for each ten |
//!
//! The quota still falls if the clients with slow requests are the majority, for example at night. A limit on
//! the requests in flight counts their requests like any other, so they can fill a limit that has fallen. To
//! prevent this:
//!
//! * Limit the requests in flight of each client as well, with
//!   [`Policy::concurrency`](tower_ratelimit::Policy::concurrency) and a key such as
//!   [`PeerIp`](tower_ratelimit::PeerIp).
//! * Choose a [`floor`](Adaptive::floor) above what a few clients can hold.
//! * Set a timeout for bodies, or use a proxy that sends only complete requests to the service.
//! * `Gradient` and `Vegas` compare with the quickest median. If a few clients send many quick, successful
//!   requests, the usual latency looks long. Use a meter and a policy for each kind of request.
//! * Answer the client's faults with 4xx. A 500 reports a failure of the service.
//!
//! # Example
//!
//! At most 500 requests in flight on this instance, and fewer while the median latency is above 250 ms:
//!
//! ```
//! use std::time::Duration;
//! use axum::{Router, routing::get};
//! use tower_ratelimit::{Key, MemoryStore, Policy, RateLimitLayer};
//! use tower_ratelimit_extra::adaptive::{Adaptive, Aimd, LoadMeter};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_ratelimit::Error> {
//! let meter = LoadMeter::new();
//! let in_flight = Adaptive::new(Policy::concurrency("in-flight", 500))
//!     .floor(0.01)
//!     .follow(Aimd::new(&meter, Duration::from_millis(250)))
//!     .start()?;
//! // In process: each instance has its own limit.
//! let limit = RateLimitLayer::new(MemoryStore::new(), &in_flight, Key::new("all"));
//!
//! // The meter is the inner layer, so it measures only what is admitted.
//! let app: Router = Router::new().route("/", get(async || "hello")).layer(meter).layer(limit);
//! assert_eq!((in_flight.share(), in_flight.policy().quota().limit()), (1.0, 500));
//! # drop(app);
//! # Ok(())
//! # }
//! ```

mod adaptive;
mod aimd;
mod baseline;
mod closure;
mod controller;
mod follow;
mod gradient;
mod meter;
mod policy;
#[cfg(feature = "redis")]
mod shared;
mod signal;
mod source;
mod vegas;

pub use self::{
    adaptive::Adaptive,
    aimd::Aimd,
    gradient::Gradient,
    meter::{InFlight, LoadMeter, Measured, MeasuredBody, MeasuredFuture},
    policy::AdaptivePolicy,
    signal::Signal,
    vegas::Vegas,
};
