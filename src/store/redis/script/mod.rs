//! The Lua scripts, and which one a decision needs.

mod assemble;
mod registry;

pub(crate) use self::{assemble::Script, registry::Scripts};
