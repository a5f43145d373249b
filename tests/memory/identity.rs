//! Every spelling of an identity has the same key, and two identities never share a key.

use std::net::SocketAddr;

use http::{Request, request::Parts};
use proptest::prelude::*;
use support::inner::ask_and_read;
use tower_ratelimit::{
    Answer, ClientIp, Decision, ErrorKind, Header, Key, KeyExtractor, MemoryStore, PeerIp, Policy,
    PolicySource, Quota, RateLimitLayer,
    key::{Bearer, Cookie, MatchedRoute, Repeat, TrustedProxies},
};

fn head(request: http::request::Builder) -> Parts {
    request.body(()).unwrap().into_parts().0
}

fn with(name: &str, value: impl AsRef<[u8]>) -> Parts {
    head(Request::get("/").header(name, value.as_ref()))
}

fn from(peer: &str) -> Parts {
    head(Request::get("/").extension(peer.parse::<SocketAddr>().unwrap()))
}

async fn key(extractor: &impl KeyExtractor, request: &Parts) -> Result<Key, ErrorKind> {
    extractor.extract(request).await.map_err(|error| error.kind())
}

const INVALID: Result<&str, ErrorKind> = Err(ErrorKind::InvalidIdentity);
const MISSING: Result<&str, ErrorKind> = Err(ErrorKind::MissingIdentity);

#[tokio::test]
async fn a_mapping_sees_the_identity_and_not_its_stored_form() {
    let long = format!("{}@example.org", "A".repeat(107));
    let rows = [
        ("plain", "A@Example.org"),
        ("not ASCII", "JOS\u{c9}@example.org"),
        ("with a space", "A B"),
        ("with braces and percents", "A{B}%20"),
        ("long", &long),
        ("long and not ASCII", &"\u{c9}".repeat(60)),
    ];
    let by_email = || Header::new("x-email").map(|email: &str| email.to_lowercase());
    let later = |parts: &Parts| {
        let key = Header::new("x-email").extract(parts);
        Answer::pending(key)
    };
    for (name, email) in rows {
        let found = key(&by_email(), &with("x-email", email)).await;
        assert_eq!(found, Ok(Key::new(email.to_lowercase())), "{name}");
        let mapped = later.map(|email: &str| email.to_lowercase());
        assert_eq!(key(&mapped, &with("x-email", email)).await, Ok(Key::new(email.to_lowercase())), "{name}");
        // Applied twice.
        let twice = Header::new("x-email").map(str::to_lowercase).map(str::to_lowercase);
        let lower = key(&twice, &with("x-email", email)).await;
        assert_eq!(lower, Ok(Key::new(email.to_lowercase())), "{name}");
    }
}

#[tokio::test]
async fn a_mapping_over_alternatives_keeps_them_apart() {
    // The header cannot name a peer's key.
    let either = Header::new("x-api-key").or(PeerIp::new()).map(|identity: &str| identity.to_owned());
    let peer = key(&either, &from("203.0.113.7:1")).await.unwrap();
    let claims = ["203.0.113.7", "%>203.0.113.7", "%<203.0.113.7", "%>%>203.0.113.7"];
    for claim in claims {
        assert_ne!(key(&either, &with("x-api-key", claim)).await.unwrap(), peer, "{claim}");
    }
    let same = Header::new("x-api-key").or(PeerIp::new());
    assert_eq!(key(&same, &from("203.0.113.7:1")).await.unwrap(), peer);
}

#[tokio::test]
async fn a_mapping_over_a_tuple_sees_its_parts_apart() {
    let seen = (Header::new("x-a"), Header::new("x-b")).map(|identity: &str| identity.to_owned());
    let both = |a: &str, b: &str| head(Request::get("/").header("x-a", a).header("x-b", b));
    assert_eq!(key(&seen, &both("a b", "\u{e9}")).await.unwrap(), Key::new("a b\u{1f}\u{e9}"));
    let long = "x".repeat(200);
    assert_eq!(key(&seen, &both(&long, "b")).await.unwrap(), Key::new(format!("{long}\u{1f}b")));
    assert_ne!(key(&seen, &both("ab", "c")).await, key(&seen, &both("a", "bc")).await);

    // A part of one alternative equals neither a part of another nor a separator.
    let parts = (Header::new("x-a").or(Cookie::new("a")), Cookie::new("b"));
    let seen = parts.map(|identity: &str| identity.to_owned());
    let mut keys = Vec::new();
    for request in [
        Request::get("/").header("x-a", "v").header("cookie", "b=w"),
        Request::get("/").header("cookie", "a=v; b=w"),
        Request::get("/").header("cookie", "a=%1Ev; b=w"),
        Request::get("/").header("cookie", "a=v%1Fw; b=w"),
        Request::get("/").header("cookie", "a=v; b=w%1Fw"),
    ] {
        keys.push(key(&seen, &head(request)).await.unwrap());
    }
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 5);
}

#[tokio::test]
async fn a_mapping_over_a_hashed_identity_does_not_reveal_it() {
    let secret = [7; 32];
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let see = || {
        let seen = seen.clone();
        move |identity: &str| {
            seen.lock().unwrap().push(identity.to_owned());
            identity.to_owned()
        }
    };
    let hashed = || Header::new("x-api-key").hashed(secret);
    let request = with("x-api-key", "secret-key");
    key(&hashed().map(see()), &request).await.unwrap();
    key(&(hashed(), |parts: &Parts| parts.method.to_string()).map(see()), &request).await.unwrap();
    key(&Cookie::new("none").or(hashed()).map(see()), &request).await.unwrap();
    let seen = seen.lock().unwrap();
    assert!(seen.len() == 3 && !seen.iter().any(|identity| identity.contains("secret-key")), "{seen:?}");
}

#[tokio::test]
async fn an_identity_that_is_not_text_cannot_be_mapped() {
    let bytes = |parts: &Parts| parts.headers["x-key"].as_bytes().to_vec();
    let mapped = bytes.map(|identity: &str| identity.to_owned());
    assert_eq!(key(&mapped, &with("x-key", "text")).await.unwrap(), Key::new("text"));
    for raw in [vec![0xff], vec![0xff; 200]] {
        assert_eq!(key(&mapped, &with("x-key", raw)).await, Err(ErrorKind::InvalidIdentity));
    }
}

#[tokio::test]
async fn identities_of_a_mapped_extractor_are_named_as_the_client_sends_them() {
    let email = || Header::new("x-email").map(str::to_lowercase);
    let long = format!("{}@example.org", "a".repeat(107));
    for named in ["Alice@Example.org", "JOS\u{c9}@example.org", &long] {
        let matcher = email().any_of([named]);
        for shown in [named.to_owned(), named.to_uppercase(), named.to_lowercase()] {
            assert!(matcher(&with("x-email", &shown)).await.unwrap(), "{named}: {shown}");
        }
        assert!(!matcher(&with("x-email", "bob@example.org")).await.unwrap());
    }
    let hashed = email().hashed([7; 32]).any_of(["Alice@Example.org"]);
    assert!(hashed(&with("x-email", "aLICE@example.org")).await.unwrap());
    let either = Header::new("x-old").map(str::to_lowercase).or(email()).any_of(["Alice"]);
    assert!(either(&with("x-email", "ALICE")).await.unwrap());
    assert!(either(&with("x-old", "ALICE")).await.unwrap());
}

#[test]
fn an_identity_that_its_extractor_never_returns_is_an_error() {
    type Try = Box<dyn Fn(&str) -> Result<(), tower_ratelimit::Error>>;
    fn of<K: KeyExtractor>(extractor: impl Fn() -> K + 'static) -> Try {
        Box::new(move |identity| extractor().try_any_of([identity]).map(drop))
    }
    let host = || Header::new("host");
    let domain =
        || Header::new("x-email").map(|email: &str| email.split_once('@').map(|(_, d)| d.to_owned()));
    let rows: Vec<(&str, Try, &[&str], &[&str])> = vec![
        ("header", of(|| Header::new("x")), &["k", "a b", "\u{e9}"], &["", " k", "k\t"]),
        ("bearer", of(Bearer::new), &["t1"], &["", "a b", " t1", "Bearer t1"]),
        ("host", of(host), &["shop.example", "Shop.example.:443", "[::1]:80"], &["", ":443"]),
        ("cookie", of(|| Cookie::new("s")), &["s1", " s1", "a;b"], &[""]),
        ("raw cookie", of(|| Cookie::new("s").raw()), &["s1", "%20"], &["", " s1", "a;b"]),
        ("route", of(MatchedRoute::default), &["/a/{b}", ""], &["a"]),
        ("constant", of(|| Key::new("all")), &["all"], &["al"]),
        ("network", of(|| PeerIp::new().ipv6_prefix(56)), &["2001:db8::/56", "::1"], &["2001:db8::/64"]),
        ("mapped", of(domain), &["a@example.org"], &["example.org"]),
        ("tuple", of(|| (Header::new("a"), Header::new("b"))), &[], &["a", ""]),
    ];
    for (name, build, right, wrong) in rows {
        for identity in right {
            assert!(build(identity).is_ok(), "{name}: {identity:?}");
        }
        for identity in wrong {
            let error = build(identity).expect_err(&format!("{name}: {identity:?}"));
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{name}: {identity:?}");
        }
    }
    let address = PeerIp::new().try_any_of(["203.0.113.0/24"]).map(drop).unwrap_err();
    let address = address.to_string();
    assert!(address.contains("identity 1: \"203.0.113.0/24\"") && address.contains("`within`"));
    // Identities that may be secrets are not shown.
    let header = Header::new("x").try_any_of(["fine", "s3cret "]).map(drop).unwrap_err();
    let header = header.to_string();
    assert!(header.starts_with("identity 2: ") && !header.contains("s3cret"), "{header}");
    // Each part of a tuple is named as the client sends it.
    let pair = || (Header::new("x-tenant").map(str::to_lowercase), PeerIp::new());
    let named = |address: &str| Key::join([&Key::new("ACME"), &Key::new(address)]);
    assert!(pair().try_any_of([named("203.0.113.0/24")]).is_err());
    assert!(pair().try_any_of([Key::join([&Key::new("ACME")])]).is_err());
    assert!(pair().try_any_of([named("203.0.113.7")]).is_ok());
}

#[tokio::test]
async fn each_part_of_a_tuple_is_named_as_the_client_sends_it() {
    let pair = (Header::new("x-tenant").map(str::to_lowercase), PeerIp::new());
    let matcher = pair.any_of([Key::join([&Key::new("ACME"), &Key::new("2001:db8::66")])]);
    let mut request = from("[2001:db8::9]:1");
    request.headers.insert("x-tenant", "Acme".parse().unwrap());
    assert!(matcher(&request).await.unwrap());

    // Even if a part or the whole is too long to be stored unhashed.
    for length in [60, 90, 96, 97, 200] {
        let pair = (Header::new("x-tenant").map(str::to_lowercase), PeerIp::new());
        let named = Key::new("ACME".repeat(length / 4) + &"A".repeat(length % 4));
        let matcher = pair.any_of([Key::join([&named, &Key::new("2001:db8::66")])]);
        let shown = "acme".repeat(length / 4) + &"a".repeat(length % 4);
        request.headers.insert("x-tenant", shown.parse().unwrap());
        assert!(matcher(&request).await.unwrap(), "{length}");
    }
}

#[tokio::test]
async fn a_key_from_an_extractor_or_a_decision_can_be_named_in_its_final_form() {
    let either = || Header::new("x-api-key").or(PeerIp::new());
    let extractors: [(&str, Box<dyn Fn() -> Box<dyn KeyExtractor>>); 4] = [
        ("or", Box::new(move || Box::new(either()))),
        ("hashed", Box::new(move || Box::new(PeerIp::new().hashed([7; 32])))),
        ("hashed or", Box::new(move || Box::new(either().hashed([7; 32])))),
        ("long", Box::new(|| Box::new(|_: &Parts| "x".repeat(200)))),
    ];
    for (name, extractor) in extractors {
        let layer =
            RateLimitLayer::new(MemoryStore::new(), Policy::new("p", Quota::per_hour(1)), extractor());
        let peer: SocketAddr = "203.0.113.7:1".parse().unwrap();
        let request = Request::get("/").extension(peer).body(String::new()).unwrap();
        let response = ask_and_read(&layer, request).await;
        let stored = response.extensions().get::<Decision>().unwrap().outcomes()[0].charge().key().clone();
        let given = key(&extractor(), &from("203.0.113.7:1")).await.unwrap();
        assert_eq!(stored, given, "{name}");
        // It matches no other key, such as the key of a client that sends the key's text as a header.
        let claim = with("x-api-key", "203.0.113.7");
        let claimed = extractor().any_of([stored.clone()])(&claim).await.unwrap_or(false);
        assert_eq!(claimed, name == "long", "{name}");
        for named in [stored, given] {
            let matcher = extractor().any_of([named]);
            assert!(matcher(&from("203.0.113.7:1")).await.unwrap(), "{name}");
        }
    }
}

#[tokio::test]
async fn a_policy_is_found_by_the_identity() {
    let long = "tenant ".repeat(40).trim_end().to_owned();
    let names = ["acme", "a b", "jos\u{e9}", &long];
    let tiers = || {
        let named = names.map(str::to_owned);
        PolicySource::per_request(move |_: &Parts, key: &Key| {
            let found = key.identity().is_some_and(|identity| named.iter().any(|name| *name == identity));
            Policy::new(if found { "found" } else { "other" }, Quota::per_hour(1))
        })
    };
    let tenant = || Header::new("x-tenant");
    let layers = [
        RateLimitLayer::new(MemoryStore::new(), tiers(), tenant()),
        RateLimitLayer::new(MemoryStore::new(), tiers(), tenant().hashed([7; 32])),
        RateLimitLayer::new(MemoryStore::new(), tiers(), Header::new("x-other").or(tenant())),
        RateLimitLayer::new(MemoryStore::new(), tiers(), tenant().map(|tenant: &str| tenant.to_owned())),
    ];
    for layer in layers {
        for (name, policy) in names.map(|name| (name, "found")).into_iter().chain([("none", "other")]) {
            let request = Request::get("/").header("x-tenant", name).body(String::new()).unwrap();
            let response = ask_and_read(&layer, request).await;
            let decision = response.extensions().get::<Decision>().unwrap();
            let outcome = &decision.outcomes()[0];
            assert_eq!(outcome.policy().name(), policy, "{name}");
        }
    }
}

#[test]
fn every_part_and_kind_of_key_is_identified() {
    let text = |key: &Key| key.identity().map(|identity| identity.into_owned());
    let (a, long) = (Key::new("a b"), Key::new("x".repeat(200)));
    assert_eq!(text(&a).unwrap(), "a b");
    assert_eq!(text(&Key::new("")).unwrap(), "");
    assert_eq!(text(&long).unwrap(), "x".repeat(200));
    assert_eq!(text(&Key::join([&a, &long])).unwrap(), format!("a b\u{1f}{}", "x".repeat(200)));
    assert_eq!(text(&Key::new([0xff])), None);
    // The end of a part that contains the separator is unknown.
    assert_eq!(text(&Key::join([&Key::new("a\u{1f}b"), &a])), None);
}

#[tokio::test]
async fn a_bearer_token_is_one_key_however_the_scheme_is_written() {
    let longest = "t".repeat(8_192);
    let too_long = format!("Bearer {longest}t");
    let longest_shown = format!("Bearer {longest}");
    let rows: [(&str, &[&[u8]], Result<&str, ErrorKind>); 20] = [
        ("as usual", &[b"Bearer t1"], Ok("t1")),
        ("lower case", &[b"bearer t1"], Ok("t1")),
        ("upper case", &[b"BEARER t1"], Ok("t1")),
        ("mixed", &[b"bEaReR t1"], Ok("t1")),
        ("spaces", &[b"  Bearer   t1  "], Ok("t1")),
        ("tabs", &[b"\tBearer\t t1\t"], Ok("t1")),
        ("the case of the token counts", &[b"Bearer T1"], Ok("T1")),
        ("base64", &[b"Bearer a-b._~+/=="], Ok("a-b._~+/==")),
        ("another scheme", &[b"Basic t1"], MISSING),
        ("a longer scheme", &[b"Bearers t1"], MISSING),
        ("a shorter scheme", &[b"Bear t1"], MISSING),
        ("the token alone", &[b"t1"], MISSING),
        ("none", &[], MISSING),
        ("empty", &[b""], INVALID),
        ("no token", &[b"Bearer"], INVALID),
        ("a blank token", &[b"Bearer \t "], INVALID),
        ("a space inside", &[b"Bearer t1 t2"], INVALID),
        ("not UTF-8", &[b"Bearer \xff"], INVALID),
        ("the longest", &[longest_shown.as_bytes()], Ok(&longest)),
        ("too long", &[too_long.as_bytes()], INVALID),
    ];
    for (name, lines, expected) in rows {
        let request =
            lines.iter().fold(Request::get("/"), |request, line| request.header("authorization", *line));
        assert_eq!(key(&Bearer::new(), &head(request)).await, expected.map(Key::new), "{name}");
    }
    let either = Bearer::new().or(Key::new("anonymous"));
    assert!(key(&either, &with("authorization", "Basic t1")).await.is_ok());
    let error = Bearer::new().extract(&with("authorization", "Bearer s3cret s3cret")).await.unwrap_err();
    assert!(!error.to_string().contains("s3cret"), "{error}");
}

#[tokio::test]
async fn equal_values_are_one_and_a_setting_chooses_among_different_ones() {
    const ALL: [Repeat; 3] = [Repeat::Reject, Repeat::First, Repeat::Last];
    const KEY: &str = "x-api-key";
    const AUTH: &str = "authorization";
    type Lines = &'static [(&'static str, &'static str)];
    type Row =
        (&'static str, fn(Repeat) -> Box<dyn KeyExtractor>, Lines, [Result<&'static str, ErrorKind>; 3]);
    let header = |repeat| -> Box<dyn KeyExtractor> { Box::new(Header::new("x-api-key").on_repeat(repeat)) };
    let host = |repeat| -> Box<dyn KeyExtractor> { Box::new(Header::new("host").on_repeat(repeat)) };
    let bearer = |repeat| -> Box<dyn KeyExtractor> { Box::new(Bearer::new().on_repeat(repeat)) };
    let cookie = |repeat| -> Box<dyn KeyExtractor> { Box::new(Cookie::new("session").on_repeat(repeat)) };
    let rows: [Row; 15] = [
        ("header once", header, &[(KEY, "a")], [Ok("a"); 3]),
        ("header, equal", header, &[(KEY, "a"), (KEY, " a ")], [Ok("a"); 3]),
        ("header", header, &[(KEY, "a"), (KEY, "b")], [INVALID, Ok("a"), Ok("b")]),
        ("header, empty", header, &[(KEY, "a"), (KEY, "")], [INVALID, Ok("a"), INVALID]),
        ("header, three", header, &[(KEY, "a"), (KEY, "a"), (KEY, "c")], [INVALID, Ok("a"), Ok("c")]),
        ("another header", header, &[("accept", "a"), ("accept", "b")], [MISSING; 3]),
        // The request's target is in the table's URL.
        ("host, equal", host, &[("host", "Shop.example:80")], [Ok("shop.example"); 3]),
        ("host", host, &[("host", "other.example")], [INVALID, Ok("shop.example"), Ok("other.example")]),
        ("bearer, equal", bearer, &[(AUTH, "Bearer t1"), (AUTH, "Bearer t1")], [Ok("t1"); 3]),
        ("bearer", bearer, &[(AUTH, "Bearer t1"), (AUTH, "Bearer t2")], [INVALID, Ok("t1"), Ok("t2")]),
        (
            "bearer, another scheme",
            bearer,
            &[(AUTH, "Basic t1"), (AUTH, "Bearer t2")],
            [INVALID, MISSING, Ok("t2")],
        ),
        ("cookie, equal", cookie, &[("cookie", "session=a; b=c"), ("cookie", "session=a")], [Ok("a"); 3]),
        ("cookie, equal when decoded", cookie, &[("cookie", "session=a; s%65ssion=%61")], [Ok("a"); 3]),
        ("cookie", cookie, &[("cookie", "session=a; session=b")], [INVALID, Ok("a"), Ok("b")]),
        ("cookie, one empty", cookie, &[("cookie", "session=; session=b")], [INVALID, MISSING, Ok("b")]),
    ];
    for (name, extractor, lines, expected) in rows {
        let url = Request::get("http://shop.example/");
        let request = head(lines.iter().fold(url, |request, (name, value)| request.header(*name, *value)));
        for (repeat, expected) in ALL.into_iter().zip(expected) {
            let found = extractor(repeat).extract(&request).await.map_err(|error| error.kind());
            assert_eq!(found, expected.map(Key::new), "{name}, {repeat:?}");
        }
    }
    // A value that is rejected does not continue with the next extractor; an empty cookie does.
    let either = Cookie::new("session").or(Key::new("address"));
    assert_eq!(key(&either, &with("cookie", "session=a; session=b")).await, INVALID.map(Key::new));
    assert!(key(&either, &with("cookie", "session=")).await.unwrap().as_str().ends_with("address"));
    let error = either.extract(&with("cookie", "session=s3cret; session=b")).await.unwrap_err().to_string();
    assert_eq!(error, "the cookie `session` is sent more than once, with different values");
}

#[tokio::test]
async fn a_cookie_is_one_key_however_it_is_encoded() {
    let rows: [(&str, &str, Result<&str, ErrorKind>); 16] = [
        ("plain", "session=s1", Ok("s1")),
        ("one byte", "session=s%31", Ok("s1")),
        ("another byte", "session=%731", Ok("s1")),
        ("all bytes", "session=%73%31", Ok("s1")),
        ("the name", "s%65ssion=s1", Ok("s1")),
        ("lower-case digits", "session=%c3%a9", Ok("\u{e9}")),
        ("upper-case digits", "session=%C3%A9", Ok("\u{e9}")),
        ("not encoded", "session=\u{e9}", Ok("\u{e9}")),
        // As in the crate `cookie`: invalid encodings are literal, and quotes are part of the value.
        ("no encoding", "session=%3", Ok("%3")),
        ("no digits", "session=%zz%25", Ok("%zz%")),
        ("quotes", "session=\"s1\"", Ok("\"s1\"")),
        ("a plus", "session=a+b", Ok("a+b")),
        ("spaces of any kind around", "\t session =\u{a0} s1\u{2003}", Ok("s1")),
        ("not UTF-8 when decoded", "session=%ff", INVALID),
        ("twice by two names", "session=s1; s%65ssion=s2", INVALID),
        ("none", "Session=s1", MISSING),
    ];
    for (name, line, expected) in rows {
        let found = key(&Cookie::new("session"), &with("cookie", line)).await;
        assert_eq!(found, expected.map(Key::new), "{name}");
    }
    let raw = Cookie::new("session").raw();
    assert_eq!(key(&raw, &with("cookie", "session=s%31")).await, Ok(Key::new("s%31")));
    assert_eq!(key(&raw, &with("cookie", "s%65ssion=s1")).await, Err(ErrorKind::MissingIdentity));
}

#[tokio::test]
async fn link_local_neighbours_have_separate_keys() {
    let peer = PeerIp::new();
    let of = async |address: &str| key(&peer, &from(address)).await.unwrap();
    assert_ne!(of("[fe80::1]:1").await, of("[fe80::2]:1").await);
    assert_ne!(of("[febf::1]:1").await, of("[febf::2]:1").await);
    assert_eq!(of("[fe80::1]:1").await, of("[fe80:0::1]:2").await);
    assert_eq!(of("[fec0::1]:1").await, of("[fec0::2]:1").await);
    assert_eq!(of("[2001:db8::1]:1").await, of("[2001:db8::2]:1").await);

    let client = ClientIp::behind(TrustedProxies::hops(1)).header("x-real-ip");
    let proxied = async |address: &str| {
        let mut request = from("10.0.0.1:1");
        request.headers.insert("x-real-ip", address.parse().unwrap());
        key(&client, &request).await.unwrap()
    };
    assert_ne!(proxied("fe80::1").await, proxied("fe80::2%eth0").await);
    let named = PeerIp::new().any_of(["fe80::1"]);
    assert!(named(&from("[fe80::1]:1")).await.unwrap());
    assert!(!named(&from("[fe80::2]:1")).await.unwrap());
}

/// An identity, or a join of parts.
#[derive(Clone, Debug, PartialEq)]
enum Tree {
    Leaf(Vec<u8>),
    Join(Vec<Self>),
}

impl Tree {
    fn key(&self) -> Key {
        match self {
            Self::Leaf(identity) => Key::new(identity),
            Self::Join(parts) => Key::join(&parts.iter().map(Self::key).collect::<Vec<_>>()),
        }
    }
}

/// Mostly short identities of the few characters that have a meaning in stored texts, so that many trees have
/// similar texts.
fn leaf() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        19 => prop::collection::vec(prop::sample::select(b"%|a".as_slice()), 0..4),
        1 => prop::collection::vec(prop::sample::select(b"%(|)+#<a".as_slice()), 0..100),
    ]
}

fn tree() -> impl Strategy<Value = Tree> {
    leaf()
        .prop_map(Tree::Leaf)
        .prop_recursive(3, 12, 3, |part| prop::collection::vec(part, 0..4).prop_map(Tree::Join))
}

#[test]
fn every_small_join_has_a_unique_text() {
    let leaves = ["", "a", "%", "|", "%|", "a|a", "a%|a", "%(", "%)", "%(a%)", "%(a%|a%)"];
    let leaves: Vec<Key> = leaves.iter().map(Key::new).collect();
    let joins = |parts: &[Key]| -> Vec<Key> {
        let pairs = parts.iter().flat_map(|one| parts.iter().map(move |other| Key::join([one, other])));
        let single = parts.iter().map(|part| Key::join([part]));
        [Key::join([])].into_iter().chain(single).chain(pairs).collect()
    };
    // The texts of leaves are among the texts of leaves and joins.
    let parts = [leaves.clone(), joins(&leaves)].concat();
    let mut keys = [leaves, joins(&parts)].concat();
    let count = keys.len();
    keys.sort();
    keys.dedup();
    assert_eq!((keys.len(), count), (count, 20_892));
}

proptest! {
    #[test]
    fn an_identity_is_read_back_as_it_was_given(identity in ".{0,200}") {
        let key = Key::new(&identity);
        prop_assert_eq!(key.identity().unwrap(), identity.as_str());
        let given = identity.clone();
        let either = Cookie::new("none").or(move |_: &Parts| given.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let second = runtime.block_on(either.extract(&head(Request::get("/")))).unwrap();
        prop_assert_eq!(second.identity().unwrap(), identity.as_str());
        prop_assert!(second.as_str().len() <= 96);
    }

    #[test]
    fn different_identities_stay_different_under_a_mapping_that_changes_nothing(
        one in ("[ -~]{1,60}", "[ -~]{1,60}"),
        other in ("[ -~]{1,60}", "[ -~]{1,60}"),
    ) {
        let mapped = (
            |parts: &Parts| parts.extensions.get::<(String, String)>().unwrap().0.clone(),
            |parts: &Parts| parts.extensions.get::<(String, String)>().unwrap().1.clone(),
        ).map(|identity: &str| identity.to_owned());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let key = |pair: &(String, String)| {
            runtime.block_on(mapped.extract(&head(Request::get("/").extension(pair.clone())))).unwrap()
        };
        prop_assert_eq!(key(&one) == key(&other), one == other);
    }

    #[test]
    fn joins_of_joins_have_equal_texts_only_for_equal_parts(trees in prop::collection::vec(tree(), 64)) {
        let keys: Vec<Key> = trees.iter().map(Tree::key).collect();
        for (one, key) in trees.iter().zip(&keys) {
            for (other, other_key) in trees.iter().zip(&keys) {
                prop_assert_eq!(key == other_key, one == other, "{} {}", key.as_str(), other_key.as_str());
            }
            let text = key.as_str();
            prop_assert!((1..=96).contains(&text.len()), "{}", text);
            let is_safe = |byte: u8| byte.is_ascii_graphic() && !b"{}".contains(&byte);
            prop_assert!(text.bytes().all(is_safe), "{}", text);
            // No client sends an identity with this text.
            prop_assert!(matches!(one, Tree::Leaf(_)) || Key::new(text) != *key, "{}", text);
        }
    }

    #[test]
    fn each_part_of_a_tuple_of_tuples_is_found_in_the_stored_text(
        identities in proptest::collection::vec(leaf(), 3),
    ) {
        let [a, b, c] = &identities[..] else { unreachable!() };
        let keys: Vec<Key> = identities.iter().map(Key::new).collect();
        let named = Key::join([&Key::join([&keys[0], &keys[1]]), &keys[2]]);
        let header = |name: &'static str| move |parts: &Parts| parts.headers.get(name).map(|v| v.as_bytes().to_vec());
        let extractor = ((header("a"), header("b")), header("c"));
        let matcher = extractor.any_of([named]);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let request = |a: &[u8], b: &[u8], c: &[u8]| {
            let headers = [("a", a), ("b", b), ("c", c)];
            let request = headers.into_iter().fold(Request::get("/"), |request, (name, value)| {
                request.header(name, http::HeaderValue::from_bytes(value).unwrap())
            });
            head(request)
        };
        prop_assert!(runtime.block_on(matcher(&request(a, b, c))).unwrap());
        let turned = runtime.block_on(matcher(&request(c, a, b))).unwrap();
        prop_assert_eq!(turned, (c, a, b) == (a, b, c));
    }
}
