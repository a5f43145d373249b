//! [`PeerIp`]: the address at the other end of the connection.

use std::net::{IpAddr, SocketAddr};

use http::{Extensions, HeaderName, header::FORWARDED, request::Parts};

use super::{prefix::Prefix, proxies::Networks, warn_once::Warning};
use crate::{
    base::{Answer, Error, ErrorKind, valid},
    key::{Key, KeyExtractor, KeyKind},
};

/// The address of the peer, which is the other end of the connection.
///
/// Use it if clients connect directly. **Behind a proxy or a load balancer use
/// [`ClientIp`](crate::ClientIp)**: there the peer is the proxy, and all its clients would share one limit.
/// `PeerIp` reads no header, except to [warn](#the-warning) about that mistake.
///
/// An IPv6 address is counted by its /64 network, the smallest that a customer usually gets. A link-local
/// address (`fe80::/10`) is counted in full, because all of them are in one network. An address that embeds a
/// client's IPv4 address is counted as that IPv4 address: IPv4-mapped and IPv4-compatible addresses, 6to4
/// (`2002::/16`), Teredo (`2001::/32`), and NAT64 (`64:ff9b::/96`).
///
/// # Where the address comes from
///
/// The server puts it into the request's extensions. The first of these is used:
///
/// | extension | feature | inserted by |
/// |---|---|---|
/// | `ConnectInfo<SocketAddr>`, `MockConnectInfo<SocketAddr>` | `axum` | axum, if it is served as below |
/// | `TcpConnectInfo` | `tonic` | tonic's server, also with its own TLS |
/// | `TlsConnectInfo<TcpConnectInfo>` | `tonic-tls` | tonic's server, over your TLS streams |
/// | [`SocketAddr`](std::net::SocketAddr) | | your code |
///
/// ```text
/// axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>())
/// ```
///
/// # Errors
///
/// [`MissingSetup`](ErrorKind::MissingSetup), answered with 500, in two cases:
///
/// * The extensions contain no address. The message names the call that is missing.
/// * The peer is a Unix socket, which has no address. Use [`ClientIp`](crate::ClientIp) with
///   [`TrustedProxies::and_unix_socket`](crate::key::TrustedProxies::and_unix_socket). A Unix socket is
///   recognized by tonic's `UdsConnectInfo`, and by the `SocketAddr` for Unix sockets of std or tokio
///   (feature `axum`), alone or in `ConnectInfo`.
///
/// # The warning
///
/// A forwarding header (`x-forwarded-for`, `forwarded` or `x-real-ip`) is a sign of a proxy. If a request
/// has one, `PeerIp` logs a warning, once for a value and its clones. It checks the first 1,000 requests, and of
/// the others of a thread one in 1,021, so a proxy whose requests come later is found later. A client that
/// connects directly can send the header too. Call [`without_warning`](Self::without_warning) if the limit is
/// meant to be per peer.
///
/// # Example
///
/// ```
/// use std::net::SocketAddr;
/// use http::Request;
/// use tower_ratelimit::{ErrorKind, Key, KeyExtractor, PeerIp};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let from = |peer: &str| {
///     let peer: SocketAddr = peer.parse().unwrap();
///     Request::get("/").extension(peer).body(()).unwrap().into_parts().0
/// };
/// let key = PeerIp::new();
/// assert_eq!(key.extract(&from("203.0.113.7:4711")).await?, Key::new("203.0.113.7"));
/// // The same address in its IPv6 form.
/// assert_eq!(key.extract(&from("[::ffff:203.0.113.7]:4711")).await?, Key::new("203.0.113.7"));
/// assert_eq!(key.extract(&from("[2001:db8::1]:80")).await?, Key::new("2001:db8::/64"));
/// let wide = PeerIp::new().ipv6_prefix(48);
/// assert_eq!(wide.extract(&from("[2001:db8::1]:80")).await?, Key::new("2001:db8::/48"));
///
/// let (parts, ()) = Request::get("/").body(())?.into_parts();
/// assert_eq!(key.extract(&parts).await.unwrap_err().kind(), ErrorKind::MissingSetup);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "an extractor does nothing until a layer or a rule uses it"]
pub struct PeerIp {
    prefix: Prefix,
    warning: Warning,
}

/// The headers by which a proxy is recognized.
const FORWARDING: [HeaderName; 3] =
    [HeaderName::from_static("x-forwarded-for"), FORWARDED, HeaderName::from_static("x-real-ip")];

impl PeerIp {
    /// The address of the peer. IPv6 addresses are counted by their /64 network.
    pub fn new() -> Self {
        Self { prefix: Prefix::DEFAULT, warning: Warning::new() }
    }

    /// Sets the prefix length of the IPv6 networks that are counted. Defaults to 64.
    ///
    /// Larger customers get a /56 or a /48. A link-local address is always counted in full.
    ///
    /// # Panics
    ///
    /// If `bits` is 0 or above 128. [`try_ipv6_prefix`](Self::try_ipv6_prefix) gives an error instead.
    #[track_caller]
    pub fn ipv6_prefix(self, bits: u8) -> Self {
        valid(self.try_ipv6_prefix(bits))
    }

    /// The fallible form of [`ipv6_prefix`](Self::ipv6_prefix), for a number read from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](ErrorKind::InvalidConfig) where [`ipv6_prefix`](Self::ipv6_prefix) panics.
    pub fn try_ipv6_prefix(mut self, bits: u8) -> Result<Self, Error> {
        self.prefix = Prefix::new(bits)?;
        Ok(self)
    }

    /// Turns [the warning](#the-warning) off, for a limit that is meant to be per peer, such as a limit for
    /// each proxy.
    pub fn without_warning(mut self) -> Self {
        self.warning = Warning::off();
        self
    }

    /// The whole address of the peer, regardless of [`ipv6_prefix`](Self::ipv6_prefix). An IPv4 address in
    /// IPv6 form is converted to IPv4.
    ///
    /// # Errors
    ///
    /// [`MissingSetup`](ErrorKind::MissingSetup): the server does not provide the peer's address, or the peer
    /// is a Unix socket.
    pub(crate) fn address(&self, request: &Parts) -> Result<IpAddr, Error> {
        match Peer::of(request) {
            Peer::Address(address) => Ok(address),
            Peer::UnixSocket => Err(Error::new(
                ErrorKind::MissingSetup,
                "the peer is a Unix socket, which has no address: use `ClientIp` with \
                 `TrustedProxies::and_unix_socket`, or another key",
            )),
            Peer::Unknown => Err(unknown_peer()),
        }
    }

    /// Matches the requests whose peer is in one of `networks`, such as `10.0.0.0/8`. An address without a
    /// prefix length is the network of that address. For
    /// [`RateLimitLayer::exempt_if`](crate::RateLimitLayer::exempt_if) and
    /// [`RateLimitLayer::block_if`](crate::RateLimitLayer::block_if).
    ///
    /// The whole address counts, not its IPv6 network. If the server does not know its peers, a request is
    /// not exempt, and a blocklist rejects it with 500.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](ErrorKind::InvalidConfig): one of `networks` is neither a network nor an address.
    /// The message names it.
    ///
    /// # Example
    ///
    /// ```
    /// use std::net::SocketAddr;
    /// use http::Request;
    /// use tower_ratelimit::PeerIp;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let from = |peer: &str| {
    ///     let peer: SocketAddr = peer.parse().unwrap();
    ///     Request::get("/").extension(peer).body(()).unwrap().into_parts().0
    /// };
    /// let is_ours = PeerIp::new().within(["10.0.0.0/8", "2001:db8::1"])?;
    /// assert!(is_ours(&from("10.1.2.3:80")).await?);
    /// assert!(is_ours(&from("[2001:db8::1]:80")).await?);
    /// assert!(!is_ours(&from("[2001:db8::2]:80")).await?);
    ///
    /// let error = PeerIp::new().within(["10.0.0.0/33"]).map(drop).unwrap_err();
    /// assert_eq!(error.to_string(), "\"10.0.0.0/33\" is neither a network, such as 10.0.0.0/8, nor an address");
    /// # Ok(())
    /// # }
    /// ```
    pub fn within(
        self,
        networks: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<impl Fn(&Parts) -> Answer<bool> + Send + Sync + 'static, Error> {
        let networks = Networks::parse(networks)?;
        Ok(self.matching(move |address| networks.contain(address)))
    }

    /// Matches the requests for whose peer `is_match` returns true, such as those from a country or in a list that
    /// changes. In other respects the same as [`within`](Self::within).
    ///
    /// `is_match` gets the whole address, an IPv4 address in IPv6 form as IPv4. It runs for each request, so it must
    /// not block.
    ///
    /// # Example
    ///
    /// ```
    /// use std::net::SocketAddr;
    /// use http::Request;
    /// use tower_ratelimit::PeerIp;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let is_local = PeerIp::new().matching(|address| address.is_loopback());
    /// let peer: SocketAddr = "127.0.0.1:4711".parse()?;
    /// let (request, ()) = Request::get("/").extension(peer).body(())?.into_parts();
    /// assert!(is_local(&request).await?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn matching(
        self,
        is_match: impl Fn(IpAddr) -> bool + Send + Sync + 'static,
    ) -> impl Fn(&Parts) -> Answer<bool> + Send + Sync + 'static {
        move |request: &Parts| self.address(request).map(&is_match).into()
    }

    fn warn_of_proxy(&self, request: &Parts) {
        let forwarding = || FORWARDING.into_iter().find(|name| request.headers.contains_key(name));
        if let Some(header) = self.warning.first(forwarding) {
            log!(
                warn,
                header = header.as_str(),
                "a request has a forwarding header, but its key is the address of the peer: behind a proxy all clients \
                 share that key. Use `ClientIp` behind a proxy, or turn this warning off with \
                 `PeerIp::without_warning`"
            );
        }
    }
}

impl Default for PeerIp {
    fn default() -> Self {
        Self::new()
    }
}

impl KeyExtractor for PeerIp {
    fn extract(&self, request: &Parts) -> Answer<Key> {
        let key = self.address(request).map(|address| {
            self.warn_of_proxy(request);
            self.prefix.key(address)
        });
        key.into()
    }

    fn kind(&self) -> KeyKind {
        KeyKind::named("the client's address")
    }

    fn keys_of(&self, named: &Key) -> Answer<Vec<Key>> {
        self.prefix.keys_of(named).into()
    }
}

/// The key of a CORS preflight under a rule whose extractor returns `key`.
///
/// A browser sends a preflight without credentials. If the key is missing for that reason, the address of the
/// peer is used, and if the server does not know that, one key for all such preflights. No other request has
/// one of these keys.
pub(crate) fn preflight_key(key: Answer<Key>, request: &Parts) -> Answer<Key> {
    let fallback = match Peer::of(request) {
        Peer::Address(address) => Prefix::DEFAULT.key(address),
        Peer::UnixSocket | Peer::Unknown => Key::new(""),
    };
    key.then(move |key| match key {
        Ok(key) => Ok(key.of_preflight()),
        // Marked twice, because a preflight can send the address of another client as its identity.
        Err(error) if error.kind() == ErrorKind::MissingIdentity => {
            Ok(fallback.of_preflight().of_preflight())
        }
        Err(error) => Err(error),
    })
}

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

/// The peer of the type `T` that axum describes.
#[cfg(feature = "axum")]
fn connect_info<T: Clone + Send + Sync + 'static>(extensions: &Extensions) -> Option<&T> {
    use axum::extract::connect_info::{ConnectInfo, MockConnectInfo};

    let info = extensions.get::<ConnectInfo<T>>().map(|info| &info.0);
    info.or_else(|| extensions.get::<MockConnectInfo<T>>().map(|info| &info.0))
}

fn tcp(extensions: &Extensions) -> Option<SocketAddr> {
    #[cfg(feature = "axum")]
    if let Some(peer) = connect_info(extensions) {
        return Some(*peer);
    }
    #[cfg(feature = "tonic")]
    {
        use tonic::transport::server;

        let info = extensions.get::<server::TcpConnectInfo>();
        #[cfg(feature = "tonic-tls")]
        let info = info.or_else(|| extensions.get::<server::TlsConnectInfo<_>>().map(|tls| tls.get_ref()));
        if let Some(peer) = info.and_then(server::TcpConnectInfo::remote_addr) {
            return Some(peer);
        }
    }
    extensions.get::<SocketAddr>().copied()
}

#[cfg(unix)]
fn is_unix(extensions: &Extensions) -> bool {
    use std::os::unix::net::SocketAddr as UnixAddr;

    #[cfg(feature = "axum")]
    use tokio::net::unix::SocketAddr as TokioAddr;
    #[cfg(feature = "tonic")]
    use tonic::transport::server;

    let found = extensions.get::<UnixAddr>().is_some();
    #[cfg(feature = "axum")]
    let found = found
        || connect_info::<TokioAddr>(extensions).is_some()
        || connect_info::<UnixAddr>(extensions).is_some()
        || extensions.get::<TokioAddr>().is_some();
    #[cfg(feature = "tonic")]
    let found = found || extensions.get::<server::UdsConnectInfo>().is_some();
    #[cfg(feature = "tonic-tls")]
    let found = found || extensions.get::<server::TlsConnectInfo<server::UdsConnectInfo>>().is_some();
    found
}

#[cfg(not(unix))]
const fn is_unix(_: &Extensions) -> bool {
    false
}
