//! Client addresses: one test for each rule of the standards, through the public API. The cases of the tables are
//! headers that clients and proxies are known to send.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderValue, Request, request::Parts};
use proptest::prelude::*;
use support::table::{self, rows};
use tower_ratelimit::{ClientIp, Error, ErrorKind, Key, KeyExtractor, PeerIp, key::TrustedProxies};

/// A request from `peer`, if any, with the header lines `lines`.
fn request<N: AsRef<str>, V: AsRef<[u8]>>(
    peer: Option<SocketAddr>,
    lines: impl IntoIterator<Item = (N, V)>,
) -> Parts {
    let mut request = Request::get("/");
    for (name, value) in lines {
        request = request.header(name.as_ref(), HeaderValue::from_bytes(value.as_ref()).unwrap());
    }
    let (mut parts, ()) = request.body(()).unwrap().into_parts();
    if let Some(peer) = peer {
        parts.extensions.insert(peer);
    }
    parts
}

/// A request from the address `peer`, port 80. With "", the request has no peer address.
fn from<V: AsRef<[u8]>>(peer: &str, lines: &[(&str, V)]) -> Parts {
    let peer = (!peer.is_empty()).then(|| SocketAddr::new(peer.parse().unwrap(), 80));
    request(peer, lines.iter().map(|(name, value)| (*name, value)))
}

/// The key of a request, from an extractor that is not async.
fn key_of(extractor: &impl KeyExtractor, request: &Parts) -> Result<Key, Error> {
    futures_util::FutureExt::now_or_never(extractor.extract(request)).unwrap()
}

/// Trusts 10.0.0.0/8 and fd00::/8.
fn private() -> TrustedProxies {
    TrustedProxies::cidrs(["10.0.0.0/8", "fd00::/8"]).unwrap()
}

const XFF: &str = "x-forwarded-for";
const FWD: &str = "forwarded";
const XRI: &str = "x-real-ip";
const PROXY: &str = "10.0.0.1";

/// Checks the rows of a table in `tables` with `header` as the declared one.
fn check(header: &str, table: &str) {
    for [name, peer, trusted, expected, headers] in rows(table) {
        let proxies = match trusted.split_once(' ').unwrap() {
            ("private", "networks") => private(),
            (hops, _) => TrustedProxies::hops(hops.parse().unwrap()),
        };
        let client = ClientIp::behind(proxies).header(header);
        let bytes = |value: String| value.chars().map(|byte| u8::try_from(byte).unwrap()).collect();
        let lines: Vec<(String, Vec<u8>)> =
            table::headers(&headers).into_iter().map(|(name, value)| (name, bytes(value))).collect();
        let lines: Vec<_> = lines.iter().map(|(name, value)| (&**name, value)).collect();
        let request = from(peer.trim_start_matches("unknown"), &lines);
        let key = key_of(&client, &request);
        let shown =
            key.as_ref().map_or_else(|error| format!("{:?}", error.kind()), |key| key.as_str().to_owned());
        assert_eq!(shown, expected, "{name}");
        // The address and the key come from one and the same hop.
        match (client.address(&request), key) {
            (Ok(address), Ok(key)) => assert_eq!(key_of_peer(address), key, "{name}"),
            (address, key) => {
                assert_eq!(address.map_err(|error| error.kind()), Err(key.unwrap_err().kind()), "{name}");
            }
        }
    }
}

/// The key of a peer with this address.
fn key_of_peer(address: IpAddr) -> Key {
    let request = request::<&str, &str>(Some(SocketAddr::new(address, 1)), []);
    key_of(&PeerIp::new(), &request).unwrap()
}

fn single(header: &'static str, name: &'static str) {
    for (lines, key) in [
        (vec![(name, "203.0.113.7")], "203.0.113.7"),
        (vec![(name, "[2001:db8::1]:80")], "2001:db8::/64"),
        (vec![], "10.0.0.1"),
    ] {
        let client = ClientIp::behind(private()).header(header);
        assert_eq!(key_of(&client, &from(PROXY, &lines)).unwrap(), Key::new(key), "{name}");
        let direct = key_of(&client, &from("198.51.100.1", &lines)).unwrap();
        assert_eq!(direct, Key::new("198.51.100.1"), "{name}");
    }
}

/// Every header that a client could try to spoof its address with.
const HOPED_FOR: [&str; 12] = [
    "x-forwarded-for",
    "forwarded",
    "x-real-ip",
    "cf-connecting-ip",
    "true-client-ip",
    "fly-client-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-original-forwarded-for",
    "x-envoy-external-address",
    "via",
    "host",
];

#[test]
fn no_header_is_read_unless_proxies_are_declared() {
    for name in HOPED_FOR {
        for value in ["1.2.3.4", "for=1.2.3.4", "127.0.0.1", "unknown", ""] {
            let spoofed = from("203.0.113.7", &[(name, value)]);
            let key = key_of(&PeerIp::new(), &spoofed).unwrap();
            assert_eq!(key, Key::new("203.0.113.7"), "{name}: {value}");
            let no_peer = from("", &[(name, value)]);
            assert_eq!(key_of(&PeerIp::new(), &no_peer).unwrap_err().kind(), ErrorKind::MissingSetup);
        }
    }
}

#[test]
fn fifty_spoofed_requests_have_one_key() {
    let clients = [
        ClientIp::behind(private()),
        ClientIp::behind(TrustedProxies::hops(1)),
        ClientIp::behind(private()).header("forwarded"),
        ClientIp::behind(TrustedProxies::hops(1)).header("forwarded"),
    ];
    for client in &clients {
        let mut keys: Vec<_> = (0..50)
            .map(|spoofed| {
                // The header after the proxy appended to the client's `1.1.1.n`.
                let list = format!("1.1.1.{spoofed}, 203.0.113.7");
                let forwarded = format!("for=1.1.1.{spoofed}, for=203.0.113.7;proto=https");
                key_of(client, &from(PROXY, &[(XFF, list), (FWD, forwarded)])).unwrap()
            })
            .collect();
        keys.dedup();
        assert_eq!(keys, [Key::new("203.0.113.7")]);
    }
}

#[test]
fn the_client_is_the_first_hop_that_is_not_a_trusted_proxy() {
    check("x-forwarded-for", include_str!("tables/client-ip-first-hop.txt"));
}

#[test]
fn addresses_are_read_as_proxies_write_them() {
    check("x-forwarded-for", include_str!("tables/client-ip-addresses.txt"));
}

#[test]
fn forwarded_is_read_by_rfc_7239() {
    check("forwarded", include_str!("tables/client-ip-forwarded.txt"));
}

#[test]
fn only_the_declared_header_is_read_and_a_single_value_must_occur_once() {
    single("x-real-ip", "X-Real-IP");
    single("cf-connecting-ip", "CF-Connecting-IP");
    single("Fly-Client-IP", "fly-client-ip");
    check("x-real-ip", include_str!("tables/client-ip-single-values.txt"));
}

#[test]
fn equal_addresses_give_equal_keys() {
    check("x-forwarded-for", include_str!("tables/client-ip-equal-addresses.txt"));

    let by_56 = ClientIp::behind(private()).ipv6_prefix(56);
    let customer = from("fd00::1", &[(XFF, "2001:db8:1:2fff::1")]);
    assert_eq!(key_of(&by_56, &customer).unwrap(), Key::new("2001:db8:1:2f00::/56"));
    assert_eq!(by_56.address(&customer).unwrap(), "2001:db8:1:2fff::1".parse::<IpAddr>().unwrap());
    for wrong in [0, 129] {
        assert!(std::panic::catch_unwind(|| ClientIp::behind(private()).ipv6_prefix(wrong)).is_err());
    }
}

#[test]
fn the_part_of_a_header_that_is_read_is_bounded() {
    const CLIENT: &str = "203.0.113.7";
    let trusting = || ClientIp::behind(private());
    let forwarded = || trusting().header("forwarded");
    let hops = |hops| ClientIp::behind(TrustedProxies::hops(hops));
    let real_ip = hops(1).header("x-real-ip");
    let ours = |count: usize| vec!["10.0.0.9"; count].join(",");
    let padded = |address: &str, spaces: usize| format!("{address}{}", " ".repeat(spaces));
    let xff = |value: String| vec![(XFF, value)];
    let fwd = |value: String| vec![(FWD, value)];
    let two = |spaces| vec![(XFF, CLIENT.into()), (XFF, padded("10.0.0.9", spaces))];
    let mega = |text: &str| text.repeat(1 << 20);
    let lists: Vec<(&str, ClientIp, Vec<(&str, String)>, &str)> = vec![
        ("10,000 hops", trusting(), xff("1.2.3.4,".repeat(10_000) + CLIENT), CLIENT),
        ("63 hops of ours", trusting(), xff(format!("{CLIENT},{}", ours(63))), CLIENT),
        ("64 hops of ours", trusting(), xff(format!("{CLIENT},{}", ours(64))), "10.0.0.9"),
        ("10,000 hops of ours", trusting(), xff(format!("1.2.3.4,{}", ours(10_000))), "10.0.0.9"),
        ("the last hop that is read", hops(64), xff(format!("{CLIENT},{}", ours(63))), CLIENT),
        ("1 MB to the left", trusting(), xff(mega("x") + ", 203.0.113.7"), CLIENT),
        ("1 MB of commas", trusting(), xff(mega(",") + CLIENT), CLIENT),
        ("1 MB of commas to the right", trusting(), xff("1.2.3.4".to_owned() + &mega(",")), PROXY),
        ("1 MB and no comma", trusting(), xff(mega("1")), PROXY),
        ("1 MB of quotes", forwarded(), fwd(mega("\"") + ",for=203.0.113.7"), CLIENT),
        ("1 MB of backslashes", forwarded(), fwd(mega("\\") + "\""), PROXY),
        ("1 MB of semicolons", forwarded(), fwd("for=203.0.113.7".to_owned() + &mega(";")), PROXY),
        // The part within the bound would read as 203.0.113.7.
        ("cut within an address", hops(1), xff(padded("1203.0.113.7", 8192 - 11)), PROXY),
        ("8 KiB", hops(1), xff(padded(CLIENT, 8192 - 11)), CLIENT),
        ("more than 8 KiB", hops(1), xff(padded(CLIENT, 8192 - 10)), PROXY),
        ("more over lines", hops(2), two(8180), PROXY),
        ("less over lines", hops(2), two(8170), CLIENT),
        ("many empty lines", hops(1), vec![(XFF, String::new()); 9000], PROXY),
        ("a single value", real_ip, vec![(XRI, padded(CLIENT, 8192))], PROXY),
    ];
    for (name, client, lines, expected) in lists {
        let key = key_of(&client, &from(PROXY, &lines)).unwrap();
        assert_eq!(key.as_str(), expected, "{name}");
    }
    for wrong in [0, 65, usize::MAX] {
        assert!(std::panic::catch_unwind(|| TrustedProxies::hops(wrong)).is_err(), "{wrong}");
    }
}

#[test]
fn a_request_without_an_identity_is_an_error_and_never_shares_a_key() {
    let no_peer = from::<&str>("", &[]);
    let extractors: Vec<Box<dyn KeyExtractor>> = vec![
        Box::new(PeerIp::new()),
        Box::new(ClientIp::behind(private())),
        Box::new(ClientIp::behind(private().and_unix_socket())),
        Box::new(ClientIp::behind(TrustedProxies::hops(1))),
        Box::new(ClientIp::behind(TrustedProxies::hops(1)).header("forwarded")),
        Box::new(ClientIp::behind(TrustedProxies::hops(1)).header("x-real-ip")),
    ];
    for extractor in &extractors {
        let error = key_of(extractor, &no_peer).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::MissingSetup);
        assert!(error.to_string().contains("into_make_service_with_connect_info"), "{error}");
    }
}

#[test]
fn an_invalid_network_or_header_name_is_an_error_when_the_extractor_is_built() {
    for wrong in ["10.0.0.0/33", "proxy.internal", "", "10.0.0.0-10.0.0.9"] {
        for error in [
            TrustedProxies::cidrs(["10.0.0.0/8", wrong]).unwrap_err(),
            PeerIp::new().within([wrong]).map(drop).unwrap_err(),
            ClientIp::behind(private()).within(vec![wrong.to_owned()]).map(drop).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidConfig);
            assert!(error.to_string().contains(&format!("{wrong:?}")), "{error}");
        }
    }
    assert!(
        std::panic::catch_unwind(|| ClientIp::behind(TrustedProxies::hops(1)).header("not a name")).is_err()
    );
}

#[tokio::test]
async fn whether_a_request_is_within_a_network_is_decided_by_its_whole_address() {
    let office = ClientIp::behind(private()).within(["203.0.113.0/24", "2001:db8::7"]).unwrap();
    for (peer, forwarded, expected) in [
        (PROXY, "203.0.113.200", true),
        (PROXY, "203.0.112.200", false),
        (PROXY, "2001:db8::7", true),
        (PROXY, "2001:db8::8", false),
        (PROXY, "203.0.113.7, 198.51.100.1", false),
        ("198.51.100.1", "203.0.113.7", false),
        ("203.0.113.7", "198.51.100.1", true),
    ] {
        let inside = office(&from(peer, &[(XFF, forwarded)])).await.unwrap();
        assert_eq!(inside, expected, "{peer}, {forwarded}");
    }
    // Even if it has an IPv4 address in it, which is its key.
    let inside = from("64:ff9b::10.0.0.1", &[] as &[(&str, &str)]);
    assert!(PeerIp::new().within(["64:ff9b::a00:1"]).unwrap()(&inside).await.unwrap());
    let peers = PeerIp::new().within(["203.0.113.0/24"]).unwrap();
    assert!(peers(&from("::ffff:203.0.113.7", &[(XFF, "1.2.3.4")])).await.unwrap());
    assert!(!peers(&from(PROXY, &[(XFF, "203.0.113.7")])).await.unwrap());
    assert!(peers(&from("", &[(XFF, "203.0.113.7")])).await.is_err());
}

/// A request with `peer` in its extensions.
fn with<T: Clone + Send + Sync + 'static>(peer: T) -> Parts {
    let mut request = from(PROXY, &[(XFF, "203.0.113.7")]);
    request.extensions.clear();
    request.extensions.insert(peer);
    request
}

#[test]
fn the_peer_is_read_from_the_connect_info_of_axum() {
    use axum::extract::connect_info::{ConnectInfo, MockConnectInfo};

    let peer: SocketAddr = "[::ffff:192.0.2.1]:80".parse().unwrap();
    for request in [with(ConnectInfo(peer)), with(MockConnectInfo(peer)), with(peer)] {
        assert_eq!(key_of(&PeerIp::new(), &request).unwrap(), Key::new("192.0.2.1"));
        assert_eq!(key_of(&ClientIp::behind(private()), &request).unwrap(), Key::new("192.0.2.1"));
    }
}

#[cfg(unix)]
#[test]
fn a_peer_on_a_unix_socket_is_a_defined_error() {
    use std::os::unix::net::SocketAddr as UnixAddr;

    let unnamed = || UnixAddr::from_pathname("/run/app.sock").unwrap();
    let mut requests = vec![with(unnamed())];
    {
        use axum::extract::connect_info::{ConnectInfo, MockConnectInfo};

        let tokio = || tokio::net::unix::SocketAddr::from(unnamed());
        requests.extend([with(ConnectInfo(unnamed())), with(ConnectInfo(tokio())), with(tokio())]);
        requests.extend([with(MockConnectInfo(unnamed())), with(MockConnectInfo(tokio()))]);
    }

    let says = |error: Error, text: &str| {
        assert_eq!(error.kind(), ErrorKind::MissingSetup);
        assert!(error.to_string().contains("Unix socket") && error.to_string().contains(text), "{error}");
    };
    for request in &mut requests {
        let trusting = || ClientIp::behind(private().and_unix_socket());
        assert_eq!(key_of(&trusting(), request).unwrap(), Key::new("203.0.113.7"));
        let one_hop = ClientIp::behind(TrustedProxies::hops(1));
        assert_eq!(key_of(&one_hop, request).unwrap(), Key::new("203.0.113.7"));
        says(key_of(&PeerIp::new(), request).unwrap_err(), "TrustedProxies::and_unix_socket");
        says(key_of(&ClientIp::behind(private()), request).unwrap_err(), "TrustedProxies::and_unix_socket");

        request.headers.clear();
        says(key_of(&trusting(), request).unwrap_err(), "`x-forwarded-for` names no client");
        let hops = ClientIp::behind(TrustedProxies::hops(1)).header("x-real-ip");
        says(key_of(&hops, request).unwrap_err(), "`x-real-ip` names no client");
    }
}

fn sources() -> [&'static str; 5] {
    ["x-forwarded-for", "forwarded", "x-real-ip", "cf-connecting-ip", "fly-client-ip"]
}

/// Values that resemble a forwarding header, and arbitrary valid header values.
fn value() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        Just("for=".to_owned()),
        Just("10.0.0.9".to_owned()),
        Just("1.2.3.4".to_owned()),
        Just("[2001:db8::1]:80".to_owned()),
        Just("fd00::1".to_owned()),
        Just(", ".to_owned()),
        Just("\"".to_owned()),
        Just("\\".to_owned()),
        Just(";".to_owned()),
        Just("unknown".to_owned()),
        "[ -~]{0,4}",
    ];
    prop_oneof![
        prop::collection::vec(part, 0..12).prop_map(|parts| parts.concat().into_bytes()),
        prop::collection::vec(prop_oneof![Just(b'\t'), 0x20..=0x7eu8, 0x80..=0xffu8], 0..40),
    ]
}

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<u32>().prop_map(|bits| IpAddr::V4(bits.into())),
        any::<u128>().prop_map(|bits| IpAddr::V6(bits.into()))
    ]
}

proptest! {
    #[test]
    fn no_header_changes_the_key_of_a_peer_that_is_not_trusted(
        lines in prop::collection::vec((prop::sample::select(&HOPED_FOR), value()), 0..6),
        peer in address().prop_filter("not a proxy of ours", |peer| match peer.to_canonical() {
            IpAddr::V4(v4) => v4.octets()[0] != 10,
            IpAddr::V6(v6) => v6.octets()[0] != 0xfd,
        }),
    ) {
        let request = request(Some(SocketAddr::new(peer, 80)), lines);
        let expected = key_of(&PeerIp::new(), &request).unwrap();
        for header in sources() {
            let client = ClientIp::behind(private().and_unix_socket()).header(header);
            prop_assert_eq!(key_of(&client, &request).unwrap(), expected.clone());
        }
    }

    #[test]
    fn the_address_that_the_proxy_appends_decides_and_not_what_the_client_writes(
        lines in prop::collection::vec(value(), 0..4),
        client in address().prop_filter("not a proxy of ours", |client| match client.to_canonical() {
            IpAddr::V4(v4) => v4.octets()[0] != 10,
            IpAddr::V6(v6) => v6.octets()[0] != 0xfd,
        }),
        port in any::<u16>(),
        same_line: bool,
        second_proxy: bool,
    ) {
        let seen = SocketAddr::new(client, port);
        let expected = key_of_peer(client);
        for (name, header, element) in [
            (XFF, "x-forwarded-for", client.to_string()),
            (XFF, "x-forwarded-for", seen.to_string()),
            (FWD, "forwarded", format!("for=\"{seen}\";proto=https;host=\"a, \\\"b\"")),
            (FWD, "forwarded", format!("by=\"[::1]\";for=\"{seen}\"")),
        ] {
            let mut appended = element;
            if second_proxy {
                appended.push_str(if name == XFF { ", 10.0.0.9" } else { ", for=10.0.0.9" });
            }
            let mut lines = lines.clone();
            match lines.last_mut() {
                Some(last) if same_line => last.extend_from_slice(format!(", {appended}").as_bytes()),
                _ => lines.push(appended.into_bytes()),
            }
            let peer = Some("10.0.0.1:80".parse().unwrap());
            let proxied = request(peer, lines.into_iter().map(|line| (name, line)));
            let hops = TrustedProxies::hops(if second_proxy { 2 } else { 1 });
            for proxies in [private(), hops] {
                let extractor = ClientIp::behind(proxies).header(header);
                prop_assert_eq!(key_of(&extractor, &proxied).unwrap(), expected.clone());
            }
        }
    }

    #[test]
    fn no_header_makes_it_panic(
        lines in prop::collection::vec((prop::sample::select(&HOPED_FOR), value()), 0..6),
        hops in 0..4usize,
        known: bool,
    ) {
        let proxies = || if hops == 0 { private() } else { TrustedProxies::hops(hops) };
        let request = request(known.then(|| "10.0.0.1:80".parse().unwrap()), lines);
        for header in sources() {
            match key_of(&ClientIp::behind(proxies()).header(header), &request) {
                Ok(key) => prop_assert!(key.as_str().len() <= 96),
                Err(error) if error.kind() == ErrorKind::MissingSetup => prop_assert!(!known),
                Err(error) => prop_assert_eq!(error.kind(), ErrorKind::InvalidIdentity),
            }
        }
    }
}
