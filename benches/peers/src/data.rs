//! The results of a run as JSON, from which the pictures are drawn without another run: every round of every figure.

use serde_json::{Map, Value, json};

use crate::{
    bench::{Bench, Results, Rounds},
    figures::Figures,
    targets::Target,
};

/// `about` says when and on what.
pub(crate) fn json(figures: &Figures<'_>, bench: &Bench, about: &str, targets: &[Target]) -> Value {
    let about: Vec<&str> = about.lines().filter_map(|line| line.strip_prefix("* ")).collect();
    let contenders = figures.contenders.iter().map(|contender| {
        let verified = match figures.verified.get(&contender.name) {
            Some(Ok(found)) => json!(found),
            Some(Err(problem)) => json!({ "problem": problem }),
            None => Value::Null,
        };
        json!({
            "name": contender.name,
            "place": contender.place,
            "ours": contender.role.is_ours(),
            "exact": figures.is_exact(contender),
            "verified": verified,
            "bytes_a_key": figures.sizes.get(&contender.name).map(|size| size.bytes),
            "scenarios": scenarios(&figures.results, &contender.name),
        })
    });
    let networks = figures.networks.iter().map(|network| {
        let names = figures.contenders.iter().map(|contender| &contender.name);
        let all = names.map(|name| (name.clone(), scenarios(&network.results, name)));
        let measured: Map<String, Value> =
            all.filter(|(_, found)| found.as_object().is_some_and(|found| !found.is_empty())).collect();
        json!({ "round_trip_us": network.round_trip.as_micros() as u64, "contenders": measured })
    });
    rounded(json!({
        "about": about,
        "rounds": bench.rounds,
        "milliseconds": bench.time.as_millis() as u64,
        "contenders": contenders.collect::<Vec<_>>(),
        "networks": networks.collect::<Vec<_>>(),
        "calls": figures.calls,
        "growth": figures.growth,
        "whole_server": figures.whole_server.as_ref().and_then(|server| server.rows.as_ref().ok()),
        "targets": targets,
    }))
}

/// With five significant digits: more are noise.
fn rounded(value: Value) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => {
            let short = number.as_f64().and_then(|number| format!("{number:.4e}").parse::<f64>().ok());
            short.map_or(Value::Null, Value::from)
        }
        Value::Array(values) => values.into_iter().map(rounded).collect(),
        Value::Object(entries) => {
            entries.into_iter().map(|(name, value)| (name, rounded(value))).collect::<Map<_, _>>().into()
        }
        other => other,
    }
}

fn scenarios(results: &Results, name: &str) -> Value {
    let of_contender = results.iter().filter(|((contender, _), _)| contender == name);
    let mut found: Vec<_> = of_contender.map(|((_, scenario), rounds)| (*scenario, rounds)).collect();
    found.sort_by_key(|(scenario, _)| *scenario);
    let entry = |rounds: &Rounds| json!({ "valid": rounds.is_valid(), "rounds": rounds });
    // An object with the scenarios' names as they are serialized.
    found
        .into_iter()
        .filter_map(|(scenario, rounds)| Some((json!(scenario).as_str()?.to_owned(), entry(rounds))))
        .collect::<Map<_, _>>()
        .into()
}
