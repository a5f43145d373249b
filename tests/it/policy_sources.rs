//! Policies that are chosen per request: immediately or later, none, failing, with fallbacks; and rules that skip
//! requests.

use std::{
    convert::Infallible,
    fmt,
    future::pending,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{HeaderValue, Request, Response, header::WWW_AUTHENTICATE, request::Parts};
use support::{
    RedisServer,
    inner::{ask, ask_and_read, get, text},
    store,
};
use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_ratelimit::{
    Answer, Decision, Error, ErrorKind, Header, Key, KeyExtractor, Limiter, MemoryStore, Policy,
    PolicySource, Quota, RateLimitLayer, Rejection, Rule,
    layer::{DecisionEvent, DecisionKind},
    policy::{Enforcement, IntoPolicy},
    response::{ProblemDetails, ResponseMapper as _},
};

fn policy(name: &'static str, limit: u64) -> Policy {
    Policy::new(name, Quota::per_hour(limit))
}

/// `result`, after the task was woken once.
fn later<T: Send + 'static>(result: Result<T, Error>) -> Answer<T> {
    Answer::pending(async {
        tokio::task::yield_now().await;
        result
    })
}

fn error(kind: ErrorKind) -> Error {
    Error::new(kind, "the reason")
}

fn source<P: IntoPolicy>(choose: impl Fn() -> P + Send + Sync + 'static) -> PolicySource {
    PolicySource::per_request(move |_: &Parts, _: &Key| choose())
}

fn layer(store: impl Into<Limiter>, source: PolicySource) -> RateLimitLayer {
    RateLimitLayer::new(store, source, Key::new("all"))
}

/// The status of a request, the policies that it was charged under, and the kind of the event.
async fn outcome(layer: &RateLimitLayer, request: Request<String>) -> (u16, Vec<String>, DecisionKind) {
    let kinds = Arc::new(Mutex::new(Vec::new()));
    let layer = layer.clone().on_decision({
        let kinds = kinds.clone();
        move |event: &DecisionEvent<'_>| kinds.lock().unwrap().push(event.kind)
    });
    let service = layer.layer(service_fn(|request: Request<String>| {
        let names: Vec<_> = match Decision::from_extensions(request.extensions()) {
            Some(decision) => decision.outcomes().iter().map(|one| one.policy().name().to_owned()).collect(),
            None => Vec::new(),
        };
        async move { Ok::<_, Infallible>(Response::new(names.join(" "))) }
    }));
    let Ok(response) = service.oneshot(request).await;
    let status = response.status().as_u16();
    let names = if status == 200 { text(response).await } else { String::new() };
    let [kind] = kinds.lock().unwrap()[..] else { panic!("not one event") };
    (status, names.split_whitespace().map(String::from).collect(), kind)
}

#[tokio::test]
async fn a_closure_returns_a_policy_none_or_an_error_now_or_later_on_both_stores() {
    let server = RedisServer::start();
    let redis = Limiter::new(store(&server).await);
    let api = || policy("api", 100);
    let admitted = (200, vec!["api".to_owned()], DecisionKind::Admitted);
    let unlimited = (200, vec![], DecisionKind::Exempt);
    let rejected = |status| (status, vec![], DecisionKind::Unidentified);
    let unavailable = || error(ErrorKind::IdentityUnavailable);
    let unknown = || error(ErrorKind::UnknownIdentity);
    let rows = [
        ("a policy", source(api), admitted.clone()),
        ("some policy", source(move || Some(api())), admitted.clone()),
        ("no policy", source(|| None::<Policy>), unlimited.clone()),
        ("an ok policy", source(move || Ok(api())), admitted.clone()),
        ("no policy in a result", source(|| Ok(None::<Policy>)), unlimited.clone()),
        ("an error", source(move || Err::<Policy, _>(unavailable())), rejected(500)),
        ("an unknown identity", source(move || Err::<Policy, _>(unknown())), rejected(401)),
        ("an error of the store", source(|| Err::<Policy, _>(error(ErrorKind::StoreFailed))), rejected(500)),
        ("a ready answer", source(move || Answer::ready(Ok(api()))), admitted.clone()),
        ("a later policy", source(move || later(Ok(api()))), admitted.clone()),
        ("a later policy, perhaps", source(move || later(Ok(Some(api())))), admitted.clone()),
        ("no policy, later", source(|| later(Ok(None::<Policy>))), unlimited.clone()),
        ("a later error", source(move || later(Err::<Policy, _>(unknown()))), rejected(401)),
        ("an option of an answer", source(move || Some(later(Ok(api())))), admitted),
        ("a later answer in no option", source(|| None::<Answer<Policy>>), unlimited),
    ];
    for (name, source, expected) in rows {
        for limiter in [Limiter::new(MemoryStore::new()), redis.clone()] {
            assert_eq!(outcome(&layer(limiter, source.clone()), get()).await, expected, "{name}");
        }
    }
}

#[tokio::test]
async fn rules_without_a_policy_are_left_out_of_the_atomic_step() {
    let server = RedisServer::start();
    let redis = Limiter::new(store(&server).await);
    let none = || source(|| None::<Policy>);
    let later_none = || source(|| later(Ok(None::<Policy>)));
    let immediate = || source(|| policy("b", 1));
    let later_b = || source(|| later(Ok(policy("b", 1))));
    type Row = (&'static str, PolicySource, PolicySource, &'static [&'static str], u16);
    let rows: [Row; 6] = [
        ("none, then one", none(), immediate(), &["b"], 429),
        ("one, then none", immediate(), none(), &["b"], 429),
        ("none later, then one", later_none(), immediate(), &["b"], 429),
        ("one later, then none later", later_b(), later_none(), &["b"], 429),
        ("both", source(|| later(Ok(policy("a", 5)))), immediate(), &["a", "b"], 429),
        ("none of them", none(), later_none(), &[], 200),
    ];
    for (row, (name, first, second, names, again)) in rows.into_iter().enumerate() {
        for (place, limiter) in [Limiter::new(MemoryStore::new()), redis.clone()].into_iter().enumerate() {
            let key = format!("{row}-{place}");
            let layer = RateLimitLayer::new(limiter.clone(), first.clone(), Key::new(key.clone()))
                .rule(Rule::new(second.clone(), Key::new(key.clone())));
            assert_eq!(outcome(&layer, get()).await.1, names, "{name}");
            assert_eq!(outcome(&layer, get()).await.0, again, "{name}");
            // A denial charges none of them.
            let left = limiter.peek(&policy("a", 5), &Key::new(key), 0).await.unwrap().remaining();
            assert_eq!(left, Some(if names.contains(&"a") { 4 } else { 5 }), "{name}");
        }
    }
}

#[tokio::test]
async fn or_replaces_none_and_or_on_error_replaces_a_failure() {
    #[derive(Clone)]
    struct Plan(Option<Policy>);
    let other = || policy("other", 100);
    let none = || source(|| None::<Policy>);
    let failing = |kind| source(move || Err::<Policy, _>(error(kind)));
    let late = |kind| source(move || later(Err::<Policy, _>(error(kind))));
    let plan = || PolicySource::from_extension(|plan: &Plan| plan.0.clone());
    let late_plan = || PolicySource::from_extension(|plan: &Plan| later(Ok(plan.0.clone())));
    type Row = (&'static str, PolicySource, Result<&'static str, u16>);
    let rows: [Row; 21] = [
        ("none", none().or(other()), Ok("other")),
        ("none, later", source(|| later(Ok(None::<Policy>))).or(other()), Ok("other")),
        ("none, another that is later", none().or(source(move || later(Ok(other())))), Ok("other")),
        ("none twice", none().or(source(|| later(Ok(None::<Policy>)))), Ok("")),
        ("a third", none().or(none()).or(other()), Ok("other")),
        ("a policy", source(|| later(Ok(policy("first", 9)))).or(other()), Ok("first")),
        ("a constant", PolicySource::from(policy("first", 9)).or(other()).or_on_error(other()), Ok("first")),
        ("or does not hide a failure", failing(ErrorKind::IdentityUnavailable).or(other()), Err(500)),
        ("or does not hide a mistake", failing(ErrorKind::MissingSetup).or(other()), Err(500)),
        ("or does not hide a later failure", late(ErrorKind::IdentityUnavailable).or(other()), Err(500)),
        ("no extension", plan(), Err(500)),
        ("no extension, or", plan().or(other()), Ok("other")),
        ("no extension, none", plan().or(none()), Ok("")),
        ("no extension, a later or", late_plan().or(other()), Ok("other")),
        ("no extension is a mistake, no failure", plan().or_on_error(other()), Err(500)),
        ("no extension, or at the end", plan().or_on_error(policy("failed", 9)).or(other()), Ok("other")),
        ("a failure", failing(ErrorKind::IdentityUnavailable).or_on_error(other()), Ok("other")),
        ("a later failure", late(ErrorKind::StoreTimeout).or_on_error(other()), Ok("other")),
        ("unknown", failing(ErrorKind::UnknownIdentity).or_on_error(other()), Err(401)),
        ("unknown, later", late(ErrorKind::UnknownIdentity).or_on_error(other()), Err(401)),
        ("a mistake", late(ErrorKind::MissingSetup).or_on_error(other()), Err(500)),
    ];
    for (name, source, expected) in rows {
        let (status, names, _) = outcome(&layer(MemoryStore::new(), source), get()).await;
        let seen = if status == 200 { Ok(names.join(" ")) } else { Err(status) };
        assert_eq!(seen, expected.map(String::from), "{name}");
    }
    let with_plan = |plan| {
        let mut request = get();
        request.extensions_mut().insert(Plan(plan));
        request
    };
    for (name, source) in [("immediate", plan().or(other())), ("later", late_plan().or(other()))] {
        let layer = layer(MemoryStore::new(), source);
        assert_eq!(outcome(&layer, with_plan(Some(policy("paid", 9)))).await.1, ["paid"], "{name}");
        assert_eq!(outcome(&layer, with_plan(None)).await.1, ["other"], "{name}");
    }
}

/// The error of a user's own database.
#[derive(Debug)]
struct NoSuchAccount;

impl fmt::Display for NoSuchAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("row not found in table accounts")
    }
}

impl std::error::Error for NoSuchAccount {}

fn unknown() -> Error {
    Error::new(ErrorKind::UnknownIdentity, "no account has this API key").with_source(NoSuchAccount)
}

/// The same rejections from a key extractor and from a policy source, immediate and later.
fn layers_that_know_no_identity() -> [(&'static str, RateLimitLayer); 5] {
    let by = |key: Arc<dyn KeyExtractor>| RateLimitLayer::new(MemoryStore::new(), policy("api", 9), key);
    [
        ("key", by(Arc::new(|_: &Parts| Err::<Key, _>(unknown())))),
        ("later key", by(Arc::new(|_: &Parts| later(Err::<Key, _>(unknown()))))),
        ("key with another", by(Arc::new((|_: &Parts| Err::<Key, _>(unknown())).or(Key::new("other"))))),
        ("policy", layer(MemoryStore::new(), source(|| Err::<Policy, _>(unknown())))),
        ("later policy", layer(MemoryStore::new(), source(|| later(Err::<Policy, _>(unknown()))))),
    ]
}

#[tokio::test]
async fn an_unknown_identity_is_401_and_unauthenticated_over_grpc() {
    for (name, layer) in layers_that_know_no_identity() {
        let response = ask(&layer, get()).await;
        assert_eq!(response.status(), 401, "{name}");
        assert_eq!(response.headers()["cache-control"], "no-store", "{name}");
        let body = text(response).await;
        assert_eq!(
            body,
            r#"{"type":"about:blank","title":"Unauthorized","status":401,"detail":"no account has this API key"}"#,
            "{name}"
        );

        let call = Request::post("/").header("content-type", "application/grpc").body(String::new()).unwrap();
        let response = ask(&layer, call).await;
        assert_eq!(response.status(), 200, "{name}");
        assert_eq!(response.headers()["grpc-status"], "16", "{name}");
        assert_eq!(response.headers()["grpc-message"], "no account has this API key", "{name}");

        let reporting = layer.enforcement(Enforcement::ReportOnly);
        assert_eq!(ask(&reporting, get()).await.status(), 200, "{name}, report only");
    }
}

#[tokio::test]
async fn a_mapper_makes_the_users_own_401_of_the_users_own_error() {
    let mapper = |rejection: &Rejection, request: &Parts| {
        let mut response = ProblemDetails::default().response(rejection, request);
        // The source of the rejection is the `Error`.
        let cause = std::error::Error::source(rejection).and_then(|error| error.source());
        if let Some(cause) = cause.and_then(|cause| cause.downcast_ref::<NoSuchAccount>()) {
            let challenge = format!("ApiKey realm=\"{cause}\"");
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_str(&challenge).unwrap());
        }
        response
    };
    for (name, layer) in layers_that_know_no_identity() {
        let response = ask(&layer.response(mapper), get()).await;
        assert_eq!(response.status(), 401, "{name}");
        assert_eq!(
            response.headers()["www-authenticate"],
            "ApiKey realm=\"row not found in table accounts\"",
            "{name}"
        );
    }
}

#[tokio::test]
async fn a_ban_or_exemption_of_an_unknown_identity_is_not_decided() {
    let who = || |_: &Parts| Err::<Key, _>(unknown());
    let all = layer(MemoryStore::new(), policy("api", 9).into());
    let blocked = || all.clone().block_if(who().any_of(["a"]));
    let rows = [
        ("blocklist", blocked(), 401),
        ("report only", blocked().enforcement(Enforcement::ReportOnly), 401),
        ("exemption", all.clone().exempt_if(who().any_of(["a"])), 200),
    ];
    for (name, layer, status) in rows {
        assert_eq!(ask(&layer, get()).await.status(), status, "{name}");
    }
    assert_eq!(outcome(&all.exempt_if(who().any_of(["a"])), get()).await.2, DecisionKind::Admitted);
}

#[tokio::test]
async fn sources_run_while_the_request_is_there_and_the_cost_comes_from_the_request() {
    let tenant = |parts: &Parts| parts.uri.path().split('/').nth(1).map(String::from);
    let tiers = PolicySource::per_request(|parts: &Parts, key: &Key| {
        let tier = parts.headers["x-tier"].to_str().unwrap().to_owned();
        let tenant = key.identity().unwrap().into_owned();
        later(Ok(policy(if tier == "paid" && tenant == "acme" { "paid" } else { "free" }, 10)))
    });
    let limiter = Limiter::new(MemoryStore::new());
    let rule = Rule::new(tiers, tenant).cost(|parts| if parts.method == "POST" { 4 } else { 1 });
    let layer = RateLimitLayer::with_rules(limiter.clone(), rule);
    let request = |tier: &str| Request::post("/acme/x").header("x-tier", tier).body(String::new()).unwrap();
    for (tier, left) in [("paid", 6), ("free", 6), ("paid", 2)] {
        assert_eq!(outcome(&layer, request(tier)).await.1, [tier]);
        let named = policy(if tier == "paid" { "paid" } else { "free" }, 10);
        let remaining = limiter.peek(&named, &Key::new("acme"), 0).await.unwrap().remaining();
        assert_eq!(remaining, Some(left));
    }
}

#[tokio::test]
async fn a_request_that_is_dropped_while_its_policy_is_looked_up_is_not_charged() {
    let limiter = Limiter::new(MemoryStore::new());
    let hangs = source(|| Answer::pending(pending::<Result<Policy, Error>>()));
    let layer = RateLimitLayer::new(limiter.clone(), policy("a", 5), Key::new("all"))
        .rule(Rule::new(hangs, Key::new("all")));
    let late = tokio::time::timeout(Duration::from_millis(20), ask(&layer, get())).await;
    assert!(late.is_err());
    assert_eq!(limiter.peek(&policy("a", 5), &Key::new("all"), 0).await.unwrap().remaining(), Some(5));
}

#[tokio::test]
async fn a_rule_skips_what_matches_its_exemption_and_needs_no_key_for_it() {
    let by_key = || Rule::new(policy("by-key", 9), Header::new("x-api-key"));
    let is_public = |parts: &Parts| parts.uri.path() == "/public";
    let partner = || Header::new("x-partner").any_of(["p1"]);
    // A matcher that knows later.
    let late_partner = || {
        let header = |parts: &Parts| {
            let partner = parts.headers.get("x-partner").map(|value| Key::new(value.to_str().unwrap()));
            later(partner.ok_or_else(|| error(ErrorKind::MissingIdentity)))
        };
        header.any_of(["p1"])
    };
    let all = || layer(MemoryStore::new(), policy("all", 9).into());
    let (p1, p2) = (("x-partner", "p1"), ("x-partner", "p2"));
    let to = |path: &str, headers: &[(&'static str, &str)]| {
        let mut request = Request::get(path).body(String::new()).unwrap();
        for (name, value) in headers {
            request.headers_mut().append(*name, value.parse().unwrap());
        }
        request
    };
    let key = ("x-api-key", "k1");
    type Row<'a> = (&'static str, Rule, Request<String>, (u16, &'a str));
    let rows: [Row<'_>; 12] = [
        ("applies", by_key().skip_if(is_public), to("/", &[key]), (200, "all by-key")),
        ("skipped", by_key().skip_if(is_public), to("/public", &[key]), (200, "all")),
        ("skipped, no key", by_key().skip_if(is_public), to("/public", &[]), (200, "all")),
        ("applies, no key", by_key().skip_if(is_public), to("/", &[]), (400, "")),
        ("skipped by header", by_key().skip_if(partner()), to("/", &[p1]), (200, "all")),
        ("skipped later", by_key().skip_if(late_partner()), to("/", &[p1]), (200, "all")),
        ("applies later", by_key().skip_if(late_partner()), to("/", &[p2, key]), (200, "all by-key")),
        ("applies later, no key", by_key().skip_if(late_partner()), to("/", &[p2]), (400, "")),
        ("matcher misses its header", by_key().skip_if(partner()), to("/", &[key]), (200, "all by-key")),
        (
            "matcher cannot read its header",
            by_key().skip_if(partner()),
            to("/", &[p1, p2, key]),
            (200, "all by-key"),
        ),
        ("second matcher", by_key().skip_if(is_public).skip_if(partner()), to("/", &[p1]), (200, "all")),
        (
            "second matcher, later",
            by_key().skip_if(late_partner()).skip_if(is_public),
            to("/public", &[]),
            (200, "all"),
        ),
    ];
    for (name, rule, request, (status, names)) in rows {
        let seen = outcome(&all().rule(rule), request).await;
        assert_eq!((seen.0, &*seen.1.join(" ")), (status, names), "{name}");
    }
}

#[tokio::test]
async fn a_request_that_all_rules_skip_is_served_without_a_decision() {
    let skipped = |name| Rule::new(policy(name, 1), Key::new("all")).skip_if(|_| true);
    let layer = layer(MemoryStore::new(), source(|| None::<Policy>)).rule(skipped("a")).rule(skipped("b"));
    for _ in 0..3 {
        assert_eq!(outcome(&layer, get()).await, (200, vec![], DecisionKind::Exempt));
    }
    let response = ask_and_read(&layer, get()).await;
    assert!(response.extensions().get::<Decision>().is_none());
    assert!(!response.headers().contains_key("ratelimit"));
}
