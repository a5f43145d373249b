//! Policies from a hash of texts, as an operator writes them with `redis-cli`. Knows no server.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{
    entry::{Entry, list, without_name},
    update::Update,
};
use crate::{
    error::{Error, ErrorKind},
    policy::{Enforcement, Policy},
    quota::Quota,
};

/// The fields of a hash.
pub(crate) type Fields = BTreeMap<Vec<u8>, Vec<u8>>;

const VERSION: &str = "@version";
const ENFORCEMENT: &str = "@enforcement";
/// A hash with more fields is not for this crate.
const MAX_FIELDS: usize = 10_000;
const MAX_NAME: usize = 256;
const MAX_VALUE: usize = 4_096;

/// Reads the fields, which change the default policies.
#[derive(Debug)]
pub(crate) struct PolicyHash {
    /// How errors name it.
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

    /// What an empty hash says.
    pub(crate) fn defaults(&self) -> Update {
        Update { policies: self.defaults.clone(), enforcement: Enforcement::default() }
    }

    /// Whether `fields` are to be put in force after `before`: not while they have the same version.
    pub(crate) fn is_due(before: &Fields, fields: &Fields) -> bool {
        let version = |fields: &Fields| fields.get(VERSION.as_bytes()).cloned();
        version(fields).is_none() || version(before) != version(fields)
    }

    /// What `fields` say.
    pub(crate) fn parse(&self, fields: &Fields) -> Result<Update, Error> {
        if fields.len() > MAX_FIELDS {
            let message = format!("{}: more than {MAX_FIELDS} fields: is it a hash of policies?", self.name);
            return Err(Error::new(ErrorKind::InvalidConfig, message));
        }
        let mut update = self.defaults();
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
                    update.enforcement = legible(value).and_then(parsed).map_err(invalid)?;
                }
                reserved if reserved.starts_with('@') => {
                    let known = list([VERSION, ENFORCEMENT]);
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
        if value.starts_with('{') {
            return whole(name, value);
        }
        let Some(default) = self.defaults.get(name) else {
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

/// A policy from a JSON object with all of its entries but the name.
fn whole(name: &str, value: &str) -> Result<Policy, String> {
    let mut entries: Map<String, Value> =
        serde_json::from_str(value).map_err(|error| format!("no valid JSON object: {error}"))?;
    if entries.insert("name".to_owned(), Value::from(name)).is_some() {
        return Err("entry `name`: the field is the name: leave out the entry".to_owned());
    }
    serde_path_to_error::deserialize(Value::Object(entries)).map_err(|error| {
        let message = error.inner().to_string();
        format!("{}{}", Entry::of(error.path()), without_name(&message, name))
    })
}

/// The text, if a line of the log can show it.
fn legible(text: &str) -> Result<&str, String> {
    if text.chars().any(char::is_control) {
        return Err(
            "the value has a control character, such as the end of a line: write it without".to_owned()
        );
    }
    Ok(text)
}

fn parsed<T: std::str::FromStr<Err = Error>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: Error| error.to_string())
}
