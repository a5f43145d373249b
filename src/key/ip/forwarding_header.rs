//! The header in which proxies send the client's address. Lists are read from the right, where the nearest
//! proxy appended, so nothing to the left of an element can change its meaning.

use std::{
    iter::Rev,
    net::{IpAddr, Ipv6Addr},
};

use http::{
    HeaderName, HeaderValue,
    header::{FORWARDED, ValueIter},
    request::Parts,
};

use super::proxies::{MAX_HOPS, Networks};
use crate::{
    base::Error,
    key::header::{MAX_VALUE, header_name, single},
};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

#[derive(Clone, Debug)]
pub(super) struct ForwardingHeader {
    name: HeaderName,
    format: Format,
}

#[derive(Clone, Debug)]
enum Format {
    /// A list: where its last element is cut off, and the address in an element.
    List(fn(&[u8]) -> Cut, fn(&[u8]) -> Option<IpAddr>),
    Single,
}

impl ForwardingHeader {
    pub(super) fn x_forwarded_for() -> Self {
        Self { name: X_FORWARDED_FOR, format: Format::List(last_comma, address) }
    }

    pub(super) fn named(name: &str) -> Result<Self, Error> {
        Ok(match header_name(name)? {
            name if name == X_FORWARDED_FOR => Self::x_forwarded_for(),
            FORWARDED => {
                Self { name: FORWARDED, format: Format::List(last_comma_outside_quotes, address_in_for) }
            }
            name => Self { name, format: Format::Single },
        })
    }

    pub(super) const fn name(&self) -> &HeaderName {
        &self.name
    }

    /// The `count`-th hop from the right, or the single address. `None` if it is not there or not an address.
    pub(super) fn hop(&self, request: &Parts, count: usize) -> Result<Option<IpAddr>, Error> {
        match self.format {
            Format::List(cut, address) => {
                let mut hops = Elements::of(request, &self.name, cut);
                Ok(hops.nth(count.saturating_sub(1)).flatten().and_then(address))
            }
            Format::Single => self.single(request),
        }
    }

    /// The first hop from the right that is not in `proxies`, else the last one that is an address; or the
    /// single address.
    pub(super) fn first_outside(
        &self,
        request: &Parts,
        proxies: &Networks,
    ) -> Result<Option<Located>, Error> {
        let Format::List(cut, address) = self.format else {
            return Ok(self.single(request)?.map(|address| Located { address, determined: true }));
        };
        let mut last = None;
        for hop in Elements::of(request, &self.name, cut) {
            let Some(address) = hop.and_then(address) else {
                // The hops further to the left are not known.
                return Ok(last.map(|proxy| Located { determined: false, ..proxy }));
            };
            last = Some(Located { address, determined: true });
            if !proxies.contain(address) {
                break;
            }
        }
        Ok(last)
    }

    fn single(&self, request: &Parts) -> Result<Option<IpAddr>, Error> {
        let value = single(request, &self.name)?.filter(|value| value.len() <= MAX_VALUE);
        Ok(value.and_then(|value| address(value.trim_ascii())))
    }
}

/// The address that identifies a request.
#[derive(Clone, Copy)]
pub(super) struct Located {
    pub(super) address: IpAddr,
    /// Whether it is the client's address. Otherwise it is a proxy's address: the known one nearest to the
    /// client.
    pub(super) determined: bool,
}

/// Where the last element of a list is cut off.
enum Cut {
    /// At this comma.
    Comma(usize),
    /// Nowhere: there is one element.
    Whole,
    /// Unknown: a quoted string has an end and no beginning.
    Unbalanced,
}

/// The elements of a list, over all lines of its header, from the right. Empty elements are skipped. A `None`
/// at the end stands for elements that are not read.
struct Elements<'a> {
    lines: Rev<ValueIter<'a, HeaderValue>>,
    /// The part of the current line that is not read yet.
    line: Option<&'a [u8]>,
    cut: fn(&[u8]) -> Cut,
    hops_left: usize,
    bytes_left: usize,
    ended: bool,
}

impl<'a> Elements<'a> {
    fn of(request: &'a Parts, name: &HeaderName, cut: fn(&[u8]) -> Cut) -> Self {
        let lines = request.headers.get_all(name).into_iter().rev();
        Self { lines, line: None, cut, hops_left: MAX_HOPS, bytes_left: MAX_VALUE, ended: false }
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = Option<&'a [u8]>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            let line = match self.line.take() {
                Some(line) => line,
                None => self.lines.next()?.as_bytes(),
            };
            if self.hops_left == 0 || self.bytes_left == 0 {
                break;
            }
            let hidden = line.len().saturating_sub(self.bytes_left);
            let (_, seen) = line.split_at(hidden);
            let element = match (self.cut)(seen) {
                Cut::Comma(at) => {
                    let (rest, element) = line.split_at(hidden + at);
                    self.line = Some(rest);
                    element.get(1..).unwrap_or_default()
                }
                Cut::Whole if hidden == 0 => line,
                // A part of an element may be a different address than the whole element.
                Cut::Whole | Cut::Unbalanced => break,
            };
            // The comma, or the end of the line, counts too.
            self.bytes_left = self.bytes_left.saturating_sub(element.len() + 1);
            let element = element.trim_ascii();
            if !element.is_empty() {
                self.hops_left -= 1;
                return Some(Some(element));
            }
        }
        (!std::mem::replace(&mut self.ended, true)).then_some(None)
    }
}

fn last_comma(list: &[u8]) -> Cut {
    list.iter().rposition(|&byte| byte == b',').map_or(Cut::Whole, Cut::Comma)
}

fn last_comma_outside_quotes(list: &[u8]) -> Cut {
    let mut quoted = false;
    let mut end = list.len();
    while let Some((&byte, before)) = list.get(..end).and_then(<[u8]>::split_last) {
        match byte {
            b'"' => {
                let backslashes = before.iter().rev().take_while(|&&byte| byte == b'\\').count();
                let escaped = backslashes % 2 == 1;
                if escaped && !quoted {
                    // A quoted string does not end like this.
                    return Cut::Unbalanced;
                }
                quoted ^= !escaped;
                end = before.len() - backslashes;
            }
            b',' if !quoted => return Cut::Comma(before.len()),
            _ => end = before.len(),
        }
    }
    if quoted { Cut::Unbalanced } else { Cut::Whole }
}

/// The address in an element of `X-Forwarded-For`, or in a header of a single address.
fn address(element: &[u8]) -> Option<IpAddr> {
    node(element, is_port)
}

/// The address in an element of `Forwarded`, from its parameter `for`, of which there must be one.
fn address_in_for(element: &[u8]) -> Option<IpAddr> {
    let mut rest = element;
    let mut found: Option<Vec<u8>> = None;
    loop {
        rest = rest.trim_ascii_start();
        if let Some((b';', after)) = rest.split_first() {
            rest = after;
            continue;
        }
        if rest.is_empty() {
            return node(&found?, |port| is_port(port) || is_obfuscated(port));
        }
        let name_ends = rest.iter().position(|&byte| !is_token(byte))?;
        let (name, after) = rest.split_at_checked(name_ends).filter(|(name, _)| !name.is_empty())?;
        let after = after.strip_prefix(b"=")?;
        let (value, after) = value(after)?;
        if name.eq_ignore_ascii_case(b"for") && found.replace(value).is_some() {
            return None;
        }
        rest = after.trim_ascii_start();
        if !rest.is_empty() && !rest.starts_with(b";") {
            return None;
        }
    }
}

/// The value at the start of `text`, and the rest: a quoted string without its quotes and escapes, or all up
/// to the next `;` or whitespace.
fn value(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let Some(mut rest) = text.strip_prefix(b"\"") else {
        let ends = text.iter().position(|&byte| matches!(byte, b';' | b' ' | b'\t')).unwrap_or(text.len());
        let (value, rest) = text.split_at_checked(ends)?;
        return (!value.contains(&b'"')).then(|| (value.to_vec(), rest));
    };
    let mut value = Vec::new();
    loop {
        let (&byte, after) = rest.split_first()?;
        rest = after;
        match byte {
            b'"' => return Some((value, rest)),
            b'\\' => {
                let (&escaped, after) = rest.split_first()?;
                value.push(escaped);
                rest = after;
            }
            _ => value.push(byte),
        }
    }
}

/// The address of `v4`, `v4:port`, `v6`, `[v6]` or `[v6]:port`, in canonical form.
fn node(text: &[u8], is_port: impl Fn(&str) -> bool) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let address = if let Some(rest) = text.strip_prefix('[') {
        let (address, port) = rest.split_once(']')?;
        if !port.is_empty() && !is_port(port.strip_prefix(':')?) {
            return None;
        }
        IpAddr::V6(v6(address)?)
    } else {
        match text.split_once(':') {
            None => IpAddr::V4(text.parse().ok()?),
            Some((address, port)) if !port.contains(':') && is_port(port) => {
                IpAddr::V4(address.parse().ok()?)
            }
            Some(_) => IpAddr::V6(v6(text)?),
        }
    };
    Some(address.to_canonical())
}

/// The IPv6 address without its zone, which names an interface of the proxy.
fn v6(text: &str) -> Option<Ipv6Addr> {
    match text.split_once('%') {
        Some((_, "")) => None,
        Some((address, _)) => address.parse().ok(),
        None => text.parse().ok(),
    }
}

fn is_port(text: &str) -> bool {
    text.len() <= 5 && text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

/// Whether `text` is an obfuscated port by RFC 7239.
fn is_obfuscated(text: &str) -> bool {
    let name = text.strip_prefix('_').unwrap_or_default();
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
