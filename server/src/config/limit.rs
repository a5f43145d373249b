//! [`Limit`]: what one descriptor of the configuration sets.

use std::{collections::BTreeMap, time::Duration};

use envoy_types::pb::{
    envoy::service::ratelimit::v3::rate_limit_response::{RateLimit, rate_limit::Unit},
    google::protobuf::Value,
};
use metrics::{Counter, counter};
use tower_ratelimit::{
    Error, FailureMode, Policy, Quota,
    algorithm::{FixedWindow, Weekday},
};

const DAY: u64 = 86_400;
/// The units of the protocol in seconds. A calendar month and a calendar year have these lengths in quotas too.
const UNITS: [(Unit, u64); 7] = [
    (Unit::Second, 1),
    (Unit::Minute, 60),
    (Unit::Hour, 3_600),
    (Unit::Day, DAY),
    (Unit::Week, 7 * DAY),
    (Unit::Month, 30 * DAY),
    (Unit::Year, 365 * DAY),
];

/// What one descriptor of the configuration sets.
#[derive(Debug)]
pub(crate) struct Limit {
    /// The domain, and the key and value of each level, as the statistics of envoyproxy/ratelimit have it.
    pub(crate) path: String,
    pub(crate) kind: Kind,
    /// What other limits name to replace this one.
    pub(crate) name: Option<String>,
    pub(crate) replaces: Vec<String>,
    /// The answer is OK, regardless of the decision.
    pub(crate) is_shadow: bool,
    /// Metrics have the values that the configuration leaves open.
    pub(crate) is_detailed: bool,
    pub(crate) metadata: BTreeMap<String, Value>,
    /// The limit as a client sees it.
    pub(crate) shown: RateLimit,
    pub(crate) hits: Hits,
}

#[derive(Debug)]
pub(crate) enum Kind {
    Unlimited,
    /// 0 requests per unit.
    Blocked,
    Counted(Policy),
}

/// The hits of a descriptor in the metrics. Their sum is what envoyproxy/ratelimit calls `total_hits`.
#[derive(Debug)]
pub(crate) struct Hits {
    pub(crate) ok: Counter,
    pub(crate) near_limit: Counter,
    pub(crate) over_limit: Counter,
    pub(crate) shadow: Counter,
}

impl Hits {
    pub(crate) fn of(descriptor: &str) -> Self {
        let [ok, near_limit, over_limit, shadow] = ["ok", "near_limit", "over_limit", "shadow"].map(|verdict| {
            counter!("ratelimit_server_hits_total", "descriptor" => descriptor.to_owned(), "verdict" => verdict)
        });
        Self { ok, near_limit, over_limit, shadow }
    }
}

impl Limit {
    pub(crate) fn new(path: String, kind: Kind, shown: RateLimit) -> Self {
        Self {
            hits: Hits::of(&path),
            path,
            kind,
            name: None,
            replaces: Vec::new(),
            is_shadow: false,
            is_detailed: false,
            metadata: BTreeMap::new(),
            shown,
        }
    }

    /// The limit that a request sets. Its counts belong to the domain and the unit, and to the keys and values of the descriptor.
    pub(crate) fn of_request(
        domain: &str,
        unit: Unit,
        requests: u32,
        mode: FailureMode,
    ) -> Result<Self, Error> {
        // No path of a configuration has a colon there.
        let path = format!("{domain}:override_{}", unit.as_str_name().to_lowercase());
        let (kind, shown) = counted(&path, unit, requests, mode)?;
        Ok(Self::new(path, kind, shown))
    }
}

/// The unit that a configuration names.
pub(super) fn unit_named(name: &str) -> Option<Unit> {
    Unit::from_str_name(&name.to_uppercase()).filter(|unit| *unit != Unit::Unknown)
}

/// A limit without a policy: windows, as envoyproxy/ratelimit counts. Windows of 30 and 365 days, which start there at multiples since
/// 1970, start with a client's first hit.
pub(super) fn counted(
    path: &str,
    unit: Unit,
    requests: u32,
    mode: FailureMode,
) -> Result<(Kind, RateLimit), Error> {
    let shown = RateLimit { requests_per_unit: requests, unit: unit.into(), name: String::new() };
    if requests == 0 {
        return Ok((Kind::Blocked, shown));
    }
    let seconds = UNITS.iter().find(|(known, _)| *known == unit).map_or(1, |(_, seconds)| *seconds);
    let quota = Quota::try_new(requests.into(), Duration::from_secs(seconds))?;
    let windows = match unit {
        Unit::Month | Unit::Year => FixedWindow::anchored(),
        // 1970 began on one.
        Unit::Week => FixedWindow::aligned().from_weekday(Weekday::Thursday),
        _ => FixedWindow::aligned(),
    };
    let policy = Policy::try_new(&policy_name(path), quota)?.try_algorithm(windows)?.failure_mode(mode);
    Ok((Kind::Counted(policy), shown))
}

/// The limit of `policy` as a client sees it. A period that the protocol has no unit for is unknown, and the name is the
/// policy's.
pub(super) fn shown(policy: &Policy) -> RateLimit {
    let quota = policy.quota();
    let unit = UNITS.iter().find(|(_, seconds)| quota.period() == Duration::from_secs(*seconds));
    RateLimit {
        requests_per_unit: quota.limit().try_into().unwrap_or(u32::MAX),
        unit: unit.map_or(Unit::Unknown, |(unit, _)| *unit).into(),
        name: if unit.is_none() { policy.name().to_owned() } else { String::new() },
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
