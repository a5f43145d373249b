//! Tables of extractors: the keys that they make of requests, and the identities that they match.

use std::{net::SocketAddr, sync::Arc};

use futures_util::FutureExt as _;
use http::{HeaderValue, Request, request::Parts};
use support::table::{headers, rows, unescaped};
use tower_ratelimit::{
    Answer, ClientIp, Error, ErrorKind, Header, Key, KeyExtractor, PeerIp,
    key::{Bearer, Cookie, MatchedRoute, Repeat, TrustedProxies},
};

type Extractor = Box<dyn KeyExtractor>;

/// The extractor of a cell: parts with `or` or `and` between them, and changes of all that is to their left, such as
/// `(cookie s or peer) hashed`.
fn extractor(text: &str) -> Extractor {
    let words = text.replace('(', "( ").replace(')', " )");
    expression(&mut words.split_whitespace().collect::<Vec<_>>().into())
}

type Words<'a> = std::collections::VecDeque<&'a str>;

fn expression(words: &mut Words<'_>) -> Extractor {
    let mut left = part(words);
    while let Some(word) = words.pop_front().filter(|word| *word != ")") {
        left = match word {
            "or" => Box::new(left.or(part(words))),
            "and" => Box::new((left, part(words))),
            "hashed" => Box::new(left.hashed([7; 32])),
            "lower" => Box::new(left.map(str::to_lowercase)),
            "same" => Box::new(left.map(|identity: &str| identity.to_owned())),
            "none" => Box::new(left.map(|_: &str| None::<Key>)),
            "domain" => {
                Box::new(left.map(|email: &str| email.split_once('@').map(|(_, domain)| domain.to_owned())))
            }
            // The same key, but later.
            "later" => Box::new(move |parts: &Parts| {
                let key = left.extract(parts);
                Answer::pending(key)
            }),
            "is" => {
                let (left, named) = (Arc::<dyn KeyExtractor>::from(left), named(words.pop_front().unwrap()));
                Box::new(move |parts: &Parts| {
                    let matches = now(left.clone().try_any_of([named.clone()])?(parts))?;
                    Ok::<_, Error>(if matches { "yes" } else { "no" })
                })
            }
            "shared" => Box::new(Arc::<dyn KeyExtractor>::from(left)),
            _ => panic!("unknown: {word}"),
        }
    }
    left
}

fn part(words: &mut Words<'_>) -> Extractor {
    let kind = words.pop_front().unwrap();
    let takes_name = ["header", "bytes", "cookie", "raw-cookie", "key"].contains(&kind);
    let name = if takes_name { words.pop_front().unwrap().to_owned() } else { String::new() };
    let setting = words.front().copied().unwrap_or_default().to_owned();
    let repeat = match &*setting {
        "first" => Repeat::First,
        "last" => Repeat::Last,
        _ => Repeat::Reject,
    };
    let bits = setting.strip_prefix('/').map(|bits| bits.parse().unwrap());
    if repeat != Repeat::Reject || bits.is_some() {
        words.pop_front();
    }
    match kind {
        "(" => expression(words),
        "header" => Box::new(Header::new(&name).on_repeat(repeat)),
        "bytes" => Box::new(move |parts: &Parts| parts.headers[&name].as_bytes().to_vec()),
        "bearer" => Box::new(Bearer::new().on_repeat(repeat)),
        "cookie" => Box::new(Cookie::new(&name).on_repeat(repeat)),
        "raw-cookie" => Box::new(Cookie::new(&name).raw()),
        "key" => Box::new(Key::new(name)),
        "route" => Box::new(MatchedRoute::default()),
        "peer" => Box::new(PeerIp::new().ipv6_prefix(bits.unwrap_or(64))),
        "proxied" => Box::new(ClientIp::behind(TrustedProxies::hops(1)).ipv6_prefix(bits.unwrap_or(64))),
        "real-ip" => Box::new(ClientIp::behind(TrustedProxies::hops(1)).header("x-real-ip")),
        _ => panic!("unknown: {kind}"),
    }
}

/// An identity, or the one of a tuple, `a&b`.
fn named(text: &str) -> Key {
    let parts: Vec<_> = text.trim_end_matches('&').split('&').map(unescaped).map(Key::new).collect();
    if text.contains('&') { Key::join(&parts) } else { parts[0].clone() }
}

/// The request of a cell: `name: value` between ` | `. `from` is its peer, and `url` its target.
fn request(cell: &str) -> Parts {
    let mut request = Request::get("/");
    for (name, value) in headers(cell) {
        request = match &*name {
            "from" => request.extension(SocketAddr::new(value.parse().unwrap(), 1)),
            "url" => request.uri(value),
            _ => {
                let bytes: Vec<_> = value.chars().map(|byte| u8::try_from(byte).unwrap()).collect();
                request.header(name, HeaderValue::from_bytes(&bytes).unwrap())
            }
        };
    }
    request.body(()).unwrap().into_parts().0
}

/// A cell in which `x×3` stands for `xxx`.
fn repeated(cell: &str) -> String {
    let mut parts = cell.split('×');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |mut text, part| {
        let end = part.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(part.len());
        let last = text.pop().unwrap();
        text.extend(std::iter::repeat_n(last, part[..end].parse().unwrap()));
        text + &part[end..]
    })
}

fn now<T>(answer: impl Future<Output = T>) -> T {
    answer.now_or_never().unwrap()
}

/// A key as a table has it: its identity, or its stored text if it is not the key of its identity alone.
fn shown(key: Result<Key, Error>, with_message: bool) -> String {
    match key {
        Err(error) if with_message => format!("{:?}: {error}", error.kind()),
        Err(error) => format!("{:?}", error.kind()),
        Ok(key) => match key.identity() {
            Some(identity) if Key::new(&*identity) == key => identity.into_owned(),
            _ => format!("stored {}", key.as_str()),
        },
    }
}

/// Panics with all that differ.
fn end(differ: &[String]) {
    assert!(differ.is_empty(), "{} rows differ:\n{}", differ.len(), differ.join("\n"));
}

#[test]
fn extractors_make_these_keys_and_match_these_identities() {
    let mut differ = Vec::new();
    // Each row is a line.
    let lines = (1..).zip(include_str!("tables/keys.txt").lines());
    for (number, row) in lines.flat_map(|(number, line)| rows(line).into_iter().map(move |row| (number, row)))
    {
        let [name, extractors, expected, requests] = row;
        let expected: Vec<_> =
            if expected.contains(": ") { vec![&*expected] } else { expected.split(", ").collect() };
        for (at, text) in extractors.split(", ").enumerate() {
            let expected = unescaped(&repeated(expected[at.min(expected.len() - 1)]));
            for lines in requests.split("||").map(str::trim) {
                let found = now(extractor(&repeated(text)).extract(&request(&repeated(lines))));
                let seen = shown(found, expected.contains(": "));
                if seen != expected {
                    differ.push(format!(
                        "line {number}, {name}: {text}, {lines}: expected {expected:.200}, seen {seen:.200}"
                    ));
                }
            }
        }
    }
    end(&differ);
}

#[test]
fn an_identity_that_its_extractor_never_returns_is_an_error() {
    let mut differ = Vec::new();
    for [text, right, wrong] in rows(include_str!("tables/identities.txt")) {
        for (list, expected) in [(right, None), (wrong, Some(ErrorKind::InvalidConfig))] {
            for identity in list.split('"').skip(1).step_by(2).map(unescaped) {
                let seen = extractor(&text).try_any_of([&*identity]).err().map(|error| error.kind());
                if seen != expected {
                    differ.push(format!("{text}, {identity:?}: expected {expected:?}, seen {seen:?}"));
                }
            }
        }
    }
    end(&differ);
}
