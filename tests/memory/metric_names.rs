//! The code, the docs, the alerts and the dashboard name the same metrics. `tests/dashboard` runs the queries.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

const DOCS: &str = include_str!("../../src/metrics/mod.rs");
const GUIDE: &str = include_str!("../../src/guide/metrics_and_alerts.md");
const ALERTS: &str = include_str!("../../ops/alerts.yml");

/// The metrics that a recorder gets, and whether each is a histogram.
fn known() -> BTreeMap<String, bool> {
    let entries = include_str!("../../src/metrics/names.rs").split("= \"ratelimit_").skip(1);
    entries
        .map(|entry| {
            let (name, rest) = entry.split_once('"').unwrap();
            (format!("ratelimit_{name}"), rest.starts_with(", HISTOGRAM"))
        })
        .collect()
}

/// The metrics in queries, where a histogram has a suffix.
fn queried(queries: &str) -> BTreeSet<String> {
    let known = known();
    let is_of_name = |char: char| char.is_ascii_lowercase() || char == '_';
    let words = queries.split(|char| !is_of_name(char)).filter(|word| word.starts_with("ratelimit_"));
    words
        .map(|word| {
            let suffixes = ["_bucket", "_count", "_sum"];
            let base = suffixes.iter().find_map(|suffix| word.strip_suffix(suffix));
            match base.filter(|base| known.get(*base) == Some(&true)) {
                Some(histogram) => histogram.to_owned(),
                None => word.to_owned(),
            }
        })
        .collect()
}

fn dashboard() -> Value {
    serde_json::from_str(include_str!("../../ops/dashboard.json")).unwrap()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

#[test]
fn the_docs_list_each_metric_and_no_other() {
    let known: BTreeSet<String> = known().into_keys().collect();
    assert!(known.len() > 10, "{known:?}");
    for (place, docs, row) in [("metrics", DOCS, "//! | `ratelimit_"), ("the guide", GUIDE, "| `ratelimit_")]
    {
        let rows = docs.lines().filter_map(|line| line.strip_prefix(row)?.split_once('`'));
        let listed: BTreeSet<String> = rows.map(|(name, _)| format!("ratelimit_{name}")).collect();
        assert_eq!(listed, known, "{place}");
    }
}

#[test]
fn the_dashboard_shows_each_metric_and_no_other() {
    let dashboard = dashboard();
    let targets = list(&dashboard["panels"]).iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let queries: Vec<&str> = targets.map(|target| target["expr"].as_str().unwrap()).collect();
    let known: BTreeSet<String> = known().into_keys().collect();
    assert_eq!(queried(&queries.join("\n")), known);
    // Every query belongs to the service and the instance that are chosen.
    for query in queries {
        let (metrics, chosen) =
            (query.matches("{job").count(), query.matches("{job=~\"$job\", instance=~\"$instance\"").count());
        assert!(chosen == metrics && query.matches("ratelimit_").count() == metrics, "{query}");
    }
    for variable in list(&dashboard["templating"]["list"]) {
        let used = queried(variable["query"]["query"].as_str().unwrap_or_default());
        assert!(used.is_subset(&known), "{used:?}");
    }
}

#[test]
fn the_alerts_use_only_metrics_that_exist() {
    // One expression selects two metrics by a pattern.
    let expressions = ALERTS.replace("ratelimit_(decisions|store_errors)_total", "");
    let used: BTreeSet<String> =
        queried(&expressions).into_iter().filter(|name| name != "ratelimit_").collect();
    let known: BTreeSet<String> = known().into_keys().collect();
    assert!(!used.is_empty() && used.is_subset(&known), "{used:?}");
}

#[test]
fn each_panel_says_what_it_shows_in_which_unit_and_what_to_do() {
    let dashboard = dashboard();
    let (mut ids, mut titles, mut places) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for panel in list(&dashboard["panels"]) {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: another panel has its id");
        assert!(!title.is_empty() && titles.insert(title), "{title}: another panel has its title");
        let place = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(x < 24 && places.insert((x, y)), "{title}: overlaps another panel");
            }
        }
        let kind = panel["type"].as_str().unwrap();
        if kind == "row" {
            continue;
        }
        assert!(["heatmap", "stat", "timeseries"].contains(&kind), "{title}: {kind} may need a plug-in");
        assert!(panel["description"].as_str().unwrap().len() > 60, "{title}: no description");
        let unit = if kind == "heatmap" {
            &panel["options"]["yAxis"]["unit"]
        } else {
            &panel["fieldConfig"]["defaults"]["unit"]
        };
        assert!(unit.as_str().is_some_and(|unit| !unit.is_empty()), "{title}: no unit");
        for target in list(&panel["targets"]) {
            assert!(!target["legendFormat"].as_str().unwrap().is_empty(), "{title}: no legend");
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
        }
    }
}
