//! What several instances say about a client, as one answer.

use std::{collections::BTreeSet, time::Duration};

use serde_json::{Map, Value, json};

use crate::{
    printed::{Printed, push_line, text},
    routers::Answered,
    span::span,
    table::table,
    time::time,
};

/// The most seconds between two answers, by which times differ that are the same.
const BETWEEN_ANSWERS: f64 = 30.0;

/// The names of the instances, and those that have answered.
pub(crate) struct Merged {
    answers: Vec<(String, Value)>,
    unanswered: Vec<(String, String)>,
}

/// The state of a key under a policy, as some instances see it.
struct Row {
    layer: Option<usize>,
    charge: Value,
    source: Value,
    failure: Value,
    instances: Vec<String>,
}

impl Merged {
    pub(crate) fn new(answered: Vec<Answered>) -> Self {
        let (mut answers, mut unanswered) = (Vec::new(), Vec::new());
        for (instance, answer) in answered {
            match answer {
                Ok(answer) => answers.push((instance, answer)),
                Err(error) => unanswered.push((instance, error)),
            }
        }
        Self { answers, unanswered }
    }

    /// Prints `json` or `text`, and which instances have not answered.
    fn printed(self, as_json: bool, mut json: Map<String, Value>, text_of: String) -> Printed {
        let unanswered: Vec<Value> = self
            .unanswered
            .iter()
            .map(|(instance, error)| json!({"instance": instance, "error": error}))
            .collect();
        json.insert("unanswered".to_owned(), json!(unanswered));
        let mut complaints = String::new();
        for (instance, error) in &self.unanswered {
            push_line(&mut complaints, &format!("error: {instance}: {error}"));
        }
        let shown = match (as_json, self.answers.is_empty()) {
            (true, _) => text(&json),
            // Nothing is known.
            (false, true) => String::new(),
            (false, false) => text_of,
        };
        Printed { text: shown, complaints, is_failed: !self.unanswered.is_empty() }
    }

    /// The instances, unless several have answered, and all of them so.
    fn names(&self, instances: &[String]) -> String {
        if instances.len() == self.answers.len() && instances.len() > 1 {
            "all".to_owned()
        } else {
            instances.join(", ")
        }
    }

    /// Each entry of the list `name` of all answers, with its instance.
    fn entries(&self, name: &str) -> Vec<Value> {
        let mut all = Vec::new();
        for (instance, answer) in &self.answers {
            for entry in answer[name].as_array().into_iter().flatten() {
                let mut entry = entry.clone();
                entry["instance"] = json!(instance);
                all.push(entry);
            }
        }
        all
    }

    /// The answers of `GET /keys/{key}` or `POST /explain` about `client`.
    pub(crate) fn why(self, client: &str, as_json: bool) -> Printed {
        let rows = self.rows();
        let mut denials = self.entries("denials");
        denials.sort_by(|one, other| number(&other["last"]).total_cmp(&number(&one["last"])));
        let mut changes = self.entries("changes");
        changes.sort_by(|one, other| number(&other["time"]).total_cmp(&number(&one["time"])));
        let errors = self.entries("errors");
        let layers = self.layers();
        let enforcement: Map<String, Value> = self
            .answers
            .iter()
            .filter(|(_, answer)| answer["enforcement"].is_string())
            .map(|(instance, answer)| (instance.clone(), answer["enforcement"].clone()))
            .collect();
        let is_said = |verdict: &str| self.answers.iter().any(|(_, answer)| answer["verdict"] == verdict);
        let rejected =
            layers.iter().any(|(_, layer, _)| layer["verdict"] == "rejected") || is_said("rejected");
        let blocked = self.blocked("blocked");
        let verdict = match strictest(&rows) {
            _ if rejected => "rejected",
            verdict if is_said("unknown") && verdict != "denied" => "unknown",
            verdict => verdict,
        };
        // The store has not answered, even if a failure mode decides.
        let is_outage = verdict == "unknown"
            || rows.iter().any(|row| row.failure.is_string())
            || layers.iter().any(|(_, layer, _)| layer["rejection"]["status"] == 503);
        let json = json!({
            "verdict": verdict,
            "policies": rows.iter().map(Row::json).collect::<Vec<_>>(),
            "layers": layers.iter().map(|(number, layer, instances)| json!({
                "layer": number, "verdict": layer["verdict"], "rejection": layer["rejection"], "instances": instances,
            })).collect::<Vec<_>>(),
            "errors": errors,
            "enforcement": enforcement,
            "blocked": blocked.iter().map(|(network, instances)| with(network, instances)).collect::<Vec<_>>(),
            "denials": denials,
            "changes": changes,
        });
        let mut text = String::new();
        push_line(&mut text, &format!("{client}: {}", self.headline(verdict, &rows)));
        for (network, _) in &blocked {
            let [name, time, ..] = shown(network);
            let reason = network["reason"].as_str().map(|reason| format!(": {reason}")).unwrap_or_default();
            let who = network["who"].as_str().map(|who| format!(", by {who}")).unwrap_or_default();
            push_line(&mut text, &format!("blocked: {name} {time}{who}{reason}"));
        }
        for (instance, position) in enforcement.iter().filter(|(_, position)| *position != "on") {
            push_line(&mut text, &format!("enforcement is {} on {instance}", word(position)));
        }
        for (layer, answer, instances) in &layers {
            let (verdict, names) = (word(&answer["verdict"]).replace('_', " "), self.names(instances));
            let rejection = &answer["rejection"];
            let detail = match rejection["status"].as_u64() {
                Some(status) => format!(" with {status}: {}", word(&rejection["detail"])),
                None => String::new(),
            };
            push_line(&mut text, &format!("layer {layer}: {verdict}{detail} ({names})"));
        }
        if !rows.is_empty() {
            text.push('\n');
            text.push_str(&self.table_of(&rows));
        }
        let mut unknown: Vec<(String, Vec<String>)> = Vec::new();
        let mut add =
            |line: String, instance: &str| match unknown.iter_mut().find(|(other, _)| *other == line) {
                Some((_, instances)) if instances.iter().any(|other| other == instance) => {}
                Some((_, instances)) => instances.push(instance.to_owned()),
                None => unknown.push((line, vec![instance.to_owned()])),
            };
        // Not in the table, whose lines they would make long.
        for row in &rows {
            if let Some(failure) = row.failure.as_str() {
                row.instances.iter().for_each(|name| add(format!("the store failed: {failure}"), name));
            }
        }
        for error in &errors {
            let policy =
                error["policy"].as_str().map(|policy| format!("policy {policy}: ")).unwrap_or_default();
            add(format!("{policy}{}", word(&error["detail"])), word(&error["instance"]));
        }
        for (line, instances) in unknown {
            push_line(&mut text, &format!("{line} ({})", self.names(&instances)));
        }
        if !denials.is_empty() {
            text.push_str("\nrecent denials\n");
            text.push_str(&table_of_denials(&denials));
        }
        if !changes.is_empty() {
            text.push_str("\nchanges\n");
            text.push_str(&table_of_changes(&changes));
        }
        self.printed(as_json, object(json), text).failed_if(is_outage)
    }

    fn headline(&self, verdict: &str, rows: &[Row]) -> String {
        let denied: Vec<&Row> = rows.iter().filter(|row| row.denies()).collect();
        let waits = denied.iter().map(|row| row.charge["retry_after"].as_f64());
        // If one of them has none, waiting does not help.
        let wait = waits.collect::<Option<Vec<f64>>>().and_then(|waits| waits.into_iter().reduce(f64::max));
        let by: BTreeSet<&str> = denied.iter().map(|row| word(&row.charge["policy"]["name"])).collect();
        let by = by.into_iter().collect::<Vec<_>>().join(", ");
        match (verdict, wait) {
            ("denied", Some(wait)) => format!("denied by {by}; admitted in {}", seconds(wait)),
            ("denied", None) => format!("denied by {by}; waiting does not help"),
            ("unknown", _) => "unknown, because something below cannot be read".to_owned(),
            (verdict, _) => verdict.to_owned(),
        }
    }

    fn rows(&self) -> Vec<Row> {
        let mut rows: Vec<Row> = Vec::new();
        for (instance, answer) in &self.answers {
            let explained = answer["explanations"].as_array().into_iter().flatten().map(|one| (None, one));
            let layers = answer["layers"].as_array().into_iter().flatten().enumerate();
            let layers = layers.map(|(at, layer)| (Some(at + 1), &layer["explanation"]));
            for (layer, explanation) in explained.chain(layers) {
                for charge in explanation["charges"].as_array().into_iter().flatten() {
                    let (source, failure) = (explanation["source"].clone(), explanation["failure"].clone());
                    let charge = charge.clone();
                    let row = Row { layer, charge, source, failure, instances: vec![instance.clone()] };
                    match rows.iter_mut().find(|other| other.agrees_with(&row)) {
                        Some(other) => other.instances.push(instance.clone()),
                        None => rows.push(row),
                    }
                }
            }
        }
        // The same policy together, in the order of the first instance.
        let place = |row: &Row| (row.layer, word(&row.charge["policy"]["name"]).to_owned());
        let mut order: Vec<_> = Vec::new();
        for row in &rows {
            if !order.contains(&place(row)) {
                order.push(place(row));
            }
        }
        rows.sort_by_key(|row| order.iter().position(|one| *one == place(row)));
        rows
    }

    /// The verdict of each layer, with the instances that agree.
    fn layers(&self) -> Vec<(usize, Value, Vec<String>)> {
        let mut all: Vec<(usize, Value, Vec<String>)> = Vec::new();
        for (instance, answer) in &self.answers {
            for (at, layer) in answer["layers"].as_array().into_iter().flatten().enumerate() {
                let same = |(number, other, _): &&mut (usize, Value, Vec<String>)| {
                    *number == at + 1
                        && other["verdict"] == layer["verdict"]
                        && other["rejection"] == layer["rejection"]
                };
                match all.iter_mut().find(same) {
                    Some((.., instances)) => instances.push(instance.clone()),
                    None => all.push((at + 1, layer.clone(), vec![instance.clone()])),
                }
            }
        }
        all.sort_by_key(|(number, ..)| *number);
        all
    }

    fn table_of(&self, rows: &[Row]) -> String {
        let is_of_request = rows.iter().any(|row| row.layer.is_some());
        let cells = rows.iter().map(|row| {
            let mut cells = row.cells();
            if let Some(layer) = row.layer {
                cells.insert(0, layer.to_string());
            }
            cells.push(self.names(&row.instances));
            cells
        });
        let mut header = vec!["POLICY", "KEY", "REMAINING", "RESET", "NOW", "INSTANCES"];
        if is_of_request {
            header.insert(0, "LAYER");
        }
        table(&header, &cells.collect::<Vec<_>>())
    }

    /// The answers of `GET /denials/recent`.
    pub(crate) fn recent(self, limit: usize, as_json: bool) -> Printed {
        let mut denials = self.entries("denials");
        denials.sort_by(|one, other| number(&other["last"]).total_cmp(&number(&one["last"])));
        denials.truncate(limit);
        let text = table_of_denials(&denials);
        self.printed(as_json, object(json!({ "denials": denials })), text)
    }

    /// The answers of `GET /denials/top`: the sums over all instances.
    pub(crate) fn top(self, limit: usize, as_json: bool) -> Printed {
        let mut sums: Vec<Value> = Vec::new();
        for entry in self.entries("denials") {
            let same = |sum: &&mut Value| sum["policy"] == entry["policy"] && sum["key"] == entry["key"];
            match sums.iter_mut().find(same) {
                Some(sum) => {
                    for name in ["denials", "error"] {
                        sum[name] = json!(count(&sum[name]) + count(&entry[name]));
                    }
                    if let Some(instances) = sum["instances"].as_array_mut() {
                        instances.push(entry["instance"].clone());
                    }
                }
                None => sums.push(json!({
                    "policy": entry["policy"], "key": entry["key"], "identity": entry["identity"],
                    "key_hash": entry["key_hash"], "denials": entry["denials"], "error": entry["error"],
                    "instances": [entry["instance"]],
                })),
            }
        }
        let certain = |sum: &Value| count(&sum["denials"]).saturating_sub(count(&sum["error"]));
        sums.sort_by_key(|sum| std::cmp::Reverse(certain(sum)));
        sums.truncate(limit);
        let row = |sum: &Value| {
            let (least, most) = (certain(sum), count(&sum["denials"]));
            let number = if least == most { most.to_string() } else { format!("{least} to {most}") };
            vec![word(&sum["policy"]).to_owned(), word(&sum["key"]).to_owned(), number]
        };
        let rows: Vec<_> = sums.iter().map(row).collect();
        self.printed(as_json, object(json!({ "denials": sums })), table(&["POLICY", "KEY", "DENIALS"], &rows))
    }

    /// The answers of `GET /policies`. It fails if the policies of an instance are not what the file or Redis has.
    pub(crate) fn policies(self, as_json: bool) -> Printed {
        let mut rows: Vec<(Value, Vec<String>)> = Vec::new();
        let mut lines = String::new();
        for (instance, answer) in &self.answers {
            for policy in answer["policies"].as_array().into_iter().flatten() {
                match rows.iter_mut().find(|(other, _)| other == policy) {
                    Some((_, instances)) => instances.push(instance.clone()),
                    None => rows.push((policy.clone(), vec![instance.clone()])),
                }
            }
            for warning in answer["warnings"].as_array().into_iter().flatten() {
                let mut line = String::new();
                push_line(&mut line, &format!("warning: {}", word(warning)));
                if !lines.contains(&line) {
                    lines.push_str(&line);
                }
            }
            if let Some(error) = answer["error"].as_str() {
                push_line(&mut lines, &format!("{instance}: the policies stay as they are: {error}"));
            }
        }
        rows.sort_by(|(one, _), (other, _)| word(&one["name"]).cmp(word(&other["name"])));
        let cells = |(policy, instances): &(Value, Vec<String>)| {
            let [name, quota, algorithm, failure_mode] =
                ["name", "quota", "algorithm", "failure_mode"].map(|name| word(&policy[name]).to_owned());
            vec![
                name,
                quota,
                algorithm,
                enforced(policy),
                failure_mode,
                others(policy),
                self.names(instances),
            ]
        };
        let cells: Vec<Vec<String>> = rows.iter().map(cells).collect();
        let header = ["POLICY", "QUOTA", "ALGORITHM", "ENFORCED", "FAILURE MODE", "OTHERS", "INSTANCES"];
        let text = table(&header, &cells) + &lines;
        let list = rows.iter().map(|(policy, instances)| json!({"policy": policy, "instances": instances}));
        let json = json!({ "policies": list.collect::<Vec<_>>(), "instances": self.by_instance() });
        let has_error = self.has_error();
        self.printed(as_json, object(json), text).failed_if(has_error)
    }

    /// Whether an answer has an error beside its list.
    pub(crate) fn has_error(&self) -> bool {
        self.answers.iter().any(|(_, answer)| answer["error"].is_string())
    }

    /// The answers of `GET /blocklist`.
    pub(crate) fn blocklist(self, as_json: bool) -> Printed {
        let networks = self.blocked("networks");
        let row = |(network, instances): &(Value, Vec<String>)| {
            shown(network).into_iter().chain([self.names(instances)]).collect()
        };
        let rows: Vec<Vec<String>> = networks.iter().map(row).collect();
        let mut text = table(&["NETWORK", "BLOCKED", "REASON", "WHO", "INSTANCES"], &rows);
        let mut errors = Vec::new();
        for (instance, answer) in &self.answers {
            if let Some(error) = answer["error"].as_str() {
                push_line(&mut text, &format!("{instance}: {error}"));
                errors.push(json!({"instance": instance, "error": error}));
            }
        }
        let networks: Vec<_> = networks.iter().map(|(network, instances)| with(network, instances)).collect();
        self.printed(as_json, object(json!({ "networks": networks, "errors": errors })), text)
    }

    /// The blocked networks in the list `name` of all answers, each with the instances that have it. The time left
    /// differs by the time between two answers.
    fn blocked(&self, name: &str) -> Vec<(Value, Vec<String>)> {
        let mut all: Vec<(Value, Vec<String>)> = Vec::new();
        for (instance, answer) in &self.answers {
            for network in answer[name].as_array().into_iter().flatten() {
                let said = |network: &Value| ["network", "reason", "who"].map(|name| network[name].clone());
                let end = |network: &Value| network["blocked_for"].as_f64().unwrap_or(f64::INFINITY);
                let agrees = |other: &Value| {
                    said(other) == said(network)
                        && (end(other) == end(network) || (end(other) - end(network)).abs() < BETWEEN_ANSWERS)
                };
                match all.iter_mut().find(|(other, _)| agrees(other)) {
                    Some((_, instances)) => instances.push(instance.clone()),
                    None => all.push((network.clone(), vec![instance.clone()])),
                }
            }
        }
        all
    }

    /// The answers of `GET /acl`.
    pub(crate) fn acl(self, as_json: bool) -> Printed {
        let mut rules: Vec<(&str, Vec<String>)> = Vec::new();
        for (instance, answer) in &self.answers {
            let rule = word(&answer["acl_rule"]);
            match rules.iter_mut().find(|(other, _)| *other == rule) {
                Some((_, instances)) => instances.push(instance.clone()),
                None => rules.push((rule, vec![instance.clone()])),
            }
        }
        let mut text = String::new();
        for (rule, names) in &rules {
            let line =
                if rules.len() == 1 { (*rule).to_owned() } else { format!("{}: {rule}", names.join(", ")) };
            push_line(&mut text, &line);
        }
        let json = object(json!({ "instances": self.by_instance() }));
        self.printed(as_json, json, text)
    }

    /// The answers of `GET /probe`. It fails if an instance cannot decide.
    pub(crate) fn probe(self, as_json: bool) -> Printed {
        let can_decide = self.answers.iter().all(|(_, answer)| answer["can_decide"] == true);
        let mut text = String::new();
        for (instance, answer) in &self.answers {
            push_line(&mut text, &format!("{instance}: {}", word(&answer["report"])));
        }
        let json = object(json!({ "instances": self.by_instance() }));
        self.printed(as_json, json, text).failed_if(!can_decide)
    }

    fn by_instance(&self) -> Map<String, Value> {
        self.answers.iter().cloned().collect()
    }
}

impl Row {
    /// Whether it says the same, so that it needs no separate line. Times differ by the time between two
    /// answers.
    fn agrees_with(&self, other: &Self) -> bool {
        let said = |row: &Self| {
            let charge = &row.charge;
            (
                row.layer,
                [
                    &charge["policy"],
                    &charge["key"],
                    &charge["verdict"],
                    &charge["remaining"],
                    &charge["owed"],
                ]
                .map(Clone::clone),
                charge["banned_for"].is_null(),
                row.source.clone(),
                row.failure.clone(),
            )
        };
        said(self) == said(other)
    }

    fn denies(&self) -> bool {
        self.charge["verdict"] == "denied" && self.charge["is_shadow"] != true
    }

    fn json(&self) -> Value {
        let mut json = self.charge.clone();
        json["source"] = self.source.clone();
        json["failure"] = self.failure.clone();
        json["instances"] = json!(self.instances);
        if let Some(layer) = self.layer {
            json["layer"] = json!(layer);
        }
        json
    }

    fn cells(&self) -> Vec<String> {
        let charge = &self.charge;
        let mut remaining = match charge["remaining"].as_u64() {
            Some(remaining) => format!("{remaining} of {}", count(&charge["policy"]["capacity"])),
            None => "?".to_owned(),
        };
        if count(&charge["owed"]) > 0 {
            remaining.push_str(&format!(", {} owed", count(&charge["owed"])));
        }
        let reset = charge["reset_after"].as_f64().map_or_else(|| "?".to_owned(), seconds);
        let mut now = match (charge["verdict"].as_str(), charge["banned_for"].as_f64()) {
            (_, Some(rest)) => format!("banned for {}", seconds(rest)),
            (Some("delayed"), _) => format!("admitted after {}", seconds(number(&charge["delay"]))),
            (Some("denied"), _) => match charge["retry_after"].as_f64() {
                Some(wait) => format!("denied, admitted in {}", seconds(wait)),
                None => "denied, waiting does not help".to_owned(),
            },
            (Some(verdict), _) => verdict.to_owned(),
            (None, _) => "?".to_owned(),
        };
        if charge["is_shadow"] == true {
            now.push_str(" (a shadow, which denies nothing)");
        }
        if self.failure.is_string() {
            now.push_str(" (the store failed)");
        }
        vec![
            word(&charge["policy"]["name"]).to_owned(),
            word(&charge["key"]).to_owned(),
            remaining,
            reset,
            now,
        ]
    }
}

/// The verdict of a request that is charged under all policies.
fn strictest(rows: &[Row]) -> &'static str {
    if rows.iter().any(Row::denies) {
        "denied"
    } else if rows.iter().any(|row| row.charge["verdict"] == "delayed" && row.charge["is_shadow"] != true) {
        "delayed"
    } else {
        "admitted"
    }
}

fn table_of_denials(denials: &[Value]) -> String {
    let row = |entry: &Value| {
        vec![
            time(number(&entry["last"])),
            word(&entry["policy"]).to_owned(),
            word(&entry["key"]).to_owned(),
            format!("{} by {}", word(&entry["verdict"]).replace('_', " "), word(&entry["source"])),
            count(&entry["denials"]).to_string(),
            time(number(&entry["first"])),
            word(&entry["instance"]).to_owned(),
        ]
    };
    let rows: Vec<_> = denials.iter().map(row).collect();
    table(&["LAST", "POLICY", "KEY", "VERDICT", "DENIALS", "SINCE", "INSTANCE"], &rows)
}

fn table_of_changes(changes: &[Value]) -> String {
    let row = |change: &Value| {
        let amount = change["amount"].as_u64().map(|amount| match change["kind"].as_str() {
            Some("ban" | "block") => span(Duration::from_secs(amount)),
            _ => format!("{amount} units"),
        });
        let detail = change["detail"].as_str().map(str::to_owned);
        let detail = [detail, amount].into_iter().flatten().collect::<Vec<_>>().join(", ");
        [time(number(&change["time"]))]
            .into_iter()
            .chain(["kind", "policy"].map(|name| word(&change[name]).to_owned()))
            .chain([detail])
            .chain(["who", "instance"].map(|name| word(&change[name]).to_owned()))
            .collect()
    };
    let rows: Vec<Vec<String>> = changes.iter().map(row).collect();
    table(&["TIME", "CHANGE", "POLICY", "WHAT", "WHO", "INSTANCE"], &rows)
}

/// For which keys a policy is enforced.
fn enforced(policy: &Value) -> String {
    match policy["enforced"].as_f64() {
        None => "-".to_owned(),
        Some(1.0) => "yes".to_owned(),
        Some(0.0) => "no, a shadow".to_owned(),
        // In millionths, so four digits are enough.
        Some(share) => format!("{} % of the keys", (share * 1e6).round() / 1e4),
    }
}

/// The settings of a policy that few policies have.
fn others(policy: &Value) -> String {
    let number = |name: &str| policy[name].as_u64().filter(|number| *number > 0);
    let unit = policy["quota_unit"].as_str().filter(|unit| *unit != "requests");
    let shares: Vec<String> = policy["notify_at"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|share| Some(format!("{} %", share.as_u64()?)))
        .collect();
    let all = [
        unit.map(|unit| format!("of {unit}")),
        number("max_debt").map(|units| format!("debt up to {units}")),
        number("max_lease").map(|units| format!("leases up to {units}")),
        (policy["has_penalty"] == true).then(|| "penalty".to_owned()),
        (!shares.is_empty()).then(|| format!("notifies at {}", shares.join(" and "))),
    ];
    let all: Vec<String> = all.into_iter().flatten().collect();
    if all.is_empty() { "-".to_owned() } else { all.join(", ") }
}

/// A blocked network, as cells.
fn shown(network: &Value) -> [String; 4] {
    let time = match network["blocked_for"].as_f64() {
        // The end is in whole seconds, so the rest may be a second longer than the time of the block.
        Some(rest) if rest > 3_600.0 => format!("for {}", seconds((rest / 60.0).round() * 60.0)),
        Some(rest) => format!("for {}", seconds(rest)),
        None => "until unblocked".to_owned(),
    };
    let [name, reason, who] = ["network", "reason", "who"].map(|name| word(&network[name]).to_owned());
    [name, time, reason, who]
}

/// An entry, with the instances that have it.
fn with(entry: &Value, instances: &[String]) -> Value {
    let mut entry = entry.clone();
    entry["instances"] = json!(instances);
    entry
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}

/// A text, or a dash.
fn word(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_default()
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

fn seconds(seconds: f64) -> String {
    span(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_whose_blocks_end_at_other_times_has_a_line_for_each() {
        let answer = |instance: &str, seconds: Value| {
            let network =
                json!({"network": "203.0.113.0/24", "blocked_for": seconds, "reason": null, "who": null});
            (instance.to_owned(), Ok(json!({"networks": [network], "error": null})))
        };
        for (other, lines) in [(json!(3_601.5), 1), (json!(300.0), 2), (Value::Null, 2)] {
            let merged = Merged::new(vec![answer("a", json!(3_600.0)), answer("b", other.clone())]);
            assert_eq!(merged.blocklist(false).text.lines().count(), 1 + lines, "{other}");
        }
        let forever = || answer("a", Value::Null);
        assert_eq!(Merged::new(vec![forever(), forever()]).blocklist(false).text.lines().count(), 2);
    }
}
