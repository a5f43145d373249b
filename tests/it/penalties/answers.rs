//! What clients and operators see of a ban.

use std::sync::{Arc, Mutex};

use http::{Request, StatusCode};
use tower_ratelimit::{
    Header, Key, RateLimitHeaders, RateLimitLayer, Rule, layer::DecisionKind, policy::Enforcement,
    response::Dialect,
};

use super::*;
use support::inner::{ask as ask_layer, ask_and_read, get, text};

fn layer() -> RateLimitLayer {
    let store = MemoryStore::with_clock(tower_ratelimit::store::ManualClock::new());
    let login = Policy::new("login", Quota::per_minute(1))
        .algorithm(FixedWindow::anchored())
        .penalty(Penalty::after(2, MINUTE).ban(HOUR));
    RateLimitLayer::new(store, login, Key::new("all")).rule(Rule::new(day("daily", 9), Key::new("all")))
}

#[tokio::test]
async fn a_banned_client_gets_the_problem_of_abnormal_usage_and_the_rest_of_the_ban() {
    let layer = layer();
    assert_eq!(ask_layer(&layer, get()).await.status(), StatusCode::OK);
    let denied = ask_layer(&layer, get()).await;
    assert_eq!(denied.headers()["retry-after"], "60");
    assert!(text(denied).await.contains("#quota-exceeded"));
    for _ in 0..2 {
        let banned = ask_and_read(&layer, get()).await;
        assert_eq!(banned.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(banned.headers()["content-type"], "application/problem+json");
        assert_eq!(banned.headers()["retry-after"], "3600");
        // No item for the penalty.
        assert_eq!(banned.headers()["ratelimit-policy"], r#""login";q=1;w=60, "daily";q=9;w=86400"#);
        assert_eq!(banned.headers()["ratelimit"], r#""login";r=0;t=3600, "daily";r=8"#);
        assert!(banned.extensions().get::<Decision>().unwrap().banned_for().is_some());
        let problem: serde_json::Value = serde_json::from_str(&text(banned).await).unwrap();
        let expected = serde_json::json!({
            "type": "https://iana.org/assignments/http-problem-types#abnormal-usage-detected",
            "title": "Request not satisfied due to detection of abnormal request pattern",
            "status": 429,
            "detail": "The client is banned. Try again in 1 hour.",
            "violated-policies": ["login"],
        });
        assert_eq!(problem, expected);
    }
}

#[tokio::test]
async fn other_dialects_of_headers_show_no_penalty_either() {
    for headers in [
        RateLimitHeaders::new(Dialect::IetfDraft07),
        RateLimitHeaders::new(Dialect::IetfDraft06),
        RateLimitHeaders::new(Dialect::LegacyDelta),
    ] {
        let layer = layer().headers(headers);
        let mut answers = Vec::new();
        for _ in 0..3 {
            answers.push(ask_layer(&layer, get()).await);
        }
        for (name, value) in answers[2].headers() {
            let value = value.to_str().unwrap();
            assert!(!value.contains("penalty"), "{name}: {value}");
        }
        assert_eq!(answers[2].headers()["retry-after"], "3600");
    }
}

#[tokio::test]
async fn on_decision_reports_a_ban_with_its_decision() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    let layer = layer().on_decision(move |event| {
        let rest = event.decision.and_then(Decision::banned_for);
        log.lock().unwrap().push((event.kind, event.policy().map(str::to_owned), rest));
    });
    let layer = layer.block_if(|parts| parts.headers.contains_key("x-bad"));
    for _ in 0..3 {
        ask_layer(&layer, get()).await;
    }
    let bad = Request::get("/").header("x-bad", "1").body(String::new()).unwrap();
    ask_layer(&layer, bad).await;
    let login = || Some("login".to_owned());
    let expected = [
        (DecisionKind::Admitted, login(), None),
        (DecisionKind::Denied, login(), None),
        (DecisionKind::Banned, login(), Some(HOUR)),
        (DecisionKind::Blocked, None, None),
    ];
    assert_eq!(*seen.lock().unwrap(), expected);
}

#[tokio::test]
async fn report_only_admits_banned_clients_and_counts_their_denials() {
    let layer = layer().enforcement(Enforcement::ReportOnly);
    for _ in 0..4 {
        assert_eq!(ask_layer(&layer, get()).await.status(), StatusCode::OK);
    }
    // Enforced, it continues with this ban.
    let limiter = Limiter::new(MemoryStore::new());
    let policy = day("p", 1).penalty(three());
    let reporting = RateLimitLayer::new(limiter.clone(), policy.clone(), Key::new("all"))
        .enforcement(Enforcement::ReportOnly);
    for _ in 0..4 {
        ask_layer(&reporting, get()).await;
    }
    assert!(ask(&limiter, &policy, &Key::new("all")).await.banned_for().is_some());
}

#[tokio::test]
async fn a_rejection_says_whether_it_is_a_ban() {
    let limiter = Limiter::new(MemoryStore::new());
    let policy = day("p", 1).penalty(three());
    let (alice, mut texts) = (Key::new("alice"), Vec::new());
    for _ in 0..4 {
        if let Err(rejection) = ask(&limiter, &policy, &alice).await.into_result() {
            let is_banned = rejection.decision().is_some_and(|decision| decision.banned_for().is_some());
            texts.push((is_banned, rejection.to_string().split(';').next().unwrap().to_owned()));
        }
    }
    let denied = (false, "over the rate limit".to_owned());
    assert_eq!(texts, [denied.clone(), denied, (true, "the client is banned".to_owned())]);
}

#[tokio::test]
async fn only_failed_logins_count_and_then_ban() {
    let limiter = Limiter::new(MemoryStore::new());
    let policy = day("login", 2).penalty(three());
    let rule = Rule::new(policy, Header::new("x-user"))
        .count_if(|response| response.status == StatusCode::UNAUTHORIZED);
    let layer = RateLimitLayer::with_rules(limiter.clone(), rule);
    let login = async |fails: bool| {
        let request = Request::get("/").header("x-user", "ann").extension(Decision::new([]));
        let request = request.body(String::new()).unwrap();
        let status = if fails { 401 } else { 200 };
        let response = move || http::Response::builder().status(status).body(String::new()).unwrap();
        support::inner::ask_for(&layer, request, response).await
    };
    for _ in 0..20 {
        assert_eq!(login(false).await.status(), 200);
    }
    let mut seen = Vec::new();
    for _ in 0..6 {
        let response = login(true).await;
        let is_banned = response.extensions().get::<Decision>().unwrap().banned_for().is_some();
        seen.push((response.status().as_u16(), is_banned));
    }
    assert_eq!(seen, [(401, false), (401, false), (429, false), (429, false), (429, true), (429, true)]);
    assert_eq!(login(false).await.status(), 429);
}
