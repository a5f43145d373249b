//! Changes a request such that the usage of its answer is reported and can be read.

use std::{borrow::Cow, fmt};

use bytes::Bytes;
use http::{
    HeaderMap,
    header::{self, HeaderName, HeaderValue},
};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::{Value, value::RawValue};

use super::{
    api::Api,
    request::{Asked, CallError, parsed},
};

/// The headers of a client that decide how its body is read, or which part of an answer is sent and how, and
/// the headers of its connection.
const REMOVED: [HeaderName; 17] = [
    header::CONNECTION,
    header::CONTENT_ENCODING,
    header::EXPECT,
    header::IF_MATCH,
    header::IF_MODIFIED_SINCE,
    header::IF_NONE_MATCH,
    header::IF_RANGE,
    header::IF_UNMODIFIED_SINCE,
    header::RANGE,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("content-md5"),
    HeaderName::from_static("keep-alive"),
    // Google's interfaces send only these parts of an answer.
    HeaderName::from_static("x-goog-fieldmask"),
];

/// Changes the headers of a request with a `body` of JSON.
pub(super) fn headers(headers: &mut HeaderMap, body: &[u8]) {
    for name in REMOVED {
        headers.remove(name);
    }
    headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CONTENT_LENGTH, body.len().into());
}

/// The body of a request that asks for the usage of a stream, and for at most `limit` tokens in each choice if it
/// sets no limit: the limit, and the name of it in chat completions. `None` if `body` does already.
pub(super) fn body(
    api: Api,
    asked: &Asked,
    body: &[u8],
    limit: Option<(u64, &str)>,
) -> Result<Option<Bytes>, CallError> {
    let limit = limit.filter(|_| asked.max_output.is_none());
    if !asked.hides_usage && limit.is_none() {
        return Ok(None);
    }
    let mut members: Members<'_> = parsed(body)?;
    if asked.hides_usage {
        let options = members.get("stream_options").unwrap_or("{}").to_owned();
        let mut options: Members<'_> = parsed(options.as_bytes())?;
        options.set("include_usage", "true".to_owned());
        members.set("stream_options", options.json());
    }
    match (api, limit) {
        (_, None) => {}
        (Api::AnthropicMessages, Some((tokens, _))) => {
            // Zero is an answer without tokens there, which fills the cache.
            if members.get("max_tokens").is_none() {
                members.set("max_tokens", tokens.to_string());
            }
        }
        (Api::OpenAiChat, Some((tokens, name))) => {
            members.0.retain(|(name, _)| !["max_tokens", "max_completion_tokens"].contains(&&**name));
            // The older interface for completions has only this name.
            let is_older = members.get("prompt").is_some() && members.get("messages").is_none();
            members.set(if is_older { "max_tokens" } else { name }, tokens.to_string());
        }
        (Api::OpenAiResponses, Some((tokens, _))) => members.set("max_output_tokens", tokens.to_string()),
        (Api::Gemini, Some((tokens, _))) => {
            let name = match members.get("generation_config") {
                Some(_) => "generation_config",
                None => "generationConfig",
            };
            let generation = members.get(name).unwrap_or("{}").to_owned();
            let mut generation: Members<'_> = parsed(generation.as_bytes())?;
            generation.0.retain(|(name, _)| name != "max_output_tokens");
            generation.set("maxOutputTokens", tokens.to_string());
            members.set(name, generation.json());
        }
    }
    Ok(Some(members.json().into()))
}

/// The members of an object in their order, and their values as they are written.
struct Members<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl Members<'_> {
    /// The value of `name`, unless it is null.
    fn get(&self, name: &str) -> Option<&str> {
        let (_, value) = self.0.iter().find(|(other, _)| other == name)?;
        Some(&**value).filter(|value| *value != "null")
    }

    fn set(&mut self, name: &str, value: String) {
        match self.0.iter_mut().find(|(other, _)| other == name) {
            Some((_, old)) => *old = value.into(),
            None => self.0.push((name.to_owned().into(), value.into())),
        }
    }

    fn json(&self) -> String {
        let mut json = String::from("{");
        for (at, (name, value)) in self.0.iter().enumerate() {
            if at > 0 {
                json.push(',');
            }
            json.push_str(&Value::from(&**name).to_string());
            json.push(':');
            json.push_str(value);
        }
        json.push('}');
        json
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
        let mut members = Vec::new();
        while let Some((name, value)) = map.next_entry::<String, &RawValue>()? {
            members.push((name.into(), value.get().into()));
        }
        Ok(Members(members))
    }
}
