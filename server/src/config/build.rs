//! Makes a [`Config`] of files.

use std::{collections::HashMap, mem, sync::Arc};

use envoy_types::pb::{
    envoy::service::ratelimit::v3::rate_limit_response::RateLimit,
    google::protobuf::{ListValue, NullValue, Struct, Value, value::Kind as ValueKind},
};
use serde_json::Value as Json;
use tower_ratelimit::{FailureMode, Policy};

use super::{
    limit::{Kind, Limit, counted, shown, unit_named},
    tree::{Config, Level, Node},
    yaml::{self, Descriptor, File},
};

/// What the files do not say.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The failure mode of limits without a policy.
    pub(crate) failure_mode: FailureMode,
    /// The policies that limits name.
    pub(crate) policies: Vec<Policy>,
}

/// What was read so far.
struct Reader<'a> {
    settings: &'a Settings,
    config: Config,
    /// The limits by their path. With each, the policy that it names, and the number of values in its keys.
    users: HashMap<String, (Option<String>, usize)>,
    /// The limits whose policy has the name.
    first: HashMap<String, String>,
}

impl Config {
    /// What `files` say, each with its name and its content. The error has the file, and the line or the descriptor.
    pub(super) fn build(files: &[(String, String)], settings: &Settings) -> Result<Self, String> {
        let mut reader =
            Reader { settings, config: Self::default(), users: HashMap::new(), first: HashMap::new() };
        for (file, text) in files {
            let parsed = File::parse(text).map_err(|error| format!("{file}: {error}"))?;
            if parsed.domain.is_empty() {
                return Err(format!("{file}: `domain` is empty: write the domain that Envoy's filter has"));
            }
            let mut level = reader.config.domains.remove(&parsed.domain).unwrap_or_default();
            reader.level(file, &mut level, &parsed.domain, 0, parsed.descriptors)?;
            reader.config.domains.insert(parsed.domain, level);
        }
        Ok(reader.config)
    }
}

impl Reader<'_> {
    /// Adds `descriptors` to `level`, whose keys have `open` values of the levels above.
    fn level(
        &mut self,
        file: &str,
        level: &mut Level,
        above: &str,
        open: usize,
        descriptors: Option<Vec<Descriptor>>,
    ) -> Result<(), String> {
        for mut descriptor in descriptors.unwrap_or_default() {
            let line = descriptor.key.defined.line();
            let inner = descriptor.descriptors.take();
            let value = descriptor.value.take().filter(|value| !value.is_empty());
            let key = mem::take(&mut descriptor.key.value);
            let name = value.as_ref().map_or_else(|| key.clone(), |value| format!("{key}_{value}"));
            let path = format!("{above}.{name}");
            let at = |problem: String| format!("{file}: line {line}: `{path}`: {problem}");
            let is_wildcard = value.as_ref().is_some_and(|value| value.ends_with('*'));
            if key.is_empty() || value.is_none() && key.ends_with('*') {
                return Err(at(
                    "`key` is empty or ends with `*`: write the start of values in `value`".into()
                ));
            }
            if level.nodes.contains_key(&name) {
                return Err(at("there is another descriptor of this name: remove one of them".into()));
            }
            let is_open = value.is_none() || is_wildcard && !descriptor.share_threshold;
            let open = open + usize::from(is_open);
            let limit = self.limit(&path, is_wildcard, open, &mut descriptor).map_err(at)?;
            if limit.is_none() && (descriptor.shadow_mode || descriptor.metadata.is_some()) {
                let problem = "`shadow_mode` and `metadata` have no effect without `rate_limit` beside them";
                self.config.warnings.push(at(problem.into()));
            }
            // Values that share their counts share a metric.
            let shows_value = descriptor.value_to_metric && !descriptor.share_threshold;
            let mut node = Node { limit, level: Level::default(), is_open, shows_value };
            self.level(file, &mut node.level, &path, open, inner)?;
            level.wildcards.extend(is_wildcard.then(|| name.clone()));
            level.nodes.insert(name, node);
        }
        Ok(())
    }

    /// The limit that `descriptor` sets, if it sets one.
    fn limit(
        &mut self,
        path: &str,
        is_wildcard: bool,
        open: usize,
        descriptor: &mut Descriptor,
    ) -> Result<Option<Arc<Limit>>, String> {
        if descriptor.quota_mode {
            return Err("`quota_mode` is not supported: it admits requests that are over a limit and reports this in metadata \
                        for routing. Use `shadow_mode` to admit them and count them, and `metadata` to route"
                .into());
        }
        if descriptor.share_threshold && !is_wildcard {
            return Err("`share_threshold` needs a value that ends with `*`".into());
        }
        let Some(limit) = descriptor.rate_limit.take() else { return Ok(None) };
        let (kind, shown) = self.kind(path, &limit)?;
        let replaces: Vec<_> = limit.replaces.into_iter().flatten().map(|replaced| replaced.name).collect();
        if replaces.iter().any(|replaced| replaced.is_empty() || limit.name.as_ref() == Some(replaced)) {
            return Err("`replaces` has an empty name or the limit's own".into());
        }
        let kind = match kind {
            Kind::Counted(policy) if descriptor.shadow_mode => Kind::Counted(policy.shadow()),
            kind => kind,
        };
        self.note_user(path, &kind, limit.policy, open)?;
        let metadata = descriptor.metadata.clone().unwrap_or_default();
        let limit = Arc::new(Limit {
            shown: RateLimit { name: limit.name.clone().unwrap_or_else(|| shown.name.clone()), ..shown },
            name: limit.name,
            replaces,
            is_shadow: descriptor.shadow_mode,
            is_detailed: descriptor.detailed_metric,
            metadata: metadata.into_iter().map(|(name, json)| (name, value_of(json))).collect(),
            ..Limit::new(path.to_owned(), kind, RateLimit::default())
        });
        self.config.limits.push(limit.clone());
        Ok(Some(limit))
    }

    /// What is counted, and what a client sees of it.
    fn kind(&self, path: &str, limit: &yaml::RateLimit) -> Result<(Kind, RateLimit), String> {
        let yaml::RateLimit { unit, requests_per_unit, unlimited, policy, .. } = limit;
        match (policy, unlimited, unit, requests_per_unit) {
            (Some(name), false, None, None) => {
                let policy = self.named(name)?;
                Ok((Kind::Counted(policy.clone()), shown(policy)))
            }
            (Some(_), ..) => {
                Err("`policy` has the whole limit: remove `unit`, `requests_per_unit` and `unlimited`".into())
            }
            (None, true, None, _) => Ok((Kind::Unlimited, RateLimit::default())),
            (None, true, Some(_), _) => Err("an unlimited descriptor has no `unit`: remove it".into()),
            (None, false, Some(unit), Some(requests)) => {
                let known = unit_named(unit).ok_or_else(|| {
                    format!("invalid unit `{unit}`: write second, minute, hour, day, week, month or year")
                })?;
                counted(path, known, *requests, self.settings.failure_mode).map_err(|error| error.to_string())
            }
            _ => Err("write `unit` and `requests_per_unit`, of which 0 blocks all requests, or `unlimited: true`, or \
                      `policy: NAME`"
                .into()),
        }
    }

    /// The policy `name`.
    fn named(&self, name: &str) -> Result<&Policy, String> {
        let policies = &self.settings.policies;
        let Some(policy) = policies.iter().find(|policy| policy.name() == name) else {
            let known: Vec<_> = policies.iter().map(|policy| format!("`{}`", policy.name())).collect();
            let known = if known.is_empty() { "no policy".into() } else { known.join(", ") };
            return Err(format!("there is no policy `{name}`: --policies and --live have {known}"));
        };
        if policy.has_permits() {
            return Err(format!(
                "the policy `{name}` counts concurrent requests, and the protocol has no release"
            ));
        }
        if policy.queues() {
            return Err(format!(
                "the policy `{name}` delays requests, and the protocol has no delay: use a meter"
            ));
        }
        Ok(policy)
    }

    /// Checks that `path` is the only limit of its name, and can have its policy. `named` is the name that the file has.
    fn note_user(
        &mut self,
        path: &str,
        kind: &Kind,
        named: Option<String>,
        open: usize,
    ) -> Result<(), String> {
        if let Kind::Counted(policy) = kind {
            let name = policy.name();
            match self.first.get(name).map(|first| (first, &self.users[first])) {
                None => {
                    self.first.insert(name.to_owned(), path.to_owned());
                    self.config.policies.push(policy.clone());
                }
                Some((first, (others, values))) if named.is_some() && *others == named && *values == open => {
                    let warning = "share its counts: equal values are one client";
                    self.config
                        .warnings
                        .push(format!("`{path}` and `{first}` have the policy `{name}`, and {warning}"));
                }
                Some((first, _)) => {
                    return Err(format!(
                        "`{first}` has the policy `{name}` too, for keys of another kind: give one of them another name, with \
                         the same settings"
                    ));
                }
            }
        }
        match self.users.insert(path.to_owned(), (named, open)) {
            None => Ok(()),
            Some(_) => Err("there is another descriptor of this name: remove one of them".into()),
        }
    }
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
