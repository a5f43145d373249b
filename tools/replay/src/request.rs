//! What is replayed: requests, and the commands of JSON lines.

use tower_ratelimit::Key;

use crate::formats::Op;

/// A request with its charges.
#[derive(Debug)]
pub(crate) struct Request {
    /// The number of its line.
    pub(crate) line: u64,
    /// When it arrived, in microseconds since 1970.
    pub(crate) time: u64,
    /// How long it took, in microseconds.
    pub(crate) duration: Option<u64>,
    /// The bytes of the response.
    pub(crate) bytes: Option<u64>,
    pub(crate) charges: Vec<RuleCharge>,
}

/// A charge under the rule at a place.
#[derive(Debug)]
pub(crate) struct RuleCharge {
    pub(crate) rule: usize,
    pub(crate) key: Key,
    pub(crate) cost: u64,
}

/// A JSON line.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) request: Request,
    pub(crate) op: Op,
    /// The operation as the line names it.
    pub(crate) op_name: String,
    /// The key of a line without `charges`.
    pub(crate) key: Option<String>,
    pub(crate) id: Option<String>,
    pub(crate) of: Option<String>,
    pub(crate) quota: QuotaChange,
    pub(crate) ban_us: Option<u64>,
}

/// The entries of `set-quota`. An entry that is left out stays as it is, but the burst.
#[derive(Debug, Default)]
pub(crate) struct QuotaChange {
    pub(crate) limit: Option<u64>,
    pub(crate) period_us: Option<u64>,
    pub(crate) burst: Option<u64>,
}

/// What is replayed next.
#[derive(Debug)]
pub(crate) enum Step {
    Request(Request),
    Command(Box<Command>),
    /// A line that charges nothing.
    Skipped(Skipped),
}

#[derive(Debug)]
pub(crate) struct Skipped {
    pub(crate) line: u64,
    pub(crate) reason: Reason,
}

#[derive(Debug)]
pub(crate) enum Reason {
    /// The line is malformed. With its beginning.
    Malformed(String, String),
    /// The policy at this place finds no key.
    Unidentified(usize),
}
