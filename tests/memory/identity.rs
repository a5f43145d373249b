//! Every spelling of an identity has the same key, and two identities never share a key.

use std::net::SocketAddr;

use http::{Request, request::Parts};
use proptest::prelude::*;
use support::inner::ask_and_read;
use tower_ratelimit::{
    Decision, ErrorKind, Header, Key, KeyExtractor, MemoryStore, PeerIp, Policy, PolicySource, Quota,
    RateLimitLayer, key::Cookie,
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
