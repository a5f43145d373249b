//! Credentials that rotate. A provider returns them (`credentials`), an [`Authenticator`] shares the latest ones
//! among the connections of a store, and a [`Session`] authenticates a connection again before they end.
//!
//! redis-rs can do so too, but waits for a provider without a limit, and ends silently after an AUTH that the
//! server does not accept. So its own mechanism only opens the connections of a Cluster (`cluster`).

mod authenticator;
#[cfg(feature = "cluster")]
mod cluster;
mod credentials;
mod session;

#[cfg(feature = "cluster")]
pub(super) use self::cluster::{Bridge, opening};
pub use self::credentials::{Credentials, CredentialsProvider};
pub(super) use self::{
    authenticator::{Authenticator, is_login_error, not_accepted},
    session::Session,
};
