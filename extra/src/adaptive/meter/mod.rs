//! Measures a service, for the controllers: [`LoadMeter`].

mod body;
mod histogram;
#[expect(clippy::module_inception, reason = "the module's main type")]
mod meter;
mod service;
mod window;

pub use self::{
    body::MeasuredBody,
    meter::{InFlight, LoadMeter},
    service::{Measured, MeasuredFuture},
};
pub(super) use self::{meter::Mark, window::Window};
