//! From settings to a connected store: the builder, where the servers are, how a connection is opened, and
//! the probe.

mod address;
mod builder;
mod connect;
mod manager;
mod opener;
#[cfg(feature = "sentinel")]
mod primary;
pub(super) mod probe;
mod probe_report;
mod servers;
mod stream;
mod tls;
#[cfg(feature = "tls-rustls-no-provider")]
mod tls_stream;

pub(super) use self::stream::is_closed;
#[cfg(feature = "cluster")]
pub(super) use self::{
    address::{connection_infos, is_tls, tcp_settings},
    stream::{connect, or_once_more, set_up},
    tls::TlsSettings,
};
pub use self::{builder::RedisStoreBuilder, probe_report::ProbeReport, servers::Servers};
