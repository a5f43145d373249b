//! Decisions without HTTP: calls to the store, its failures, and permits.

mod account;
mod background;
mod bans;
mod debit;
mod drain;
mod ladder;
#[expect(clippy::module_inception, reason = "the module's main type")]
mod limiter;
mod pending;
mod permit;
mod reservation;

pub(crate) use self::background::Work;
pub use self::{limiter::Limiter, reservation::Reservation};
