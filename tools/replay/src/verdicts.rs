//! Verdict lines: one JSON object for each line read.

use serde_json::{Map, Value, json};
use tower_ratelimit::{
    Decision, Key,
    decision::{Outcome, Verdict},
};

use crate::{
    engine::micros,
    request::{Command, Reason, Request, Skipped},
    rules::Rule,
};

/// The verdict on a JSON line. Those about one policy from the options have no list of policies.
pub(crate) fn of_command(command: &Command, decisions: &[Decision], is_listed: bool) -> Value {
    let mut verdict = Map::new();
    verdict.insert("t".to_owned(), json!(command.request.time));
    if let Some(key) = &command.key {
        verdict.insert("key".to_owned(), json!(key));
    }
    if let Some(id) = &command.id {
        verdict.insert("id".to_owned(), json!(id));
    }
    verdict.insert("op".to_owned(), json!(command.op_name));
    decided(verdict, decisions, is_listed || command.key.is_none())
}

/// The verdict on a line of an access log. The number of the line is there because lines are sorted.
pub(crate) fn of_request(request: &Request, decision: &Decision, is_listed: bool) -> Value {
    let mut verdict = Map::new();
    verdict.insert("line".to_owned(), json!(request.line));
    verdict.insert("t".to_owned(), json!(request.time));
    if let [charge] = &request.charges[..] {
        verdict.insert("key".to_owned(), json!(shown(&charge.key)));
    }
    decided(verdict, std::slice::from_ref(decision), is_listed)
}

/// Why a line has no verdict.
pub(crate) fn of_skipped(skipped: &Skipped, rules: &[Rule]) -> Value {
    match &skipped.reason {
        Reason::Malformed(problem, _) => json!({ "line": skipped.line, "error": problem }),
        Reason::Unidentified(rule) => {
            let rule = &rules[*rule];
            let problem = format!("no {} for the policy `{}`", rule.key_text, rule.policy.name());
            json!({ "line": skipped.line, "error": problem })
        }
    }
}

/// The identity of a key, or the stored text if it has another form.
pub(crate) fn shown(key: &Key) -> String {
    let identity = key.identity().map(|identity| identity.replace('\u{1f}', " + "));
    identity.unwrap_or_else(|| key.as_str().to_owned())
}

/// Adds what `decisions` decided, and a list with each policy.
fn decided(mut verdict: Map<String, Value>, decisions: &[Decision], is_listed: bool) -> Value {
    let Some(main) = decisions.iter().find(|decision| decision.is_denied()).or_else(|| decisions.first())
    else {
        return Value::Object(verdict);
    };
    if is_listed {
        let name = match main.verdict() {
            Verdict::Delay(delay) => {
                let delays = |outcome: &&Outcome| outcome.verdict() == Verdict::Delay(delay);
                main.outcomes().iter().find(delays)
            }
            _ => main.binding(),
        };
        verdict.insert("policy".to_owned(), json!(name.map(|outcome| outcome.policy().name())));
    }
    let outcome = main.binding();
    verdict.extend(fields(main.verdict(), outcome));
    if is_listed {
        let each = decisions.iter().flat_map(|one| one.outcomes().iter().chain(one.shadows()));
        let policies: Vec<Value> = each.map(policy).collect();
        verdict.insert("policies".to_owned(), Value::Array(policies));
    }
    Value::Object(verdict)
}

fn policy(outcome: &Outcome) -> Value {
    let mut policy = Map::new();
    policy.insert("policy".to_owned(), json!(outcome.policy().name()));
    policy.insert("key".to_owned(), json!(shown(outcome.charge().key())));
    policy.insert("cost".to_owned(), json!(outcome.charge().cost()));
    policy.insert("shadow".to_owned(), json!(outcome.is_shadow()));
    policy.extend(fields(outcome.verdict(), Some(outcome)));
    policy.insert("banned_for_us".to_owned(), json!(outcome.banned_for().map(micros)));
    Value::Object(policy)
}

fn fields(verdict: Verdict, outcome: Option<&Outcome>) -> Map<String, Value> {
    let fields = [
        ("allowed", json!(!verdict.is_denied())),
        ("granted", json!(outcome.map(Outcome::granted))),
        ("limit", json!(outcome.map(|outcome| outcome.policy().capacity()))),
        ("remaining", json!(outcome.map(Outcome::remaining))),
        (
            "retry_after_us",
            match verdict {
                Verdict::Deny { retry_after: Some(wait), .. } => json!(micros(wait)),
                Verdict::Deny { retry_after: None, .. } => json!("never"),
                _ => Value::Null,
            },
        ),
        ("reset_after_us", json!(outcome.map(|outcome| micros(outcome.reset_after())))),
        (
            "delay_us",
            match verdict {
                Verdict::Delay(delay) => json!(micros(delay)),
                _ => json!(0),
            },
        ),
    ];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
