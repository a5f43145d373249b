//! [`BlockedNetwork`]: an entry of a blocklist.

use std::{
    net::{IpAddr, Ipv6Addr},
    time::Duration,
};

use tower_ratelimit::{
    Error, ErrorKind,
    key::{Network, is_hidden},
};

/// The longest reason and the longest name that an entry has, in characters.
const LONGEST_TEXT: usize = 256;
/// The longest time for which a network is blocked, if not until further notice: ten years.
const LONGEST: Duration = Duration::from_secs(3_650 * 86_400);
/// The shortest prefixes. A shorter one is probably a typing error, and would reject a good part of all clients.
const SHORTEST_V4: u8 = 8;
const SHORTEST_V6: u8 = 16;
/// `::ffff:0:0`. A layer sees the addresses from here on as IPv4.
const IPV4_IN_IPV6: Ipv6Addr = Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0);

/// A network on a [`Blocklist`](super::Blocklist).
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit_operate::live::BlockedNetwork;
///
/// let scraper = BlockedNetwork::new("203.0.113.0/24")
///     .blocked_for(Duration::from_secs(3_600))
///     .reason("scrapes the catalogue")
///     .who("ann");
/// assert_eq!(scraper.network, "203.0.113.0/24");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[non_exhaustive]
pub struct BlockedNetwork {
    /// The network, such as `203.0.113.0/24` or `2001:db8::/32`. An address without a prefix length is the
    /// network of that address.
    pub network: String,
    /// For how long it is blocked from now. `None` until it is unblocked. As JSON, in seconds.
    #[serde(default, deserialize_with = "of_seconds", serialize_with = "as_seconds")]
    pub blocked_for: Option<Duration>,
    /// Why it is blocked, in at most 256 characters.
    pub reason: Option<String>,
    /// Who has blocked it, in at most 256 characters.
    pub who: Option<String>,
}

impl BlockedNetwork {
    /// The network `network`, blocked until it is unblocked. [`Blocklist::block`](super::Blocklist::block) checks
    /// the text.
    #[must_use]
    pub fn new(network: impl Into<String>) -> Self {
        Self { network: network.into(), blocked_for: None, reason: None, who: None }
    }

    /// Blocks it for `time`, or up to a second longer.
    #[must_use]
    pub fn blocked_for(mut self, time: Duration) -> Self {
        self.blocked_for = Some(time);
        self
    }

    /// Sets why it is blocked.
    #[must_use]
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// Sets who blocks it.
    #[must_use]
    pub fn who(mut self, who: impl Into<String>) -> Self {
        self.who = Some(who.into());
        self
    }

    /// The network and the entry for a table. The entry ends in `blocked_for` from `now`, in seconds since 1970, or up
    /// to a second later.
    pub(super) fn checked(self, now: f64) -> Result<(Network, Entry), Error> {
        let network = parsed(&self.network)?;
        let ends = match self.blocked_for {
            None => None,
            Some(time) if time.is_zero() || time > LONGEST => {
                return Err(invalid(format!("{network} can be blocked for 1 second to 3,650 days")));
            }
            Some(time) => Some((now + time.as_secs_f64()).ceil() as u64),
        };
        let entry = Entry { until: ends, reason: self.reason, who: self.who };
        entry.check().map_err(|problem| invalid(format!("{network}: {problem}")))?;
        Ok((network, entry))
    }
}

/// What a blocklist knows about a network.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename = "a blocked network", deny_unknown_fields)]
pub(super) struct Entry {
    /// In seconds since 1970. `None` if it has no end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) until: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    who: Option<String>,
}

impl Entry {
    fn check(&self) -> Result<(), String> {
        for (name, text) in [("reason", &self.reason), ("who", &self.who)] {
            let text = text.as_deref().unwrap_or_default();
            if text.chars().count() > LONGEST_TEXT {
                return Err(format!("`{name}` is longer than {LONGEST_TEXT} characters: shorten it"));
            }
            if text.chars().any(is_hidden) {
                return Err(format!(
                    "`{name}` has a control character or a hidden one, such as the end of a line: write it without"
                ));
            }
        }
        Ok(())
    }

    /// Reads the value of a field.
    #[cfg(feature = "redis")]
    pub(super) fn parse(value: &str) -> Result<Self, String> {
        // serde reads the members from a list too.
        if !value.trim_start().starts_with('{') {
            return Err(
                r#"write a JSON object such as {"until":1764283200,"reason":"a scraper"}, or {}"#.to_owned()
            );
        }
        let entry: Self = serde_json::from_str(value).map_err(|error| error.to_string())?;
        entry.check().map(|()| entry)
    }

    /// Whether it blocks at `now`, in seconds since 1970.
    pub(super) fn is_active(&self, now: f64) -> bool {
        self.until.is_none_or(|until| until as f64 > now)
    }

    /// The entry of `network` for a list, if it blocks at `now`.
    pub(super) fn shown(&self, network: &Network, now: f64) -> Option<BlockedNetwork> {
        let blocked_for = match self.until {
            None => None,
            // Zero or negative if it has ended.
            Some(until) => {
                Some(Duration::try_from_secs_f64(until as f64 - now).ok().filter(|rest| !rest.is_zero())?)
            }
        };
        Some(BlockedNetwork {
            network: network.to_string(),
            blocked_for,
            reason: self.reason.clone(),
            who: self.who.clone(),
        })
    }
}

/// The network that `text` names.
pub(super) fn parsed(text: &str) -> Result<Network, Error> {
    let network: Network = text.parse()?;
    let has_all_v4 = match network.address() {
        IpAddr::V6(lowest) => {
            let others = lowest.to_bits() ^ IPV4_IN_IPV6.to_bits();
            others.checked_shr(128 - u32::from(network.prefix_len())).unwrap_or(0) == 0
        }
        IpAddr::V4(_) => false,
    };
    if has_all_v4 {
        return Err(invalid(format!(
            "{network} contains all IPv4 addresses in IPv6 form: block IPv4 networks as such"
        )));
    }
    let shortest = if network.address().is_ipv6() { SHORTEST_V6 } else { SHORTEST_V4 };
    if network.prefix_len() < shortest {
        return Err(invalid(format!(
            "{network} has too many clients to block: a blocked network has a prefix of at least /{SHORTEST_V4}, \
             or /{SHORTEST_V6} for IPv6"
        )));
    }
    Ok(network)
}

pub(super) fn invalid(problem: String) -> Error {
    Error::new(ErrorKind::InvalidConfig, problem)
}

fn of_seconds<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let seconds: Option<f64> = serde::Deserialize::deserialize(deserializer)?;
    seconds.map(Duration::try_from_secs_f64).transpose().map_err(serde::de::Error::custom)
}

#[expect(clippy::ref_option, reason = "serde passes a reference to the field")]
fn as_seconds<S: serde::Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    serde::Serialize::serialize(&time.map(|time| time.as_secs_f64()), serializer)
}
