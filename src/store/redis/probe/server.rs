//! What a server reports about itself.

use std::{fmt, time::Duration};

use redis::Value;

/// From HELLO, which every user may run, and from INFO.
#[derive(Clone, Debug, Default)]
pub(super) struct ServerInfo {
    pub(super) version: Option<String>,
    /// `standalone`, `cluster` or `sentinel`.
    pub(super) mode: Option<String>,
    pub(super) eviction_policy: Option<String>,
    pub(super) round_trip: Option<Duration>,
    /// Whether memory is limited, so that the eviction policy matters.
    pub(super) may_evict: bool,
}

impl ServerInfo {
    /// Reads the reply to HELLO.
    pub(super) fn read_hello(&mut self, reply: &Value) {
        let pairs: Vec<(&Value, &Value)> = match reply {
            Value::Map(pairs) => pairs.iter().map(|(name, value)| (name, value)).collect(),
            Value::Array(values) => values.chunks_exact(2).map(|pair| (&pair[0], &pair[1])).collect(),
            _ => return,
        };
        let field = |wanted: &str| {
            let pair = pairs.iter().find(|(name, _)| text(name).as_deref() == Some(wanted));
            pair.and_then(|(_, value)| text(value)).and_then(harmless)
        };
        self.version = field("version");
        self.mode = field("mode");
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
        let version = field("valkey_version").or_else(|| field("redis_version"));
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

    /// The version, if it is below 6.2.
    pub(super) fn outdated_version(&self) -> Option<&str> {
        self.version.as_deref().filter(|version| parse(version).is_some_and(|version| version < (6, 2)))
    }

    /// The eviction policy, if it evicts exhausted limits.
    pub(super) fn harmful_eviction(&self) -> Option<&str> {
        self.eviction_policy.as_deref().filter(|policy| self.may_evict && evicts_exhausted(policy))
    }
}

/// Whether the policy evicts keys without regard to their reset. `volatile-ttl` evicts those that are reset next.
fn evicts_exhausted(policy: &str) -> bool {
    policy.starts_with("allkeys-") || policy.starts_with("volatile-") && policy != "volatile-ttl"
}

fn parse(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.').map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text.clone()),
        _ => None,
    }
}

/// The value, if it is one word as Redis writes it. Something else may be what the server was sent.
fn harmless(value: String) -> Option<String> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
    ((1..=32).contains(&value.len()) && value.bytes().all(is_word)).then_some(value)
}

impl ServerInfo {
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

impl fmt::Display for ServerInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redis {}", self.version.as_deref().unwrap_or("of an unknown version"))?;
        if let Some(mode) = &self.mode {
            write!(f, ", {mode}")?;
        }
        if self.round_trip.is_some() {
            write!(f, ", round trip {}", self.round_trip_text())?;
        }
        write!(f, ", maxmemory-policy {}", self.eviction_text())
    }
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
            let mut server = ServerInfo::default();
            server.read_hello(&form);
            assert_eq!(
                (server.version.as_deref(), server.mode.as_deref()),
                (Some("7.0.15"), Some("cluster"))
            );
        }
    }

    #[test]
    fn only_versions_below_6_2_are_outdated() {
        let rows = [("6.0.16", true), ("6.2.0", false), ("7.4.1", false), ("10.0.0", false), ("x", false)];
        for (version, is_outdated) in rows {
            let server = ServerInfo { version: Some(version.into()), ..ServerInfo::default() };
            assert_eq!(server.outdated_version().is_some(), is_outdated, "{version}");
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
            let mut server = ServerInfo::default();
            server.read_info(&Value::Map(nodes.into_iter().map(|info| (bulk("node"), info)).collect()));
            assert_eq!(server.harmful_eviction(), harmful, "{server}");
        }
    }

    #[test]
    fn what_a_server_quotes_is_not_shown() {
        let mut server = ServerInfo::default();
        server.read_hello(&Value::Array(vec![bulk("version"), bulk("you sent: hunter2")]));
        assert_eq!(server.version, None);
    }
}
