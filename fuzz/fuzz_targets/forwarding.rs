//! Forwarding headers with any content. The input is a byte that selects the peer, one for the proxies, one for the
//! header, and then the header lines.
#![no_main]

use std::{
    net::SocketAddr,
    pin::pin,
    task::{Context, Poll, Waker},
};

use http::{HeaderMap, HeaderValue, Request, request::Parts};
use libfuzzer_sys::fuzz_target;
use tower_ratelimit::{ClientIp, Error, ErrorKind, Key, KeyExtractor, PeerIp, key::TrustedProxies};

const PEERS: [Option<&str>; 5] = [
    None,
    Some("10.0.0.1:80"),
    Some("[fd00::1]:80"),
    Some("203.0.113.200:4711"),
    Some("[2001:db8:ffff::1]:80"),
];
/// The number of trusted hops. 0 stands for the networks below, the second time also with a Unix socket.
const HOPS: [usize; 6] = [0, 0, 1, 2, 3, 64];
const NAMES: [&str; 5] = ["x-forwarded-for", "forwarded", "x-real-ip", "cf-connecting-ip", "fly-client-ip"];

fuzz_target!(|data: &[u8]| {
    let [peer, proxies, header, lines @ ..] = data else { return };
    let peer = PEERS[usize::from(*peer) % PEERS.len()].map(|peer| peer.parse::<SocketAddr>().unwrap());
    let mode = usize::from(*proxies) % HOPS.len();
    let name = NAMES[usize::from(*header) % NAMES.len()];
    let lines: Vec<&[u8]> = lines.split(|&byte| byte == b'\n').collect();

    let client = client(mode, HOPS[mode], name);
    let request = request(peer, name, &lines);
    let key = now(&client, &request);
    let peer_key = now(&PeerIp::new(), &request);
    is_sound(&client, &request, &key, peer.is_some());

    let trusted = HOPS[mode] > 0 || peer.is_some_and(|peer| is_ours(&peer));
    if !trusted {
        match peer_key {
            Ok(peer_key) => assert_eq!(key.unwrap(), peer_key),
            Err(_) => assert_eq!(key.unwrap_err().kind(), ErrorKind::MissingSetup),
        }
    } else if name == "x-forwarded-for" || name == "forwarded" {
        appended_decides(&client, HOPS[mode].max(1), name, peer, &lines);
    }
});

fn client(mode: usize, hops: usize, name: &str) -> ClientIp {
    let networks = || TrustedProxies::cidrs(["10.0.0.0/8", "fd00::/8"]).unwrap();
    let proxies = match mode {
        0 => networks(),
        1 => networks().and_unix_socket(),
        _ => TrustedProxies::hops(hops),
    };
    ClientIp::behind(proxies).header(name)
}

fn is_ours(peer: &SocketAddr) -> bool {
    match peer {
        SocketAddr::V4(peer) => peer.ip().octets()[0] == 10,
        SocketAddr::V6(peer) => peer.ip().octets()[0] == 0xfd,
    }
}

/// Lines that are not valid header values are omitted.
fn request(peer: Option<SocketAddr>, name: &'static str, lines: &[&[u8]]) -> Parts {
    let mut headers = HeaderMap::new();
    for value in lines.iter().take(1000).filter_map(|line| HeaderValue::from_bytes(line).ok()) {
        headers.append(name, value);
    }
    let (mut parts, ()) = Request::new(()).into_parts();
    parts.headers = headers;
    if let Some(peer) = peer {
        parts.extensions.insert(peer);
    }
    parts
}

fn now(extractor: &impl KeyExtractor, request: &Parts) -> Result<Key, Error> {
    match pin!(extractor.extract(request)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(key) => key,
        Poll::Pending => panic!("the extractor is not async"),
    }
}

fn is_sound(client: &ClientIp, request: &Parts, key: &Result<Key, Error>, peer_known: bool) {
    let every_address = client.clone().within(["0.0.0.0/0", "::/0"]).unwrap();
    let matched = pin!(every_address(request)).poll(&mut Context::from_waker(Waker::noop()));
    match key {
        Ok(key) => {
            assert!((1..=96).contains(&key.as_str().len()));
            let address = client.address(request).unwrap();
            assert_eq!(address, address.to_canonical());
            assert!(matches!(matched, Poll::Ready(Ok(true))));
            // An address has the same key as a peer with this address.
            let same = self::request(Some(SocketAddr::new(address, 1)), NAMES[0], &[]);
            assert_eq!(now(&PeerIp::new(), &same).unwrap(), *key);
        }
        Err(error) => {
            assert!(matches!(matched, Poll::Ready(Err(_))));
            match error.kind() {
                ErrorKind::MissingSetup => assert!(!peer_known),
                kind => assert_eq!(kind, ErrorKind::InvalidIdentity),
            }
        }
    }
}

/// For any header lines, the client is the address that the `hops` trusted proxies append.
fn appended_decides(
    client: &ClientIp,
    hops: usize,
    name: &'static str,
    peer: Option<SocketAddr>,
    lines: &[&[u8]],
) {
    let (element, proxy) = match name {
        "forwarded" => (r#"by=_a;for="[2001:db8:77::1]:_b";host="a, \"b\\""#, ", for=10.0.0.9"),
        _ => ("[2001:db8:77::1]:443", ", 10.0.0.9:80"),
    };
    let appended = format!("{element}{}", proxy.repeat(hops - 1));
    let expected = Key::new("2001:db8:77::/64");

    let own_line: Vec<&[u8]> = lines.iter().copied().chain([appended.as_bytes()]).collect();
    // With more lines, the request would omit the last one.
    if own_line.len() <= 1000 {
        assert_eq!(now(client, &request(peer, name, &own_line)).unwrap(), expected);
    }
    if let [before @ .., last] = lines
        && HeaderValue::from_bytes(last).is_ok()
        && lines.len() <= 1000
    {
        let last = [last, b",".as_slice(), appended.as_bytes()].concat();
        let same_line: Vec<&[u8]> = before.iter().copied().chain([last.as_slice()]).collect();
        assert_eq!(now(client, &request(peer, name, &same_line)).unwrap(), expected);
    }
}
