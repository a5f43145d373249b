//! [`ClientIp`]: the address of a client behind proxies.

use std::net::IpAddr;

use http::request::Parts;

use super::{
    forwarding_header::{ForwardingHeader, Located},
    peer::{Peer, unknown_peer},
    prefix::Prefix,
    proxies::{Networks, Trust, TrustedProxies},
    warn_once::Warning,
};
use crate::{
    base::{Answer, Error, ErrorKind, valid},
    key::{Key, KeyExtractor, KeyKind, extractor::not_determined},
};

/// The address of the client behind proxies or load balancers.
///
/// | in front of the service | extractor |
/// |---|---|
/// | nothing | [`PeerIp`](crate::PeerIp) |
/// | proxies with known addresses | `ClientIp::behind(TrustedProxies::cidrs(["10.0.0.0/24"])?)` |
/// | proxies with unknown addresses, always the same number, that clients cannot bypass | `ClientIp::behind(TrustedProxies::hops(2))` |
/// | a CDN or a proxy that sends a header other than `X-Forwarded-For` | one of these with [`.header(..)`](Self::header) |
///
/// The guide [the client's address behind proxies](crate::guide::client_ip) has the settings for nginx,
/// Kubernetes, cloud load balancers and CDNs.
///
/// An IPv6 address is counted by its /64 network. There are two exceptions: a link-local address is counted
/// in full, and an address that embeds an IPv4 address is counted as that IPv4 address.
/// [`PeerIp`](crate::PeerIp) does the same.
///
/// # Why the proxies must be declared
///
/// Any client can send `X-Forwarded-For: 1.2.3.4`. A proxy *appends* the address that it sees. So only the
/// addresses on the right of the list, which your proxies appended, can be trusted; those on the left are
/// what the client sent. A limit by the left-most address limits nothing: an attacker sends another address
/// with each request.
///
/// # Which address is used
///
/// * [`TrustedProxies::cidrs`]: if the peer is not in the networks, the peer is the client and the header is
///   ignored. Otherwise the list is read from the right, and the first address outside the networks is the
///   client. If all addresses are inside, the left-most one is.
/// * [`TrustedProxies::hops`]: the client is the `count`-th address from the right, regardless of the peer.
///   **If clients can reach the service without passing the proxies, they can choose this address.**
///
/// # Which header
///
/// `ClientIp` reads one [header](Self::header). If it is missing, no other header is read:
///
/// * A list (`x-forwarded-for`, the default, or `forwarded`): every proxy must append to it. Only the
///   outermost one, or one that itself finds the client, may overwrite it.
/// * A single address (any other header, such as `x-real-ip`): the outermost proxy must overwrite it on every
///   request, and the others must pass it on.
///
/// If a proxy forwards the client's own header unchanged, the client chooses its key.
///
/// # Requests without a usable header
///
/// If a request from a trusted proxy does not contain the client's address, the client *cannot be
/// determined*. This happens if the header is missing, if the list is shorter than declared, or if the
/// deciding address is invalid or past the part that is read. Then:
///
/// * The key is the address of a proxy: the last valid one on the way to the client, or the peer. All such
///   requests share one limit.
/// * Each `ClientIp`, together with its clones, logs one warning. Health checks sent by the proxy cause it
///   too; call [`without_warning`](Self::without_warning) to turn it off.
/// * The request is not [exempt](crate::RateLimitLayer::exempt_if), even if the proxy's address is: otherwise
///   a client could become exempt by making the header invalid. To exempt the proxy's health checks, match
///   their path.
/// * A [blocklist](crate::RateLimitLayer::block_if) with the proxy's address rejects the request with 400.
///
/// # Errors
///
/// * [`MissingSetup`](ErrorKind::MissingSetup), answered with 500: the peer's address is needed, and the
///   server does not provide it (see [`PeerIp`](crate::PeerIp#where-the-address-comes-from)), or the peer is
///   a Unix socket. A Unix socket is a trusted proxy with
///   [`and_unix_socket`](TrustedProxies::and_unix_socket).
/// * [`InvalidIdentity`](ErrorKind::InvalidIdentity), answered with 400: a header of a single address is sent
///   more than once.
///
/// # What is an address
///
/// `192.0.2.1`, `192.0.2.1:4711`, `2001:db8::1`, `[2001:db8::1]` and `[2001:db8::1]:4711`, with or without
/// spaces and tabs around them.
///
/// | case | result |
/// |---|---|
/// | several lines of a list | one list |
/// | empty elements of a list | skipped and not counted |
/// | a port | removed; an invalid port makes the address invalid |
/// | `2001:db8::1:4711` | an IPv6 address, because a port needs brackets |
/// | a zone, `fe80::1%eth0` | removed |
/// | `::ffff:192.0.2.1`, in any notation | 192.0.2.1 |
/// | `192.0.2.01`, `3221225985`, a host name, other text, not UTF-8 | invalid |
/// | `Forwarded`: `unknown`, `_hidden`, no `for`, two `for`, broken syntax | invalid |
/// | `Forwarded`: any case, quotes, escapes, other parameters, an `_obfuscated` port | valid |
/// | `Forwarded`: an address without the quotes that it needs | valid |
/// | `Forwarded`: a quote that is not closed | everything to its left is ignored; only elements to its right are read |
/// | a list of more than 64 addresses or 8 KiB | only this much is read, from the right |
/// | a header of a single address that is invalid, a list, or longer than 8 KiB | unusable |
///
/// # Example
///
/// ```
/// use std::net::SocketAddr;
/// use http::Request;
/// use tower_ratelimit::{ClientIp, Key, KeyExtractor, key::TrustedProxies};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let request = |peer: &str, forwarded_for: &str| {
///     let peer: SocketAddr = peer.parse().unwrap();
///     let request = Request::get("/").extension(peer).header("x-forwarded-for", forwarded_for);
///     request.body(()).unwrap().into_parts().0
/// };
/// let key = ClientIp::behind(TrustedProxies::cidrs(["10.0.0.0/24"])?);
///
/// // Through the proxies 10.0.0.1 and 10.0.0.2. The client sent 1.2.3.4.
/// let proxied = request("10.0.0.2:80", "1.2.3.4, 203.0.113.7, 10.0.0.1");
/// assert_eq!(key.extract(&proxied).await?, Key::new("203.0.113.7"));
///
/// // Not through a proxy: the header is ignored.
/// let direct = request("203.0.113.7:4711", "1.2.3.4");
/// assert_eq!(key.extract(&direct).await?, Key::new("203.0.113.7"));
///
/// // If every request passes two proxies: the second hop from the right.
/// let key = ClientIp::behind(TrustedProxies::hops(2));
/// assert_eq!(key.extract(&proxied).await?, Key::new("203.0.113.7"));
///
/// // An IPv6 client is counted by its network; `address` returns its whole address.
/// let key = ClientIp::behind(TrustedProxies::hops(1)).ipv6_prefix(56);
/// let proxied = request("10.0.0.2:80", "2001:db8:0:17::5");
/// assert_eq!(key.extract(&proxied).await?, Key::new("2001:db8::/56"));
/// assert_eq!(key.address(&proxied)?.to_string(), "2001:db8:0:17::5");
/// assert!(key.within(["2001:db8::/32"])?(&proxied).await?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "an extractor does nothing until a layer or a rule uses it"]
pub struct ClientIp {
    proxies: TrustedProxies,
    header: ForwardingHeader,
    prefix: Prefix,
    warning: Warning,
}

impl ClientIp {
    /// The client behind `proxies`.
    pub fn behind(proxies: TrustedProxies) -> Self {
        let header = ForwardingHeader::x_forwarded_for();
        Self { proxies, header, prefix: Prefix::DEFAULT, warning: Warning::new() }
    }

    /// Sets the header that the proxies send. Defaults to `x-forwarded-for`.
    ///
    /// `x-forwarded-for` and `forwarded` (RFC 7239) are lists. Any other header, such as `x-real-ip` of nginx
    /// or `cf-connecting-ip` of Cloudflare, has a single address.
    ///
    /// # Panics
    ///
    /// If `name` is not a valid header name. [`try_header`](Self::try_header) gives an error instead.
    ///
    /// # Example
    ///
    /// ```
    /// use http::Request;
    /// use tower_ratelimit::{ClientIp, Key, KeyExtractor, key::TrustedProxies};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = ClientIp::behind(TrustedProxies::hops(1)).header("forwarded");
    /// let (parts, ()) = Request::get("/").header("forwarded", "for=203.0.113.7").body(())?.into_parts();
    /// assert_eq!(client.extract(&parts).await?, Key::new("203.0.113.7"));
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn header(self, name: &str) -> Self {
        valid(self.try_header(name))
    }

    /// The fallible form of [`header`](Self::header), for a name read from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](ErrorKind::InvalidConfig) where [`header`](Self::header) panics.
    pub fn try_header(mut self, name: &str) -> Result<Self, Error> {
        self.header = ForwardingHeader::named(name)?;
        Ok(self)
    }

    /// Sets the prefix length of the IPv6 networks that are counted. Defaults to 64.
    ///
    /// Providers often assign a customer a /56 or a /48. A link-local address is always counted in full.
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

    /// Turns off the warning about [requests without a usable header](#requests-without-a-usable-header), if
    /// such requests are expected.
    pub fn without_warning(mut self) -> Self {
        self.warning = Warning::off();
        self
    }

    /// The whole address of the client, regardless of [`ipv6_prefix`](Self::ipv6_prefix). An IPv4 address in
    /// IPv6 form is converted to IPv4.
    ///
    /// # Errors
    ///
    /// [The same as the extractor](#errors).
    pub fn address(&self, request: &Parts) -> Result<IpAddr, Error> {
        self.locate(request).map(|client| client.address)
    }

    /// Matches the requests whose client is in one of `networks`, such as `10.0.0.0/8`. An address without a
    /// prefix length matches only itself. For [`RateLimitLayer::exempt_if`](crate::RateLimitLayer::exempt_if)
    /// and [`RateLimitLayer::block_if`](crate::RateLimitLayer::block_if); see
    /// [`PeerIp::within`](crate::PeerIp::within) for an example.
    ///
    /// The whole address is compared, not the IPv6 network that it is counted under.
    ///
    /// | if the address is not known | exempt | blocked |
    /// |---|---|---|
    /// | the server does not know its peers: [`MissingSetup`](ErrorKind::MissingSetup) | no | rejected, 500 |
    /// | a header of a single address is sent twice: [`InvalidIdentity`](ErrorKind::InvalidIdentity) | no | rejected, 400 |
    /// | the client [cannot be determined](Self#requests-without-a-usable-header), and the proxy's address is in the networks | no | rejected, 400 |
    /// | the same, and the proxy's address is not in the networks | no | no |
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](ErrorKind::InvalidConfig): one of `networks` is neither a network nor an address.
    /// The message names it.
    pub fn within(
        self,
        networks: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<impl Fn(&Parts) -> Answer<bool> + Send + Sync + 'static, Error> {
        let networks = Networks::parse(networks)?;
        Ok(self.matching(move |address| networks.contain(address)))
    }

    /// Matches the requests for whose client `is_match` returns true, such as those from a country or in a list
    /// that changes. In other respects the same as [`within`](Self::within).
    ///
    /// `is_match` gets the whole address, an IPv4 address in IPv6 form as IPv4. It runs for each request, so it must
    /// not block. See [`PeerIp::matching`](crate::PeerIp::matching) for an example.
    pub fn matching(
        self,
        is_match: impl Fn(IpAddr) -> bool + Send + Sync + 'static,
    ) -> impl Fn(&Parts) -> Answer<bool> + Send + Sync + 'static {
        let is_matched = move |request: &Parts| {
            let client = self.locate(request)?;
            match is_match(client.address) {
                true if !client.determined => Err(not_determined()),
                is_match => Ok(is_match),
            }
        };
        move |request: &Parts| is_matched(request).into()
    }

    fn locate(&self, request: &Parts) -> Result<Located, Error> {
        let peer = Peer::of(request);
        let (client, behind_proxy) = match &self.proxies.0 {
            Trust::Hops(count) => {
                let hop = self.header.hop(request, *count)?;
                (hop.map(|address| Located { address, determined: true }), true)
            }
            Trust::Networks { networks, unix_socket } => {
                let trusted = match peer {
                    Peer::Address(address) => networks.contain(address),
                    Peer::UnixSocket => *unix_socket,
                    Peer::Unknown => false,
                };
                (if trusted { self.header.first_outside(request, networks)? } else { None }, trusted)
            }
        };
        let client = match (client, peer) {
            (Some(client), _) => client,
            (None, Peer::Address(address)) => Located { address, determined: !behind_proxy },
            (None, Peer::UnixSocket) => return Err(self.no_address()),
            (None, Peer::Unknown) => return Err(unknown_peer()),
        };
        if !client.determined {
            self.warn_of_header();
        }
        Ok(client)
    }

    fn warn_of_header(&self) {
        if self.warning.first(|| Some(())).is_some() {
            log!(
                warn,
                header = self.header.name().as_str(),
                "a trusted proxy sent a request without a usable forwarding header: its key is the proxy's address, \
                 which all clients in this situation share. Configure the proxy to send the header, or name the \
                 header that it sends with `ClientIp::header`. If only health checks of the proxy lack the header, \
                 turn this warning off with `ClientIp::without_warning`"
            );
        }
    }

    /// The error for a peer on a Unix socket that is not trusted, or whose header contains no client.
    fn no_address(&self) -> Error {
        let message = match &self.proxies.0 {
            Trust::Networks { unix_socket: false, .. } => {
                "the peer is a Unix socket, which has no address and is not a trusted proxy: \
                 call `TrustedProxies::and_unix_socket`"
                    .into()
            }
            _ => format!(
                "the peer is a Unix socket, which has no address, and its header `{}` names no client: \
                 configure the proxy to send the client's address in this header",
                self.header.name(),
            ),
        };
        Error::new(ErrorKind::MissingSetup, message)
    }
}

impl KeyExtractor for ClientIp {
    fn extract(&self, request: &Parts) -> Answer<Key> {
        let key = self.locate(request).map(|client| {
            let key = self.prefix.key(client.address);
            if client.determined { key } else { key.assumed() }
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
