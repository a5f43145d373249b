//! What the body of a request asks for.

use std::{borrow::Cow, error::Error, fmt};

use serde::Deserialize;

use super::api::Api;

/// What a request asks for.
pub(super) struct Asked {
    pub(super) model: Option<String>,
    /// The most tokens of the answer, with all its choices, if the request sets a limit.
    pub(super) max_output: Option<u64>,
    /// The number of choices.
    pub(super) choices: u64,
}

/// Why a call cannot be made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallError {
    /// The body of the request is not one of the [`Api`]. The text says why. Answer with status 400.
    InvalidRequest(String),
    /// The model, which has no [price](super::UnknownModel::Deny). Answer with status 400 or 404.
    UnknownModel(String),
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidRequest(problem) => write!(f, "the request cannot be read: {problem}"),
            Self::UnknownModel(model) => {
                // A client may send any text.
                let shown: String = model.chars().take(100).collect();
                write!(f, "the model {shown:?} is not available")
            }
        }
    }
}

impl Error for CallError {}

#[derive(Deserialize)]
#[serde(rename = "a request")]
struct Body<'a> {
    #[serde(borrow)]
    model: Option<Cow<'a, str>>,
    n: Option<u64>,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    max_output_tokens: Option<u64>,
    #[serde(rename = "generationConfig", alias = "generation_config")]
    generation: Option<Generation>,
}

#[derive(Deserialize)]
#[serde(rename = "a configuration of the generation")]
struct Generation {
    #[serde(rename = "candidateCount", alias = "candidate_count")]
    choices: Option<u64>,
    #[serde(rename = "maxOutputTokens", alias = "max_output_tokens")]
    max_tokens: Option<u64>,
}

impl Asked {
    /// Reads the body of a request. An entry that is there twice is an error, because a vendor may read the
    /// other one.
    pub(super) fn read(api: Api, body: &[u8]) -> Result<Self, CallError> {
        let body: Body<'_> =
            serde_json::from_slice(body).map_err(|error| CallError::InvalidRequest(error.to_string()))?;
        // An entry of another interface is ignored by the vendor.
        let (choices, max_tokens) = match api {
            Api::OpenAiChat => (body.n, body.max_tokens.max(body.max_completion_tokens)),
            Api::OpenAiResponses => (None, body.max_output_tokens),
            Api::AnthropicMessages => (None, body.max_tokens),
            Api::Gemini => {
                let generation = body.generation.as_ref();
                (generation.and_then(|one| one.choices), generation.and_then(|one| one.max_tokens))
            }
        };
        let choices = choices.unwrap_or(1).max(1);
        let max_output = max_tokens.map(|tokens| tokens.saturating_mul(choices));
        Ok(Self { model: body.model.map(Cow::into_owned), max_output, choices })
    }
}
