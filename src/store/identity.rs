//! What identifies a store, and which layers count on it.

use std::sync::{Arc, Mutex, Weak};

use crate::{base::sync::lock, key::KeyKind};

/// What the handles on a store share beside its counts.
pub(crate) struct StoreIdentity {
    /// In settlement tokens: settled on another store, a token would refund the units of another count. `redis` and the
    /// prefix, or `memory` and a random number.
    #[cfg_attr(not(feature = "settlement-tokens"), expect(dead_code, reason = "only tokens have it"))]
    name: String,
    layers: Mutex<Vec<Weak<PolicyKeys>>>,
}

/// The policies of a layer by their labels, each with the kind of its keys.
pub(crate) type PolicyKeys = Vec<(Box<str>, KeyKind)>;

impl StoreIdentity {
    pub(crate) fn new(name: String) -> Arc<Self> {
        Arc::new(Self { name, layers: Mutex::default() })
    }

    #[cfg(feature = "settlement-tokens")]
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Adds a layer until its `keys` are dropped.
    pub(crate) fn add(&self, keys: &Arc<PolicyKeys>) {
        let mut layers = lock(&self.layers);
        layers.retain(|layer| layer.strong_count() > 0);
        layers.push(Arc::downgrade(keys));
    }

    /// The layers that are in use.
    pub(crate) fn layers(&self) -> Vec<Arc<PolicyKeys>> {
        lock(&self.layers).iter().filter_map(Weak::upgrade).collect()
    }
}
