//! Each panel of `ops/dashboard.json` shows data: its queries run on a real Prometheus, which scrapes a service under load
//! and during an outage of Redis.
//!
//! Skipped if there is no Prometheus: `.ci/get-prometheus` gets one.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../../examples/metrics/src/main.rs"]
mod example;
mod panels;
mod prometheus;
mod service;

use std::{
    io::{self, Write as _},
    time::{Duration, Instant},
};

use tokio::time::sleep;

use panels::Dashboard;
use prometheus::Prometheus;
use service::Service;

/// For a machine that is busy. The test ends as soon as each panel has data, after about 20 seconds.
const PATIENCE: Duration = Duration::from_secs(180);

#[tokio::test(flavor = "multi_thread")]
async fn each_panel_shows_data_of_a_service_under_load_and_in_an_outage() {
    let Some(program) = prometheus::program() else {
        // Not with a macro, whose output the test harness hides.
        let _ = writeln!(io::stderr(), "skipped: there is no prometheus; `.ci/get-prometheus` gets one");
        return;
    };
    let dashboard = Dashboard::read();
    let mut service = Service::start().await;
    let prometheus = Prometheus::start(&program, service.address()).await;

    // The outage ends when Prometheus has seen it.
    eventually(async || prometheus.is_above_zero(r#"ratelimit_decisions_total{source="store"}"#).await).await;
    service.redis.kill();
    eventually(async || prometheus.is_above_zero("ratelimit_open_breakers").await).await;
    service.redis.restart();

    let mut shown = Vec::new();
    let started = Instant::now();
    loop {
        shown.clear();
        for query in &dashboard.queries {
            shown.push(prometheus.shown(&query.expression).await);
        }
        if shown.iter().all(|shown| shown.is_above_zero) || started.elapsed() > PATIENCE {
            break;
        }
        sleep(Duration::from_secs(1)).await;
    }
    let mut empty = Vec::new();
    for (query, shown) in dashboard.queries.iter().zip(&shown) {
        eprintln!("{:>4} series: {}, {}", shown.series, query.panel, query.legend);
        if !shown.is_above_zero {
            empty.push(format!("{}: {}", query.panel, query.expression));
        }
    }
    assert!(empty.is_empty(), "these show nothing, or only 0:\n{}", empty.join("\n"));

    for (name, query) in &dashboard.variables {
        let values = prometheus.values_of(query).await;
        eprintln!("{name}: {values:?}");
        assert!(!values.is_empty(), "the variable {name} has no values: {query}");
    }
    let alerts = prometheus.rules().await;
    assert!(alerts.contains(&"RateLimitBreakerOpen".to_owned()), "{alerts:?}");
}

async fn eventually(condition: impl AsyncFn() -> bool) {
    let started = Instant::now();
    while !condition().await {
        assert!(started.elapsed() < PATIENCE, "Prometheus does not see what it waits for");
        sleep(Duration::from_millis(200)).await;
    }
}
