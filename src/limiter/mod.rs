//! Decisions without HTTP: calls to the store, its failures, and permits.

mod counted;
mod ladder;
#[expect(clippy::module_inception, reason = "the module's main type")]
mod limiter;
mod pending;
mod permit;

pub use self::limiter::Limiter;
