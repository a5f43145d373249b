//! Administration: explanations, and the router for operators.

mod explanations;
mod requests;
mod router;
mod why;
