//! Decisions without HTTP: calls to the store, its failures, and permits.

mod account;
mod background;
mod bans;
mod decider;
mod drain;
mod early_denial;
mod limited;
mod limiter;
mod operator;
mod refund;
mod reservation;
mod store_call;
#[cfg(feature = "settlement-tokens")]
mod token;
mod undecided;
mod units;
mod wait;

#[cfg(feature = "settlement-tokens")]
pub use self::token::{SettledRule, Settlement, SettlementSecret};
pub(crate) use self::{
    decider::Deciding, early_denial::deny_early, limited::Limited, refund::Refund, undecided::Undecided,
    wait::WaitState,
};
pub use self::{limiter::Limiter, operator::Operator, reservation::Reservation, units::Units};
