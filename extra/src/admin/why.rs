//! Why a client is denied: its key under all policies, or a request under the layers.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use axum::extract::{ConnectInfo, RawQuery, State};
use http::{HeaderMap, Method, Request, StatusCode, request::Parts};
use serde::{Deserialize, Serialize};
use tower_ratelimit::{
    Key, RateLimitLayer, Rejection,
    decision::{DenialLog, Verdict},
    policy::Enforcement,
};

use super::{
    changes::Change,
    denials::Recent,
    handlers::{Reply, Shared},
    problem::Problem,
    request::{Body, PathNames, body, cost, names, with_key},
    settings::Settings,
};
#[cfg(feature = "live")]
use crate::live::BlockedNetwork;
use crate::{explain::Explanation, reply::json};

/// The most changes in an answer.
const MOST_CHANGES: usize = 20;

/// What this instance knows about keys in addition to their state.
#[derive(Serialize)]
struct History {
    /// The position of the switch. `None` without one.
    enforcement: Option<Enforcement>,
    #[cfg(feature = "live")]
    blocked: Vec<BlockedNetwork>,
    denials: Vec<Recent>,
    changes: Vec<Change>,
}

impl History {
    fn of(settings: &Settings, keys: &BTreeSet<Key>, clients: &[String]) -> Self {
        let mut denials: Vec<_> = settings.denials.iter().flat_map(DenialLog::recent).collect();
        denials.retain(|entry| keys.contains(&entry.key));
        let hashes: BTreeSet<String> = keys.iter().map(Key::digest).collect();
        let mut changes = settings.changes();
        changes.retain(|change| change.concerns(&hashes, clients));
        changes.truncate(MOST_CHANGES);
        Self {
            enforcement: settings.switch.as_ref().map(super::switch::Switch::get),
            #[cfg(feature = "live")]
            blocked: settings.blocked(clients),
            denials: denials.iter().map(Recent::of).collect(),
            changes,
        }
    }

    fn is_blocked(&self) -> bool {
        #[cfg(feature = "live")]
        let is_blocked = !self.blocked.is_empty() && self.enforcement != Some(Enforcement::Off);
        #[cfg(not(feature = "live"))]
        let is_blocked = false;
        is_blocked
    }
}

pub(super) async fn key(State(settings): Shared, path: PathNames, RawQuery(query): RawQuery) -> Reply {
    #[derive(Serialize)]
    struct Answer {
        verdict: &'static str,
        explanations: Vec<Explanation>,
        errors: Vec<OneError>,
        #[serde(flatten)]
        history: History,
    }
    #[derive(Serialize)]
    struct OneError {
        policy: String,
        key: Option<String>,
        detail: String,
    }
    let (names, cost) = (with_key(names(path)?)?, cost(query.as_deref())?);
    let (mut explanations, mut errors) = (Vec::new(), Vec::new());
    // The first problem, and whether a policy that may limit the key cannot be decided.
    let (mut first, mut is_unknown) = (None, false);
    let mut keys = BTreeSet::new();
    for policy in settings.policies.current() {
        let mut failed = |key: Option<&Key>, problem: Problem| {
            let (policy, key) = (policy.name().to_owned(), key.map(|key| key.as_str().to_owned()));
            errors.push(OneError { policy, key, detail: problem.detail().to_owned() });
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
                Ok(explanation) => explanations.push(explanation),
                Err(error) => failed(Some(&key), Problem::of_read(&error)),
            }
            keys.insert(key);
        }
    }
    match first {
        Some(problem) if explanations.is_empty() && !is_unknown => Err(problem),
        _ => {
            let history = History::of(&settings, &keys, std::slice::from_ref(&names.key));
            let verdict = strictest(explanations.iter().map(|explanation| explanation.decision().verdict()));
            let verdict = match verdict {
                _ if history.is_blocked() => "rejected",
                verdict if is_unknown && verdict != "denied" => "unknown",
                verdict => verdict,
            };
            Ok(json(&Answer { verdict, explanations, errors, history }))
        }
    }
}

/// The verdict of a request that is charged under all.
fn strictest(verdicts: impl Iterator<Item = Verdict>) -> &'static str {
    let rank = |verdict| match verdict {
        Verdict::Admit => (0, "admitted"),
        Verdict::Delay(_) => (1, "delayed"),
        _ => (2, "denied"),
    };
    verdicts.map(rank).max().map_or("admitted", |(_, name)| name)
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

/// What a layer does with a request.
#[derive(Serialize)]
struct OfLayer {
    verdict: &'static str,
    explanation: Option<Explanation>,
    rejection: Option<Rejected>,
}

#[derive(Serialize)]
struct Rejected {
    status: u16,
    detail: String,
}

pub(super) async fn request(State(settings): Shared, headers: HeaderMap, content: Body) -> Reply {
    #[derive(Serialize)]
    struct Answer {
        layers: Vec<OfLayer>,
        #[serde(flatten)]
        history: History,
    }
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
        let explained = OfLayer::of(layer, &parts).await;
        let charges = explained.explanation.iter().flat_map(Explanation::charges);
        keys.extend(charges.map(|charge| charge.key().clone()));
        layers.push(explained);
    }
    Ok(json(&Answer { layers, history: History::of(&settings, &keys, &addresses) }))
}

impl OfLayer {
    async fn of(layer: &RateLimitLayer, request: &Parts) -> Self {
        match Explanation::of_request(layer, request).await {
            Ok(Some(explanation)) => Self {
                verdict: strictest([explanation.decision().verdict()].into_iter()),
                explanation: Some(explanation),
                rejection: None,
            },
            Ok(None) => Self { verdict: "not_limited", explanation: None, rejection: None },
            Err(rejection) => {
                let detail = match &rejection {
                    // What a client does not see.
                    Rejection::Unidentified(error) | Rejection::Unavailable(error) => error.to_string(),
                    rejection => rejection.to_string(),
                };
                let status = rejection.status().as_u16();
                Self { verdict: "rejected", explanation: None, rejection: Some(Rejected { status, detail }) }
            }
        }
    }
}
