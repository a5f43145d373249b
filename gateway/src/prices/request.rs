//! What the body of a request asks for.

use std::{borrow::Cow, error::Error, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{SeqAccess, Visitor},
};
use serde_json::value::RawValue;

use super::api::Api;
use crate::strict_names::StrictNames;

/// What a request asks for.
pub(super) struct Asked {
    pub(super) model: Option<String>,
    /// The most tokens of the answer, with all its choices, if the request sets a limit.
    pub(super) max_output: Option<u64>,
    /// The number of choices.
    pub(super) choices: u64,
    /// Whether the answer is a stream without a usage.
    pub(super) hides_usage: bool,
    /// Whether the vendor goes on with the answer if no client reads it.
    pub(super) is_background: bool,
    /// What may have another price than the model usually has.
    pub(super) tiers: [Option<String>; 3],
}

/// Why a call cannot be made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallError {
    /// The body of the request is not one of the [`Api`], or a vendor could read it in another way. The text
    /// says why. Answer with status 400.
    InvalidRequest(String),
    /// The model, which has no [price](super::UnknownModel::Deny). Answer with status 400 or 404.
    UnknownModel(String),
    /// The service tier, which may be dearer than the [prices](super::UsageMeter::accept_tier). Answer with
    /// status 400.
    UnknownTier(String),
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A client may send any text.
        let shown = |text: &String| text.chars().take(100).collect::<String>();
        match self {
            Self::InvalidRequest(problem) => write!(f, "the request cannot be read: {problem}"),
            Self::UnknownModel(model) => write!(f, "the model {:?} is not available", shown(model)),
            Self::UnknownTier(tier) => write!(f, "the service tier {:?} is not available", shown(tier)),
        }
    }
}

impl Error for CallError {}

/// What `json` has, which is a part of a request.
pub(super) fn parsed<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, CallError> {
    serde_json::from_slice(json).map_err(|error| CallError::InvalidRequest(error.to_string()))
}

#[derive(Deserialize)]
#[serde(rename = "a request")]
struct Body<'a> {
    #[serde(borrow)]
    model: Option<Cow<'a, str>>,
    n: Option<u64>,
    best_of: Option<u64>,
    #[serde(default, borrow)]
    prompt: Option<&'a RawValue>,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    max_output_tokens: Option<u64>,
    stream: Option<bool>,
    stream_options: Option<StrictNames<StreamOptions>>,
    /// OpenAI's responses.
    background: Option<bool>,
    /// xAI's chat completions.
    deferred: Option<bool>,
    // Google's interfaces read both spellings of each name.
    #[serde(alias = "serviceTier")]
    service_tier: Option<String>,
    speed: Option<String>,
    inference_geo: Option<String>,
    #[serde(rename = "generationConfig", alias = "generation_config")]
    generation: Option<StrictNames<Generation>>,
}

#[derive(Deserialize)]
#[serde(rename = "options of a stream")]
struct StreamOptions {
    include_usage: Option<bool>,
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
    /// Reads the body of a request. An entry that is there twice, or in another case, is an error, because a
    /// vendor may read the other one.
    pub(super) fn read(api: Api, body: &[u8]) -> Result<Self, CallError> {
        let StrictNames(body) = parsed::<StrictNames<Body<'_>>>(body)?;
        let generation = body.generation.as_ref().map(|generation| &generation.0);
        // Some services read 0 as no limit.
        let positive = |tokens: &u64| *tokens > 0;
        // An entry of another interface is ignored by the vendor.
        let (choices, max_tokens) = match api {
            Api::OpenAiChat => {
                // The best of several answers is sent, and all are billed.
                let each = body.n.max(body.best_of).unwrap_or(1).max(1);
                let prompts = body.prompt.map(prompts).transpose()?.unwrap_or(1);
                let limit = highest_limit(body.max_tokens, body.max_completion_tokens)?;
                (Some(each.saturating_mul(prompts)), limit.filter(positive))
            }
            Api::OpenAiResponses => (None, body.max_output_tokens.filter(positive)),
            Api::AnthropicMessages => (None, body.max_tokens.filter(positive)),
            Api::Gemini => (
                generation.and_then(|one| one.choices),
                generation.and_then(|one| one.max_tokens).filter(positive),
            ),
        };
        let choices = choices.unwrap_or(1).max(1);
        let reports = body.stream_options.and_then(|options| options.0.include_usage) == Some(true);
        Ok(Self {
            model: body.model.map(Cow::into_owned),
            max_output: max_tokens.map(|tokens| tokens.saturating_mul(choices)),
            choices,
            hides_usage: api == Api::OpenAiChat && body.stream == Some(true) && !reports,
            is_background: body.background == Some(true) || body.deferred == Some(true),
            tiers: [body.service_tier, body.speed, body.inference_geo],
        })
    }

    /// The first tier that is neither the usual one nor a cheaper one, nor `accepted`.
    pub(super) fn unknown_tier(&self, accepted: &[String]) -> Option<&str> {
        const USUAL: [&str; 6] = ["auto", "default", "flex", "global", "standard", "standard_only"];
        let is_known = |tier: &&str| USUAL.contains(tier) || accepted.iter().any(|accepted| accepted == tier);
        self.tiers.iter().flatten().map(String::as_str).find(|tier| !is_known(tier))
    }
}

/// The higher of the two limits of chat completions. A vendor reads one of them, and may read 0 as no limit.
fn highest_limit(
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
) -> Result<Option<u64>, CallError> {
    let zero = match (max_tokens, max_completion_tokens) {
        (Some(0), Some(1..)) => "max_tokens",
        (Some(1..), Some(0)) => "max_completion_tokens",
        _ => return Ok(max_tokens.max(max_completion_tokens)),
    };
    Err(CallError::InvalidRequest(format!("`{zero}` is 0 beside another limit: send one of the two")))
}

/// The number of prompts in the member `prompt` of the older interface for completions: several in a list of
/// texts, or of lists of tokens.
fn prompts(prompt: &RawValue) -> Result<u64, CallError> {
    match prompt.get().starts_with('[') {
        true => Ok(parsed::<Prompts>(prompt.get().as_bytes())?.0.max(1)),
        false => Ok(1),
    }
}

struct Prompts(u64);

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(PromptsVisitor)
    }
}

struct PromptsVisitor;

impl<'de> Visitor<'de> for PromptsVisitor {
    type Value = Prompts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of prompts")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Prompts, A::Error> {
        let mut prompts = 0;
        while let Some(item) = list.next_element::<&RawValue>()? {
            // A number is a token of the only prompt.
            prompts += u64::from(item.get().starts_with(['"', '[', '{']));
        }
        Ok(Prompts(prompts))
    }
}
