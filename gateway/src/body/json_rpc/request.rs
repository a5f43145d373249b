//! The JSON-RPC messages of a request's body.

use std::{fmt, sync::Arc};

use http::request::Parts;
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer},
};
use tower_ratelimit::{Error, ErrorKind};

use super::message::Message;
use crate::{body::BodyBytes, strict_names::StrictNames};

/// The most messages of a batch that is read. A message of two bytes takes more than twenty times its memory.
const MAX_MESSAGES: usize = 128;

/// The JSON-RPC messages of a request: one, a batch, or none.
///
/// Pass [`parse`](Self::parse) to [`parse_with`](crate::body::BufferBodyLayer::parse_with). Of each message,
/// only its method, its `id` and `params.name` are kept.
///
/// A body that could mean something else to the service is rejected with 400: one that is not JSON, has a
/// member `method`, `id`, `params` or `params.name` twice or in [another case](crate::body::StrictNames), or is
/// a batch of more than 128 messages. A body that is [not read](crate::body::Unread) is rejected with 415.
#[derive(Clone)]
pub struct JsonRpc(Arc<Content>);

struct Content {
    messages: Vec<Message>,
    is_batch: bool,
}

impl JsonRpc {
    /// The messages of `body`. An empty body has none.
    ///
    /// # Errors
    ///
    /// [`InvalidIdentity`](ErrorKind::InvalidIdentity) if the body is not valid, or was not read.
    pub fn parse(body: &BodyBytes) -> Result<Self, Error> {
        let bytes = body.get()?;
        let invalid =
            |_| Error::new(ErrorKind::InvalidIdentity, "the body of the request is not valid JSON-RPC");
        let content = match bytes.is_empty() {
            true => Content { messages: Vec::new(), is_batch: false },
            false => serde_json::from_slice(bytes).map_err(invalid)?,
        };
        Ok(Self(Arc::new(content)))
    }

    /// The messages of `request`.
    ///
    /// A key extractor returns the error with `?`.
    ///
    /// # Errors
    ///
    /// [`MissingSetup`](ErrorKind::MissingSetup), answered with 500, if no
    /// [`BufferBodyLayer`](crate::body::BufferBodyLayer) in front parses the body.
    pub fn of(request: &Parts) -> Result<&Self, Error> {
        let missing = || {
            let message = "no `BufferBodyLayer` with `parse_with(JsonRpc::parse)` is in front of this layer";
            Error::new(ErrorKind::MissingSetup, message)
        };
        request.extensions.get().ok_or_else(missing)
    }

    /// The messages, in their order.
    #[must_use]
    pub fn messages(&self) -> &[Message] {
        &self.0.messages
    }

    /// Whether the messages are a batch: an array, to which an array is the answer.
    #[must_use]
    pub fn is_batch(&self) -> bool {
        self.0.is_batch
    }

    /// The tools that the messages call, in their order: one for each call.
    pub fn tools(&self) -> impl Iterator<Item = &str> {
        self.messages().iter().filter_map(Message::tool)
    }

    /// The one tool that the messages call, as a key.
    ///
    /// The client chooses the name, also of a tool that does not exist: join it with a key that is known, such
    /// as the client's, and limit requests by address in front.
    ///
    /// # Errors
    ///
    /// [`MissingIdentity`](ErrorKind::MissingIdentity) if they call no tool: leave such requests out with
    /// [`skip_if`](tower_ratelimit::Rule::skip_if). [`InvalidIdentity`](ErrorKind::InvalidIdentity) if they
    /// call several tools: a rule has one key for a request. For batches, give each tool a rule whose
    /// [cost](tower_ratelimit::Rule::cost) counts the calls of it.
    pub fn tool(&self) -> Result<&str, Error> {
        let missing = || Error::new(ErrorKind::MissingIdentity, "the request calls no tool");
        let first = self.tools().next().ok_or_else(missing)?;
        if self.tools().any(|tool| tool != first) {
            return Err(Error::new(ErrorKind::InvalidIdentity, "a batch must not call several tools"));
        }
        Ok(first)
    }
}

impl fmt::Debug for JsonRpc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JsonRpc")
            .field("messages", &self.messages().len())
            .field("is_batch", &self.is_batch())
            .finish_non_exhaustive()
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ContentVisitor)
    }
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = Content;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON-RPC message or a batch")
    }

    fn visit_map<A: MapAccess<'de>>(self, message: A) -> Result<Content, A::Error> {
        let members = StrictNames::deserialize(MapAccessDeserializer::new(message))?;
        Ok(Content { messages: vec![Message::new(members)], is_batch: false })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut batch: A) -> Result<Content, A::Error> {
        let mut messages = Vec::new();
        while let Some(members) = batch.next_element()? {
            if messages.len() == MAX_MESSAGES {
                return Err(serde::de::Error::custom("the batch is too long"));
            }
            messages.push(Message::new(members));
        }
        Ok(Content { messages, is_batch: true })
    }
}
