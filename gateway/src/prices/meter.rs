//! [`UsageMeter`]: makes calls whose tokens and money are charged.

use std::{fmt, sync::Arc};

use tower_ratelimit::{Error, ErrorKind, KeyExtractor, PolicySource, Rule};

use super::{
    api::Api,
    bill::Bill,
    call::Call,
    planned::Planned,
    request::{Asked, CallError},
    settings::Settings,
    source::PriceSource,
    usage::Usage,
};
use crate::body::BodyBytes;

/// Charges calls of language models for their tokens and their money. [The module](super) has an example.
/// Cloning it is cheap.
#[derive(Clone)]
#[must_use = "a meter does nothing until it makes a call"]
pub struct UsageMeter(Arc<Settings>);

impl UsageMeter {
    /// A meter with these prices: [`Prices`](super::Prices), or a [`PriceSource`] of prices that change.
    pub fn new(prices: impl Into<PriceSource>) -> Self {
        Self(Arc::new(Settings {
            prices: prices.into(),
            tokens: Some("tokens"),
            money: Some("micro-dollars"),
            bytes_per_token: 4,
            max_output: 4_096,
            sent_limit: Some("max_completion_tokens"),
            tiers: Vec::new(),
            max_buffer: 1 << 20,
            on_settled: None,
            has_panicked: Arc::default(),
            logged: Arc::default(),
        }))
    }

    /// Sets the [unit](tower_ratelimit::Rule::unit) of the rules that limit tokens, or `None` if no rule
    /// does. Defaults to `"tokens"`.
    ///
    /// A call records both units, and a reservation without one of them logs an error and keeps its estimate.
    pub fn tokens_unit(self, unit: impl Into<Option<&'static str>>) -> Self {
        self.with(|settings| settings.tokens = unit.into())
    }

    /// Sets the [unit](tower_ratelimit::Rule::unit) of the rules that limit micro-dollars, or `None` if no
    /// rule does. Defaults to `"micro-dollars"`.
    pub fn money_unit(self, unit: impl Into<Option<&'static str>>) -> Self {
        self.with(|settings| settings.money = unit.into())
    }

    /// Sets how many bytes of text are counted as a token. Defaults to 4, which is about right for English;
    /// other scripts and code have fewer.
    ///
    /// # Panics
    ///
    /// If it is 0.
    #[track_caller]
    pub fn bytes_per_token(self, bytes: u64) -> Self {
        assert!(bytes > 0, "a token must have at least one byte");
        self.with(|settings| settings.bytes_per_token = bytes)
    }

    /// Sets the estimated output, in tokens, of a choice for requests without a limit such as `max_tokens`.
    /// [`Call::prepare`] sends it to the vendor as the limit of such a request. Defaults to 4,096, which may be
    /// too few for models with hidden reasoning.
    pub fn max_output(self, tokens: u64) -> Self {
        self.with(|settings| settings.max_output = tokens)
    }

    /// Sets the name by which [`Call::prepare`] sends [`max_output`](Self::max_output) to a vendor of
    /// [chat completions](Api::OpenAiChat), such as `"max_tokens"` for one that does not know the default. The
    /// other interfaces have one name. `None` sends no limit, with any of them: a client that sends none may then
    /// use more than its estimate. Defaults to `"max_completion_tokens"`.
    pub fn sent_limit(self, name: impl Into<Option<&'static str>>) -> Self {
        self.with(|settings| settings.sent_limit = name.into())
    }

    /// Accepts requests with this `service_tier` (`serviceTier`), `speed` or `inference_geo`, such as `"priority"`.
    /// The prices must be what the dearest tier that you accept costs. Can be called several times.
    ///
    /// The tiers `auto`, `default`, `flex`, `global`, `standard` and `standard_only` are always accepted, because
    /// they cost what a model usually costs, or less. Any other is a [`CallError::UnknownTier`].
    pub fn accept_tier(self, tier: impl Into<String>) -> Self {
        self.with(|settings| settings.tiers.push(tier.into()))
    }

    /// Sets how many bytes of an answer, or of an event of a stream, are kept to be read. Defaults to 1 MiB.
    /// A body needs at most four times as much memory.
    ///
    /// A larger answer is charged the estimate, and a larger event is counted by its bytes.
    pub fn max_buffer(self, bytes: usize) -> Self {
        self.with(|settings| settings.max_buffer = bytes)
    }

    /// Calls `settled` once for each call, when it is known what it is charged: for a ledger, or for logs. It
    /// runs where the body ends or is dropped, so it must not block: send or spawn what takes longer. If it
    /// panics, the call stays settled, and the first panic is logged.
    pub fn on_settled(self, settled: impl Fn(&Bill) + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.on_settled = Some(Arc::new(settled)))
    }

    /// A call with this `body` of a request, which has the model. It uses the prices as they are now until it
    /// is settled.
    ///
    /// # Errors
    ///
    /// [`CallError`]: the body is not JSON; an entry that matters is there twice, in another case, or has another
    /// type; it sets two limits, of which one is 0; it has no model; or the model or the service tier has no price.
    pub fn call(&self, api: Api, body: &[u8]) -> Result<Call, CallError> {
        let mut asked = Asked::read(api, body)?;
        let model = asked.model.take();
        let model = model.ok_or_else(|| CallError::InvalidRequest("it has no `model`".to_owned()))?;
        self.make(api, model, &asked, body)
    }

    /// [`call`](Self::call) for an interface that has the model in the path, such as Gemini's. A model in the
    /// body is ignored.
    ///
    /// # Errors
    ///
    /// The same as [`call`](Self::call).
    pub fn call_of(&self, api: Api, model: &str, body: &[u8]) -> Result<Call, CallError> {
        self.make(api, model.to_owned(), &Asked::read(api, body)?, body)
    }

    /// A rule for a budget of tokens: a request is charged the [estimate](Call::estimate) of the [`Call`] in its
    /// extensions, and settled at what it uses. The unit of the rule is that of the meter.
    ///
    /// Put a [`BufferBodyLayer`](crate::body::BufferBodyLayer) with [`parser`](Self::parser) in front of the
    /// layer. A request without a call is rejected with 500, and the log names the [`Call`] that is missing.
    ///
    /// # Panics
    ///
    /// If [`tokens_unit`](Self::tokens_unit) is `None`: no call would be settled.
    #[track_caller]
    pub fn tokens_rule(&self, policy: impl Into<PolicySource>, key: impl KeyExtractor) -> Rule {
        rule(policy, key, self.0.tokens, |call| call.estimate().tokens())
    }

    /// A rule for a budget in micro-dollars, as [`tokens_rule`](Self::tokens_rule) is one for tokens. The
    /// program `examples/gateway` has four.
    ///
    /// # Panics
    ///
    /// If [`money_unit`](Self::money_unit) is `None`: no call would be settled.
    #[track_caller]
    pub fn money_rule(&self, policy: impl Into<PolicySource>, key: impl KeyExtractor) -> Rule {
        rule(policy, key, self.0.money, Call::estimated_micro_dollars)
    }

    /// Makes the [`call`](Self::call) of a buffered body, for
    /// [`BufferBodyLayer::parse_with`](crate::body::BufferBodyLayer::parse_with), so that rules and handlers
    /// find it in the extensions of the request.
    pub fn parser(&self, api: Api) -> impl Fn(&BodyBytes) -> Result<Call, Error> + Send + Sync + use<> {
        let meter = self.clone();
        move |body| {
            let invalid = |error: CallError| Error::new(ErrorKind::InvalidIdentity, error.to_string());
            meter.call(api, body.get()?).map_err(invalid)
        }
    }

    fn make(&self, api: Api, model: String, asked: &Asked, body: &[u8]) -> Result<Call, CallError> {
        let settings = self.0.clone();
        let prices = settings.prices.current();
        let Some((entry, price)) = prices.entry(&model) else { return Err(CallError::UnknownModel(model)) };
        let prompt = (body.len() as u64).div_ceil(settings.bytes_per_token);
        if let Some(tier) = asked.unknown_tier(&settings.tiers) {
            return Err(CallError::UnknownTier(tier.to_owned()));
        }
        let assumed = settings.max_output.saturating_mul(asked.choices);
        let allowed = asked.max_output.unwrap_or(assumed);
        Ok(Call(Planned {
            api,
            entry: entry.into(),
            price,
            version: prices.version().to_owned(),
            estimate: Usage::new(prompt, allowed),
            allowed,
            assumed,
            has_limit: asked.max_output.is_some(),
            hides_usage: false,
            // Of an answer in the background, a client reads as much as it likes, and the vendor bills all of it.
            counts_text: price.counts_text() && !asked.is_background,
            model,
            learned: None,
            settings,
        }))
    }

    fn with(self, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = (*self.0).clone();
        change(&mut settings);
        Self(Arc::new(settings))
    }
}

/// A rule that reserves the `estimate` of the call of a request.
#[track_caller]
fn rule(
    policy: impl Into<PolicySource>,
    key: impl KeyExtractor,
    unit: Option<&'static str>,
    estimate: impl Fn(&Call) -> u64 + Send + Sync + 'static,
) -> Rule {
    let Some(unit) = unit else { panic!("the meter has no unit for this rule") };
    Rule::new(policy, key).unit(unit).cost_from_extension(estimate).reserve_or_refund()
}

impl fmt::Debug for UsageMeter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UsageMeter")
            .field("prices", &self.0.prices)
            .field("tokens_unit", &self.0.tokens)
            .field("money_unit", &self.0.money)
            .finish_non_exhaustive()
    }
}
