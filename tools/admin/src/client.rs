//! What several instances say about a client, as one answer.

use std::{collections::BTreeSet, time::Duration};

use serde::Serialize;
use serde_json::{Map, Value, json};
use tower_ratelimit::policy::Enforcement;
use tower_ratelimit_operate::answer::{
    AboutKey, AboutLayer, AboutRequest, Change, ChangeKind, DenialKind, DeniedKey, Explained, ExplainedKey,
    History, Rejected, Undecided, VerdictWord,
};

use crate::{
    lists::{blocked_alike, network_cells},
    merged::{Merged, Own},
    printed::{Printed, push_line},
    span::{seconds, span},
    table::table,
    time::time,
};

/// What an instance says about a client: a key, or a request.
pub(crate) struct Client {
    /// Of a key.
    verdict: Option<VerdictWord>,
    explanations: Vec<Explained>,
    errors: Vec<Undecided>,
    /// Of a request.
    layers: Vec<AboutLayer>,
    history: History,
}

impl From<AboutKey> for Client {
    fn from(key: AboutKey) -> Self {
        let AboutKey { verdict, explanations, errors, history, .. } = key;
        Self { verdict: Some(verdict), explanations, errors, layers: Vec::new(), history }
    }
}

impl From<AboutRequest> for Client {
    fn from(request: AboutRequest) -> Self {
        let AboutRequest { layers, history, .. } = request;
        Self { verdict: None, explanations: Vec::new(), errors: Vec::new(), layers, history }
    }
}

/// The state of one key.
impl From<Explained> for Client {
    fn from(explained: Explained) -> Self {
        let history = History::default();
        Self { verdict: None, explanations: vec![explained], errors: Vec::new(), layers: Vec::new(), history }
    }
}

/// The state of a key under a policy, as some instances see it.
#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    charge: ExplainedKey,
    source: String,
    failure: Option<String>,
    instances: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    layer: Option<usize>,
}

/// What a layer does, as some instances say.
#[derive(Serialize)]
struct LayerRow {
    layer: usize,
    verdict: VerdictWord,
    rejection: Option<Rejected>,
    instances: Vec<String>,
}

impl Merged<Client> {
    /// The answers about `client`.
    pub(crate) fn why(self, client: &str, as_json: bool) -> Printed {
        let (rows, layers) = (self.rows(), self.layers());
        let mut denials = self.own(|answer| &answer.history.denials);
        sort_denials(&mut denials);
        let mut changes = self.own(|answer| &answer.history.changes);
        changes.sort_by(|one, other| other.entry.time.total_cmp(&one.entry.time));
        let errors = self.own(|answer| &answer.errors);
        let enforcement: Vec<(&str, Enforcement)> = self
            .answers
            .iter()
            .filter_map(|(instance, answer)| Some((&**instance, answer.history.enforcement?)))
            .collect();
        let blocked = self.shared(|answer| &answer.history.blocked, blocked_alike);
        let is_said = |verdict| self.answers.iter().any(|(_, answer)| answer.verdict == Some(verdict));
        let rejected = layers.iter().any(|layer| layer.verdict == VerdictWord::Rejected)
            || is_said(VerdictWord::Rejected);
        let verdict = match strictest(&rows) {
            _ if rejected => VerdictWord::Rejected,
            verdict if is_said(VerdictWord::Unknown) && verdict != VerdictWord::Denied => {
                VerdictWord::Unknown
            }
            verdict => verdict,
        };
        // The store has not answered, even if a failure mode decides.
        let is_outage = verdict == VerdictWord::Unknown
            || rows.iter().any(|row| row.failure.is_some())
            || layers.iter().any(|layer| layer.rejection.as_ref().is_some_and(|one| one.status == 503));
        let positions: Map<String, Value> = enforcement
            .iter()
            .map(|(instance, position)| ((*instance).to_owned(), json!(position)))
            .collect();
        let json = json!({
            "verdict": verdict,
            "policies": rows,
            "layers": layers,
            "errors": errors,
            "enforcement": positions,
            "blocked": blocked,
            "denials": denials,
            "changes": changes,
        });
        let mut text = String::new();
        push_line(&mut text, &format!("{client}: {}", headline(verdict, &rows)));
        for network in &blocked {
            let [name, time, reason, who] = network_cells(&network.entry);
            let reason = network.entry.reason.as_ref().map(|_| format!(": {reason}")).unwrap_or_default();
            let who = network.entry.who.as_ref().map(|_| format!(", by {who}")).unwrap_or_default();
            push_line(&mut text, &format!("blocked: {name} {time}{who}{reason}"));
        }
        for (instance, position) in enforcement.iter().filter(|(_, position)| *position != Enforcement::On) {
            push_line(&mut text, &format!("enforcement is {position} on {instance}"));
        }
        for layer in &layers {
            let (verdict, names) = (name(layer.verdict).replace('_', " "), self.names(&layer.instances));
            let detail = layer.rejection.as_ref();
            let detail =
                detail.map(|one| format!(" with {}: {}", one.status, one.detail)).unwrap_or_default();
            push_line(&mut text, &format!("layer {}: {verdict}{detail} ({names})", layer.layer));
        }
        if !rows.is_empty() {
            text.push('\n');
            text.push_str(&self.table_of(&rows));
        }
        for (line, instances) in unknown(&rows, &errors) {
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
        self.printed(as_json, json, text).failed_if(is_outage)
    }

    fn rows(&self) -> Vec<Row> {
        let mut rows: Vec<Row> = Vec::new();
        for (instance, answer) in &self.answers {
            let explained = answer.explanations.iter().map(|one| (None, one));
            let layers = answer.layers.iter().enumerate();
            let layers = layers.filter_map(|(at, layer)| Some((Some(at + 1), layer.explanation.as_ref()?)));
            for (layer, explained) in explained.chain(layers) {
                for charge in &explained.charges {
                    let row = Row {
                        charge: charge.clone(),
                        source: explained.source.clone(),
                        failure: explained.failure.clone(),
                        instances: vec![instance.clone()],
                        layer,
                    };
                    match rows.iter_mut().find(|other| other.agrees_with(&row)) {
                        Some(other) => other.instances.push(instance.clone()),
                        None => rows.push(row),
                    }
                }
            }
        }
        // The same policy together, in the order of the first instance.
        let place = |row: &Row| (row.layer, row.charge.policy.name.clone());
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
    fn layers(&self) -> Vec<LayerRow> {
        let mut all: Vec<LayerRow> = Vec::new();
        for (instance, answer) in &self.answers {
            for (at, AboutLayer { verdict, rejection, .. }) in answer.layers.iter().enumerate() {
                let same = |other: &&mut LayerRow| {
                    other.layer == at + 1 && other.verdict == *verdict && other.rejection == *rejection
                };
                match all.iter_mut().find(same) {
                    Some(other) => other.instances.push(instance.clone()),
                    None => all.push(LayerRow {
                        layer: at + 1,
                        verdict: *verdict,
                        rejection: rejection.clone(),
                        instances: vec![instance.clone()],
                    }),
                }
            }
        }
        all.sort_by_key(|layer| layer.layer);
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
}

impl Row {
    /// Whether it says the same, so that it needs no separate line. Times differ by the time between two
    /// answers.
    fn agrees_with(&self, other: &Self) -> bool {
        let (one, two) = (&self.charge, &other.charge);
        (self.layer, &self.source, &self.failure) == (other.layer, &other.source, &other.failure)
            && (&one.policy, &one.key, one.verdict) == (&two.policy, &two.key, two.verdict)
            && (one.remaining, one.owed) == (two.remaining, two.owed)
            && one.banned_for.is_some() == two.banned_for.is_some()
    }

    fn denies(&self) -> bool {
        self.charge.verdict == Some(VerdictWord::Denied) && !self.charge.is_shadow && !self.charge.degrades
    }

    fn cells(&self) -> Vec<String> {
        let charge = &self.charge;
        let mut remaining = match charge.remaining {
            Some(remaining) => format!("{remaining} of {}", charge.policy.capacity),
            None => "?".to_owned(),
        };
        if let Some(owed) = charge.owed.filter(|owed| *owed > 0) {
            remaining.push_str(&format!(", {owed} owed"));
        }
        let reset = charge.reset_after.map_or_else(|| "?".to_owned(), seconds);
        let mut now = match (charge.verdict, charge.banned_for) {
            (_, Some(rest)) => format!("banned for {}", seconds(rest)),
            (Some(VerdictWord::Delayed), _) => {
                format!("admitted after {}", seconds(charge.delay.unwrap_or_default()))
            }
            (Some(VerdictWord::Denied), _) if charge.is_shed => {
                format!("denied, {} units kept for more critical requests", charge.headroom)
            }
            (Some(VerdictWord::Denied), _) => match charge.retry_after {
                Some(wait) => format!("denied, admitted in {}", seconds(wait)),
                None => "denied, waiting does not help".to_owned(),
            },
            (Some(verdict), _) => name(verdict).to_owned(),
            (None, _) => "?".to_owned(),
        };
        if charge.degrades {
            now.push_str(" (a request that is denied goes on without it)");
        }
        if charge.is_shadow {
            now.push_str(" (a shadow, which denies nothing)");
        }
        if self.failure.is_some() {
            now.push_str(" (the store failed)");
        }
        vec![charge.policy.name.clone(), charge.key.clone(), remaining, reset, now]
    }
}

fn headline(verdict: VerdictWord, rows: &[Row]) -> String {
    let denied: Vec<&Row> = rows.iter().filter(|row| row.denies()).collect();
    let waits = denied.iter().map(|row| row.charge.retry_after);
    // If one of them has none, waiting does not help.
    let wait = waits.collect::<Option<Vec<f64>>>().and_then(|waits| waits.into_iter().reduce(f64::max));
    let by: BTreeSet<&str> = denied.iter().map(|row| &*row.charge.policy.name).collect();
    let by = by.into_iter().collect::<Vec<_>>().join(", ");
    match (verdict, wait) {
        (VerdictWord::Denied, Some(wait)) => format!("denied by {by}; admitted in {}", seconds(wait)),
        (VerdictWord::Denied, None) => format!("denied by {by}; waiting does not help"),
        (VerdictWord::Unknown, _) => "unknown, because something below cannot be read".to_owned(),
        (verdict, _) => name(verdict).to_owned(),
    }
}

/// The verdict of a request that is charged under all policies.
fn strictest(rows: &[Row]) -> VerdictWord {
    let enforced = rows.iter().filter(|row| !row.charge.is_shadow);
    enforced.filter_map(|row| row.charge.verdict).max().unwrap_or(VerdictWord::Admitted)
}

/// What is not known, with the instances: it is not in the table, whose lines it would make long.
fn unknown(rows: &[Row], errors: &[Own<Undecided>]) -> Vec<(String, Vec<String>)> {
    let mut unknown: Vec<(String, Vec<String>)> = Vec::new();
    let mut add = |line: String, instance: &str| match unknown.iter_mut().find(|(other, _)| *other == line) {
        Some((_, instances)) if instances.iter().any(|other| other == instance) => {}
        Some((_, instances)) => instances.push(instance.to_owned()),
        None => unknown.push((line, vec![instance.to_owned()])),
    };
    for row in rows {
        if let Some(failure) = &row.failure {
            row.instances.iter().for_each(|name| add(format!("the store failed: {failure}"), name));
        }
    }
    for Own { entry: Undecided { policy, detail, .. }, instance } in errors {
        let policy = policy.as_ref().map(|policy| format!("policy {policy}: ")).unwrap_or_default();
        add(format!("{policy}{detail}"), instance);
    }
    unknown
}

pub(crate) fn sort_denials(denials: &mut [Own<DeniedKey>]) {
    denials.sort_by(|one, other| other.entry.last.total_cmp(&one.entry.last));
}

pub(crate) fn table_of_denials(denials: &[Own<DeniedKey>]) -> String {
    let row = |denial: &Own<DeniedKey>| {
        let entry = &denial.entry;
        let verdict = match entry.verdict {
            DenialKind::Banned => "banned",
            DenialKind::Shed => "shed",
            DenialKind::Degraded => "degraded",
            DenialKind::ShadowDenied => "shadow denied",
            _ => "denied",
        };
        vec![
            time(entry.last),
            entry.policy.clone(),
            entry.key.clone(),
            format!("{verdict} by {}", entry.source),
            entry.denials.to_string(),
            time(entry.first),
            denial.instance.clone(),
        ]
    };
    let rows: Vec<_> = denials.iter().map(row).collect();
    table(&["LAST", "POLICY", "KEY", "VERDICT", "DENIALS", "SINCE", "INSTANCE"], &rows)
}

fn table_of_changes(changes: &[Own<Change>]) -> String {
    let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    let row = |change: &Own<Change>| {
        let Own { entry, instance } = change;
        let amount = entry.amount.map(|amount| match entry.kind {
            ChangeKind::Ban | ChangeKind::Block => span(Duration::from_secs(amount)),
            _ => format!("{amount} units"),
        });
        let detail = [entry.detail.clone(), amount].into_iter().flatten().collect::<Vec<_>>().join(", ");
        vec![
            time(entry.time),
            entry.kind.as_str().to_owned(),
            or_dash(&entry.policy),
            detail,
            or_dash(&entry.who),
            instance.clone(),
        ]
    };
    let rows: Vec<Vec<String>> = changes.iter().map(row).collect();
    table(&["TIME", "CHANGE", "POLICY", "WHAT", "WHO", "INSTANCE"], &rows)
}

/// As it is serialized.
const fn name(verdict: VerdictWord) -> &'static str {
    match verdict {
        VerdictWord::NotLimited => "not_limited",
        VerdictWord::Admitted => "admitted",
        VerdictWord::Delayed => "delayed",
        VerdictWord::Denied => "denied",
        VerdictWord::Rejected => "rejected",
        _ => "unknown",
    }
}
