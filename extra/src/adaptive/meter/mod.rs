//! Measures a service, for the controllers: [`LoadMeter`].

mod body;
mod histogram;
mod meter;
mod service;
mod window;

pub use self::{
    body::MeasuredBody,
    meter::{InFlight, LoadMeter},
    service::{Measured, MeasuredFuture},
};
pub(super) use self::{meter::Mark, window::Window};
