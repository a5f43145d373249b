//! Values that are looked up asynchronously and cached, such as accounts in a database.

#[expect(clippy::module_inception, reason = "the module's main type")]
mod lookup;
mod settings;
mod shared;

pub use self::lookup::Lookup;
