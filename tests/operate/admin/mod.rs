//! Administration: explanations, and the router for operators.

mod explanations;
mod requests;
pub(crate) mod router;
mod why;
