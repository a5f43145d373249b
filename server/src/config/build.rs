//! Makes a [`Config`] of files.

use std::{collections::HashMap, sync::Arc};

use envoy_types::pb::google::protobuf::{ListValue, NullValue, Struct, Value, value::Kind as ValueKind};
use serde_json::Value as Json;
use tower_ratelimit::{FailureMode, Key, Limiter, MemoryStore, Policy};

use super::{
    limit::{Counters, Kind, Limit, policy, shown, unit_named},
    tree::{Config, Level, Node},
    yaml::{Descriptor, File, RateLimit},
};

/// What the files do not say.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    /// Of limits without a policy of their own.
    pub(crate) failure_mode: FailureMode,
    /// The policies that limits name.
    pub(crate) policies: Vec<Policy>,
}

/// A file while it is read.
struct Reader<'a> {
    file: &'a str,
    settings: &'a Settings,
    /// The first limit with each policy, and the number of values in its keys.
    users: &'a mut HashMap<String, (String, usize)>,
    limits: &'a mut Vec<Arc<Limit>>,
    notes: &'a mut Vec<String>,
}

impl Config {
    /// What `files` say, each with its name and its content. The error has the file, and the line or the descriptor.
    pub(super) fn build(files: &[(String, String)], settings: &Settings) -> Result<Self, String> {
        let (mut config, mut users) = (Self::default(), HashMap::new());
        for (file, text) in files {
            let parsed = File::parse(text).map_err(|error| format!("{file}: {error}"))?;
            if parsed.domain.is_empty() {
                return Err(format!("{file}: `domain` is empty: write the domain that Envoy's filter has"));
            }
            let mut reader = Reader {
                file,
                settings,
                users: &mut users,
                limits: &mut config.limits,
                notes: &mut config.notes,
            };
            let level = config.domains.entry(parsed.domain.clone()).or_default();
            reader.level(level, &parsed.domain, 0, parsed.descriptors.unwrap_or_default())?;
        }
        Ok(config)
    }
}

impl Reader<'_> {
    /// Adds `descriptors` to `level`. There, `open` values are part of the key.
    fn level(
        &mut self,
        level: &mut Level,
        above: &str,
        open: usize,
        descriptors: Vec<Descriptor>,
    ) -> Result<(), String> {
        for descriptor in descriptors {
            let (file, line) = (self.file, descriptor.key.defined.line());
            let (name, node) = self.node(above, open, descriptor)?;
            if level.nodes.contains_key(&name) {
                return Err(format!(
                    "{file}: line {line}: there is another descriptor `{above}.{name}`: remove one of them"
                ));
            }
            if let Some(start) = name.strip_suffix('*') {
                level.wildcards.push(start.to_owned());
            }
            level.nodes.insert(name, node);
        }
        Ok(())
    }

    fn node(&mut self, above: &str, open: usize, descriptor: Descriptor) -> Result<(String, Node), String> {
        let (file, line) = (self.file, descriptor.key.defined.line());
        let key = descriptor.key.value;
        if key.is_empty() {
            return Err(format!("{file}: line {line}: `key` is empty"));
        }
        let value = descriptor.value.filter(|value| !value.is_empty());
        let name = value.as_ref().map_or_else(|| key.clone(), |value| format!("{key}_{value}"));
        let path = format!("{above}.{name}");
        let at = format!("{file}: line {line}: `{path}`");
        if descriptor.quota_mode {
            return Err(format!(
                "{at}: `quota_mode` is not supported: it admits requests that are over a limit and reports this in metadata \
                 for routing. Use `shadow_mode` to admit them and count them, and `metadata` to route"
            ));
        }
        let is_wildcard = name.ends_with('*');
        if descriptor.share_threshold && !is_wildcard {
            return Err(format!("{at}: `share_threshold` needs a value that ends with `*`"));
        }
        let is_open = value.is_none() || is_wildcard && !descriptor.share_threshold;
        let open = open + usize::from(is_open);
        let metadata = descriptor.metadata.unwrap_or_default();
        if descriptor.rate_limit.is_none() {
            let without = |what: &str| format!("{at}: `{what}` has no effect without `rate_limit` beside it");
            self.notes.extend(descriptor.shadow_mode.then(|| without("shadow_mode")));
            self.notes.extend((!metadata.is_empty()).then(|| without("metadata")));
        }
        let limit = descriptor.rate_limit.map(|rate_limit| {
            let (kind, shown) =
                self.kind(&path, open, &rate_limit).map_err(|error| format!("{at}: {error}"))?;
            let replaces = rate_limit.replaces.unwrap_or_default().into_iter().map(|replaced| replaced.name);
            let replaces: Vec<String> = replaces.collect();
            if replaces.iter().any(String::is_empty) {
                return Err(format!("{at}: `replaces` has an empty name"));
            }
            if replaces.iter().any(|replaced| Some(replaced) == rate_limit.name.as_ref()) {
                return Err(format!("{at}: `replaces` has the limit's own name"));
            }
            let kind = match kind {
                Kind::Counted(policy) if descriptor.shadow_mode => Kind::Counted(policy.shadow()),
                kind => kind,
            };
            Ok(Arc::new(Limit {
                counters: Counters::of(&path),
                path: path.clone(),
                kind,
                name: rate_limit.name,
                replaces,
                is_shadow: descriptor.shadow_mode,
                is_detailed: descriptor.detailed_metric,
                metadata: metadata.into_iter().map(|(name, json)| (name, value_of(json))).collect(),
                shown,
            }))
        });
        let limit = limit.transpose()?;
        if let Some(limit) = &limit {
            if self.limits.iter().any(|other| other.path == path) {
                return Err(format!("{at}: there is another descriptor of this name: remove one of them"));
            }
            self.limits.push(limit.clone());
        }
        let mut level = Level::default();
        self.level(&mut level, &path, open, descriptor.descriptors.unwrap_or_default())?;
        // Values that share their counts share a metric.
        let shows_value = descriptor.value_to_metric && !descriptor.share_threshold;
        Ok((name, Node { limit, level, is_open, shows_value }))
    }

    /// What is counted, and what a client sees of it.
    fn kind(&mut self, path: &str, open: usize, limit: &RateLimit) -> Result<(Kind, Shown), String> {
        let name = limit.name.as_deref();
        let RateLimit { unit, requests_per_unit, unlimited, policy: named, .. } = limit;
        match (named, unlimited, unit, requests_per_unit) {
            (Some(named), false, None, None) => {
                let policy = self.named(path, open, named)?;
                let shown = shown(&policy, name);
                Ok((Kind::Counted(policy), shown))
            }
            (Some(_), ..) => {
                Err("`policy` has the whole limit: remove `unit`, `requests_per_unit` and `unlimited`".into())
            }
            (None, true, None, _) => Ok((Kind::Unlimited, Shown::default())),
            (None, true, Some(_), _) => Err("an unlimited descriptor has no `unit`: remove it".into()),
            (None, false, None, _) => {
                Err("write `unit` and `requests_per_unit`, or `unlimited: true`, or `policy: NAME`".into())
            }
            (None, false, Some(_), None) => Err("write `requests_per_unit`; 0 blocks all requests".into()),
            (None, false, Some(unit), Some(requests)) => {
                let known = unit_named(unit).ok_or_else(|| {
                    format!("invalid unit `{unit}`: write second, minute, hour, day, week, month or year")
                })?;
                let shown = Shown {
                    requests_per_unit: *requests,
                    unit: known.into(),
                    name: name.unwrap_or_default().into(),
                };
                if *requests == 0 {
                    return Ok((Kind::Blocked, shown));
                }
                let policy = policy(path, known, *requests, self.settings.failure_mode);
                Ok((Kind::Counted(policy.map_err(|error| error.to_string())?), shown))
            }
        }
    }

    /// The policy `name`, for a limit with `open` values in its keys.
    fn named(&mut self, path: &str, open: usize, name: &str) -> Result<Policy, String> {
        let policies = &self.settings.policies;
        let Some(policy) = policies.iter().find(|policy| policy.name() == name) else {
            let known: Vec<&str> = policies.iter().map(Policy::name).collect();
            return Err(match known[..] {
                [] => format!("there is no policy `{name}`: pass a file with it in --policies, or --live"),
                _ => format!("there is no policy `{name}`: there are `{}`", known.join("`, `")),
            });
        };
        if policy.has_permits() {
            return Err(format!(
                "the policy `{name}` counts concurrent requests, and the protocol has no release"
            ));
        }
        if delays(policy) {
            return Err(format!(
                "the policy `{name}` delays requests, and the protocol has no delay: use a meter"
            ));
        }
        match self.users.get(name) {
            None => drop(self.users.insert(name.to_owned(), (path.to_owned(), open))),
            Some((first, others)) if *others == open => {
                self.notes.push(format!(
                    "`{path}` and `{first}` share the counts of the policy `{name}`: equal values are one client"
                ));
            }
            Some((first, _)) => {
                return Err(format!(
                    "the policy `{name}` is also used by `{first}`, whose keys have another number of values: add a policy \
                     of another name with the same settings"
                ));
            }
        }
        Ok(policy.clone())
    }
}

type Shown = envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::RateLimit;

/// Whether `policy` admits requests after a delay.
fn delays(policy: &Policy) -> bool {
    let peeked = Limiter::new(MemoryStore::new()).peek(policy, &Key::new("all"), policy.capacity());
    matches!(peeked.if_ready(), Some(Ok(decision)) if decision.delay().is_some())
}

fn value_of(json: Json) -> Value {
    let kind = match json {
        Json::Null => ValueKind::NullValue(NullValue::NullValue.into()),
        Json::Bool(value) => ValueKind::BoolValue(value),
        Json::Number(value) => ValueKind::NumberValue(value.as_f64().unwrap_or_default()),
        Json::String(value) => ValueKind::StringValue(value),
        Json::Array(values) => {
            ValueKind::ListValue(ListValue { values: values.into_iter().map(value_of).collect() })
        }
        Json::Object(fields) => ValueKind::StructValue(Struct {
            fields: fields.into_iter().map(|(name, json)| (name, value_of(json))).collect(),
        }),
    };
    Value { kind: Some(kind) }
}
