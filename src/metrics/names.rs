//! The names of the metrics. The guide `metrics_and_alerts` lists their labels and suggests alerts.

use ::metrics::{Recorder, Unit};

const DURATIONS: [f64; 12] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0];
// The last buckets are the longest batch, of 128 decisions, and the longest queue, of 16,384.
const LENGTHS: [f64; 12] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 512.0, 2048.0, 8192.0, 16384.0];

// Narrow where an operator asks how near a limit is. 0.5, 0.8, 0.9 and 1 are the usual thresholds, and a share
// above 1 is a debt.
const SHARES: [f64; 12] = [0.1, 0.25, 0.5, 0.75, 0.8, 0.9, 0.95, 0.99, 1.0, 1.25, 1.5, 2.0];

/// The histograms, and buckets that suit each: durations from 100 microseconds to a second, lengths from 1 to
/// the longest, shares of a quota from 0.1 to 2, which are narrow between 0.75 and 1.
pub const BUCKETS: &[(&str, &[f64])] = &[
    (DECISION_DURATION_SECONDS, &DURATIONS),
    (BATCH_DECISIONS, &LENGTHS),
    (QUEUE_LENGTH, &LENGTHS),
    (USED_SHARE, &SHARES),
];

type Describe = fn(&dyn Recorder, &'static str, Unit, &'static str);

const COUNTER: Describe =
    |recorder, name, unit, text| recorder.describe_counter(name.into(), Some(unit), text.into());
const GAUGE: Describe =
    |recorder, name, unit, text| recorder.describe_gauge(name.into(), Some(unit), text.into());
const HISTOGRAM: Describe =
    |recorder, name, unit, text| recorder.describe_histogram(name.into(), Some(unit), text.into());

/// Declares the name of each metric, and how a recorder describes it. The crates `tower-ratelimit-operate`
/// and `tower-ratelimit-extra` record the metrics without a constant.
macro_rules! names {
    ($($constant:tt = $name:literal, $describe:ident, $unit:ident, $text:literal;)+) => {
        $(pub(super) const $constant: &str = $name;)+
        const ALL: &[(&str, Describe, Unit, &str)] = &[$(($name, $describe, Unit::$unit, $text)),+];
    };
}

names! {
    DECISIONS_TOTAL = "ratelimit_decisions_total", COUNTER, Count,
        "Decisions, for each policy that was charged or that denied.";
    CAPACITY_UNITS = "ratelimit_capacity_units", GAUGE, Count,
        "The units that a key with a full quota can be charged.";
    USED_SHARE = "ratelimit_used_share", HISTOGRAM, Count,
        "The share of its quota that a key has used, after each decision of the store.";
    REJECTIONS_TOTAL = "ratelimit_rejections_total", COUNTER, Count, "Requests that a rate limit layer rejected.";
    THRESHOLDS_TOTAL = "ratelimit_thresholds_total", COUNTER, Count,
        "Keys that have used a share of their quota.";
    STORE_ERRORS_TOTAL = "ratelimit_store_errors_total", COUNTER, Count, "Decisions that the store failed to make.";
    DECISION_DURATION_SECONDS = "ratelimit_decision_duration_seconds", HISTOGRAM, Seconds,
        "The time that a decision waited for Redis.";
    BATCH_DECISIONS = "ratelimit_batch_decisions", HISTOGRAM, Count, "Decisions in one call of the script.";
    QUEUE_LENGTH = "ratelimit_queue_length", HISTOGRAM, Count,
        "Decisions that waited to be sent when another one had to wait.";
    LEASED_KEYS = "ratelimit_leased_keys", GAUGE, Count, "Keys with units on lease.";
    LEASED_UNITS = "ratelimit_leased_units", GAUGE, Count, "Units on lease that are not spent.";
    OPEN_BREAKERS = "ratelimit_open_breakers", GAUGE, Count,
        "Servers, or shards of a Cluster, that are not asked until they answer.";
    MEMORY_KEYS = "ratelimit_memory_keys", GAUGE, Count, "Keys in memory stores.";
    ENFORCEMENT_SWITCHES = "ratelimit_enforcement_switches", GAUGE, Count,
        "Switches of enforcement, by their position.";
    _ = "ratelimit_failed_policy_sources", GAUGE, Count,
        "Files and hashes of live policies whose latest content is not applied.";
    INSTANCES = "ratelimit_instances", GAUGE, Count, "Instances that share the limits, as last seen.";
    _ = "ratelimit_adaptive_share", GAUGE, Count,
        "The share of its full quota that an adaptive policy applies.";
}

pub(super) fn describe_to(recorder: &dyn Recorder) {
    for (name, describe, unit, text) in ALL {
        describe(recorder, name, *unit, text);
    }
}
