//! Bans and exemptions fail closed: a request whose identity cannot be read is rejected, and never exempt.

use std::net::SocketAddr;
use support::inner::{ask, layer};

use http::{Request, StatusCode, request::Parts};
use tower_ratelimit::{
    Answer, ClientIp, Error, ErrorKind, Header, Key, KeyExtractor, PeerIp, RateLimitLayer,
    key::{Cookie, Repeat, TrustedProxies},
    policy::Enforcement::ReportOnly,
};

fn method(parts: &Parts) -> String {
    parts.method.to_string()
}

fn request(peer: &str, lines: &[(&str, &[u8])]) -> Request<String> {
    let mut request = Request::get("/").extension(peer.parse::<SocketAddr>().unwrap());
    for (name, value) in lines {
        request = request.header(*name, *value);
    }
    request.body(String::new()).unwrap()
}

const PEER: &str = "203.0.113.7:4711";
const KEY: &str = "x-api-key";
const OLD: &str = "x-old-key";
const COOKIE: &str = "cookie";
const REAL: &str = "x-real-ip";

/// Returns what `extractor` returns, but asynchronously.
fn later(extractor: impl KeyExtractor) -> impl KeyExtractor {
    move |parts: &Parts| {
        let answer = extractor.extract(parts);
        Answer::pending(async move {
            tokio::task::yield_now().await;
            answer.await
        })
    }
}

#[tokio::test]
async fn an_identity_that_cannot_be_read_does_not_evade_a_ban() {
    let api_key = || Header::new("x-api-key");
    let session = || Cookie::new("session");
    let either = || api_key().or(Header::new("x-old-key"));
    let ip = || ClientIp::behind(TrustedProxies::hops(1)).header("x-real-ip");
    let joined = || Key::join([&Key::new("bad"), &Key::new("GET")]);
    let all = || later(Key::new("all")).any_of(["all"]);
    let by_key = || layer(9).block_if(api_key().any_of(["bad"]));
    let by_key_later = || layer(9).block_if(later(api_key()).any_of(["bad"]));
    let by_cookie = || layer(9).block_if(session().any_of(["bad"]));
    let by_pair = || layer(9).block_if((api_key(), method).any_of([joined()]));
    let by_either = || layer(9).block_if(either().any_of(["bad"]));
    type Lines = &'static [(&'static str, &'static [u8])];
    let rows: Vec<(&str, RateLimitLayer, Lines, u16)> = vec![
        ("blocked", by_key(), &[(KEY, b"bad")], 429),
        ("another", by_key(), &[(KEY, b"good")], 200),
        ("missing", by_key(), &[], 200),
        ("twice", by_key(), &[(KEY, b"bad"), (KEY, b"bad")], 429),
        ("twice, differing", by_key(), &[(KEY, b"bad"), (KEY, b"x")], 400),
        ("twice, one empty", by_key(), &[(KEY, b"bad"), (KEY, b"")], 400),
        ("empty", by_key(), &[(KEY, b"")], 400),
        ("not UTF-8", by_key(), &[(KEY, b"\xff")], 400),
        ("cookie", by_cookie(), &[(COOKIE, b"session=bad")], 429),
        ("cookie twice", by_cookie(), &[(COOKIE, b"session=bad; session=x")], 400),
        ("cookie twice, one empty", by_cookie(), &[(COOKIE, b"session=bad; session=")], 400),
        ("cookie twice, equal", by_cookie(), &[(COOKIE, b"session=bad"), (COOKIE, b"session=b%61d")], 429),
        (
            "cookie twice, the last",
            layer(9).block_if(session().on_repeat(Repeat::Last).any_of(["bad"])),
            &[(COOKIE, b"session=x; session=bad")],
            429,
        ),
        // As without the cookie.
        ("cookie empty", by_cookie(), &[(COOKIE, b"session=")], 200),
        ("part of a tuple", by_pair(), &[(KEY, b"bad"), (KEY, b"x")], 400),
        ("tuple without the part", by_pair(), &[], 200),
        ("first of two", by_either(), &[(KEY, b""), (OLD, b"bad")], 400),
        ("second of two", by_either(), &[(OLD, b"bad"), (OLD, b"x")], 400),
        ("neither of two", by_either(), &[], 200),
        ("hashed", layer(9).block_if(api_key().hashed([7; 32]).any_of(["bad"])), &[(KEY, b"")], 400),
        ("later", by_key_later(), &[(KEY, b"bad"), (KEY, b"x")], 400),
        ("later, blocked", by_key_later(), &[(KEY, b"bad")], 429),
        ("later, missing", by_key_later(), &[], 200),
        (
            "address twice",
            layer(9).block_if(ip().within(["203.0.113.0/24"]).unwrap()),
            &[(REAL, b"203.0.113.9"), (REAL, b"1.2.3.4")],
            400,
        ),
        ("report only", by_key().enforcement(ReportOnly), &[(KEY, b"")], 400),
        ("later, report only", by_key_later().enforcement(ReportOnly), &[(KEY, b"")], 400),
        ("and exempt", by_key().exempt_if(|_| true), &[(KEY, b"")], 400),
        ("later, and exempt later", by_key_later().exempt_if(all()), &[(KEY, b"bad")], 429),
        ("and banned by a later ban", by_key().block_if(|_| true), &[(KEY, b"")], 429),
        ("and banned by a ban that comes later", by_key().block_if(all()), &[(KEY, b"")], 429),
    ];
    let mut wrong = Vec::new();
    for (name, layer, lines, expected) in rows {
        let status = ask(&layer, request(PEER, lines)).await.status();
        if status != expected {
            wrong.push(format!("{name}: {} instead of {expected}", status.as_u16()));
        }
    }
    assert_eq!(wrong, [""; 0]);
}

#[tokio::test]
async fn a_ban_that_the_server_cannot_decide_admits_nothing() {
    for kind in [ErrorKind::MissingSetup, ErrorKind::IdentityUnavailable, ErrorKind::InvalidConfig] {
        let fails = move |_: &Parts| Err::<Key, _>(Error::new(kind, "it cannot be decided"));
        let layers = [
            layer(9).block_if(fails.any_of(["bad"])),
            layer(9).block_if(later(fails).any_of(["bad"])).enforcement(ReportOnly),
        ];
        for layer in layers {
            let status = ask(&layer, request(PEER, &[])).await.status();
            assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR, "{kind:?}");
        }
    }
    // A request without a peer address.
    let layer = layer(9).block_if(PeerIp::new().within(["203.0.113.0/24"]).unwrap());
    assert_eq!(ask(&layer, Request::get("/").body(String::new()).unwrap()).await.status(), 500);
}

#[tokio::test]
async fn an_identity_that_cannot_be_read_is_not_exempt() {
    let exempt = || Header::new("x-api-key").any_of(["partner"]);
    let twice: &[(&str, &[u8])] = &[("x-api-key", b"partner"), ("x-api-key", b"other")];
    let layer = layer(1).exempt_if(exempt()).exempt_if(|_| false);
    assert_eq!(ask(&layer, request(PEER, &[("x-api-key", b"partner")])).await.status(), 200);
    assert_eq!(ask(&layer, request(PEER, twice)).await.status(), 200);
    assert_eq!(ask(&layer, request(PEER, twice)).await.status(), 429);
}

#[test]
fn an_identity_that_no_request_can_have_panics_when_the_matcher_is_built() {
    let peer = PeerIp::default;
    let client = || ClientIp::behind(TrustedProxies::hops(1));
    for wrong in [
        "203.0.113.0/24",
        "203.0.113.7:80",
        "203.0.113.7 ",
        " 203.0.113.7",
        "[2001:db8::1]",
        "2001:db8::1/64",
        "2001:db8::/48",
        "fe80::1%eth0",
        "localhost",
        "",
    ] {
        let built: [(&str, Box<dyn Fn() + std::panic::RefUnwindSafe>); 4] = [
            ("peer", Box::new(move || drop(peer().any_of([wrong])))),
            ("client", Box::new(move || drop(client().any_of([wrong])))),
            ("hashed", Box::new(move || drop(peer().hashed([7; 32]).any_of([wrong])))),
            ("or", Box::new(move || drop(peer().or(client()).any_of([wrong])))),
        ];
        for (name, build) in built {
            assert!(std::panic::catch_unwind(&build).is_err(), "{name}: {wrong:?} was accepted");
        }
    }
    // An identity that one of two extractors can return is accepted.
    drop(peer().or(Header::new("x-api-key")).any_of(["203.0.113.0/24"]));
    for right in ["203.0.113.7", "::ffff:203.0.113.7", "2001:db8::1", "2001:db8::/64"] {
        drop((peer().any_of([right]), client().any_of([right])));
    }
}

#[tokio::test]
async fn a_client_that_was_not_identified_matches_no_exemption() {
    let cidrs = || ClientIp::behind(TrustedProxies::cidrs(["10.0.0.0/8"]).unwrap());
    let hops = || ClientIp::behind(TrustedProxies::hops(2));
    let single = || cidrs().header("x-real-ip");
    let forwarded = || cidrs().header("forwarded");
    let (xff, real, fwd) = ("x-forwarded-for", "x-real-ip", "forwarded");
    let many = "10.0.0.9,".repeat(70);
    type Row<'a> = (&'a str, ClientIp, &'a str, Vec<(&'a str, &'a [u8])>, bool);
    let rows: Vec<Row<'_>> = vec![
        ("no header", cidrs(), "10.0.0.1:1", vec![], false),
        ("an empty header", cidrs(), "10.0.0.1:1", vec![(xff, b" , ")], false),
        ("the first hop is unreadable", cidrs(), "10.0.0.1:1", vec![(xff, b"203.0.113.7, unknown")], false),
        ("the walk is cut short", cidrs(), "10.0.0.1:1", vec![(xff, b"bad, 10.0.0.2")], false),
        ("too many hops", cidrs(), "10.0.0.1:1", vec![(xff, many.as_bytes())], false),
        ("all hops are trusted", cidrs(), "10.0.0.1:1", vec![(xff, b"10.0.0.3, 10.0.0.2")], true),
        ("an internal client", cidrs(), "10.0.0.1:1", vec![(xff, b"10.0.0.3")], true),
        ("a client outside", cidrs(), "10.0.0.1:1", vec![(xff, b"203.0.113.7")], false),
        ("a direct client outside", cidrs(), "203.0.113.7:1", vec![], false),
        ("an unclosed quote", forwarded(), "10.0.0.1:1", vec![(fwd, b"for=\"10.0.0.3, for=10.0.0.2")], false),
        ("no single header", single(), "10.0.0.1:1", vec![], false),
        ("an unreadable single header", single(), "10.0.0.1:1", vec![(real, b"10.0.0.3, 10.0.0.4")], false),
        ("a single header", single(), "10.0.0.1:1", vec![(real, b"10.0.0.3")], true),
        ("too few hops", hops(), "10.0.0.1:1", vec![(xff, b"10.0.0.3")], false),
        ("an unreadable hop", hops(), "10.0.0.1:1", vec![(xff, b"bad, 10.0.0.3")], false),
        ("the hop", hops(), "10.0.0.1:1", vec![(xff, b"10.0.0.3, 10.0.0.2")], true),
    ];
    let mut wrong = Vec::new();
    for (name, client, peer, lines, exempt) in rows {
        let networks = ["10.0.0.0/8"];
        let named = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.9"];
        let matchers: [(&str, Box<dyn Fn(&Parts) -> Answer<bool> + Send + Sync>); 6] = [
            ("within", Box::new(client.clone().within(networks).unwrap())),
            ("any of", Box::new(client.clone().any_of(named))),
            ("or", Box::new(Header::new("x-api-key").or(client.clone()).any_of(named))),
            ("first of or", Box::new(client.clone().or(Header::new("x-api-key")).any_of(named))),
            ("hashed", Box::new(client.clone().hashed([7; 32]).any_of(named))),
            (
                "tuple",
                Box::new(
                    (client.clone(), method)
                        .any_of(named.map(|address| Key::join([&Key::new(address), &Key::new("GET")]))),
                ),
            ),
        ];
        for (by, matcher) in matchers {
            let parts = request(peer, &lines).into_parts().0;
            let matches = matcher(&parts).await.unwrap_or(false);
            if matches != exempt {
                wrong.push(format!("{name}, {by}: exempt {matches}"));
            }
        }
        // A ban applies to the identified client. Without one, it applies to the known address.
        let ban = layer(9).block_if(client.clone().within(networks).unwrap());
        let status = ask(&ban, request(peer, &lines)).await.status();
        let admitted = name.ends_with("outside");
        if (status == 200) != admitted {
            wrong.push(format!("{name}: {status} under a ban"));
        }
        let ban = layer(9).block_if(client.within(["198.51.100.0/24"]).unwrap());
        assert_eq!(ask(&ban, request(peer, &lines)).await.status(), 200, "{name}: another's ban");
    }
    assert_eq!(wrong, [""; 0]);
}
