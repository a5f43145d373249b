//! The other end of the connection.

use std::net::{IpAddr, SocketAddr};

use http::{Extensions, request::Parts};

use crate::base::{Error, ErrorKind};

/// The other end of the connection, as the server describes it in the request's extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// In canonical form: an IPv4 address in IPv6 form is converted to IPv4.
    Address(IpAddr),
    /// A Unix socket, which has no address.
    UnixSocket,
    /// The server does not describe it.
    Unknown,
}

impl Peer {
    pub(super) fn of(request: &Parts) -> Self {
        let extensions = &request.extensions;
        if let Some(peer) = tcp(extensions) {
            Self::Address(peer.ip().to_canonical())
        } else if is_unix(extensions) {
            Self::UnixSocket
        } else {
            Self::Unknown
        }
    }
}

/// The error for [`Peer::Unknown`].
pub(super) fn unknown_peer() -> Error {
    Error::new(
        ErrorKind::MissingSetup,
        "the server does not provide the peer's address: serve the axum router with \
         `into_make_service_with_connect_info::<SocketAddr>()`, or insert a `SocketAddr` into the \
         request's extensions",
    )
}

fn tcp(extensions: &Extensions) -> Option<SocketAddr> {
    #[cfg(feature = "axum")]
    {
        use axum::extract::connect_info::{ConnectInfo, MockConnectInfo};

        if let Some(ConnectInfo(peer)) = extensions.get::<ConnectInfo<SocketAddr>>() {
            return Some(*peer);
        }
        if let Some(MockConnectInfo(peer)) = extensions.get::<MockConnectInfo<SocketAddr>>() {
            return Some(*peer);
        }
    }
    #[cfg(feature = "tonic")]
    {
        use tonic::transport::server::TcpConnectInfo;

        if let Some(peer) = extensions.get::<TcpConnectInfo>().and_then(TcpConnectInfo::remote_addr) {
            return Some(peer);
        }
    }
    #[cfg(feature = "tonic-tls")]
    {
        use tonic::transport::server::{TcpConnectInfo, TlsConnectInfo};

        let tls = extensions.get::<TlsConnectInfo<TcpConnectInfo>>();
        if let Some(peer) = tls.and_then(|tls| tls.get_ref().remote_addr()) {
            return Some(peer);
        }
    }
    extensions.get::<SocketAddr>().copied()
}

#[cfg(unix)]
fn is_unix(extensions: &Extensions) -> bool {
    use std::os::unix::net::SocketAddr as UnixAddr;

    #[cfg(feature = "axum")]
    {
        use axum::extract::connect_info::{ConnectInfo, MockConnectInfo};
        use tokio::net::unix::SocketAddr as TokioAddr;

        if extensions.get::<ConnectInfo<TokioAddr>>().is_some()
            || extensions.get::<ConnectInfo<UnixAddr>>().is_some()
            || extensions.get::<MockConnectInfo<TokioAddr>>().is_some()
            || extensions.get::<MockConnectInfo<UnixAddr>>().is_some()
            || extensions.get::<TokioAddr>().is_some()
        {
            return true;
        }
    }
    #[cfg(feature = "tonic")]
    if extensions.get::<tonic::transport::server::UdsConnectInfo>().is_some() {
        return true;
    }
    #[cfg(feature = "tonic-tls")]
    {
        use tonic::transport::server::{TlsConnectInfo, UdsConnectInfo};

        if extensions.get::<TlsConnectInfo<UdsConnectInfo>>().is_some() {
            return true;
        }
    }
    extensions.get::<UnixAddr>().is_some()
}

#[cfg(not(unix))]
const fn is_unix(_: &Extensions) -> bool {
    false
}
