//! What was counted.

use std::collections::BTreeMap;

/// Figures by name.
pub(crate) type Measured = BTreeMap<String, f64>;

#[derive(Default)]
pub(crate) struct Results {
    pub(crate) figures: Measured,
    /// Decisions in each call of a script, by the name of the figure.
    pub(crate) batches: Measured,
}
