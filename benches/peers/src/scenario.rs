//! The scenarios.

use serde::Serialize;

use crate::contender::Role;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Scenario {
    /// Keys whose state is in Redis: as of clients that return before their quota is full again.
    Stored1,
    Stored8,
    Stored16,
    Stored32,
    Stored64,
    Stored256,
    /// The same, from callers that send their next request as soon as they have the answer, and do not yield before.
    Eager1,
    Eager8,
    Eager16,
    Eager32,
    Eager64,
    Eager256,
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
    /// The same, with requests that have an extension already.
    Extended1,
    /// As [`Stored64`](Self::Stored64), with such requests.
    Extended64,
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
    pub(crate) const ALL: [Self; 24] = [
        Self::Stored1,
        Self::Stored8,
        Self::Stored16,
        Self::Stored32,
        Self::Stored64,
        Self::Stored256,
        Self::Eager1,
        Self::Eager8,
        Self::Eager16,
        Self::Eager32,
        Self::Eager64,
        Self::Eager256,
        Self::Idle1,
        Self::Idle16,
        Self::Idle64,
        Self::Idle256,
        Self::Denied,
        Self::Hot64,
        Self::Hot256,
        Self::HotTail,
        Self::OneThread,
        Self::Extended1,
        Self::Extended64,
        Self::Alone,
    ];
    /// The first ones.
    pub(crate) const REDIS: &[Self] = Self::ALL.split_at(20).0;
    pub(crate) const PROCESS: [Self; 7] = [
        Self::OneThread,
        Self::Extended1,
        Self::Stored64,
        Self::Extended64,
        Self::Denied,
        Self::Hot64,
        Self::Alone,
    ];
    pub(crate) const NETWORK: [Self; 3] = [Self::Stored1, Self::Stored64, Self::Stored256];

    /// Modes of ours are measured only where they differ.
    pub(crate) fn is_for(self, role: Role) -> bool {
        match role {
            // Its callers would never wait, and so never yield.
            Role::NoLimiter => self != Self::HotTail && !self.is_eager(),
            Role::MemoryPeer | Role::Governor | Role::OurMemory => Self::PROCESS.contains(&self),
            Role::ScriptPeer | Role::ModulePeer | Role::OurRedis => {
                Self::REDIS.contains(&self) && self != Self::HotTail
            }
            Role::OurSeveral(_) | Role::ModuleSeveral(_) | Role::OurPenalty => {
                self.is_spread() && !self.is_eager() && Self::REDIS.contains(&self)
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
            Self::Stored8 => "stored, 8 in flight",
            Self::Stored16 => "stored, 16 in flight",
            Self::Stored32 => "stored, 32 in flight",
            Self::Stored64 => "stored, 64 in flight",
            Self::Stored256 => "stored, 256 in flight",
            Self::Eager1 => "stored, 1 in flight, eager, p50",
            Self::Eager8 => "stored, 8 in flight, eager",
            Self::Eager16 => "stored, 16 in flight, eager",
            Self::Eager32 => "stored, 32 in flight, eager",
            Self::Eager64 => "stored, 64 in flight, eager",
            Self::Eager256 => "stored, 256 in flight, eager",
            Self::Idle1 => "10,000 idle keys, 1 in flight, p50",
            Self::Idle16 => "idle, 16 in flight",
            Self::Idle64 => "idle, 64 in flight",
            Self::Idle256 => "idle, 256 in flight",
            Self::Denied => "one hot key, denied, 64 in flight",
            Self::Hot64 => "one hot key, allowed, 64 in flight",
            Self::Hot256 => "one hot key, allowed, 256 in flight",
            Self::HotTail => "one hot key, allowed, 64 in flight, p99",
            Self::OneThread => "one caller, 10,000 keys, ns a request",
            Self::Extended1 => "the same with an extension, ns a request",
            Self::Extended64 => "stored, 64 in flight, with an extension",
            Self::Alone => "one caller, one key, ns a request",
        }
    }

    pub(crate) fn unit(self) -> Unit {
        match self {
            Self::Stored1 | Self::Eager1 | Self::Idle1 => Unit::P50,
            Self::HotTail => Unit::P99,
            Self::OneThread | Self::Extended1 | Self::Alone => Unit::Each,
            _ => Unit::Rate,
        }
    }

    pub(crate) fn in_flight(self) -> usize {
        match self {
            Self::Stored8 | Self::Eager8 => 8,
            Self::Stored16 | Self::Eager16 | Self::Idle16 => 16,
            Self::Stored32 | Self::Eager32 => 32,
            Self::Stored64
            | Self::Eager64
            | Self::Extended64
            | Self::Idle64
            | Self::Denied
            | Self::Hot64
            | Self::HotTail => 64,
            Self::Stored256 | Self::Eager256 | Self::Idle256 | Self::Hot256 => 256,
            Self::Stored1 | Self::Eager1 | Self::Idle1 | Self::OneThread | Self::Extended1 | Self::Alone => 1,
        }
    }

    pub(crate) fn is_denied(self) -> bool {
        self == Self::Denied
    }

    /// Whether each key has its state in the store before the first measured request.
    pub(crate) fn is_stored(self) -> bool {
        let yields = matches!(
            self,
            Self::Stored1
                | Self::Stored8
                | Self::Stored16
                | Self::Stored32
                | Self::Stored64
                | Self::Stored256
        );
        yields || self.is_eager()
    }

    /// Whether callers send their next request as soon as they have the answer. Others yield first, as a task that reads
    /// from a socket does.
    pub(crate) fn is_eager(self) -> bool {
        matches!(
            self,
            Self::Eager1 | Self::Eager8 | Self::Eager16 | Self::Eager32 | Self::Eager64 | Self::Eager256
        )
    }

    /// Whether requests have an extension before the limiter sees them.
    pub(crate) fn is_extended(self) -> bool {
        matches!(self, Self::Extended1 | Self::Extended64)
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
