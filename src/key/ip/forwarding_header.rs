use std::net::IpAddr;

use http::{HeaderName, header::FORWARDED, request::Parts};

use super::{hops, networks::Networks};
use crate::base::{Error, ErrorKind};

const X_FORWARDED_FOR: &str = "x-forwarded-for";

/// The header in which the proxies send the client's address.
#[derive(Clone, Debug)]
pub(super) enum ForwardingHeader {
    XForwardedFor,
    Forwarded,
    /// A header with a single address.
    Single(HeaderName),
}

impl ForwardingHeader {
    pub(super) fn named(name: &str) -> Result<Self, Error> {
        match HeaderName::try_from(name) {
            Ok(name) if name == X_FORWARDED_FOR => Ok(Self::XForwardedFor),
            Ok(FORWARDED) => Ok(Self::Forwarded),
            Ok(name) => Ok(Self::Single(name)),
            Err(cause) => {
                let message = format!("{name:?} is not a header name");
                Err(Error::new(ErrorKind::InvalidConfig, message).with_source(cause))
            }
        }
    }

    pub(super) fn name(&self) -> &str {
        match self {
            Self::XForwardedFor => X_FORWARDED_FOR,
            Self::Forwarded => "forwarded",
            Self::Single(name) => name.as_str(),
        }
    }

    /// The `count`-th hop from the right, or the single address. `None` if it is not there or not an address.
    pub(super) fn hop(&self, request: &Parts, count: usize) -> Result<Option<IpAddr>, Error> {
        let before = count.saturating_sub(1);
        match self {
            Self::XForwardedFor => Ok(hops::x_forwarded_for(&request.headers).nth(before).flatten()),
            Self::Forwarded => Ok(hops::forwarded(&request.headers).nth(before).flatten()),
            Self::Single(name) => single(request, name),
        }
    }

    /// The first hop from the right that is not in `proxies`, else the last one that is an address; or the single
    /// address.
    pub(super) fn first_outside(&self, request: &Parts, proxies: &Networks) -> Result<Option<Client>, Error> {
        match self {
            Self::XForwardedFor => Ok(walk(hops::x_forwarded_for(&request.headers), proxies)),
            Self::Forwarded => Ok(walk(hops::forwarded(&request.headers), proxies)),
            Self::Single(name) => {
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
    hops::single(&request.headers, name).map_err(|_| {
        Error::new(ErrorKind::InvalidIdentity, format!("the header `{name}` is sent more than once"))
    })
}

/// The origin of a request.
#[derive(Clone, Copy)]
pub(super) struct Client {
    pub(super) address: IpAddr,
    /// Whether it is the client's address. Otherwise it is a proxy's address: the known one nearest to the client.
    pub(super) determined: bool,
}
