//! Administration: explanations, the router for operators, and their command.

mod command;
mod explanations;
mod keys;
mod requests;
mod router;
