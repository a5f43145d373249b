//! The scenarios.

use serde::Serialize;

use crate::contender::Role;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Scenario {
    /// Keys whose state is in Redis: as of clients that return before their quota is full again.
    Stored1,
    Stored16,
    Stored64,
    Stored256,
    /// Keys whose quota is full again before their next request.
    Idle1,
    Idle16,
    Idle64,
    Idle256,
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
    pub(crate) const ALL: [Self; 14] = [
        Self::Stored1,
        Self::Stored16,
        Self::Stored64,
        Self::Stored256,
        Self::Idle1,
        Self::Idle16,
        Self::Idle64,
        Self::Idle256,
        Self::Denied,
        Self::Hot64,
        Self::Hot256,
        Self::HotTail,
        Self::OneThread,
        Self::Alone,
    ];
    pub(crate) const REDIS: [Self; 12] = [
        Self::Stored1,
        Self::Stored16,
        Self::Stored64,
        Self::Stored256,
        Self::Idle1,
        Self::Idle16,
        Self::Idle64,
        Self::Idle256,
        Self::Denied,
        Self::Hot64,
        Self::Hot256,
        Self::HotTail,
    ];
    pub(crate) const PROCESS: [Self; 5] =
        [Self::OneThread, Self::Stored64, Self::Denied, Self::Hot64, Self::Alone];
    pub(crate) const NETWORK: [Self; 3] = [Self::Stored1, Self::Stored64, Self::Stored256];

    /// Modes of ours are measured only where they differ.
    pub(crate) fn is_for(self, role: Role) -> bool {
        match role {
            Role::NoLimiter => self != Self::HotTail,
            Role::MemoryPeer | Role::Governor | Role::OurMemory => Self::PROCESS.contains(&self),
            Role::ScriptPeer | Role::ModulePeer | Role::OurRedis => {
                Self::REDIS.contains(&self) && self != Self::HotTail
            }
            Role::OurSeveral(_) | Role::ModuleSeveral(_) | Role::OurPenalty => {
                self.is_spread() && Self::REDIS.contains(&self)
            }
            // No key is hot in the first one.
            Role::OurLeased(_) => {
                matches!(self, Self::Stored64 | Self::Hot64 | Self::Hot256 | Self::HotTail)
            }
            Role::OurOther => matches!(self, Self::Stored64 | Self::Stored256 | Self::Denied),
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Stored1 => "10,000 stored keys, 1 in flight, p50",
            Self::Stored16 => "stored, 16 in flight",
            Self::Stored64 => "stored, 64 in flight",
            Self::Stored256 => "stored, 256 in flight",
            Self::Idle1 => "10,000 idle keys, 1 in flight, p50",
            Self::Idle16 => "idle, 16 in flight",
            Self::Idle64 => "idle, 64 in flight",
            Self::Idle256 => "idle, 256 in flight",
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
            Self::Stored1 | Self::Idle1 => Unit::P50,
            Self::HotTail => Unit::P99,
            Self::OneThread | Self::Alone => Unit::Each,
            _ => Unit::Rate,
        }
    }

    pub(crate) fn in_flight(self) -> usize {
        match self {
            Self::Stored16 | Self::Idle16 => 16,
            Self::Stored64 | Self::Idle64 | Self::Denied | Self::Hot64 | Self::HotTail => 64,
            Self::Stored256 | Self::Idle256 | Self::Hot256 => 256,
            Self::Stored1 | Self::Idle1 | Self::OneThread | Self::Alone => 1,
        }
    }

    pub(crate) fn is_denied(self) -> bool {
        self == Self::Denied
    }

    /// Whether each key has its state in the store before the first measured request.
    pub(crate) fn is_stored(self) -> bool {
        matches!(self, Self::Stored1 | Self::Stored16 | Self::Stored64 | Self::Stored256)
    }

    pub(crate) fn is_idle(self) -> bool {
        matches!(self, Self::Idle1 | Self::Idle16 | Self::Idle64 | Self::Idle256)
    }

    /// Whether all requests are admitted, and their keys are many.
    fn is_spread(self) -> bool {
        self.is_stored() || self.is_idle()
    }

    /// Whether all requests have one key.
    pub(crate) fn is_hot(self) -> bool {
        matches!(self, Self::Denied | Self::Hot64 | Self::Hot256 | Self::HotTail | Self::Alone)
    }
}
