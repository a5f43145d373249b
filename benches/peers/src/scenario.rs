//! The scenarios.

use crate::contender::Place;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Scenario {
    Allowed64,
    Allowed256,
    OneInFlight,
    Denied,
    HotKey,
    /// One caller, one key: the cost of a request without any waiting.
    Alone,
}

/// How many identities an allowed load is spread over.
pub(crate) const IDENTITIES: usize = 10_000;

impl Scenario {
    pub(crate) const ALL: [Self; 6] =
        [Self::Allowed64, Self::Allowed256, Self::OneInFlight, Self::Denied, Self::HotKey, Self::Alone];
    pub(crate) const REDIS: [Self; 5] =
        [Self::Allowed64, Self::Allowed256, Self::OneInFlight, Self::Denied, Self::HotKey];
    pub(crate) const PROCESS: [Self; 4] = [Self::Allowed64, Self::Denied, Self::HotKey, Self::Alone];

    pub(crate) fn is_for(self, place: Place) -> bool {
        match place {
            Place::Nowhere => true,
            Place::Process => Self::PROCESS.contains(&self),
            Place::Redis | Place::RedisCell => Self::REDIS.contains(&self),
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Allowed64 => "10 000 keys, allowed, 64 in flight",
            Self::Allowed256 => "10 000 keys, allowed, 256 in flight",
            Self::OneInFlight => "1 in flight, p50",
            Self::Denied => "one hot key, denied, 64 in flight",
            Self::HotKey => "one hot key, allowed, 64 in flight",
            Self::Alone => "one caller, one key, ns a request",
        }
    }

    pub(crate) fn in_flight(self) -> usize {
        match self {
            Self::Allowed64 | Self::Denied | Self::HotKey => 64,
            Self::Allowed256 => 256,
            Self::OneInFlight | Self::Alone => 1,
        }
    }

    pub(crate) fn is_denied(self) -> bool {
        self == Self::Denied
    }

    /// Whether all requests have one key.
    pub(crate) fn is_hot(self) -> bool {
        matches!(self, Self::Denied | Self::HotKey | Self::Alone)
    }
}
