//! Metrics, through the facade [`metrics`](https://docs.rs/metrics): any of its exporters works.
//!
//! | name | type | labels | counts |
//! |---|---|---|---|
//! | `ratelimit_decisions_total` | counter | `policy`, `verdict`, `source` | decisions of layers and [`Limiter`](crate::Limiter)s, once for each policy that was charged or that denied |
//! | `ratelimit_rejections_total` | counter | `reason` | requests that a [`RateLimitLayer`](crate::RateLimitLayer) or the service behind it rejected |
//! | `ratelimit_capacity_units` | gauge | `policy` | the units that a key with a full quota can be charged: the policy's [capacity](crate::Policy::capacity) |
//! | `ratelimit_used_share` | histogram | `policy` | the share of its quota that a key has used after a decision or a debit of the store, from 0 to 1, and above 1 with [debt](crate::Policy::max_debt) |
//! | `ratelimit_thresholds_total` | counter | `policy`, `percent` | keys that have used a share of their quota that the policy [notifies at](crate::Policy::notify_at) |
//! | `ratelimit_store_errors_total` | counter | `kind` | decisions and refunds that the store failed to make |
//! | `ratelimit_decision_duration_seconds` | histogram | | the time that a decision waited for Redis, until its reply or its deadline |
//! | `ratelimit_batch_decisions` | histogram | | decisions in one call of the script |
//! | `ratelimit_queue_length` | histogram | | decisions that wait to be sent, recorded by each decision that has to wait |
//! | `ratelimit_leased_keys` | gauge | | keys with units on [lease](crate::Policy::max_lease), as of the last 100 ms |
//! | `ratelimit_leased_units` | gauge | | units on lease that are not spent, as of the last 100 ms |
//! | `ratelimit_open_breakers` | gauge | | circuit breakers that are open |
//! | `ratelimit_enforcement_switches` | gauge | `position` | [switches](crate::policy::EnforcementSwitch) of this process |
//! | `ratelimit_failed_policy_sources` | gauge | | files and hashes of live policies and live prices, of the crate `tower-ratelimit-operate`, whose latest content is not applied |
//! | `ratelimit_memory_keys` | gauge | | keys in all [`MemoryStore`](crate::MemoryStore)s |
//! | `ratelimit_instances` | gauge | | the instances that share the limits, as [last seen](crate::RedisStore::instances) |
//! | `ratelimit_adaptive_share` | gauge | `policy` | the share of its full quota that an adaptive policy of the crate `tower-ratelimit-extra` applies, from its floor to 1 |
//!
//! * `policy` is the name of a policy. It is empty if the store failed and the failure mode admitted.
//! * `percent` is a share of [`notify_at`](crate::Policy::notify_at).
//! * `verdict` is `admitted`, `delayed`, `denied`, `banned` for a denial of a
//!   [banned](crate::Policy::penalty) key, or `shadow_denied` for a denial of a [shadow
//!   policy](crate::Policy::shadow).
//! * `source` is a [`DecisionSource`](crate::decision::DecisionSource): `store`, `deny_cache`, `lease`,
//!   `local` or `failure_mode`.
//! * `reason` is `denied`, `banned`, `blocked`, `unidentified`, `unavailable` or `rejected_by_service`.
//! * `kind` is the short name of an [`ErrorKind`](crate::ErrorKind), such as `StoreTimeout`: `timeout`,
//!   `busy`, `unreachable`, `disconnected`, `failed`, `reply`, `suspended` or `other`.
//! * `position` is `on`, `report-only` or `off`.
//!
//! Labels contain no identities, and their number does not grow with the number of clients. It grows with the
//! names of policies: each has up to 31 series, and one more for each threshold. If your program builds policies
//! per request, give them few names. The guide [metrics and alerts](crate::guide::metrics_and_alerts) has alert
//! rules and a dashboard.
//!
//! Peeks, refunds and decisions that are dropped early are not counted as decisions. Decisions made in
//! process are not timed.
//!
//! # Recorders
//!
//! Install the recorder before you build layers. When a layer wraps its first service, the counters of its
//! policies start at 0, so that `rate` and `increase` include the first events. A recorder that is installed
//! later counts from then on. Handles are cached, so an exporter must not drop idle metrics (`idle_timeout`
//! of `metrics-exporter-prometheus`): counts recorded after the drop would be lost. A test that uses one
//! policy with several local recorders must keep the earlier recorders alive.
//!
//! # Example
//!
//! With `metrics-exporter-prometheus`; `examples/metrics` is the whole program.
//!
//! ```ignore
//! use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
//! use tower_ratelimit::metrics::BUCKETS;
//!
//! let mut builder = PrometheusBuilder::new();
//! for (name, buckets) in BUCKETS {
//!     builder = builder.set_buckets_for_metric(Matcher::Full((*name).into()), buckets)?;
//! }
//! let prometheus = builder.install_recorder()?;
//! let app = app.route("/metrics", get(move || async move { prometheus.render() }));
//! ```

mod handle;
mod names;
pub(crate) mod record;

pub use self::names::BUCKETS;
pub(crate) use self::record::{PolicyHandles, PolicyMetrics, Source, Verdict};
