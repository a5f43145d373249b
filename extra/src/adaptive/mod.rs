//! Quotas that follow the load of a service, or any other signal.
//!
//! A quota that is right today is wrong tomorrow: a database becomes slower, an instance is missing, requests change.
//! If it is too high, an overloaded service answers every request too late, and does no useful work at all.
//! [`Adaptive`] lowers a quota on a signal's demand, and raises it again. `docs/adaptive.md` in the repository shows
//! what that is worth.
//!
//! | question | types |
//! |---|---|
//! | Which policy? | [`Adaptive`] takes any: a rate, or [`Policy::concurrency`](tower_ratelimit::Policy::concurrency) for requests in flight |
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
//! To protect a service, limit the **requests in flight** of each instance, as in the example: it reacts immediately, because
//! requests that take longer also stay in flight longer. A rate that follows the latency is slower. It is for a limit over all
//! instances, and for quotas that fall for every client while the service is busy. A quota per client does not limit the sum
//! of many clients.
//!
//! # What holds for all three
//!
//! * Nothing changes before 50 requests have ended. After ten [intervals](Adaptive::every), 10 are enough, and after a minute
//!   one.
//! * A reduction is by half at most. While the queue becomes shorter, nothing is reduced. Otherwise requests that began
//!   before a reduction would cause the next one. To empty the queue, `Gradient` and `Vegas` reduce the share by up to
//!   three quarters for a moment.
//! * A limit on the requests in flight rises only while at least half of it is used, so it does not drift away from what was
//!   tried. When it falls, it first falls to twice what is used. What is used is the highest number at a moment, and a request
//!   is in flight until its body ends. Let each request cost one unit.
//! * If ten or more requests wait, and none ends for longer than the target, or a multiple of the usual latency, it falls. To
//!   lower a limit on the requests in flight, they must fill half of it. A rate falls once for each ten of them.
//! * If more than half of the requests fail, and more than half of the requests in flight are those that fail, it falls. See
//!   `failed_up_to` of each.
//! * Without any request for ten intervals, it rises.
//!
//! # What a few clients can do
//!
//! A client can make its own requests slow, with a body that it sends slowly, or leave them unfinished, and it can send many
//! that are quick, or that fail. So each judgement is about the median, or about more than half of the requests:
//!
//! | a few clients | the quota |
//! |---|---|
//! | send bodies slowly, or give up | does not fall while their requests are fewer than the others that end |
//! | read responses slowly | does not fall: the latency ends with the head of the response |
//! | send any number of requests that are answered with 4xx | does not fall, and the usual latency stays what it was |
//! | cause failures, with 500 or above | does not fall while fewer of their requests are in flight than of the others |
//! | leave requests unfinished | does not fall unless no other request ends and they fill half of a limit in flight; a rate falls by half for each ten |
//!
//! The quota falls nevertheless if the clients with slow requests are the majority, for example at night. A limit on the
//! requests in flight counts their requests like any other, so they can also fill one that has fallen. To prevent this:
//!
//! * Limit the requests in flight of each client as well, with [`Policy::concurrency`](tower_ratelimit::Policy::concurrency) and a key
//!   such as [`PeerIp`](tower_ratelimit::PeerIp).
//! * Choose a [`floor`](Adaptive::floor) above what a few clients can hold.
//! * Let bodies have a timeout, or put a proxy in front that sends only complete requests to the service.
//! * `Gradient` and `Vegas` compare with the quickest median. A few clients with a large number of quick, successful
//!   requests make the usual latency look long. Use a meter and a policy for each kind of request.
//! * Answer with 4xx what is the client's fault. A handler that answers 500 reports a failure of the service.
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

#[expect(clippy::module_inception, reason = "the module's main type")]
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
