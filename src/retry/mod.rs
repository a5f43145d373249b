//! The client side: retries rejected requests after the wait that the server names.

mod advice;
mod details;
mod policy;

pub use self::policy::RetryPolicy;
