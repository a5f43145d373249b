//! The names of the metrics. The guide `metrics_and_alerts` lists their labels and suggests alerts.

use ::metrics::{Recorder, Unit};

/// A counter of decisions, with the labels `policy`, `verdict` and `source`.
pub(super) const DECISIONS_TOTAL: &str = "ratelimit_decisions_total";
/// A counter of requests that a layer rejects, with the label `reason`.
pub(super) const REJECTIONS_TOTAL: &str = "ratelimit_rejections_total";
/// A counter of decisions that the store failed to make, with the label `kind`.
pub(super) const STORE_ERRORS_TOTAL: &str = "ratelimit_store_errors_total";
/// A histogram of the seconds that a decision waits for Redis.
pub(super) const DECISION_DURATION_SECONDS: &str = "ratelimit_decision_duration_seconds";
/// A histogram of the decisions that one call of the script carries.
pub(super) const BATCH_DECISIONS: &str = "ratelimit_batch_decisions";
/// A histogram of the decisions that wait to be sent, recorded by each one that has to wait.
pub(super) const QUEUE_LENGTH: &str = "ratelimit_queue_length";
/// A gauge of the keys with units on lease in this process.
pub(super) const LEASED_KEYS: &str = "ratelimit_leased_keys";
/// A gauge of the units on lease in this process that are not spent yet.
pub(super) const LEASED_UNITS: &str = "ratelimit_leased_units";
/// A gauge of the circuit breakers of this process that are open: of a Redis server, or of a shard of a
/// Cluster.
pub(super) const OPEN_BREAKERS: &str = "ratelimit_open_breakers";
/// A gauge of the keys in all [`MemoryStore`](crate::MemoryStore)s of this process.
pub(super) const MEMORY_KEYS: &str = "ratelimit_memory_keys";
/// A gauge of the instances that have announced themselves in Redis, as this process last saw.
pub(super) const INSTANCES: &str = "ratelimit_instances";
/// A gauge of the share of its full quota that an adaptive policy applies, from its floor to 1, with the
/// label `policy`.
pub(super) const ADAPTIVE_SHARE: &str = "ratelimit_adaptive_share";
/// A gauge of the [switches](crate::policy::EnforcementSwitch) of this process, with the label `position`.
pub(super) const ENFORCEMENT_SWITCHES: &str = "ratelimit_enforcement_switches";
/// A gauge of the files and hashes of live policies whose latest content is not applied: it is invalid,
/// cannot be read, or waits for another version.
pub(super) const FAILED_POLICY_SOURCES: &str = "ratelimit_failed_policy_sources";

const DURATIONS: [f64; 12] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0];
// The last buckets are the longest batch, of 128 decisions, and the longest queue, of 16,384.
const LENGTHS: [f64; 12] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 512.0, 2048.0, 8192.0, 16384.0];

/// The histograms, and buckets that suit each: durations from 100 microseconds to a second, lengths from 1 to
/// the longest.
pub const BUCKETS: [(&str, [f64; 12]); 3] =
    [(DECISION_DURATION_SECONDS, DURATIONS), (BATCH_DECISIONS, LENGTHS), (QUEUE_LENGTH, LENGTHS)];

type Describe = fn(&dyn Recorder, &'static str, Unit, &'static str);

const COUNTER: Describe =
    |recorder, name, unit, text| recorder.describe_counter(name.into(), Some(unit), text.into());
const GAUGE: Describe =
    |recorder, name, unit, text| recorder.describe_gauge(name.into(), Some(unit), text.into());
const HISTOGRAM: Describe =
    |recorder, name, unit, text| recorder.describe_histogram(name.into(), Some(unit), text.into());

const ALL: [(&str, Describe, Unit, &str); 14] = [
    (DECISIONS_TOTAL, COUNTER, Unit::Count, "Decisions, for each policy that was charged or that denied."),
    (REJECTIONS_TOTAL, COUNTER, Unit::Count, "Requests that a rate limit layer rejected."),
    (STORE_ERRORS_TOTAL, COUNTER, Unit::Count, "Decisions that the store failed to make."),
    (DECISION_DURATION_SECONDS, HISTOGRAM, Unit::Seconds, "The time that a decision waited for Redis."),
    (BATCH_DECISIONS, HISTOGRAM, Unit::Count, "Decisions in one call of the script."),
    (QUEUE_LENGTH, HISTOGRAM, Unit::Count, "Decisions that waited to be sent when another one had to wait."),
    (LEASED_KEYS, GAUGE, Unit::Count, "Keys with units on lease."),
    (LEASED_UNITS, GAUGE, Unit::Count, "Units on lease that are not spent."),
    (
        OPEN_BREAKERS,
        GAUGE,
        Unit::Count,
        "Servers, or shards of a Cluster, that are not asked until they answer.",
    ),
    (MEMORY_KEYS, GAUGE, Unit::Count, "Keys in memory stores."),
    (ENFORCEMENT_SWITCHES, GAUGE, Unit::Count, "Switches of enforcement, by their position."),
    (
        FAILED_POLICY_SOURCES,
        GAUGE,
        Unit::Count,
        "Files and hashes of live policies whose latest content is not applied.",
    ),
    (INSTANCES, GAUGE, Unit::Count, "Instances that share the limits, as last seen."),
    (ADAPTIVE_SHARE, GAUGE, Unit::Count, "The share of its full quota that an adaptive policy applies."),
];

pub(super) fn describe_to(recorder: &dyn Recorder) {
    for (name, describe, unit, text) in ALL {
        describe(recorder, name, unit, text);
    }
}
