use std::net::IpAddr;

use http::{HeaderName, request::Parts};

use super::{forwarding, networks::Networks};
use crate::base::{Error, ErrorKind};

/// The header in which the proxies send the client's address. See [`ClientIp`](crate::ClientIp#which-header) for the
/// headers that a proxy must overwrite.
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
#[must_use = "a header is not read until a `ClientIp` uses it"]
pub struct ForwardingHeader(Source);

#[derive(Clone, Debug)]
enum Source {
    XForwardedFor,
    Forwarded,
    Single(HeaderName),
}

impl ForwardingHeader {
    /// `X-Forwarded-For`, a list of addresses. Most proxies send it.
    pub const fn x_forwarded_for() -> Self {
        Self(Source::XForwardedFor)
    }

    /// `Forwarded`, the list of RFC 7239. Its parameter `for` is the address.
    pub const fn forwarded() -> Self {
        Self(Source::Forwarded)
    }

    /// `X-Real-IP`, one address.
    pub const fn x_real_ip() -> Self {
        Self(Source::Single(HeaderName::from_static("x-real-ip")))
    }

    /// `CF-Connecting-IP`, one address. Cloudflare sends it.
    pub const fn cf_connecting_ip() -> Self {
        Self(Source::Single(HeaderName::from_static("cf-connecting-ip")))
    }

    /// The header `name` with one address, such as `Fly-Client-IP` or `True-Client-IP`. Its case does not count.
    ///
    /// # Panics
    ///
    /// If `name` is not a valid header name. [`try_named`](Self::try_named) returns an error instead.
    #[track_caller]
    pub fn named(name: &str) -> Self {
        match Self::try_named(name) {
            Ok(header) => header,
            Err(error) => panic!("{error}"),
        }
    }

    /// [`named`](Self::named) for a name that is not known to be valid, such as one from a configuration file.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](ErrorKind::InvalidConfig): `name` is not a valid header name.
    pub fn try_named(name: &str) -> Result<Self, Error> {
        match HeaderName::try_from(name) {
            Ok(name) => Ok(Self(Source::Single(name))),
            Err(cause) => {
                let message = format!("{name:?} is not a header name");
                Err(Error::new(ErrorKind::InvalidConfig, message).with_source(cause))
            }
        }
    }

    pub(super) fn name(&self) -> &str {
        match &self.0 {
            Source::XForwardedFor => "x-forwarded-for",
            Source::Forwarded => "forwarded",
            Source::Single(name) => name.as_str(),
        }
    }

    /// The `count`-th hop from the right, or the single address. `None` if it is not there or not an address.
    pub(super) fn hop(&self, request: &Parts, count: usize) -> Result<Option<IpAddr>, Error> {
        let before = count.saturating_sub(1);
        match &self.0 {
            Source::XForwardedFor => Ok(forwarding::x_forwarded_for(&request.headers).nth(before).flatten()),
            Source::Forwarded => Ok(forwarding::forwarded(&request.headers).nth(before).flatten()),
            Source::Single(name) => single(request, name),
        }
    }

    /// The first hop from the right that is not in `proxies`, else the last one that is an address; or the single
    /// address.
    pub(super) fn first_outside(&self, request: &Parts, proxies: &Networks) -> Result<Option<Client>, Error> {
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
            // The hops further to the left are not known.
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
    forwarding::single(&request.headers, name).map_err(|_| {
        Error::new(ErrorKind::InvalidIdentity, format!("the header `{name}` is sent more than once"))
    })
}

/// The origin of a request.
#[derive(Clone, Copy)]
pub(super) struct Client {
    pub(super) address: IpAddr,
    /// Whether it is the client's address. Otherwise it is that of a proxy: of those known, the one nearest to the
    /// client.
    pub(super) determined: bool,
}
