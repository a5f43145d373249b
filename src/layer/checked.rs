//! Which warnings a layer has looked for.

use std::sync::{Arc, atomic::AtomicBool};

/// What a layer has looked for, each once.
#[derive(Clone, Default)]
pub(super) struct Checked {
    pub(super) settings: Arc<AtomicBool>,
    pub(super) policies_of_a_key: Arc<AtomicBool>,
    pub(super) cost: Arc<AtomicBool>,
}
