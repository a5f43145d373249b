//! The scenarios.

use serde::Serialize;

use crate::contender::Role;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Scenario {
    Allowed16,
    Allowed64,
    Allowed256,
    OneInFlight,
    Denied,
    Hot64,
    Hot256,
    /// As [`Hot64`](Self::Hot64), with the time of each request.
    HotTail,
    /// One caller, many keys.
    OneThread,
    /// One caller, one key: the cost of a request without any waiting.
    Alone,
}

/// What the result of a scenario is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Requests a second.
    Rate,
    /// Nanoseconds for each request of a caller who is alone.
    Each,
    /// Nanoseconds from a request to its response.
    P50,
    P99,
}

/// How many identities an allowed load is spread over.
pub(crate) const IDENTITIES: usize = 10_000;

impl Scenario {
    pub(crate) const ALL: [Self; 10] = [
        Self::Allowed16,
        Self::Allowed64,
        Self::Allowed256,
        Self::OneInFlight,
        Self::Denied,
        Self::Hot64,
        Self::Hot256,
        Self::HotTail,
        Self::OneThread,
        Self::Alone,
    ];
    pub(crate) const REDIS: [Self; 8] = [
        Self::Allowed16,
        Self::Allowed64,
        Self::Allowed256,
        Self::OneInFlight,
        Self::Denied,
        Self::Hot64,
        Self::Hot256,
        Self::HotTail,
    ];
    pub(crate) const PROCESS: [Self; 5] =
        [Self::OneThread, Self::Allowed64, Self::Denied, Self::Hot64, Self::Alone];
    pub(crate) const NETWORK: [Self; 3] = [Self::OneInFlight, Self::Allowed64, Self::Allowed256];

    /// Modes of ours are measured only where they differ.
    pub(crate) fn is_for(self, role: Role) -> bool {
        match role {
            Role::NoLimiter => self != Self::HotTail,
            Role::MemoryPeer | Role::Governor | Role::OurMemory => Self::PROCESS.contains(&self),
            Role::ScriptPeer | Role::ModulePeer | Role::OurRedis => {
                Self::REDIS.contains(&self) && self != Self::HotTail
            }
            Role::OurSeveral(_) | Role::ModuleSeveral(_) | Role::OurPenalty => {
                matches!(self, Self::Allowed16 | Self::Allowed64 | Self::Allowed256 | Self::OneInFlight)
            }
            // No key is hot in the first three.
            Role::OurLeased(_) => matches!(
                self,
                Self::Allowed16
                    | Self::Allowed64
                    | Self::Allowed256
                    | Self::Hot64
                    | Self::Hot256
                    | Self::HotTail
            ),
            Role::OurOther => matches!(self, Self::Allowed64 | Self::Allowed256 | Self::Denied),
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Allowed16 => "10,000 keys, allowed, 16 in flight",
            Self::Allowed64 => "10,000 keys, allowed, 64 in flight",
            Self::Allowed256 => "10,000 keys, allowed, 256 in flight",
            Self::OneInFlight => "1 in flight, p50",
            Self::Denied => "one hot key, denied, 64 in flight",
            Self::Hot64 => "one hot key, allowed, 64 in flight",
            Self::Hot256 => "one hot key, allowed, 256 in flight",
            Self::HotTail => "one hot key, allowed, 64 in flight, p99",
            Self::OneThread => "one caller, 10,000 keys, ns a request",
            Self::Alone => "one caller, one key, ns a request",
        }
    }

    pub(crate) fn unit(self) -> Unit {
        match self {
            Self::OneInFlight => Unit::P50,
            Self::HotTail => Unit::P99,
            Self::OneThread | Self::Alone => Unit::Each,
            _ => Unit::Rate,
        }
    }

    pub(crate) fn in_flight(self) -> usize {
        match self {
            Self::Allowed16 => 16,
            Self::Allowed64 | Self::Denied | Self::Hot64 | Self::HotTail => 64,
            Self::Allowed256 | Self::Hot256 => 256,
            Self::OneInFlight | Self::OneThread | Self::Alone => 1,
        }
    }

    pub(crate) fn is_denied(self) -> bool {
        self == Self::Denied
    }

    /// Whether all requests have one key.
    pub(crate) fn is_hot(self) -> bool {
        matches!(self, Self::Denied | Self::Hot64 | Self::Hot256 | Self::HotTail | Self::Alone)
    }
}
