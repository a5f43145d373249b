//! Metrics, through the facade [`metrics`](https://docs.rs/metrics): any of its exporters works.
//!
//! | name | type | labels | counts |
//! |---|---|---|---|
//! | [`ratelimit_decisions_total`](DECISIONS_TOTAL) | counter | `policy`, `verdict`, `source` | decisions of layers and [`Limiter`](crate::Limiter)s, once for each policy that was charged or that denied |
//! | [`ratelimit_rejections_total`](REJECTIONS_TOTAL) | counter | `reason` | requests that a [`RateLimitLayer`](crate::RateLimitLayer) rejected |
//! | [`ratelimit_store_errors_total`](STORE_ERRORS_TOTAL) | counter | `kind` | decisions and refunds that the store failed to make |
//! | [`ratelimit_decision_duration_seconds`](DECISION_DURATION_SECONDS) | histogram | | the time that a decision waited for Redis, with its reply or in vain |
//! | [`ratelimit_batch_decisions`](BATCH_DECISIONS) | histogram | | decisions in one call of the script |
//! | [`ratelimit_queue_length`](QUEUE_LENGTH) | histogram | | decisions that wait to be sent, recorded by each one that has to wait |
//! | [`ratelimit_leased_keys`](LEASED_KEYS) | gauge | | keys with units on [lease](crate::Policy::leased), as of the last 100 ms |
//! | [`ratelimit_leased_units`](LEASED_UNITS) | gauge | | units on lease that are not spent, as of the last 100 ms |
//! | [`ratelimit_open_breakers`](OPEN_BREAKERS) | gauge | | circuit breakers that are open |
//! | [`ratelimit_enforcement_switches`](ENFORCEMENT_SWITCHES) | gauge | `position` | [switches](crate::policy::EnforcementSwitch) of this process |
//! | [`ratelimit_failed_policy_sources`](FAILED_POLICY_SOURCES) | gauge | | files and hashes of live policies, of the crate `tower-ratelimit-extra`, whose latest content is not applied |
//! | [`ratelimit_memory_keys`](MEMORY_KEYS) | gauge | | keys in all [`MemoryStore`](crate::MemoryStore)s |
//! | [`ratelimit_instances`](INSTANCES) | gauge | | the instances that share the limits, as [last seen](crate::RedisStore::instances) |
//! | [`ratelimit_adaptive_share`](ADAPTIVE_SHARE) | gauge | `policy` | the share of its full quota that an adaptive policy of the crate `tower-ratelimit-extra` applies, from its floor to 1 |
//!
//! * `policy` is the name of a policy. It is empty if the store failed and the failure mode admitted.
//! * `verdict` is `admitted`, `delayed`, `denied`, `banned` for a denial of a [banned](crate::Policy::penalty) key, or `shadow_denied` for a denial of a
//!   [shadow policy](crate::Policy::shadow).
//! * `source` is a [`DecisionSource`](crate::decision::DecisionSource): `store`, `deny_cache`, `lease`, `local` or
//!   `failure_mode`.
//! * `reason` is `denied`, `banned`, `blocked`, `unidentified`, `unavailable` or `rejected_by_service`.
//! * `kind` is an [`ErrorKind`](crate::ErrorKind): `timeout`, `busy`, `unreachable`, `disconnected`, `failed`, `reply`,
//!   `suspended` or `other`.
//! * `position` is `on`, `report-only` or `off`.
//!
//! No label has an identity, and none grows with the number of clients. If your program makes policies per request, give
//! them few names.
//!
//! A peek, a refund and a decision that is dropped early are no decision here. Decisions made in process are not timed:
//! they take less time than reading the clock twice.
//!
//! # Recorders
//!
//! Install the recorder first. When a layer wraps its first service, the counters of its policies start at 0, so that
//! `rate` and `increase` see the first events. A recorder that is installed later counts from then on. Handles are cached, so
//! an exporter must not drop idle metrics (`idle_timeout` of `metrics-exporter-prometheus`): it would lose what they
//! count afterwards. A test that uses one policy with several local recorders must keep the earlier ones.
//!
//! # Example
//!
//! With `metrics-exporter-prometheus`; `examples/metrics` is the whole program.
//!
//! ```ignore
//! use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
//! use tower_ratelimit::metrics::{DECISION_DURATION_SECONDS, DURATION_BUCKETS};
//!
//! let duration = Matcher::Full(DECISION_DURATION_SECONDS.into());
//! let prometheus = PrometheusBuilder::new().set_buckets_for_metric(duration, &DURATION_BUCKETS)?.install_recorder()?;
//! let app = app.route("/metrics", get(move || async move { prometheus.render() }));
//! ```
//!
//! The names are constants:
//!
//! ```
//! use tower_ratelimit::metrics;
//!
//! assert_eq!(metrics::DECISIONS_TOTAL, "ratelimit_decisions_total");
//! ```

pub(crate) mod decisions;
mod handle;
mod names;
mod policy;
pub(crate) mod record;

pub use self::names::{
    ADAPTIVE_SHARE, BATCH_DECISIONS, DECISION_DURATION_SECONDS, DECISIONS_TOTAL, DURATION_BUCKETS,
    ENFORCEMENT_SWITCHES, FAILED_POLICY_SOURCES, INSTANCES, LEASED_KEYS, LEASED_UNITS, LENGTH_BUCKETS,
    MEMORY_KEYS, OPEN_BREAKERS, QUEUE_LENGTH, REJECTIONS_TOTAL, STORE_ERRORS_TOTAL, describe,
};
pub(crate) use self::policy::PolicyCounters;
