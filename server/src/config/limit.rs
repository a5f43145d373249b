//! [`Limit`]: what one descriptor of the configuration sets.

use std::{collections::BTreeMap, time::Duration};

use envoy_types::pb::{
    envoy::service::ratelimit::v3::rate_limit_response::{RateLimit, rate_limit::Unit},
    google::protobuf::Value,
};
use metrics::{Counter, counter};
use tower_ratelimit::{Error, FailureMode, Policy, Quota, algorithm::FixedWindow};

const DAY: u64 = 86_400;

/// What one descriptor of the configuration sets.
#[derive(Debug)]
pub(crate) struct Limit {
    /// The domain, and the key and value of each level, as the statistics of envoyproxy/ratelimit name it.
    pub(crate) path: String,
    pub(crate) kind: Kind,
    /// What other limits name to replace this one.
    pub(crate) name: Option<String>,
    pub(crate) replaces: Vec<String>,
    /// The answer is OK, whatever is decided.
    pub(crate) is_shadow: bool,
    /// Metrics have the values that the configuration leaves open.
    pub(crate) is_detailed: bool,
    pub(crate) metadata: BTreeMap<String, Value>,
    /// The limit as a client sees it.
    pub(crate) shown: RateLimit,
    pub(crate) counters: Counters,
}

#[derive(Debug)]
pub(crate) enum Kind {
    Unlimited,
    /// 0 requests per unit.
    Blocked,
    Counted(Policy),
}

/// The metrics of a descriptor: what `total_hits`, `near_limit`, `over_limit` and `shadow_mode` are there.
#[derive(Clone, Debug)]
pub(crate) struct Counters {
    pub(crate) ok: Counter,
    pub(crate) near_limit: Counter,
    pub(crate) over_limit: Counter,
    pub(crate) shadow: Counter,
}

impl Counters {
    pub(crate) fn of(descriptor: &str) -> Self {
        let of = |verdict: &'static str| counter!("ratelimit_server_descriptors_total", "descriptor" => descriptor.to_owned(), "verdict" => verdict);
        Self {
            ok: of("ok"),
            near_limit: of("near_limit"),
            over_limit: of("over_limit"),
            shadow: of("shadow"),
        }
    }
}

/// A limit that a request sets in place of the configuration's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Override {
    pub(crate) unit: Unit,
    pub(crate) requests_per_unit: u32,
}

impl Override {
    /// The limit. Its counts belong to the domain and the unit, and to the keys and values of the descriptor.
    pub(crate) fn limit(self, domain: &str, failure_mode: FailureMode) -> Result<Limit, Error> {
        let Self { unit, requests_per_unit } = self;
        let path = format!("{domain}.override_{}", unit.as_str_name().to_lowercase());
        let kind = match requests_per_unit {
            0 => Kind::Blocked,
            _ => Kind::Counted(policy(&path, unit, requests_per_unit, failure_mode)?),
        };
        Ok(Limit {
            counters: Counters::of(&path),
            path,
            kind,
            name: None,
            replaces: Vec::new(),
            is_shadow: false,
            is_detailed: false,
            metadata: BTreeMap::new(),
            shown: RateLimit { requests_per_unit, unit: unit.into(), name: String::new() },
        })
    }
}

/// The unit that a configuration names.
pub(crate) fn unit_named(name: &str) -> Option<Unit> {
    Unit::from_str_name(&name.to_uppercase()).filter(|unit| *unit != Unit::Unknown)
}

/// The policy of a limit without one of its own: windows, as envoyproxy/ratelimit counts. Windows that are longer than a day start
/// with a client's first hit.
pub(super) fn policy(path: &str, unit: Unit, limit: u32, failure_mode: FailureMode) -> Result<Policy, Error> {
    let limit = limit.into();
    let days = |days: u64| Quota::try_new(limit, Duration::from_secs(days * DAY));
    let (quota, windows) = match unit {
        Unit::Unknown | Unit::Second => {
            (Quota::try_new(limit, Duration::from_secs(1))?, FixedWindow::aligned())
        }
        Unit::Minute => (Quota::try_new(limit, Duration::from_secs(60))?, FixedWindow::aligned()),
        Unit::Hour => (Quota::try_new(limit, Duration::from_secs(3_600))?, FixedWindow::aligned()),
        Unit::Day => (days(1)?, FixedWindow::aligned()),
        Unit::Week => (days(7)?, FixedWindow::anchored()),
        Unit::Month => (days(30)?, FixedWindow::anchored()),
        Unit::Year => (days(365)?, FixedWindow::anchored()),
    };
    Ok(Policy::try_new(&policy_name(path), quota)?.try_algorithm(windows)?.failure_mode(failure_mode))
}

/// The limit of `policy` as a client sees it. A period that the protocol has no unit for is unknown, and the name is the
/// policy's.
pub(super) fn shown(policy: &Policy, name: Option<&str>) -> RateLimit {
    let quota = policy.quota();
    let unit = match quota.period().as_secs() {
        _ if quota.period().subsec_nanos() > 0 => Unit::Unknown,
        1 => Unit::Second,
        60 => Unit::Minute,
        3_600 => Unit::Hour,
        DAY => Unit::Day,
        604_800 => Unit::Week,
        // The nominal length of a calendar month is 30 days, and a year's 365.
        2_592_000 => Unit::Month,
        31_536_000 => Unit::Year,
        _ => Unit::Unknown,
    };
    let name = name.or_else(|| (unit == Unit::Unknown).then(|| policy.name()));
    RateLimit {
        requests_per_unit: quota.limit().try_into().unwrap_or(u32::MAX),
        unit: unit.into(),
        name: name.unwrap_or_default().to_owned(),
    }
}

/// The longest name of a policy.
const MAX_NAME: usize = 64;

/// The name of the policy of a limit: its path, or what a name can have of it and a hash.
fn policy_name(path: &str) -> String {
    let is_plain = |byte: u8| (0x20..=0x7e).contains(&byte);
    if path.len() <= MAX_NAME && path.bytes().all(is_plain) {
        return path.to_owned();
    }
    // FNV-1a. The name is a part of the keys in Redis, so it must be the same in each version and instance.
    let hash = path.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let plain = path.bytes().map(|byte| if is_plain(byte) { char::from(byte) } else { '?' });
    format!("{}~{hash:016x}", plain.take(MAX_NAME - 17).collect::<String>())
}
