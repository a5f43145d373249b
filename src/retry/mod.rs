//! The client's half: waits as long as a server that refused a request asks for, then asks again.

mod advice;
mod details;
mod policy;

pub use self::policy::RetryPolicy;
