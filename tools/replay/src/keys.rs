//! What identifies a client in a log: [`KeySpec`].

use std::{borrow::Cow, str::FromStr};

use tower_ratelimit::{Key, KeyExtractor as _, PeerIp};

use crate::formats::Line;

/// The parts of a line that are a key together, and what to use where one is missing.
#[derive(Clone, Debug)]
pub(crate) struct KeySpec(Vec<Vec<Part>>);

#[derive(Clone, Debug)]
enum Part {
    All,
    /// With the rule for IPv6 networks of this extractor.
    Address(PeerIp),
    Field(String),
    Host,
    /// `key` of a JSON line.
    Key,
    Method,
    /// The first segments of the path.
    Path(usize),
    User,
    UserAgent,
}

impl KeySpec {
    /// The client's address.
    pub(crate) fn address() -> Self {
        Self(vec![vec![Part::Address(PeerIp::new())]])
    }

    /// `key` of a JSON line.
    pub(crate) fn of_line() -> Self {
        Self(vec![vec![Part::Key]])
    }

    /// The key of `line`. `None` if the line does not have it.
    pub(crate) fn key(&self, line: &Line<'_>) -> Option<Key> {
        self.0.iter().find_map(|parts| match &parts[..] {
            [part] => part.key(line),
            parts => {
                let keys: Option<Vec<Key>> = parts.iter().map(|part| part.key(line)).collect();
                Some(Key::join(&keys?))
            }
        })
    }

    /// Whether the log needs named fields for it.
    pub(crate) fn needs_fields(&self) -> bool {
        self.0.iter().flatten().any(|part| matches!(part, Part::Field(_)))
    }
}

impl Part {
    fn key(&self, line: &Line<'_>) -> Option<Key> {
        let text: Cow<'_, str> = match self {
            Self::All => Cow::Borrowed("all"),
            Self::Address(network) => return Some(address_key(network, &line.address()?)),
            Self::Field(name) => line.field(name)?,
            Self::Host => line.host.as_deref()?.into(),
            Self::Key => line.key.as_deref()?.into(),
            Self::Method => line.method.as_deref()?.into(),
            Self::Path(segments) => first_segments(line.path()?, *segments).into(),
            Self::User => line.user.as_deref()?.into(),
            Self::UserAgent => line.user_agent.as_deref()?.into(),
        };
        Some(Key::new(&*text))
    }
}

/// The key that `network` gives the address. A host name, which Apache may log instead, is a key as it is.
fn address_key(network: &PeerIp, address: &str) -> Key {
    let named = Key::new(address);
    let keys = network.keys_of(&named);
    let key = keys.if_ready().and_then(|keys| keys.as_ref().ok()?.first().cloned());
    key.unwrap_or(named)
}

/// `/a/b` of `/a/b/c` for 2 segments.
fn first_segments(path: &str, segments: usize) -> &str {
    path.match_indices('/').nth(segments).map_or(path, |(end, _)| &path[..end])
}

impl FromStr for KeySpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = |parts: &str| parts.split('+').map(str::trim).map(Part::from_str).collect();
        text.split('|').map(parts).collect::<Result<_, _>>().map(Self)
    }
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = |what: &str| format!("invalid key `{text}`: {what}");
        Ok(match text.split_once(':').unwrap_or((text, "")) {
            ("all", "") => Self::All,
            ("address", "") => Self::Address(PeerIp::new()),
            ("field", name) if !name.is_empty() => Self::Field(name.to_owned()),
            ("host", "") => Self::Host,
            ("key", "") => Self::Key,
            ("method", "") => Self::Method,
            ("path", "") => Self::Path(usize::MAX),
            ("path", count) => match count.parse() {
                Ok(count) if count > 0 => Self::Path(count),
                _ => return Err(invalid("the number of segments must be at least 1")),
            },
            ("user", "") => Self::User,
            ("user-agent", "") => Self::UserAgent,
            _ => match text.strip_prefix("address/").map(str::parse) {
                Some(Ok(bits)) => {
                    let network = PeerIp::new().try_ipv6_prefix(bits);
                    Self::Address(network.map_err(|error| invalid(&error.to_string()))?)
                }
                _ => return Err(invalid("`--help` lists the parts of keys")),
            },
        })
    }
}
