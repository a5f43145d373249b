//! JSON lines: requests, and the other calls that a test case can make.

use std::borrow::Cow;

use serde::Deserialize;

/// A line. It charges `key` under all policies, or under `policy`; or it has `charges`.
#[derive(Deserialize)]
pub(crate) struct Event<'a> {
    /// Microseconds since 1970.
    pub(crate) t: u64,
    #[serde(borrow)]
    pub(crate) key: Option<Cow<'a, str>>,
    pub(crate) cost: Option<u64>,
    #[serde(borrow)]
    pub(crate) op: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(crate) policy: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(crate) charges: Option<Vec<ChargeLine<'a>>>,
    /// How long the request takes. Its permits are released then.
    pub(crate) duration_us: Option<u64>,
    /// The bytes of its response.
    pub(crate) bytes: Option<u64>,
    /// A name for the decision, by which later lines refund, debit or release it.
    #[serde(borrow)]
    pub(crate) id: Option<Cow<'a, str>>,
    /// The name of an earlier decision.
    #[serde(borrow)]
    pub(crate) of: Option<Cow<'a, str>>,
    pub(crate) limit: Option<u64>,
    pub(crate) period_us: Option<u64>,
    pub(crate) burst: Option<u64>,
    pub(crate) ban_us: Option<u64>,
}

/// A charge of a line with several.
#[derive(Deserialize)]
pub(crate) struct ChargeLine<'a> {
    #[serde(borrow)]
    pub(crate) policy: Cow<'a, str>,
    #[serde(borrow)]
    pub(crate) key: Cow<'a, str>,
    pub(crate) cost: Option<u64>,
}

/// What a line does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Charge,
    ChargeUpTo,
    Peek,
    Debit,
    Refund,
    Release,
    Reset,
    Ban,
    Unban,
    SetQuota,
}

impl Op {
    /// The operation `name`. Without a name, it is a charge.
    pub(crate) fn of(name: Option<&str>) -> Result<Self, String> {
        Ok(match name {
            None | Some("charge" | "take") => Self::Charge,
            Some("charge-up-to" | "take-up-to") => Self::ChargeUpTo,
            Some("peek") => Self::Peek,
            Some("debit") => Self::Debit,
            Some("refund") => Self::Refund,
            Some("release") => Self::Release,
            Some("reset") => Self::Reset,
            Some("ban") => Self::Ban,
            Some("unban") => Self::Unban,
            Some("set-quota") => Self::SetQuota,
            Some(other) => return Err(format!("unknown op `{other}`")),
        })
    }
}

pub(super) fn parse(text: &str) -> Result<Event<'_>, String> {
    match serde_json::from_str::<Event<'_>>(text) {
        // serde reads the members from a list too.
        Ok(_) if text.trim_start().starts_with('[') => Err("a list, and not an object".to_owned()),
        Ok(event) if event.t >= 1 << 53 => Err("a time after the year 2255".to_owned()),
        parsed => parsed.map_err(|error| error.to_string()),
    }
}
