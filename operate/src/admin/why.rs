//! Why a client is denied: its key under all policies, or a request under the layers.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use axum::extract::{ConnectInfo, RawQuery, State};
use http::{HeaderMap, Method, Request, StatusCode, request::Parts};
use serde::Deserialize;
use tower_ratelimit::{Key, Rejection, decision::DenialLog};

use super::{
    changes::concerns,
    denials::denied,
    handlers::{Reply, Shared},
    problem::Problem,
    request::{Body, PathNames, body, cost, names, with_key},
    settings::Settings,
};
use crate::{
    answer::{AboutKey, AboutLayer, AboutRequest, Explained, History, Rejected, Undecided, VerdictWord},
    explain::Explanation,
    reply::json,
};

/// The most changes in an answer.
const MOST_CHANGES: usize = 20;

/// What this instance knows about `keys` and `clients`, which are addresses and networks.
fn history(settings: &Settings, keys: &BTreeSet<Key>, clients: &[String]) -> History {
    let mut denials: Vec<_> = settings.denials.iter().flat_map(DenialLog::recent).collect();
    denials.retain(|entry| keys.contains(&entry.key));
    let hashes: BTreeSet<String> = keys.iter().map(Key::digest).collect();
    let mut changes = settings.changes();
    changes.retain(|change| concerns(change, &hashes, clients));
    changes.truncate(MOST_CHANGES);
    History {
        enforcement: settings.switch.as_ref().map(super::switch::Switch::get),
        #[cfg(feature = "live")]
        blocked: settings.blocked(clients),
        denials: denials.iter().map(denied).collect(),
        changes,
    }
}

#[cfg(feature = "live")]
fn is_blocked(history: &History) -> bool {
    !history.blocked.is_empty() && history.enforcement != Some(tower_ratelimit::policy::Enforcement::Off)
}

#[cfg(not(feature = "live"))]
const fn is_blocked(_: &History) -> bool {
    false
}

pub(super) async fn key(State(settings): Shared, path: PathNames, RawQuery(query): RawQuery) -> Reply {
    let (names, cost) = (with_key(names(path)?)?, cost(query.as_deref())?);
    let (mut explanations, mut errors) = (Vec::<Explained>::new(), Vec::new());
    // The first problem, and whether a policy that may limit the key cannot be decided.
    let (mut first, mut is_unknown) = (None, false);
    let mut keys = BTreeSet::new();
    for policy in settings.policies.current() {
        let mut failed = |key: Option<&Key>, problem: Problem| {
            let (policy, key) = (Some(policy.name().to_owned()), key.map(|key| key.as_str().to_owned()));
            errors.push(Undecided { policy, key, detail: problem.detail().to_owned() });
            is_unknown |= !problem.is_of_request();
            first.get_or_insert(problem);
        };
        let found = match settings.keys(&policy, &names.key).await {
            Ok(found) => found,
            Err(problem) => {
                failed(None, problem);
                continue;
            }
        };
        for key in found {
            match Explanation::of(&settings.limiter, &policy, &key, cost).await {
                Ok(explanation) => explanations.push((&explanation).into()),
                Err(error) => failed(Some(&key), Problem::of_read(&error)),
            }
            keys.insert(key);
        }
    }
    match first {
        Some(problem) if explanations.is_empty() && !is_unknown => Err(problem),
        _ => {
            let history = history(&settings, &keys, std::slice::from_ref(&names.key));
            let others = [
                is_unknown.then_some(VerdictWord::Unknown),
                is_blocked(&history).then_some(VerdictWord::Rejected),
            ];
            let verdicts = explanations.iter().map(|explained| explained.verdict);
            // The strictest one.
            let verdict = verdicts.chain(others.into_iter().flatten()).max().unwrap_or(VerdictWord::Admitted);
            Ok(json(&AboutKey { verdict, explanations, errors, history }))
        }
    }
}

/// A request, as an operator describes it.
#[derive(Deserialize)]
#[serde(rename = "a request", deny_unknown_fields)]
struct Described {
    method: Option<String>,
    path: String,
    #[serde(default)]
    headers: BTreeMap<String, Values>,
    address: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Values {
    One(String),
    Several(Vec<String>),
}

impl Values {
    fn all(&self) -> &[String] {
        match self {
            Self::One(value) => std::slice::from_ref(value),
            Self::Several(values) => values,
        }
    }
}

impl Described {
    /// The address, and those in the headers, one of which may be the client's.
    fn addresses(&self) -> Vec<String> {
        let values = self.headers.values().flat_map(Values::all);
        let texts = values.map(String::as_str).chain(self.address.as_deref());
        texts
            .flat_map(|text| text.split([',', ';']))
            .filter_map(address)
            .map(|address| address.to_string())
            .collect()
    }

    /// The head of the request, with the address of the client.
    fn head(self) -> Result<Parts, Problem> {
        let invalid = |what: &str, error: &dyn std::fmt::Display| {
            Problem::bad_request(format!("the {what} of the request is invalid: {error}"))
        };
        let method = self.method.as_deref().unwrap_or("GET");
        let method = Method::from_bytes(method.as_bytes()).map_err(|error| invalid("method", &error))?;
        if !self.path.starts_with('/') {
            return Err(invalid("path", &"it does not begin with `/`"));
        }
        let mut request = Request::builder().method(method).uri(&*self.path);
        for (name, values) in &self.headers {
            for value in values.all() {
                request = request.header(name, value);
            }
        }
        let request = request.body(()).map_err(|error| invalid("path or a header", &error))?;
        let mut parts = request.into_parts().0;
        if let Some(address) = &self.address {
            let address = match (address.parse(), address.parse()) {
                (Ok(address), _) => SocketAddr::new(address, 0),
                (_, Ok(address)) => address,
                _ => return Err(invalid("address", &"write one such as 203.0.113.7")),
            };
            parts.extensions.insert(address);
            parts.extensions.insert(ConnectInfo(address));
        }
        Ok(parts)
    }
}

/// The address in a part of a header, such as `203.0.113.7:80`, `[2001:db8::7]` or `for="[2001:db8::7]:80"`.
fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let text = match text.split_once('=') {
        Some((name, node)) if name.eq_ignore_ascii_case("for") => node.trim_matches('"'),
        _ => text,
    };
    let address = text.parse().ok().or_else(|| text.parse::<SocketAddr>().ok().map(|address| address.ip()));
    address.or_else(|| text.strip_prefix('[')?.strip_suffix(']')?.parse().ok())
}

pub(super) async fn request(State(settings): Shared, headers: HeaderMap, content: Body) -> Reply {
    let example = r#"{"method": "GET", "path": "/search", "headers": {"x-api-key": "k-ann"}, "address": "203.0.113.7"}"#;
    let described: Described = body(&headers, content, example)?;
    let addresses = described.addresses();
    let parts = described.head()?;
    if settings.layers.is_empty() {
        let detail = "the service has no layers here: add them with `Admin::layer`";
        return Err(Problem::new(StatusCode::NOT_FOUND, detail));
    }
    let (mut layers, mut keys) = (Vec::with_capacity(settings.layers.len()), BTreeSet::new());
    for layer in &settings.layers {
        let explained = Explanation::of_request(layer, &parts).await;
        let charges = explained.iter().flatten().flat_map(Explanation::charges);
        keys.extend(charges.map(|charge| charge.key().clone()));
        layers.push(about_layer(explained));
    }
    Ok(json(&AboutRequest { layers, history: history(&settings, &keys, &addresses) }))
}

fn about_layer(explained: Result<Option<Explanation>, Rejection>) -> AboutLayer {
    match explained {
        Ok(explanation) => {
            let explanation = explanation.as_ref().map(Explained::from);
            let verdict = explanation.as_ref().map_or(VerdictWord::NotLimited, |explained| explained.verdict);
            AboutLayer { verdict, explanation, rejection: None }
        }
        Err(rejection) => {
            let detail = match &rejection {
                // What a client does not see.
                Rejection::Unidentified(error) | Rejection::Unavailable(error) => error.to_string(),
                rejection => rejection.to_string(),
            };
            let rejection = Some(Rejected { status: rejection.status().as_u16(), detail });
            AboutLayer { verdict: VerdictWord::Rejected, explanation: None, rejection }
        }
    }
}
