//! What policies and layers warn of: mistakes that are valid.

use std::time::Duration;

use http::request::Parts;
use tower_ratelimit::policy::QuotaUnit;
use tower_ratelimit::{
    Answer, ClientIp, Header, Key, KeyExtractor, Limiter, MemoryStore, PeerIp, Policy, Quota, RateLimitLayer,
    Rule,
    algorithm::{FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket},
    key::{MatchedRoute, TrustedProxies, from_extension},
    layer::Rules,
};

/// There is one warning, which has this text; or none.
fn check(name: &str, warnings: &[String], expected: Option<&str>) {
    let is_expected = match expected {
        Some(text) => warnings.len() == 1 && warnings[0].contains(text),
        None => warnings.is_empty(),
    };
    assert!(is_expected, "{name}: {warnings:?}, not {expected:?}");
}

#[test]
fn a_policy_warns_of_a_period_unfit_for_headers_and_of_a_login_limit_exceeded() {
    let millis = |millis| Quota::new(5, Duration::from_millis(millis));
    let minute = Quota::per_minute(5);
    let queue = |wait| LeakyBucket::queue(Duration::from_secs(wait));
    let none = "clients see none: write the quota with a period of whole seconds, such as 50/s";
    let rows = [
        (Policy::new("api", minute), None),
        (Policy::new("api", millis(100)), Some(none)),
        (Policy::new("api", millis(1_500)), Some("one that is rounded up")),
        // The period of permits is not shown.
        (Policy::concurrency("api", 5), None),
        (Policy::new("login", minute), Some("up to 9 units in 60s, and its limit is 5")),
        (Policy::new("Password reset", minute.burst(3)), Some("up to 7 units")),
        (Policy::new("failed-logins", minute).algorithm(TokenBucket::new()), Some("up to 9 units")),
        (Policy::new("sign-in", minute).algorithm(FixedWindow::aligned()), Some("up to 10 units")),
        (Policy::new("login", minute).algorithm(SlidingLog::new()), None),
        (Policy::new("login", minute.burst(1)).algorithm(LeakyBucket::meter()), None),
        // A queue passes one unit, and what is replenished.
        (Policy::new("login", minute).algorithm(queue(48)), None),
        (Policy::new("login", minute).algorithm(queue(48).delay_after(5)), Some("up to 9 units")),
        (Policy::new("login", minute).algorithm(queue(0).delay_after(5)), Some("up to 9 units")),
        (Policy::new("login", minute.burst(2)), None),
        (Policy::new("login", Quota::per_minute(1)), None),
        (Policy::new("user_login_v2", minute), Some("up to 9 units")),
        (Policy::new("failedLogins", minute), Some("up to 9 units")),
        (Policy::new("logIn", minute), Some("up to 9 units")),
        (Policy::new("OTPs", minute), Some("up to 9 units")),
        // Words that contain such a word, or its parts.
        (Policy::new("catalog-index", minute), None),
        (Policy::new("footprint", minute), None),
        (Policy::new("design-inbox", minute), None),
        (Policy::new("sign-up-in", minute), None),
        // Of a debt, all but sliding windows and logs are paid off.
        (Policy::new("api", minute).max_debt(5), None),
        (Policy::new("api", minute).max_debt(5).algorithm(FixedWindow::aligned()), None),
        (Policy::new("api", minute).max_debt(5).algorithm(SlidingLog::new()), Some("sliding-log forgets it")),
        (
            Policy::new("api", minute).max_debt(5).algorithm(SlidingWindow::new()),
            Some("sliding-window forgets it"),
        ),
    ];
    for (policy, expected) in rows {
        check(&format!("{policy:?}"), &policy.warnings(), expected);
    }
}

#[test]
fn a_layer_warns_of_bytes_that_headers_call_requests() {
    let policy = || Policy::new("api", Quota::per_minute(5));
    let layer = |key: Box<dyn KeyExtractor>| RateLimitLayer::new(MemoryStore::new(), policy(), key);
    let rule = || Rule::new(policy(), Key::new("all"));
    let ruled = |rule: Rule| RateLimitLayer::with_rules(MemoryStore::new(), rule);
    let bytes = policy().quota_unit(QuotaUnit::ContentBytes);
    let rows = [
        (layer(Box::new(Key::new("all"))), None),
        (layer(Box::new(MatchedRoute::new())), None),
        (ruled(rule().reserve().cost(|_| 3)), None),
        (
            ruled(Rule::new(policy().max_debt(9), Key::new("all")).response_bytes()),
            Some("add Policy::quota_unit"),
        ),
        (ruled(Rule::new(bytes.clone().max_debt(9), Key::new("all")).response_bytes()), None),
        (
            ruled(Rule::new(bytes, Key::new("all")).response_bytes()),
            Some("is not charged: add Policy::max_debt"),
        ),
        (ruled(rule().reserve()), Some("is not charged: add Policy::max_debt")),
        (ruled(Rule::new(Policy::concurrency("jobs", 5), Key::new("all")).reserve()), None),
    ];
    for (at, (layer, expected)) in rows.into_iter().enumerate() {
        check(&at.to_string(), &layer.warnings(), expected);
    }
}

#[test]
fn a_layer_warns_of_requests_that_hold_permits_while_they_wait_in_a_queue() {
    let queue = || {
        let wait = LeakyBucket::queue(Duration::from_secs(8));
        Rule::new(Policy::new("mails", Quota::per_second(2)).algorithm(wait), Key::new("all"))
    };
    let meter = || {
        let meter = LeakyBucket::meter();
        Rule::new(Policy::new("mails", Quota::per_second(2)).algorithm(meter), Key::new("all"))
    };
    let permits = || Rule::new(Policy::concurrency("jobs", 5), Key::new("all"));
    let rows = [
        ("both", Rules::new().always(queue()).always(permits()), true),
        ("in the other order", Rules::new().always(permits()).always(queue()), true),
        ("a meter", Rules::new().always(meter()).always(permits()), false),
        ("permits alone", permits().into(), false),
        ("a queue alone", queue().into(), false),
        ("permits of all routes", Rules::new().route("/a", queue()).always(permits()), true),
        ("of the same route", Rules::new().route("/a", queue()).route("/a", permits()), true),
        ("of other routes", Rules::new().route("/a", queue()).route("/b", permits()), false),
    ];
    for (name, rules, expected) in rows {
        let warnings = RateLimitLayer::with_rules(MemoryStore::new(), rules).warnings();
        check(name, &warnings, expected.then_some(r#"the queue of the policy "mails" already holds"#));
    }
}

#[test]
fn a_layer_warns_of_units_that_no_call_of_a_handler_reaches() {
    let rule = |name: &str| Rule::new(Policy::new(name, Quota::per_minute(5)).max_debt(5), Key::new("all"));
    let (tokens, money) = (|| rule("tokens").unit("tokens"), || rule("money").unit("cents"));
    let reserves = |rule: Rule| Rules::from(rule.reserve());
    let calls = rule("calls").reserve();
    let tokens_unreserved = r#"the unit "tokens" of the policy "tokens" is not reserved"#;
    let money_unreserved = r#"the unit "cents" of the policy "money" is not"#;
    let no_unit = r#"the policy "calls" reserves without a unit"#;
    let rows = [
        ("a unit that is reserved", reserves(tokens()), None),
        ("two units", reserves(tokens()).always(money().reserve_or_refund()), None),
        ("no unit", reserves(rule("one")).always(rule("two").reserve()), None),
        ("a limit without a unit", reserves(tokens()).always(rule("requests")), None),
        ("not reserved", tokens().into(), Some(tokens_unreserved)),
        ("of bytes", money().response_bytes().into(), Some(money_unreserved)),
        ("without a unit", reserves(tokens()).always(calls), Some(no_unit)),
    ];
    for (name, rules, expected) in rows {
        let mut warnings = RateLimitLayer::with_rules(MemoryStore::new(), rules).warnings();
        warnings.retain(|warning| !warning.contains("quota_unit"));
        check(name, &warnings, expected);
    }
}

#[test]
fn a_layer_warns_of_lookups_by_an_extractor_of_a_program() {
    /// Looks the account of an API key up.
    struct Accounts;

    impl KeyExtractor for Accounts {
        fn extract(&self, _: &Parts) -> Answer<Key> {
            Answer::pending(async { Ok(Key::new("account")) })
        }

        fn looks_up(&self) -> bool {
            true
        }
    }

    let policy = |name| Policy::new(name, Quota::per_minute(5));
    let warns = |extractor: Box<dyn KeyExtractor>| {
        let layer = RateLimitLayer::new(MemoryStore::new(), policy("api"), extractor);
        let warnings = layer.warnings();
        let limited = layer.rule(Rule::new(policy("per-address"), PeerIp::new()));
        assert!(limited.warnings().is_empty(), "{:?}", limited.warnings());
        warnings.iter().any(|warning| warning.contains("looks up clients"))
    };
    assert!(warns(Box::new(Accounts)));
    assert!(warns(Box::new((Accounts.hashed([7; 16]), PeerIp::new().or(Key::new("all"))))));
    assert!(!warns(Box::new(PeerIp::new())));
}

#[test]
fn a_warning_that_is_accepted_is_left_out_and_one_that_does_not_occur_is_a_warning() {
    let rule = |name: &str| Rule::new(Policy::new(name, Quota::per_minute(5)), Key::new("all"));
    let layer = RateLimitLayer::with_rules(MemoryStore::new(), rule("login"));
    assert_eq!(layer.warnings().len(), 1);

    let accepting = layer.accept_warning("admits up to 9 units");
    assert!(accepting.warnings().is_empty());
    // Another warning stays.
    let more = accepting.clone().rule(rule("tokens").unit("tokens"));
    let warnings = more.warnings();
    assert!(warnings.len() == 1 && warnings[0].contains("is not reserved"), "{warnings:?}");

    // All warnings with the text are accepted.
    let two = accepting.clone().rule(rule("password"));
    assert!(two.warnings().is_empty(), "{:?}", two.warnings());

    let needless = accepting.accept_warning("looks up clients").warnings();
    assert_eq!(
        needless,
        [
            r#"the layer accepts the warning "looks up clients", which does not occur: remove the call of `accept_warning`"#
        ]
    );
}

#[test]
fn a_sibling_accepts_warnings_for_its_own_rules() {
    let rule = |name: &str| Rule::new(Policy::new(name, Quota::per_minute(5)), Key::new("all"));
    let layer = RateLimitLayer::with_rules(MemoryStore::new(), rule("login")).accept_warning("up to 9 units");
    assert!(layer.with_same_settings(rule("api")).warnings().is_empty());
    assert_eq!(layer.with_same_settings(rule("password")).warnings().len(), 1);
}

#[test]
fn a_policy_under_two_kinds_of_keys_is_a_warning_unless_it_allows_them() {
    struct User;
    struct Tenant;
    fn table(one: Rule, other: Rule) -> Vec<String> {
        let rules = Rules::new().route("/me", one).route("/team", other);
        RateLimitLayer::with_rules(MemoryStore::new(), rules).warnings()
    }
    fn policy() -> Policy {
        Policy::new("api", Quota::per_hour(2))
    }
    fn keys(one: impl KeyExtractor, other: impl KeyExtractor) -> Vec<String> {
        table(Rule::new(policy(), one), Rule::new(policy(), other))
    }
    let user = || from_extension(|_: &User| 42);
    let tenant = || from_extension(|_: &Tenant| 42);
    let header = |name: &'static str| Header::new(name);
    let boxed: [Box<dyn KeyExtractor>; 2] = [Box::new(user()), Box::new(tenant())];
    let [one, other] = boxed;
    let lower = header("x-a").map(str::to_lowercase);
    let upper = header("x-a").map(str::to_uppercase);
    let behind_proxy = ClientIp::behind(TrustedProxies::hops(1));
    let team = Rule::new(Policy::new("team", Quota::per_hour(2)), header("x-b"));
    let allowed = |key| Rule::new(policy().allow_mixed_keys(), key);
    let address_with = "the client's address with the header `x-a`";
    let two_headers = "the header `x-a` and the header `x-b`";
    let address = "the client's address and the header `x-b`";
    let fallback = "the header `x-a` or the client's address";
    let rows = [
        ("two extensions", keys(user(), tenant()), Some("keys of two kinds, `")),
        ("boxed", keys(one, other), Some("keys of two kinds, `")),
        ("two headers", keys(header("x-a"), header("x-b")), Some(two_headers)),
        ("an address and a header", keys(PeerIp::new(), header("x-b")), Some(address)),
        ("two closures", keys(|_: &Parts| 1, |_: &Parts| 2), Some("keys of two kinds")),
        ("two changes", keys(lower, upper), Some("`x-a`, changed")),
        ("a part", keys((PeerIp::new(), header("x-a")), header("x-a")), Some(address_with)),
        ("a fallback", keys(header("x-a").or(PeerIp::new()), PeerIp::new()), Some(fallback)),
        ("one kind", keys(header("x-a"), header("X-A")), None),
        ("addresses", keys(PeerIp::new(), behind_proxy), None),
        ("fixed keys", keys(Key::new("a"), Key::new("b")), None),
        ("two policies", table(Rule::new(policy(), header("x-a")), team), None),
        ("allowed", table(allowed(header("x-a")), allowed(header("x-b"))), None),
    ];
    for (name, warnings, expected) in rows {
        check(name, &warnings, expected);
        for warning in warnings {
            assert!(warning.contains("the policy \"api\""), "{name}: {warning}");
            assert!(warning.ends_with("or accept it with Policy::allow_mixed_keys"), "{name}: {warning}");
        }
    }
    // One rule on two routes.
    let rule = Rule::new(policy(), |_: &Parts| 1);
    assert!(table(rule.clone(), rule).is_empty());
}

#[test]
fn two_layers_on_one_store_that_use_a_policy_under_two_kinds_of_keys_warn() {
    let policy = || Policy::new("api", Quota::per_hour(2));
    let store = MemoryStore::new();
    let users = RateLimitLayer::new(store.clone(), policy(), Header::new("x-user"));
    assert!(users.warnings().is_empty());
    let same = RateLimitLayer::new(store.clone(), policy(), Header::new("x-user"));
    let on_another = RateLimitLayer::new(MemoryStore::new(), policy(), PeerIp::new());
    let counts = |layers: [&RateLimitLayer; 3]| layers.map(|layer| layer.warnings().len());
    assert_eq!(counts([&users, &same, &on_another]), [0; 3]);

    let addresses = RateLimitLayer::new(Limiter::new(store.clone()), policy(), PeerIp::new());
    assert_eq!(counts([&users, &same, &addresses]), [1; 3]);
    let expected = "the policy \"api\" has keys of two kinds, the client's address and the header `x-user` of another layer \
                    on this store, so equal identities share a count";
    assert!(addresses.warnings()[0].starts_with(expected), "{:?}", addresses.warnings());
    assert!(addresses.clone().accept_warning("keys of two kinds").warnings().is_empty());
    // A layer that is gone shares nothing, and neither does a policy that allows it.
    drop(addresses);
    assert_eq!(counts([&users, &same, &on_another]), [0; 3]);
    let allowed = RateLimitLayer::new(store, policy().allow_mixed_keys(), PeerIp::new());
    assert_eq!(counts([&users, &same, &allowed]), [0; 3]);
}
