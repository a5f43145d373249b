//! Decisions without HTTP: calls to the store, its failures, and permits.

mod account;
mod background;
mod drain;
mod dropped;
mod early_denial;
mod fallback;
mod limited;
#[expect(clippy::module_inception, reason = "the module's main type")]
mod limiter;
mod operator;
mod reservation;
mod wait;

pub(crate) use self::{
    dropped::{Refund, Undecided},
    limited::Limited,
    limiter::Deciding,
    wait::WaitState,
};
pub use self::{limiter::Limiter, operator::Operator, reservation::Reservation};
