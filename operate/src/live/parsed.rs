//! All that a file or a hash says.

use std::collections::BTreeMap;

use tower_ratelimit::{Policy, policy::Enforcement};

/// All that a file or a hash says, read without an error.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parsed {
    /// The policies by their names.
    pub(super) policies: BTreeMap<String, Policy>,
    pub(super) position: Position,
    /// Whether the origin has no content, so that the policies are defaults.
    pub(super) is_empty: bool,
}

/// Where a file or a hash moves the switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    pub(super) enforcement: Enforcement,
    /// A text that changes with each move for all instances, so that one whose switch was moved alone follows even if
    /// the position is the same as before. Empty without one.
    pub(super) mark: Vec<u8>,
}

impl From<Enforcement> for Position {
    fn from(enforcement: Enforcement) -> Self {
        Self { enforcement, mark: Vec::new() }
    }
}
