//! Measures a service, for the controllers: [`LoadMeter`].

mod histogram;
#[expect(clippy::module_inception, reason = "the module's main type")]
mod meter;
mod service;
mod window;

pub(super) use self::{meter::Mark, window::Window};
pub use self::{
    meter::{InFlight, LoadMeter},
    service::{Measured, MeasuredFuture},
};
