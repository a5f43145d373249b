//! Decisions without HTTP: calls to the store, its failures, and permits.

mod account;
mod background;
mod decider;
mod drain;
mod dropped;
mod early_denial;
mod limited;
#[expect(clippy::module_inception, reason = "the module's main type")]
mod limiter;
mod operator;
mod reservation;
mod store_call;
mod wait;

pub(crate) use self::{
    decider::Deciding,
    dropped::{Refund, Undecided},
    early_denial::deny_early,
    limited::Limited,
    wait::WaitState,
};
pub use self::{limiter::Limiter, operator::Operator, reservation::Reservation};
