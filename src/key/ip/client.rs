use std::net::IpAddr;

use http::{HeaderName, request::Parts};

use super::{
    PeerIp, Within,
    connection::Peer,
    forwarding::{self, MAX_HOPS},
    networks::Networks,
    peer,
};
use crate::key::{Key, KeyExtractor};
use crate::{
    answer::Answer,
    error::{Error, ErrorKind},
};

/// The address of the client behind the proxies that you declare. IPv6 addresses count by their /64
/// network and link-local ones as a whole, as with [`PeerIp`].
///
/// # The attack
///
/// Anybody can send `X-Forwarded-For: 1.2.3.4`. A proxy *appends* the address it saw to what is there, so
/// the left-most address is whatever the client wrote: a limit by it is no limit, since each request can
/// name another address. What a proxy of yours appended can be believed, and only that. It stands on the
/// right, and how far it reaches depends on how many proxies there are. So they must be declared, and
/// there is no default.
///
/// # Which hop is the client
///
/// * [`TrustedProxies::cidrs`]: the networks your proxies are in. The header is read only if the
///   peer itself is in one of them; from everybody else it is ignored. The hops are walked from the
///   right; the first that is not in the networks is the client. Where all of them are, the left-most is.
///   A hop that is no address ends the walk, and the last good one counts: the one to its right, or the
///   peer.
/// * [`TrustedProxies::hops`]: how many proxies every request passes. With 2, the client is the second hop
///   from the right, whoever the peer is. Where the list is shorter, or that hop is no address, it is the
///   peer. **If the service can be reached past its proxies, a client writes that hop itself**: use this
///   only where the network keeps everybody else out.
///
/// # Which header
///
/// One, and never another in its place: [`ForwardingHeader`]. Every proxy that you declare must write it.
/// To the lists, [`x_forwarded_for`](ForwardingHeader::x_forwarded_for) (the default) and
/// [`forwarded`](ForwardingHeader::forwarded), a proxy must *append*, or *overwrite* them. The headers of a
/// single address, [`x_real_ip`](ForwardingHeader::x_real_ip),
/// [`cf_connecting_ip`](ForwardingHeader::cf_connecting_ip) and [`named`](ForwardingHeader::named), the
/// outermost proxy must *overwrite*, on every request. If a proxy passes on what a client sent, or a
/// client can reach a declared proxy that does not know the header, then the client chooses its key.
///
/// # What is an address
///
/// `192.0.2.1`, `192.0.2.1:4711`, `2001:db8::1`, `[2001:db8::1]` and `[2001:db8::1]:4711`, with spaces and
/// tabs around.
///
/// | oddity | what happens |
/// |---|---|
/// | several lines of a list | are one list |
/// | empty elements of a list | are skipped and not counted |
/// | a port | is dropped; one that is not 0 to 65535 in digits makes the hop no address |
/// | `2001:db8::1:4711` | is an IPv6 address: without brackets there is no telling the port |
/// | a zone, `fe80::1%eth0` | is dropped |
/// | `::ffff:192.0.2.1`, in any notation | is 192.0.2.1 |
/// | `192.0.2.01`, `3221225985`, a host's name, other text, not UTF-8 | is no address |
/// | `Forwarded`: `unknown`, `_hidden`, no `for`, two `for`, broken syntax | is a hop that is no address |
/// | `Forwarded`: any case, quoting, escapes, other parameters, an `_obfuscated` port | are understood |
/// | `Forwarded`: an address that should be quoted and is not | is understood |
/// | `Forwarded`: a quote that a client left open | ends the list there; what proxies appended is read |
/// | a list longer than 64 hops or 8 KiB | ends there, from the right: the rest is not read |
/// | a header of a single address that stands twice | [`InvalidIdentity`](ErrorKind::InvalidIdentity) |
/// | one that is missing, no address, a list, or longer than 8 KiB | the peer |
///
/// # Where the peer is not known
///
/// [`PeerIp`] says where the peer's address comes from. Without it `cidrs` trusts nobody, and `hops` needs
/// it only where the header gives no client: then the answer is
/// [`MissingSetup`](ErrorKind::MissingSetup), 500, and never a key that clients share. A Unix socket has no
/// address, so it answers the same, unless [`and_unix_socket`](TrustedProxies::and_unix_socket) is
/// called and the header names a client.
///
/// # Where the client cannot be determined
///
/// Where a trusted proxy gives no client, the key is a proxy's: the header is missing, the hop that counts is no
/// address, the list ends where it is not read further, or there are fewer hops than declared. All such requests
/// share the proxy's limit, and none of them is [exempt](crate::RateLimitLayer::exempt), though the proxy is in
/// a network or among the addresses that are: a client could lose the header on purpose. A
/// [ban](crate::RateLimitLayer::ban) of that proxy rejects them with 400. To exempt health checks that a proxy
/// sends itself, match their path.
///
/// A peer that is not a trusted proxy is the client, and so is the left-most hop where all are trusted.
///
/// # Example
///
/// ```
/// use std::net::SocketAddr;
/// use http::Request;
/// use tower_ratelimit::{ClientIp, Key, KeyExtractor, TrustedProxies};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let request = |peer: &str, forwarded_for: &str| {
///     let peer: SocketAddr = peer.parse().unwrap();
///     let request = Request::get("/").extension(peer).header("x-forwarded-for", forwarded_for);
///     request.body(()).unwrap().into_parts().0
/// };
/// let key = ClientIp::behind(TrustedProxies::cidrs(["10.0.0.0/8"])?);
///
/// // Through two proxies, 10.0.0.1 and 10.0.0.2. The client wrote 1.2.3.4 itself.
/// let proxied = request("10.0.0.2:80", "1.2.3.4, 203.0.113.7, 10.0.0.1");
/// assert_eq!(key.extract(&proxied).await?, Key::new("203.0.113.7"));
///
/// // Past them.
/// let direct = request("203.0.113.7:4711", "1.2.3.4");
/// assert_eq!(key.extract(&direct).await?, Key::new("203.0.113.7"));
///
/// // Where it is known how many there are: the second hop from the right.
/// let key = ClientIp::behind(TrustedProxies::hops(2));
/// assert_eq!(key.extract(&proxied).await?, Key::new("203.0.113.7"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ClientIp {
    proxies: TrustedProxies,
    header: ForwardingHeader,
    /// Makes the keys.
    addresses: PeerIp,
}

impl ClientIp {
    /// The client behind `proxies`.
    #[must_use]
    pub fn behind(proxies: TrustedProxies) -> Self {
        Self { proxies, header: ForwardingHeader::x_forwarded_for(), addresses: PeerIp::new() }
    }

    /// The header that the proxies write. Defaults to [`ForwardingHeader::x_forwarded_for`].
    #[must_use]
    pub fn header(mut self, header: ForwardingHeader) -> Self {
        self.header = header;
        self
    }

    /// How many leading bits of an IPv6 address count. Defaults to 64; 56 and 48 are what larger
    /// customers get.
    ///
    /// # Panics
    ///
    /// If `bits` is 0 or above 128.
    #[must_use]
    pub const fn ipv6_prefix(mut self, bits: u8) -> Self {
        self.addresses = self.addresses.ipv6_prefix(bits);
        self
    }

    /// The client's whole address, whatever [`ipv6_prefix`](Self::ipv6_prefix) says. An IPv4 address in its
    /// IPv6 form is given as IPv4.
    ///
    /// # Errors
    ///
    /// * [`InvalidIdentity`](ErrorKind::InvalidIdentity): a header of a single address stands more than once.
    /// * [`MissingSetup`](ErrorKind::MissingSetup): the peer would be the answer, and the server does
    ///   not say who it is, or it is a Unix socket.
    pub fn address(&self, request: &Parts) -> Result<IpAddr, Error> {
        self.locate(request).map(|client| client.address)
    }

    /// The client's address, and whether it is certain.
    pub(super) fn locate(&self, request: &Parts) -> Result<Client, Error> {
        let peer = Peer::of(request);
        let (client, behind_proxy) = match &self.proxies.0 {
            Trust::Hops(count) => {
                let hop = self.header.hop(request, *count)?;
                (hop.map(|address| Client { address, determined: true }), true)
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
        match (client, peer) {
            (Some(client), _) => Ok(client),
            (None, Peer::Address(address)) => Ok(Client { address, determined: !behind_proxy }),
            (None, Peer::UnixSocket) => Err(self.no_address()),
            (None, Peer::Unknown) => Err(peer::unknown_peer()),
        }
    }

    /// The requests whose client is in one of `networks`, such as `10.0.0.0/8`; an address on its own is the
    /// network of itself. See [`Within`] for an example.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](ErrorKind::InvalidConfig): one of `networks` is neither; the message names it.
    pub fn within(self, networks: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Within<Self>, Error> {
        Ok(Within::new(self, Networks::parse(networks)?))
    }

    /// Of a peer on a Unix socket whose header names no client, or is not read.
    fn no_address(&self) -> Error {
        let message = match &self.proxies.0 {
            Trust::Networks { unix_socket: false, .. } => {
                "the peer is a Unix socket, which has no address and is not declared a trusted proxy: \
                 call `TrustedProxies::and_unix_socket`"
                    .into()
            }
            _ => format!(
                "the peer is a Unix socket, which has no address, and its header `{}` names no client: \
                 let the proxy write the client's address there",
                self.header.name(),
            ),
        };
        Error::new(ErrorKind::MissingSetup, message)
    }
}

impl KeyExtractor for ClientIp {
    fn extract(&self, request: &Parts) -> Answer<Key> {
        let key = self.locate(request).map(|client| {
            let key = self.addresses.key(client.address);
            if client.determined { key } else { key.assumed() }
        });
        key.into()
    }

    fn keys_of(&self, named: &Key) -> Result<Vec<Key>, Error> {
        self.addresses.keys_of(named)
    }
}

/// Where a request comes from.
#[derive(Clone, Copy)]
pub(super) struct Client {
    pub(super) address: IpAddr,
    /// Whether it is the client's. Otherwise it is a proxy's, the nearest to the client that is known.
    pub(super) determined: bool,
}

/// Which hops of a request are your own proxies. See [`ClientIp`] for what follows and an example.
#[derive(Clone, Debug)]
pub struct TrustedProxies(Trust);

#[derive(Clone, Debug)]
enum Trust {
    Networks { networks: Networks, unix_socket: bool },
    Hops(usize),
}

impl TrustedProxies {
    /// Proxies in the networks `cidrs`, such as `10.0.0.0/8` and `fd00::/8`. An address on its own is the
    /// network of itself.
    ///
    /// Name networks that only your proxies are in: a client in one of them chooses its own key. Those
    /// of a CDN are trusted with the requests of all its customers.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](ErrorKind::InvalidConfig): one of `cidrs` is neither; the message names it.
    pub fn cidrs(cidrs: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, Error> {
        Ok(Self(Trust::Networks { networks: Networks::parse(cidrs)?, unix_socket: false }))
    }

    /// `count` proxies, whatever their addresses: those that every request passes.
    ///
    /// # Panics
    ///
    /// If `count` is 0, which is what [`PeerIp`] is for, or above 64, which is as far as a list is read.
    #[must_use]
    pub const fn hops(count: usize) -> Self {
        assert!(count >= 1 && count <= MAX_HOPS, "a request passes 1 to 64 trusted proxies");
        Self(Trust::Hops(count))
    }

    /// Also trusts a peer on a Unix socket, such as an nginx on the same host. With
    /// [`hops`](Self::hops), which trusts every peer, it changes nothing.
    #[must_use]
    pub fn and_unix_socket(mut self) -> Self {
        if let Trust::Networks { unix_socket, .. } = &mut self.0 {
            *unix_socket = true;
        }
        self
    }
}

/// The header in which the proxies say who the client is. See [`ClientIp`] for which of them a proxy must
/// overwrite.
///
/// # Example
///
/// ```
/// use http::Request;
/// use tower_ratelimit::{key::ForwardingHeader, ClientIp, TrustedProxies};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = ClientIp::behind(TrustedProxies::hops(1)).header(ForwardingHeader::forwarded());
/// let request = Request::get("/").header("forwarded", r#"for="[2001:db8::1]:4711";proto=https"#);
/// let (parts, ()) = request.body(())?.into_parts();
/// assert_eq!(client.address(&parts)?.to_string(), "2001:db8::1");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ForwardingHeader(Source);

#[derive(Clone, Debug)]
enum Source {
    XForwardedFor,
    Forwarded,
    Single(HeaderName),
}

impl ForwardingHeader {
    /// `X-Forwarded-For`, a list of addresses.
    #[must_use]
    pub const fn x_forwarded_for() -> Self {
        Self(Source::XForwardedFor)
    }

    /// `Forwarded`, the list of RFC 7239. Its parameter `for` is read.
    #[must_use]
    pub const fn forwarded() -> Self {
        Self(Source::Forwarded)
    }

    /// `X-Real-IP`, one address.
    #[must_use]
    pub const fn x_real_ip() -> Self {
        Self(Source::Single(HeaderName::from_static("x-real-ip")))
    }

    /// `CF-Connecting-IP`, one address, which Cloudflare writes.
    #[must_use]
    pub const fn cf_connecting_ip() -> Self {
        Self(Source::Single(HeaderName::from_static("cf-connecting-ip")))
    }

    /// A header with one address, such as `Fly-Client-IP` or `True-Client-IP`. In any case.
    ///
    /// # Panics
    ///
    /// If `name` is no header name.
    #[must_use]
    pub fn named(name: &str) -> Self {
        match HeaderName::try_from(name) {
            Ok(name) => Self(Source::Single(name)),
            Err(_) => panic!("{name:?} is not a header name"),
        }
    }

    fn name(&self) -> &str {
        match &self.0 {
            Source::XForwardedFor => "x-forwarded-for",
            Source::Forwarded => "forwarded",
            Source::Single(name) => name.as_str(),
        }
    }

    /// The `count`-th hop from the right, or the one address, if it is one.
    fn hop(&self, request: &Parts, count: usize) -> Result<Option<IpAddr>, Error> {
        let before = count.saturating_sub(1);
        match &self.0 {
            Source::XForwardedFor => Ok(forwarding::x_forwarded_for(&request.headers).nth(before).flatten()),
            Source::Forwarded => Ok(forwarding::forwarded(&request.headers).nth(before).flatten()),
            Source::Single(name) => single(request, name),
        }
    }

    /// The first hop from the right outside `proxies`, else the last good one; or the one address.
    fn first_outside(&self, request: &Parts, proxies: &Networks) -> Result<Option<Client>, Error> {
        match &self.0 {
            Source::XForwardedFor => Ok(walk(forwarding::x_forwarded_for(&request.headers), proxies)),
            Source::Forwarded => Ok(walk(forwarding::forwarded(&request.headers), proxies)),
            Source::Single(name) => {
                Ok(single(request, name)?.map(|address| Client { address, determined: true }))
            }
        }
    }
}

fn walk(hops: impl Iterator<Item = Option<IpAddr>>, proxies: &Networks) -> Option<Client> {
    let mut last = None;
    for hop in hops {
        let Some(address) = hop else {
            // Who is further out is unknown.
            return last.map(|client| Client { determined: false, ..client });
        };
        last = Some(Client { address, determined: true });
        if !proxies.contain(address) {
            break;
        }
    }
    last
}

fn single(request: &Parts, name: &HeaderName) -> Result<Option<IpAddr>, Error> {
    forwarding::single(&request.headers, name)
        .map_err(|_| Error::new(ErrorKind::InvalidIdentity, format!("the header `{name}` must stand once")))
}
