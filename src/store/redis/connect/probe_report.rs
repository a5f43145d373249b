//! The report of a probe: it reads the replies to HELLO and INFO, and describes what to change.

use std::{collections::HashMap, fmt, time::Duration};

use redis::{Value, from_redis_value};

use crate::store::redis::transport::slow_text;

/// What [`RedisStore::probe`](crate::RedisStore::probe) found. Its text is for an operator.
///
/// # Example
///
/// ```no_run
/// use tower_ratelimit::RedisStore;
///
/// # async fn example() -> Result<(), tower_ratelimit::Error> {
/// let store = RedisStore::builder().connect_lazy("redis://127.0.0.1:6379")?;
/// let report = store.probe().await?;
/// println!("{report}");
/// assert!(report.can_decide());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct ProbeReport {
    /// The version from HELLO, which every user may run, or from INFO.
    pub(super) version: Option<String>,
    /// Whether the server is Valkey.
    pub(super) is_valkey: bool,
    /// The mode from HELLO: `standalone`, `cluster` or `sentinel`.
    pub(super) mode: Option<String>,
    /// Whether HELLO reports that the server is a replica.
    pub(super) is_replica: bool,
    pub(super) eviction_policy: Option<String>,
    /// Whether memory is limited, so that the eviction policy matters.
    pub(super) may_evict: bool,
    /// The least round trip of some commands.
    pub(super) round_trip: Option<Duration>,
    /// Why no decision can be made, and what to change.
    pub(super) error: Option<String>,
    /// Further problems, and what to change.
    pub(super) warnings: Vec<String>,
}

impl ProbeReport {
    /// The problems, the most severe first. Each text states what to change.
    pub fn findings(&self) -> impl Iterator<Item = &str> {
        self.error.iter().chain(&self.warnings).map(String::as_str)
    }

    /// `false` if no decision can be made until something is changed; [`connect`](crate::RedisStore::connect)
    /// then fails. A failure that ends without a change, such as a server that is loading its data, is only a
    /// finding.
    #[must_use]
    pub const fn can_decide(&self) -> bool {
        self.error.is_none()
    }

    /// Reads the reply to HELLO.
    pub(super) fn read_hello(&mut self, reply: &Value) {
        let Ok(fields) = from_redis_value::<HashMap<String, Value>>(reply.clone()) else { return };
        let field = |name: &str| text(fields.get(name)?).and_then(harmless);
        self.version = field("version");
        self.is_valkey |= field("server").as_deref() == Some("valkey");
        self.mode = field("mode");
        self.is_replica = matches!(field("role").as_deref(), Some("replica" | "slave"));
    }

    /// Reads the reply to INFO: a text, or in a Redis Cluster one for each node. The strictest node counts.
    pub(super) fn read_info(&mut self, reply: &Value) {
        if let Value::Map(nodes) = reply {
            nodes.iter().for_each(|(_, info)| self.read_info(info));
            return;
        }
        let Some(info) = text(reply) else { return };
        let field = |name: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.map(|value| value.trim().to_owned()).and_then(harmless)
        };
        let valkey = field("valkey_version");
        self.is_valkey |= valkey.is_some();
        let version = valkey.or_else(|| field("redis_version"));
        if let Some(version) = version
            && self.version.as_deref().is_none_or(|known| parse(&version) < parse(known))
        {
            self.version = Some(version);
        }
        let Some(policy) = field("maxmemory_policy") else { return };
        let may_evict = field("maxmemory").is_some_and(|bytes| bytes != "0");
        if self.eviction_policy.is_none() || may_evict && (!self.may_evict || evicts_exhausted(&policy)) {
            self.may_evict = may_evict;
            self.eviction_policy = Some(policy);
        }
    }

    /// Adds the warnings, for decisions that take `deadline` at most.
    pub(super) fn warn(&mut self, deadline: Duration) {
        if let Some(version) = &self.version
            && parse(version).is_some_and(|version| version < (6, 2))
        {
            let problem =
                format!("{} {version} is not supported: upgrade the server to 6.2 or later", self.server());
            self.warnings.push(problem);
        }
        if let Some(policy) = self.eviction_policy.as_ref().filter(|policy| evicts_exhausted(policy))
            && self.may_evict
        {
            self.warnings.push(format!(
                "Redis evicts exhausted limits when its memory is full (maxmemory-policy {policy}), and then admits their \
                 clients again; set maxmemory-policy to volatile-ttl, and use a separate Redis for the limits"
            ));
        }
        let slow = self.round_trip.filter(|round_trip| *round_trip > deadline);
        self.warnings.extend(slow.map(|round_trip| slow_text(round_trip, deadline)));
    }

    pub(super) const fn server(&self) -> &'static str {
        if self.is_valkey { "Valkey" } else { "Redis" }
    }

    pub(super) fn round_trip_text(&self) -> String {
        self.round_trip.map_or_else(
            || "unknown".to_owned(),
            |round_trip| format!("{:.1}ms", round_trip.as_secs_f64() * 1e3),
        )
    }

    pub(super) fn eviction_text(&self) -> &str {
        self.eviction_policy.as_deref().unwrap_or("unknown (grant +info to see it)")
    }
}

/// One line about the server, and one for each problem.
impl fmt::Display for ProbeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.server(), self.version.as_deref().unwrap_or("of an unknown version"))?;
        if let Some(mode) = &self.mode {
            write!(f, ", {mode}")?;
        }
        if self.round_trip.is_some() {
            write!(f, ", round trip {}", self.round_trip_text())?;
        }
        write!(f, ", maxmemory-policy {}", self.eviction_text())?;
        if self.findings().next().is_none() {
            return write!(f, ": no problem found");
        }
        self.error.iter().try_for_each(|error| write!(f, "\nerror: {error}"))?;
        self.warnings.iter().try_for_each(|warning| write!(f, "\nwarning: {warning}"))
    }
}

/// Whether the policy evicts keys without regard to their reset. `volatile-ttl` evicts those that are reset
/// next.
fn evicts_exhausted(policy: &str) -> bool {
    policy.starts_with("allkeys-") || policy.starts_with("volatile-") && policy != "volatile-ttl"
}

fn parse(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.').map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

fn text(value: &Value) -> Option<String> {
    from_redis_value(value.clone()).ok()
}

/// The value, if it is one word as Redis writes it. Any other text may quote what the server was sent.
fn harmless(value: String) -> Option<String> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
    ((1..=32).contains(&value.len()) && value.bytes().all(is_word)).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn both_forms_of_hello_are_read() {
        let pairs = [("server", "redis"), ("version", "7.0.15"), ("mode", "cluster")];
        let forms = [
            Value::Array(pairs.iter().flat_map(|(name, value)| [bulk(name), bulk(value)]).collect()),
            Value::Map(pairs.iter().map(|(name, value)| (bulk(name), bulk(value))).collect()),
        ];
        for form in forms {
            let mut server = ProbeReport::default();
            server.read_hello(&form);
            assert_eq!(
                (server.version.as_deref(), server.mode.as_deref()),
                (Some("7.0.15"), Some("cluster"))
            );
        }
    }

    #[test]
    fn valkey_has_its_name() {
        let info = "# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.2\r\n";
        let mut server = ProbeReport::default();
        server.read_hello(&Value::Array(["server", "valkey", "version", "9.1.2"].map(bulk).to_vec()));
        assert!(server.to_string().starts_with("Valkey 9.1.2, "), "{server}");
        // Without HELLO, and with one that says `redis` for older clients.
        for hello in [&[][..], &["server", "redis", "version", "7.2.4"]] {
            let mut server = ProbeReport::default();
            server.read_hello(&Value::Array(hello.iter().copied().map(bulk).collect()));
            server.read_info(&bulk(info));
            assert!(server.to_string().starts_with("Valkey "), "{server}");
        }
        let mut redis = ProbeReport::default();
        redis.read_info(&bulk("# Server\r\nredis_version:7.2.4\r\n"));
        assert!(redis.to_string().starts_with("Redis 7.2.4, "), "{redis}");
    }

    #[test]
    fn only_versions_below_6_2_are_outdated() {
        let rows = [("6.0.16", true), ("6.2.0", false), ("7.4.1", false), ("10.0.0", false), ("x", false)];
        for (version, is_outdated) in rows {
            let mut server = ProbeReport { version: Some(version.into()), ..ProbeReport::default() };
            server.warn(Duration::MAX);
            assert_eq!(!server.warnings.is_empty(), is_outdated, "{version}");
        }
    }

    #[test]
    fn the_node_that_evicts_counts_in_a_cluster() {
        let node = |maxmemory: &str, policy: &str| {
            bulk(&format!("# Memory\r\nmaxmemory:{maxmemory}\r\nmaxmemory_policy:{policy}\r\n"))
        };
        let rows = [
            (vec![node("0", "allkeys-lru")], None),
            (vec![node("9", "noeviction"), node("9", "allkeys-lru")], Some("allkeys-lru")),
            (vec![node("9", "allkeys-lru"), node("9", "noeviction")], Some("allkeys-lru")),
            (vec![node("9", "volatile-ttl"), node("0", "allkeys-lru")], None),
            (vec![node("0", "noeviction"), node("9", "volatile-lfu")], Some("volatile-lfu")),
        ];
        for (nodes, harmful) in rows {
            let mut server = ProbeReport::default();
            server.read_info(&Value::Map(nodes.into_iter().map(|info| (bulk("node"), info)).collect()));
            server.warn(Duration::MAX);
            let warned = server.warnings.first().map(String::as_str);
            let expected = harmful.map(|policy| format!("(maxmemory-policy {policy})"));
            assert_eq!(warned.is_some(), expected.is_some(), "{server}");
            assert!(expected.is_none_or(|policy| warned.unwrap().contains(&policy)), "{server}");
        }
    }

    #[test]
    fn what_a_server_quotes_is_not_shown() {
        let mut server = ProbeReport::default();
        server.read_hello(&Value::Array(vec![bulk("version"), bulk("you sent: hunter2")]));
        assert_eq!(server.version, None);
    }
}
