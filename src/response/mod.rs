//! What a client is told: fields on every response, and an answer in place of the service's.

mod fields;
mod headers;
mod mapper;
mod problem;
mod rejection;

pub(crate) use self::{fields::decorate, mapper::refuse};
pub use self::{
    headers::Headers,
    mapper::{RefusalBody, ResponseMapper},
    problem::ProblemDetails,
    rejection::Rejection,
};
