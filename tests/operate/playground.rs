//! The example `playground`: its numbers are the library's, and the code and the configuration that it shows are valid.

#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../../examples/playground/main.rs"]
mod example;

use std::{collections::BTreeMap, fs, time::Duration};

use axum::body::Body;
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::Value;
use support::{Directory, RedisServer, examples::says_what_is_written};
use tower::ServiceExt as _;
use tower_ratelimit::{
    Decision, Limiter, MemoryStore, Policy, RateLimitLayer, decision::Verdict, store::ManualClock,
};
use tower_ratelimit_operate::live::LivePolicies;

use example::{
    app,
    setup::{Algorithm, Failure, Kept, Limit, Period, Setup, Time, Traffic},
    traffic::{FRAMES, START},
};

/// The code that the page shows, a file per setup.
#[allow(unreachable_pub, reason = "the functions are public in the code that the page shows")]
mod shown {
    pub(super) mod aligned_window;
    pub(super) mod concurrency;
    pub(super) mod fixed_window;
    pub(super) mod gcra;
    pub(super) mod leaky_meter;
    pub(super) mod leaky_queue;
    pub(super) mod month;
    pub(super) mod sliding_log;
    pub(super) mod sliding_segments;
    pub(super) mod sliding_window;
    pub(super) mod token_bucket;
    pub(super) mod token_bucket_steps;
}

type Shown = (&'static str, &'static str, fn(MemoryStore) -> RateLimitLayer);

/// The name of a file, its setup, and its function.
const SHOWN: [Shown; 12] = [
    (
        "aligned_window",
        "algorithm=aligned-window&period=week&limit=5&failure=closed",
        shown::aligned_window::limit,
    ),
    ("concurrency", "algorithm=concurrency&period=minute&limit=3", shown::concurrency::limit),
    ("fixed_window", "algorithm=fixed-window&period=day&limit=1000", shown::fixed_window::limit),
    ("gcra", "algorithm=gcra&period=second&limit=10&burst=20", shown::gcra::limit),
    ("leaky_meter", "algorithm=leaky-meter&period=30d&failure=open", shown::leaky_meter::limit),
    ("leaky_queue", "algorithm=leaky-queue&period=10s&failure=local-2", shown::leaky_queue::limit),
    ("month", "algorithm=aligned-window&period=month&limit=300", shown::month::limit),
    ("sliding_log", "algorithm=sliding-log&period=hour", shown::sliding_log::limit),
    ("sliding_segments", "algorithm=sliding-segments&failure=local-2", shown::sliding_segments::limit),
    ("sliding_window", "algorithm=sliding-window&failure=local-2", shown::sliding_window::limit),
    ("token_bucket", "algorithm=token-bucket&burst=7", shown::token_bucket::limit),
    ("token_bucket_steps", "algorithm=token-bucket-steps&period=day", shown::token_bucket_steps::limit),
];

fn setup(query: &str) -> Setup {
    query.parse().unwrap_or_else(|invalid| panic!("{query}: {invalid:?}"))
}

/// The status and the lines of a run.
async fn run(redis_url: Option<String>, query: &str) -> (StatusCode, Vec<Value>) {
    let request = Request::get(format!("/api/run?{query}")).body(Body::empty()).unwrap();
    let response = app(redis_url).oneshot(request).await.unwrap();
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let lines = body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    (status, lines.map(|line| serde_json::from_slice(line).unwrap()).collect())
}

/// The responses per client, by kind, that the API reports for each side, which equal the sums of its frames.
async fn reported(redis_url: Option<String>, query: &str) -> Vec<Vec<[u64; 4]>> {
    let (status, lines) = run(redis_url, query).await;
    assert_eq!((status, lines.len() as u64), (StatusCode::OK, FRAMES + 1), "{query}: {:?}", lines.last());
    let counts = |value: &Value| -> [u64; 4] { serde_json::from_value(value.clone()).unwrap() };
    let sides = lines[0]["sides"].as_array().unwrap().len();
    let mut totals: Vec<Vec<[u64; 4]>> = Vec::new();
    for side in 0..sides {
        let last = &lines[lines.len() - 1]["sides"][side]["totals"];
        let clients: Vec<_> = last.as_array().unwrap().iter().map(counts).collect();
        for kind in 0..4 {
            let frames: u64 =
                lines[1..].iter().map(|line| counts(&line["sides"][side]["counts"])[kind]).sum();
            assert_eq!(frames, clients.iter().map(|client| client[kind]).sum::<u64>(), "{query}");
        }
        totals.push(clients);
    }
    totals
}

/// What a limiter decides about the requests of the setup, without a layer and without the playground's stores.
async fn decided(setup: &Setup, limit: &Limit) -> Vec<[u64; 4]> {
    let policy = limit.policy().unwrap();
    let clock = ManualClock::new();
    let shared = MemoryStore::with_clock(clock.clone());
    let limiters: Vec<_> = (0..setup.traffic.instances())
        .map(|_| match setup.store {
            Kept::Separate => Limiter::new(MemoryStore::with_clock(clock.clone())),
            _ => Limiter::new(shared.clone()),
        })
        .collect();
    let outage = setup.traffic.outage();
    let outage = setup.period.frame(outage.start)..setup.period.frame(outage.end);
    // Requests in progress, and when they end.
    let mut running: BTreeMap<Duration, Vec<Decision>> = BTreeMap::new();
    let clients = setup.traffic.clients();
    let mut totals = vec![[0; 4]; clients.len()];
    for arrival in setup.arrivals().unwrap() {
        while let Some(ended) = running.first_entry().filter(|entry| *entry.key() <= arrival.at) {
            clock.set(START + *ended.key());
            drop(ended.remove());
        }
        clock.set(START + arrival.at);
        let client = &clients[arrival.client];
        let totals = &mut totals[arrival.client];
        if outage.contains(&arrival.at) {
            let kind = match setup.failure {
                Failure::Open => 0,
                Failure::Closed => 3,
                _ => unreachable!("the setups have no other failure mode"),
            };
            totals[kind] += 1;
            continue;
        }
        let key = tower_ratelimit::Key::new(client.api_key);
        let decision = limiters[client.instance].check(&policy, &key, 1).await.unwrap();
        match decision.verdict() {
            Verdict::Admit if limit.algorithm == Algorithm::Concurrency => {
                let end = arrival.at + limit.period.length() - Duration::from_millis(1);
                // A client gets its response at the end of the request.
                totals[0] += u64::from(end < setup.period.span());
                running.entry(end).or_default().push(decision);
            }
            Verdict::Admit => totals[0] += 1,
            Verdict::Delay(delay) => totals[1] += u64::from(arrival.at + delay < setup.period.span()),
            _ => totals[2] += 1,
        }
    }
    totals
}

#[tokio::test]
async fn the_numbers_are_the_decisions_of_the_library() {
    let mut queries: Vec<String> = Vec::new();
    for algorithm in Algorithm::ALL {
        for traffic in ["steady", "bursts", "edge", "attack", "instances"] {
            queries.push(format!("algorithm={}&traffic={traffic}&limit=20&load=130", algorithm.id()));
        }
    }
    queries.extend(
        [
            "algorithm=gcra&compare=fixed-window&limit=50&burst=7&period=hour&traffic=edge",
            "algorithm=aligned-window&compare=sliding-segments&period=month&limit=300&traffic=bursts",
            "algorithm=aligned-window&period=week&traffic=edge&load=100",
            "algorithm=gcra&traffic=instances&store=separate&limit=33",
            "algorithm=fixed-window&traffic=outage&failure=closed",
            "algorithm=leaky-meter&traffic=outage&failure=open&period=second&limit=1000",
        ]
        .map(String::from),
    );
    for query in queries {
        let setup = setup(&query);
        let mut expected = Vec::new();
        for limit in setup.limits().unwrap() {
            expected.push(decided(&setup, &limit).await);
        }
        assert_eq!(reported(None, &query).await, expected, "{query}");
    }
}

#[tokio::test]
async fn instances_share_a_limit_on_redis_and_not_in_their_own_memory() {
    let redis = RedisServer::start();
    let query = "algorithm=gcra&compare=sliding-log&traffic=instances&limit=12&load=120";
    let on_redis = reported(Some(redis.url()), &format!("{query}&store=redis")).await;
    assert_eq!(on_redis, reported(None, &format!("{query}&store=shared")).await);
    assert_ne!(on_redis, reported(None, &format!("{query}&store=separate")).await);
}

#[tokio::test]
async fn an_outage_counts_locally_and_an_admission_has_the_headers_of_the_layer() {
    let (_, lines) = run(None, "traffic=outage&limit=4&load=200").await;
    let failing: Vec<_> = lines[1..].iter().filter(|line| line["fails"] == true).collect();
    assert_eq!(failing.len(), 15);
    assert!(failing.iter().any(|line| line["sides"][0]["counts"][0] != 0), "{failing:?}");
    assert!(failing.iter().any(|line| line["sides"][0]["counts"][2] != 0), "{failing:?}");
    assert_eq!(
        lines[1]["sides"][0]["admission"],
        "HTTP/1.1 200 OK\nratelimit-policy: \"api\";q=4;w=60\nratelimit: \"api\";r=3;t=45\n"
    );
}

#[tokio::test]
async fn the_code_shown_compiles_and_is_the_limit_of_the_setup() {
    for (name, query, layer) in SHOWN {
        let limit = setup(query).limits().unwrap().remove(0);
        let file = format!("{}/playground/shown/{name}.rs", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("WRITE_CODE").is_some() {
            fs::write(&file, limit.rust()).unwrap();
            // The compiled code is the former one.
            continue;
        }
        assert_eq!(
            fs::read_to_string(&file).unwrap(),
            limit.rust(),
            "{name}; WRITE_CODE=yes writes the files"
        );
        let (parts, ()) = Request::get("/").header("x-api-key", "alice").body(()).unwrap().into_parts();
        let charges = layer(MemoryStore::new()).charges(&parts).await.unwrap();
        assert_eq!(charges[0].0.policy(), &limit.policy().unwrap(), "{name}");
    }
}

#[tokio::test]
async fn the_toml_shown_is_the_policy_of_the_setup() {
    let (mut file, mut expected) = (String::new(), Vec::new());
    for algorithm in Algorithm::ALL {
        for period in Period::ALL {
            for (failure, burst) in Failure::ALL.iter().zip([None, Some(3), None, Some(300)]) {
                let (algorithm, period, failure) = (*algorithm, *period, *failure);
                let setup = Setup { algorithm, period, failure, burst, ..Setup::default() };
                // Not every algorithm has a burst, counts months, or can align 30 days.
                let Ok(limits) = setup.limits() else { continue };
                let (name, policy) = (format!("api-{}", expected.len()), limits[0].policy().unwrap());
                file += &limits[0].toml().unwrap().replace("\"api\"", &format!("{name:?}"));
                let renamed = Policy::new(&name, policy.quota()).with_settings(policy.settings().clone());
                expected.push((name, renamed.unwrap()));
            }
        }
    }
    assert_eq!(expected.len(), 210);
    let directory = Directory::new();
    let path = directory.file("limits.toml");
    fs::write(&path, &file).unwrap();
    let live = LivePolicies::file(&path).unwrap_or_else(|error| panic!("{error}\n{file}"));
    for (name, policy) in expected {
        assert_eq!(live.policy(&name).unwrap(), policy);
    }
}

#[tokio::test]
async fn an_address_restores_its_setup() {
    let mut setups = vec![Setup { burst: Some(5), limit: 7, load: 33, ..Setup::default() }, Setup::default()];
    let default = Setup::default();
    for &algorithm in Algorithm::ALL {
        setups.push(Setup { algorithm, compare: Some(algorithm), ..default });
    }
    setups.extend(Period::ALL.iter().map(|&period| Setup { period, ..default }));
    setups.extend(Traffic::ALL.iter().map(|&traffic| Setup { traffic, ..default }));
    setups.extend(Failure::ALL.iter().map(|&failure| Setup { failure, ..default }));
    setups.extend(Kept::ALL.iter().map(|&store| Setup { store, ..default }));
    setups.extend(Time::ALL.iter().map(|&time| Setup { time, ..default }));
    for expected in setups {
        assert_eq!(setup(&expected.to_string()), expected);
    }
    let query = "algorithm=gcra&compare=sliding-log&limit=7&period=hour&burst=&traffic=edge&load=90&failure=open&store=shared&time=instant";
    let (_, lines) = run(None, query).await;
    assert_eq!(lines[0]["setup"], query);
}

#[tokio::test]
async fn an_invalid_setup_gets_a_400_that_states_the_field_and_the_remedy() {
    for (query, field, message) in [
        ("algorithm=magic", "algorithm", "`algorithm` must be one of `gcra`, `token-bucket`"),
        ("compare=magic", "compare", "`compare` must be one of"),
        ("limit=0", "limit", "from 1 to 1000, not `0`"),
        ("limit=1001", "limit", "from 1 to 1000, not `1001`"),
        ("limit=ten", "limit", "a whole number"),
        ("burst=-1", "burst", "a whole number"),
        ("load=1e3", "load", "a whole number"),
        ("period=fortnight", "period", "`30d`, `month`"),
        ("traffic=jam", "traffic", "`steady`"),
        ("failure=maybe", "failure", "`closed`"),
        ("store=disk", "store", "`redis`"),
        ("store=redis", "store", "REDIS_URL"),
        ("time=warp", "time", "`real`"),
        ("time=real&period=hour", "time", "at most a minute"),
        ("limits=5", "setup", "unknown parameter `limits`"),
        ("algorithm=sliding-log&burst=5", "algorithm", "a sliding log has no burst"),
        ("algorithm=gcra&period=month", "algorithm", "gcra counts no calendar periods"),
        ("traffic=attack&limit=1000&load=500", "load", "at most 20000"),
    ] {
        let (status, lines) = run(None, query).await;
        assert_eq!((status, &lines[0]["field"]), (StatusCode::BAD_REQUEST, &Value::from(field)), "{query}");
        let error = lines[0]["error"].as_str().unwrap();
        assert!(error.contains(message), "{query}: {error}");
    }
}

#[tokio::test]
async fn a_second_algorithm_counts_what_it_can_of_the_quota() {
    let limits = setup("algorithm=gcra&burst=5&compare=sliding-log").limits().unwrap();
    assert_eq!((limits[0].burst, limits[1].burst), (Some(5), None));
    let limits = setup("algorithm=aligned-window&period=month&compare=gcra").limits().unwrap();
    assert_eq!((limits[0].period, limits[1].period), (Period::Month, Period::ThirtyDays));
    assert!(limits[0].notes.is_empty() && limits[1].notes.len() == 1);
}

#[tokio::test]
async fn playground_says_what_is_written() {
    let source = include_str!("../../examples/playground/main.rs");
    says_what_is_written(app(None), source, 2).await;
}
