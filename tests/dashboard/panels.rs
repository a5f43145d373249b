//! The queries of the dashboard, with values in place of its variables.

use serde_json::Value;

/// The window of rates: several scrapes.
const RATE_INTERVAL: &str = "5s";

pub(crate) struct Dashboard {
    pub(crate) queries: Vec<Query>,
    /// The names and queries of the template variables.
    pub(crate) variables: Vec<(String, String)>,
}

pub(crate) struct Query {
    /// The title of the panel.
    pub(crate) panel: String,
    pub(crate) legend: String,
    pub(crate) expression: String,
}

impl Dashboard {
    pub(crate) fn read() -> Self {
        let dashboard: Value = serde_json::from_str(include_str!("../../ops/dashboard.json")).unwrap();
        let mut queries = Vec::new();
        for panel in list(&dashboard["panels"]).iter().filter(|panel| panel["type"] != "row") {
            for target in list(&panel["targets"]) {
                let (panel, legend) = (text(&panel["title"]), text(&target["legendFormat"]));
                queries.push(Query { panel, legend, expression: with_values(&text(&target["expr"])) });
            }
        }
        let variables = list(&dashboard["templating"]["list"]).iter().filter(|one| one["type"] == "query");
        let variables = variables
            .map(|variable| (text(&variable["name"]), with_values(&text(&variable["query"]["query"]))))
            .collect();
        Self { queries, variables }
    }
}

/// The query as Grafana sends it if "All" is chosen.
fn with_values(query: &str) -> String {
    let mut query = query.replace("$__rate_interval", RATE_INTERVAL);
    for variable in ["$job", "$instance", "$policy"] {
        query = query.replace(variable, ".*");
    }
    assert!(!query.contains('$'), "a variable has no value: {query}");
    query
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}
