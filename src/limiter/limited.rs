//! What a layer leaves in a request for its handler.

use std::sync::Arc;

use super::{limiter::Limiter, reservation::Reservation};
use crate::decision::Decision;

/// The extension that a layer inserts into a request. Only one, because each extension costs an allocation
/// and an entry.
#[derive(Clone)]
pub(crate) struct Limited {
    pub(crate) decision: Decision,
    /// The limiter of the layer that made the decision.
    pub(crate) limiter: Arc<Limiter>,
    /// `None` if no rule of a layer reserves units. Boxed, because every request moves this.
    pub(crate) reservation: Option<Box<Reservation>>,
}
