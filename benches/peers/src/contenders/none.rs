//! No limiter: the cost of the request, the empty handler and the measurement.

use crate::contender::{Contender, Handler, Place, Role, subject};

pub(super) fn contender() -> Contender {
    Contender {
        name: "no limiter".into(),
        role: Role::NoLimiter,
        place: Place::Nowhere,
        packages: &["tower@0.5", "axum@0.8", "tokio"],
        make: Box::new(|_| Box::pin(async { Ok(subject(Handler)) })),
    }
}
