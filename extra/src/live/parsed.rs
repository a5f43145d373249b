//! All that a file or a hash says.

use std::collections::BTreeMap;

use tower_ratelimit::{Policy, policy::Enforcement};

/// All that a file or a hash says, read without an error.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parsed {
    /// The policies by their names.
    pub(super) policies: BTreeMap<String, Policy>,
    pub(super) enforcement: Enforcement,
    /// Whether the origin has no content, so that the policies are defaults.
    pub(super) is_empty: bool,
}
