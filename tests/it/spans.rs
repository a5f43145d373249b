//! Spans of decisions and of calls to Redis: their names, their attributes, and how they belong together.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::future::{join, join_all};
use http::request::Parts;
use support::{
    RedisServer, day, eventually, fake_server,
    inner::{ask, get},
    let_others_run, listen_with, settings, store,
};
use tower_ratelimit::{
    Answer, Charge, Decision, FailureMode, Key, Limiter, MemoryStore, Policy, Quota, RateLimitLayer,
    RedisStore, Rule, algorithm::FixedWindow,
};
use tracing::{
    Id, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
    span::{Attributes, Record},
};
use tracing_subscriber::{
    Layer,
    layer::{Context, SubscriberExt as _},
    registry::{LookupSpan, Registry},
};

/// A span that has ended.
#[derive(Clone, Debug, Default)]
struct Seen {
    name: &'static str,
    target: String,
    parent: Option<u64>,
    fields: BTreeMap<&'static str, String>,
    follows: BTreeSet<u64>,
    has_ended: bool,
}

/// The spans, by their number.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<BTreeMap<u64, Seen>>>);

struct Fields<'a>(&'a mut BTreeMap<&'static str, String>);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }

    /// OpenTelemetry has no such type: tracing-opentelemetry exports its digits, as a string.
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name(), format!("{value} without a sign"));
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let parent = context.span(id).and_then(|span| span.parent()).map(|parent| parent.id().into_u64());
        let metadata = attributes.metadata();
        let mut seen =
            Seen { name: metadata.name(), target: metadata.target().to_owned(), parent, ..Seen::default() };
        attributes.record(&mut Fields(&mut seen.fields));
        self.0.lock().unwrap().insert(id.into_u64(), seen);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        let mut spans = self.0.lock().unwrap();
        values.record(&mut Fields(&mut spans.get_mut(&id.into_u64()).unwrap().fields));
    }

    fn on_follows_from(&self, id: &Id, follows: &Id, _: Context<'_, S>) {
        let mut spans = self.0.lock().unwrap();
        spans.get_mut(&id.into_u64()).unwrap().follows.insert(follows.into_u64());
    }

    fn on_close(&self, id: Id, _: Context<'_, S>) {
        let mut spans = self.0.lock().unwrap();
        spans.get_mut(&id.into_u64()).unwrap().has_ended = true;
    }
}

impl Spans {
    fn named(&self, name: &str) -> Vec<(u64, Seen)> {
        let spans = self.0.lock().unwrap();
        spans.iter().filter(|(_, span)| span.name == name).map(|(id, span)| (*id, span.clone())).collect()
    }
}

/// The spans that `make` makes of decisions and calls, in a span `request`.
async fn spans_of<T>(make: impl Future<Output = T>) -> (T, Spans) {
    let spans = Spans::default();
    let _listening = listen_with(Registry::default().with(spans.clone().with_filter(LevelFilter::DEBUG)));
    let request = tracing::info_span!("request");
    // Numbers of spans are not used again while the registry has the request's.
    let made = tracing::Instrument::instrument(make, request.clone()).await;
    (made, spans)
}

async fn one(limiter: &Limiter, policy: &Policy, cost: u64) -> (Decision, Seen) {
    let (decision, spans) =
        spans_of(async { limiter.check(policy, &Key::new("alice"), cost).await.unwrap() }).await;
    let decisions = spans.named("ratelimit.decision");
    let [(_, span)] = &decisions[..] else { panic!("one decision: {decisions:?}") };
    assert!(span.has_ended && span.target == "tower_ratelimit::span");
    assert_eq!(span.parent, Some(spans.named("request")[0].0));
    (decision, span.clone())
}

fn fields<const N: usize>(fields: [(&'static str, &str); N]) -> BTreeMap<&'static str, String> {
    fields.into_iter().map(|(name, value)| (name, value.to_owned())).collect()
}

#[tokio::test]
async fn a_decision_has_a_span_in_the_requests_span() {
    let limiter = Limiter::new(MemoryStore::new());
    let policy = day("plan", 10);
    let (_, admitted) = one(&limiter, &policy, 4).await;
    let expected = [
        ("ratelimit.action", "charge"),
        ("ratelimit.limit", "10"),
        ("ratelimit.policy", "plan"),
        ("ratelimit.remaining", "6"),
        ("ratelimit.source", "store"),
        ("ratelimit.verdict", "admitted"),
    ];
    assert_eq!(admitted.fields, fields(expected));
    let (decision, denied) = one(&limiter, &policy, 7).await;
    assert_eq!(denied.fields["ratelimit.verdict"], "denied");
    let wait: f64 = denied.fields["ratelimit.retry_after"].parse().unwrap();
    assert_eq!(wait, decision.retry_after().unwrap().as_secs_f64());
}

#[tokio::test]
async fn a_span_has_the_policy_that_matters_and_the_shadows_that_would_deny() {
    let limiter = Limiter::new(MemoryStore::new());
    let (wide, narrow) = (day("wide", 100), day("narrow", 10));
    let shadows = ["first", "second"].map(|name| day(name, 1).shadow());
    let key = Key::new("alice");
    let charges: Vec<_> =
        [&wide, &narrow, &shadows[0], &shadows[1]].map(|policy| Charge::new(policy, &key, 5)).into();
    let (_, spans) = spans_of(async { limiter.check_all(&charges).await.unwrap() }).await;
    let (_, span) = &spans.named("ratelimit.decision")[0];
    assert_eq!(span.fields["ratelimit.policy"], "narrow");
    assert_eq!(span.fields["ratelimit.shadow"], "first,second");
    let (_, spans) = spans_of(async { limiter.peek_all(&charges).await.unwrap() }).await;
    assert_eq!(spans.named("ratelimit.decision")[0].1.fields["ratelimit.action"], "peek");
}

#[tokio::test]
async fn a_lone_decision_is_the_parent_of_its_call() {
    let server = RedisServer::start();
    let limiter = Limiter::new(store(&server).await);
    let policy = day("plan", 10);
    let (_, spans) = spans_of(async { limiter.check(&policy, &Key::new("alice"), 1).await.unwrap() }).await;
    let (decision, call) = (&spans.named("ratelimit.decision")[0], &spans.named("ratelimit.call")[0]);
    assert_eq!(call.1.parent, Some(decision.0));
    assert!(call.1.follows.is_empty() && call.1.has_ended);
    let port = server.port().to_string();
    let expected = [
        ("db.operation.name", "EVALSHA"),
        ("db.system.name", "redis"),
        ("otel.kind", "client"),
        ("otel.name", "EVALSHA"),
        ("ratelimit.batch.size", "1"),
        ("server.address", "127.0.0.1"),
        ("server.port", &*port),
    ];
    assert_eq!(call.1.fields, fields(expected));
}

#[tokio::test]
async fn a_batch_and_its_decisions_are_linked_both_ways() {
    let server = RedisServer::start();
    let limiter = Limiter::new(store(&server).await);
    let policy = Policy::new("plan", Quota::per_day(1_000)).algorithm(FixedWindow::anchored());
    let (_, spans) = spans_of(async {
        let keys: Vec<_> = (0..20).map(|number| Key::new(format!("client-{number}"))).collect();
        join_all(keys.iter().map(|key| limiter.check(&policy, key, 1))).await
    })
    .await;
    let decisions: BTreeMap<u64, Seen> = spans.named("ratelimit.decision").into_iter().collect();
    let calls: BTreeMap<u64, Seen> = spans.named("ratelimit.call").into_iter().collect();
    assert_eq!(decisions.len(), 20);
    let mut counted = 0;
    for (id, call) in &calls {
        let size: usize = call.fields["ratelimit.batch.size"].parse().unwrap();
        counted += size;
        if size == 1 {
            assert!(decisions.contains_key(&call.parent.unwrap()) && call.follows.is_empty());
            continue;
        }
        assert_eq!((call.parent, call.follows.len()), (None, size));
        assert!(call.follows.iter().all(|decision| decisions[decision].follows == [*id].into()));
    }
    assert_eq!(counted, 20);
    assert!(calls.len() < 20, "some shared a call");
}

/// A layer denies before it looks the other key up.
#[tokio::test]
async fn a_denial_that_needs_no_store_and_no_lookup_has_a_span() {
    let server = RedisServer::start();
    let later = |_: &Parts| Answer::pending(async { Ok(Key::new("bob")) });
    let layer = RateLimitLayer::new(store(&server).await, day("address", 1), Key::new("carol"))
        .rule(Rule::new(day("key", 9), later));
    for status in [200, 429, 429] {
        assert_eq!(ask(&layer, get()).await.status(), status);
    }
    let (response, spans) = spans_of(ask(&layer, get())).await;
    assert_eq!(response.status(), 429);
    let decisions = spans.named("ratelimit.decision");
    let [(_, span)] = &decisions[..] else { panic!("one decision: {decisions:?}") };
    assert_eq!(span.fields["ratelimit.source"], "deny_cache");
    assert_eq!((&*span.fields["ratelimit.verdict"], span.has_ended), ("denied", true));
    assert!(spans.named("ratelimit.call").is_empty());
}

#[tokio::test]
async fn a_decision_in_an_outage_has_the_failure_mode_and_the_kind_of_the_failure() {
    let down = RedisStore::builder().connect_lazy("redis://127.0.0.1:1").unwrap();
    let limiter = Limiter::new(down);
    for (mode, expected) in [
        (FailureMode::Local { instances: 1 }, ("local", "local/1", "plan")),
        (FailureMode::Open, ("failure_mode", "open", "")),
    ] {
        let (_, span) = one(&limiter, &day("plan", 10).failure_mode(mode), 1).await;
        let of = |name: &str| span.fields.get(name).map_or("", String::as_str);
        let seen = (of("ratelimit.source"), of("ratelimit.failure_mode"), of("ratelimit.policy"));
        assert_eq!(seen, expected);
        assert!(["unreachable", "suspended"].contains(&of("error.type")), "{span:?}");
    }
    let closed = day("plan", 10).failure_mode(FailureMode::Closed);
    let (_, spans) =
        spans_of(async { limiter.check(&closed, &Key::new("alice"), 1).await.unwrap_err() }).await;
    let (_, span) = &spans.named("ratelimit.decision")[0];
    assert_eq!(span.fields["otel.status_code"], "ERROR");
}

/// How calls ended: the decisions in them, `error.type` and `otel.status_code`.
fn ends(spans: &Spans) -> Vec<[String; 3]> {
    let calls = spans.named("ratelimit.call");
    let of = |call: &Seen, name: &str| call.fields.get(name).cloned().unwrap_or_default();
    let end =
        |call: &Seen| ["ratelimit.batch.size", "error.type", "otel.status_code"].map(|name| of(call, name));
    calls.iter().filter(|(_, call)| call.has_ended).map(|(_, call)| end(call)).collect()
}

/// Asserts that one call was made for `decide`, with one decision in it, which ended so.
async fn assert_ends<T>(name: &str, decide: impl Future<Output = T>, [kind, status]: [&str; 2]) {
    let (_, spans) = spans_of(decide).await;
    // The call of a decision that is late ends later.
    assert!(eventually(async || !ends(&spans).is_empty()).await, "{name}");
    assert_eq!(ends(&spans), [["1", kind, status]], "{name}");
    let (_, decision) = &spans.named("ratelimit.decision")[0];
    assert_eq!(decision.fields.get("error.type").map_or("", String::as_str), kind, "{name}");
}

#[tokio::test]
async fn a_call_whose_decision_fails_has_the_kind_of_the_failure() {
    const FAILED: [&str; 2] = ["failed", "ERROR"];
    let server = RedisServer::start();
    let limiter = Limiter::new(store(&server).await);
    // One is decided by usual.lua, and one by the rest of the script.
    let (usual, other) = (day("usual", 10), Policy::new("other", Quota::per_day(10)).shadow());
    let key = Key::new("alice");
    let decide = async |policy: &Policy| limiter.check(policy, &key, 1).await.unwrap();
    let () = server.command(&["SET", "rl:usual:fixed-window:{mallory}", "nonsense"]);
    let mallory = Key::new("mallory");
    assert_ends("foreign", async { limiter.check(&usual, &mallory, 1).await }, FAILED).await;
    for (name, fail, mend) in [
        ("full", &["CONFIG", "SET", "maxmemory", "1"][..], &["CONFIG", "SET", "maxmemory", "0"][..]),
        ("a replica", &["REPLICAOF", "127.0.0.1", "1"], &["REPLICAOF", "NO", "ONE"]),
        (
            "no permission",
            &["ACL", "SETUSER", "default", "-evalsha"],
            &["ACL", "SETUSER", "default", "+evalsha"],
        ),
        (
            "no permission in the script",
            &["ACL", "SETUSER", "default", "-set", "-setrange"],
            &["ACL", "SETUSER", "default", "+@all"],
        ),
    ] {
        let () = server.command(fail);
        assert_ends(name, decide(&usual), FAILED).await;
        assert_ends(name, decide(&other), FAILED).await;
        let () = server.command(mend);
        let is_mended =
            async || decide(&usual).await.failure().is_none() && decide(&other).await.failure().is_none();
        assert!(eventually(is_mended).await, "{name}");
        assert_ends(name, decide(&usual), ["", ""]).await;
    }
    for (answer, kind) in [
        ("-BUSY Redis is busy running a script.\r\n", "failed"),
        ("-NOAUTH Authentication required.\r\n", "failed"),
        ("-LOADING Redis is loading the dataset in memory\r\n", "failed"),
        ("-OOM command not allowed when used memory > 'maxmemory'.\r\n", "failed"),
        (":1\r\n", "reply"),
        ("$8\r\n12345678\r\n", "reply"),
        ("this is another protocol\r\n", "disconnected"),
    ] {
        let url = fake_server::scripted(move |_| answer.into()).await;
        let limiter = Limiter::new(settings().connect_lazy(&*url).unwrap());
        assert_ends(answer, async { limiter.check(&usual, &key, 1).await }, [kind, "ERROR"]).await;
    }
}

#[tokio::test]
async fn a_call_that_is_late_or_breaks_has_the_kind_of_the_failure() {
    let mut server = RedisServer::start();
    let (policy, key) = (day("plan", 10), Key::new("alice"));
    let deadline = Duration::from_millis(50);
    let impatient =
        Limiter::new(RedisStore::builder().deadline(deadline).connect_lazy(&*server.url()).unwrap());
    let connected = async || impatient.check(&policy, &key, 1).await.unwrap().failure().is_none();
    assert!(eventually(connected).await);
    server.signal("STOP");
    let late = async {
        let decision = impatient.check(&policy, &key, 1).await.unwrap();
        // The reply comes after the deadline.
        server.signal("CONT");
        decision
    };
    assert_ends("late", late, ["timeout", "ERROR"]).await;
    let patient = Limiter::new(store(&server).await);
    patient.check(&policy, &key, 1).await.unwrap();
    server.signal("STOP");
    let broken = async {
        let decide = patient.check(&policy, &key, 1);
        let kill = async {
            let_others_run().await;
            server.kill();
        };
        join(decide, kill).await
    };
    assert_ends("broken", broken, ["disconnected", "ERROR"]).await;
}

#[tokio::test]
async fn a_batch_has_an_error_only_if_all_of_its_decisions_fail() {
    let server = RedisServer::start();
    let limiter = Limiter::new(store(&server).await);
    let policy = day("plan", 10);
    let () = server.command(&["SET", "rl:plan:fixed-window:{mallory}", "nonsense"]);
    let ends_of = async |keys: [&str; 5]| {
        let keys = keys.map(Key::new);
        let decide = async { join_all(keys.iter().map(|key| limiter.check(&policy, key, 1))).await };
        ends(&spans_of(decide).await.1)
    };
    let is_batch = |[size, ..]: &[String; 3]| size != "1";
    let some_fail = ends_of(["alice", "mallory", "bob", "mallory", "carol"]).await;
    assert!(some_fail.iter().any(is_batch), "{some_fail:?}");
    assert!(some_fail.iter().all(|[_, kind, status]| kind.is_empty() && status.is_empty()), "{some_fail:?}");
    let all_fail = ends_of(["mallory"; 5]).await;
    assert!(all_fail.iter().any(is_batch), "{all_fail:?}");
    assert!(all_fail.iter().all(|[_, kind, status]| kind == "failed" && status == "ERROR"), "{all_fail:?}");
}

#[tokio::test]
async fn without_the_level_there_is_no_span() {
    let server = RedisServer::start();
    let limiter = Limiter::new(store(&server).await);
    let spans = Spans::default();
    let _listening = listen_with(Registry::default().with(spans.clone().with_filter(LevelFilter::INFO)));
    limiter.check(&day("plan", 10), &Key::new("alice"), 1).await.unwrap();
    assert!(spans.0.lock().unwrap().is_empty());
}

/// A change of a name breaks dashboards and alerts.
#[tokio::test]
async fn the_guide_lists_the_attributes() {
    let guide = include_str!("../../src/guide/tracing.md");
    let documented = |from: &str| -> BTreeSet<String> {
        let section = guide.split(from).nth(1).unwrap().split("\n## ").next().unwrap();
        let names = section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
        names.map(str::to_owned).collect()
    };
    let server = RedisServer::start();
    let limiter = Limiter::new(store(&server).await);
    let names = Names::default();
    {
        let _listening = listen_with(Registry::default().with(names.clone()));
        limiter.check(&day("plan", 10), &Key::new("alice"), 1).await.unwrap();
    }
    let names = names.0.lock().unwrap();
    assert_eq!(names["ratelimit.decision"], documented("## The decision"));
    assert_eq!(names["ratelimit.call"], documented("## The call to Redis"));
}

/// The fields that spans may have, by the spans' names.
#[derive(Clone, Default)]
struct Names(Arc<Mutex<BTreeMap<&'static str, BTreeSet<String>>>>);

impl<S: Subscriber> Layer<S> for Names {
    fn on_new_span(&self, attributes: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        let fields = attributes.metadata().fields().iter().map(|field| field.name().to_owned());
        self.0.lock().unwrap().insert(attributes.metadata().name(), fields.collect());
    }
}
