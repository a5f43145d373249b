//! Policies from a hash of texts, as an operator writes them with `redis-cli`. Knows no server.

use std::collections::BTreeMap;

use tower_ratelimit::{Error, ErrorKind, Policy, Quota, key::is_hidden, policy::Enforcement};

use super::{
    depth::{TOO_DEEP, too_deep_in_json},
    error_place::{Entry, list},
    parsed::{Parsed, Position},
};
use crate::config::PolicyChanges;

/// The fields of a hash.
pub(crate) type Fields = BTreeMap<Vec<u8>, Vec<u8>>;

const VERSION: &str = "@version";
pub(super) const ENFORCEMENT: &str = "@enforcement";
/// The mark of the switch's [position](Position).
pub(super) const MOVED: &str = "@moved";
/// A hash with more fields is probably of another program.
const MAX_FIELDS: usize = 10_000;
const MAX_NAME: usize = 256;
const MAX_VALUE: usize = 4_096;

/// Reads the fields, which change the default policies.
#[derive(Debug)]
pub(crate) struct PolicyHash {
    /// The name of the hash in errors.
    name: String,
    defaults: BTreeMap<String, Policy>,
}

impl PolicyHash {
    /// # Errors
    ///
    /// Two defaults have one name, or a name that fields of another meaning have.
    pub(crate) fn new(name: String, defaults: impl IntoIterator<Item = Policy>) -> Result<Self, Error> {
        let mut by_name = BTreeMap::new();
        for policy in defaults {
            let name = policy.name().to_owned();
            if name.starts_with('@') {
                let message =
                    format!("the policy `{name}` needs another name: those with `@` in front are reserved");
                return Err(Error::new(ErrorKind::InvalidConfig, message));
            }
            if let Some(policy) = by_name.insert(name, policy) {
                let message = format!("there are two policies `{}`: give each its own name", policy.name());
                return Err(Error::new(ErrorKind::InvalidConfig, message));
            }
        }
        Ok(Self { name, defaults: by_name })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The result of an empty hash.
    pub(crate) fn defaults(&self) -> Parsed {
        Parsed { policies: self.defaults.clone(), position: Position::default(), is_empty: true }
    }

    /// Where `fields` move the switch. `None` if that field is invalid.
    pub(crate) fn position(fields: &Fields) -> Option<Position> {
        let enforcement = match fields.get(ENFORCEMENT.as_bytes()) {
            Some(value) => str::from_utf8(value).ok()?.parse().ok()?,
            None => Enforcement::default(),
        };
        Some(Position { enforcement, mark: fields.get(MOVED.as_bytes()).cloned().unwrap_or_default() })
    }

    /// The error of `fields` that differ from `before` and have the same version. The switch does not wait.
    pub(crate) fn waits(&self, before: &Fields, fields: &Fields) -> Option<Error> {
        let version = |fields: &Fields| fields.get(VERSION.as_bytes()).cloned();
        let of_switch = [ENFORCEMENT, MOVED].map(str::as_bytes);
        let others = |(field, _): &(&Vec<u8>, &Vec<u8>)| !of_switch.contains(&&***field);
        let may_apply = version(fields).is_none()
            || version(before) != version(fields)
            || before.iter().filter(others).eq(fields.iter().filter(others));
        (!may_apply).then(|| {
            let message = format!(
                "{} has changed, but its field `{VERSION}` has not: set `{VERSION}` to another text to apply the \
                 change, or remove it",
                self.name
            );
            Error::new(ErrorKind::InvalidConfig, message)
        })
    }

    /// The policies and the switch that `fields` describe.
    pub(crate) fn parse(&self, fields: &Fields) -> Result<Parsed, Error> {
        if fields.len() > MAX_FIELDS {
            let message = format!("{}: more than {MAX_FIELDS} fields: is it a hash of policies?", self.name);
            return Err(Error::new(ErrorKind::InvalidConfig, message));
        }
        let mut update = Parsed { is_empty: fields.is_empty(), ..self.defaults() };
        for (field, value) in fields {
            let invalid = |problem: String| {
                let message = format!("{}, field `{}`: {problem}", self.name, field.escape_ascii());
                Error::new(ErrorKind::InvalidConfig, message)
            };
            if field.len() > MAX_NAME {
                let message =
                    format!("{}: the name of a field is longer than {MAX_NAME} bytes: remove it", self.name);
                return Err(Error::new(ErrorKind::InvalidConfig, message));
            }
            if value.len() > MAX_VALUE {
                return Err(invalid(format!("the value is longer than {MAX_VALUE} bytes: shorten it")));
            }
            let (Ok(name), Ok(value)) = (str::from_utf8(field), str::from_utf8(value)) else {
                let which = if str::from_utf8(field).is_ok() { "value" } else { "name" };
                return Err(invalid(format!(
                    "its {which} is not UTF-8: remove it with HDEL and write it again"
                )));
            };
            match name {
                VERSION => {}
                ENFORCEMENT => {
                    update.position.enforcement = legible(value).and_then(parsed).map_err(invalid)?;
                }
                MOVED => value.as_bytes().clone_into(&mut update.position.mark),
                reserved if reserved.starts_with('@') => {
                    let known = list([VERSION, ENFORCEMENT, MOVED]);
                    return Err(invalid(format!("no such setting, expected {known}: remove it with HDEL")));
                }
                _ => {
                    let policy = self.policy(name, value.trim()).map_err(invalid)?;
                    update.policies.insert(name.to_owned(), policy);
                }
            }
        }
        Ok(update)
    }

    fn policy(&self, name: &str, value: &str) -> Result<Policy, String> {
        let default = self.defaults.get(name);
        if value.starts_with('{') {
            return changed(name, default, value);
        }
        let Some(default) = default else {
            return Err(format!(
                "the service has no policy of this name, so a quota alone is not enough: correct the name to one of \
                 {}, write a JSON object such as {{\"quota\":\"10/min\"}}, or remove the field with HDEL",
                list(self.defaults.keys().map(String::as_str))
            ));
        };
        let quota: Quota = legible(value).and_then(parsed)?;
        default.with_quota(quota).map_err(|error| error.to_string())
    }
}

/// The policy `name`: `default` with the entries of a JSON object.
fn changed(name: &str, default: Option<&Policy>, value: &str) -> Result<Policy, String> {
    if too_deep_in_json(value).is_some() {
        return Err(format!("no valid JSON object: {TOO_DEEP}"));
    }
    let mut json = serde_json::Deserializer::from_str(value);
    let table: PolicyChanges = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let problem = error.inner();
        if problem.is_data() {
            format!("{}{problem}", Entry::of(error.path()))
        } else {
            format!("no valid JSON object: {problem}")
        }
    })?;
    json.end().map_err(|error| format!("no valid JSON object: {error}"))?;
    if table.name().is_some() {
        return Err("entry `name`: the field is the name: leave out the entry".to_owned());
    }
    let policy = match (default, table.quota()) {
        (Some(default), _) => Ok(default.clone()),
        (None, Some(quota)) => Policy::try_new(name, quota),
        (None, None) => {
            return Err("missing field `quota`: the service has no policy of this name".to_owned());
        }
    };
    policy.and_then(|policy| table.apply(&policy)).map_err(|error| error.to_string())
}

/// The text, if a line of the log can show it.
fn legible(text: &str) -> Result<&str, String> {
    if text.chars().any(is_hidden) {
        return Err(
            "the value has a control character or a hidden one, such as the end of a line: write it without"
                .to_owned(),
        );
    }
    Ok(text)
}

fn parsed<T: std::str::FromStr<Err = Error>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: Error| error.to_string())
}
