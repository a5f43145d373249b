//! [`Line`]: what a line of a log shows of a request.

use std::{borrow::Cow, cell::OnceCell};

use serde_json::Value;

use super::{Event, alb_fields, json_path};

/// A request, as a line of a log shows it.
#[derive(Debug, Default)]
pub(crate) struct Line<'a> {
    /// When the request arrived, in microseconds since 1970.
    pub(crate) arrival: u64,
    /// How long it took, in microseconds.
    pub(crate) duration: Option<u64>,
    /// The bytes of the response.
    pub(crate) bytes: Option<u64>,
    pub(crate) address: Option<Cow<'a, str>>,
    pub(crate) method: Option<Cow<'a, str>>,
    /// The path with the query.
    pub(crate) target: Option<Cow<'a, str>>,
    pub(crate) host: Option<Cow<'a, str>>,
    pub(crate) user: Option<Cow<'a, str>>,
    pub(crate) user_agent: Option<Cow<'a, str>>,
    /// `key` of a JSON line.
    pub(crate) key: Option<Cow<'a, str>>,
    pub(super) details: Details<'a>,
}

/// Where other fields of a line are found.
#[derive(Debug, Default)]
pub(super) enum Details<'a> {
    #[default]
    None,
    /// The text of a JSON line, parsed when a field is looked for.
    Json(&'a str, OnceCell<Value>),
    /// The fields of an ALB line.
    Alb(Vec<&'a str>),
}

impl<'a> Line<'a> {
    /// What a JSON line shows of its request.
    pub(crate) fn of_event(text: &'a str, event: &Event<'a>) -> Self {
        Self {
            arrival: event.t,
            duration: event.duration_us,
            key: event.key.clone(),
            details: Details::Json(text, OnceCell::new()),
            ..Self::default()
        }
    }

    /// The path without the query, and without the authority of an absolute form.
    pub(crate) fn path(&self) -> Option<&str> {
        let target = self.target.as_deref()?;
        let path = match target.split_once("://") {
            Some((scheme, rest)) if !scheme.contains('/') => rest.find('/').map_or("/", |at| &rest[at..]),
            _ => target,
        };
        path.split(['?', '#']).next().filter(|path| path.starts_with('/'))
    }

    /// The client's address.
    pub(crate) fn address(&self) -> Option<Cow<'_, str>> {
        match &self.address {
            Some(address) => Some(Cow::Borrowed(address)),
            None => self.json("address"),
        }
    }

    /// The field `name`, or at this path of a JSON line. A missing field and `-` are `None`.
    pub(crate) fn field(&self, name: &str) -> Option<Cow<'_, str>> {
        let found = match &self.details {
            Details::None => None,
            Details::Json(..) => self.json(name),
            Details::Alb(fields) => alb_fields::field(fields, name).map(Cow::Borrowed),
        };
        found.filter(|value| value != "-" && !value.is_empty())
    }

    fn json(&self, path: &str) -> Option<Cow<'_, str>> {
        let Details::Json(text, parsed) = &self.details else { return None };
        let value = parsed.get_or_init(|| serde_json::from_str(text).unwrap_or_default());
        json_path::text_at(value, path)
    }
}

/// A value of a log, where `-` and nothing mean that there is no value.
pub(super) fn known(value: &str) -> Option<Cow<'_, str>> {
    (value != "-" && !value.is_empty()).then_some(Cow::Borrowed(value))
}
