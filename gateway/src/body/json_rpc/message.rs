//! One JSON-RPC message, of which little is kept.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

use crate::strict_names::{StrictNames, check_case};

/// What is kept of a JSON-RPC message: a request, a notification, or a response that a client sends.
///
/// `Debug` shows nothing that the client chose.
pub struct Message(Members);

/// The members that are read. A member that occurs twice is an error: the service might read the other one.
#[derive(Deserialize)]
pub(super) struct Members {
    /// Not read. Its name has one case too.
    #[serde(default, rename = "jsonrpc")]
    _version: IgnoredAny,
    #[serde(default)]
    method: Option<String>,
    #[serde(default)]
    id: Option<Box<RawValue>>,
    #[serde(default)]
    params: Params,
}

/// The member `name` of the parameters.
#[derive(Default)]
struct Params {
    name: Option<String>,
}

impl Message {
    pub(super) fn new(StrictNames(members): StrictNames<Members>) -> Self {
        Self(members)
    }

    /// The method. `None` for a response.
    #[must_use]
    pub fn method(&self) -> Option<&str> {
        self.0.method.as_deref()
    }

    /// `params.name`, if it is a string: the tool or the prompt of an MCP request.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.0.params.name.as_deref()
    }

    /// The tool that the message calls: [`name`](Self::name) of `tools/call`. `None` for other methods, and
    /// without a name, which the service answers with an error.
    #[must_use]
    pub fn tool(&self) -> Option<&str> {
        self.name().filter(|_| self.method() == Some("tools/call"))
    }

    /// The `id` as JSON, exactly as the client wrote it. `None` for a notification, and for an `id` that is
    /// neither a string nor a number.
    pub(super) fn id(&self) -> Option<&RawValue> {
        let is_valid =
            |id: &&RawValue| matches!(id.get().as_bytes().first(), Some(b'"' | b'-' | b'0'..=b'9'));
        self.0.id.as_deref().filter(is_valid)
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message").finish_non_exhaustive()
    }
}

/// Named and positional parameters.
impl<'de> Deserialize<'de> for Params {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ParamsVisitor)
    }
}

struct ParamsVisitor;

impl<'de> Visitor<'de> for ParamsVisitor {
    type Value = Params;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("parameters")
    }

    fn visit_unit<E>(self) -> Result<Params, E> {
        Ok(Params::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut params: A) -> Result<Params, A::Error> {
        while params.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Params::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut params: A) -> Result<Params, A::Error> {
        let mut name = None;
        while let Some(member) = params.next_key::<String>()? {
            check_case(&member, &["name"])?;
            if member != "name" {
                params.next_value::<IgnoredAny>()?;
            } else if name.replace(params.next_value::<&RawValue>()?.get()).is_some() {
                return Err(serde::de::Error::duplicate_field("name"));
            }
        }
        let name = name.filter(|name| name.starts_with('"')).map(serde_json::from_str).transpose();
        Ok(Params { name: name.map_err(serde::de::Error::custom)? })
    }
}
