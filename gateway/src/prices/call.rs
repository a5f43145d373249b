//! [`Call`]: one call of a model, from its estimate to its answer.

use std::{fmt, future::Future};

use bytes::Bytes;
use http::{HeaderMap, Response};
use http_body::Body;
use tower_ratelimit::{Answer, Decision, Key, Reservation};

use super::{
    body::MeteredBody,
    learned::LearnedOutput,
    planned::Planned,
    prepare,
    request::{Asked, CallError},
    settling::Settling,
    usage::Usage,
};

/// One call of a model, made by a [`UsageMeter`](super::UsageMeter). [The module](super) has an example.
///
/// A clone is of the same request, for a place that must own what it reads: send one of them.
#[must_use = "a call charges nothing until it is sent"]
#[derive(Clone)]
pub struct Call(pub(super) Planned);

impl Call {
    /// Estimates the output by what `learned` knows of `key` and the model, within what the request allows and
    /// [what a client cannot lower](LearnedOutput#what-a-client-can-teach). The answer is learned, if its usage
    /// is [reported](super::Basis::Reported).
    pub fn learned(mut self, learned: &LearnedOutput, key: &Key) -> Self {
        let planned = &mut self.0;
        if let Some(output) = learned.estimate(key, &planned.entry) {
            let least = learned.share_of(planned.allowed).max(planned.assumed.min(planned.allowed));
            let most = if planned.has_limit { planned.allowed } else { u64::MAX };
            planned.estimate.output = output.clamp(least, most);
        }
        planned.learned = Some((learned.clone(), key.clone()));
        self
    }

    /// The model of the request.
    #[must_use]
    pub fn model(&self) -> &str {
        &self.0.model
    }

    /// The tokens that the call is expected to use: the bytes of the request's body divided by
    /// [`bytes_per_token`](super::UsageMeter::bytes_per_token), and the most tokens that the answer may have.
    #[must_use]
    pub const fn estimate(&self) -> Usage {
        self.0.estimate
    }

    /// What the [estimate](Self::estimate) costs, in micro-dollars.
    #[must_use]
    pub fn estimated_micro_dollars(&self) -> u64 {
        self.0.price.micro_dollars(&self.0.estimate)
    }

    /// Makes the request to the vendor measurable: so a client cannot choose how its own bill is measured.
    /// `headers` and `body` are the client's, and the body has made this call.
    ///
    /// | what | why |
    /// |---|---|
    /// | `stream_options.include_usage` is set in streams of [chat completions](super::Api::OpenAiChat) | without it, the answer has no usage. The event with the usage is removed from the answer if the client has not asked for it |
    /// | [`max_output`](super::UsageMeter::max_output) for each choice is set as the limit of the answer, if the request has none, or 0 except in Anthropic's messages | the vendor would allow more than the estimate. See [`sent_limit`](super::UsageMeter::sent_limit) |
    /// | `accept-encoding` is `identity` | the usage of a compressed answer cannot be read |
    /// | `content-type` is `application/json`, and `content-length` the length of the body | the vendor reads the body that the meter has read |
    /// | `content-encoding`, `expect`, `range`, `te`, `transfer-encoding`, `x-goog-fieldmask`, conditions, digests of the body, and headers of the connection are removed | they change how the request is read, or which part of the answer is sent |
    ///
    /// All else passes, so replace the client's credentials, remove headers that turn on what you have no price
    /// for (such as `anthropic-beta`), and do not forward the query of its URL.
    ///
    /// # Errors
    ///
    /// The same as [`UsageMeter::call`](super::UsageMeter::call). None if the call was made with this body.
    ///
    /// # Example
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http::HeaderMap;
    /// use tower_ratelimit_gateway::prices::{Api, Price, Prices, UsageMeter};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let meter = UsageMeter::new(Prices::new("1").model("gpt-4o", Price::new("2.50", "10"))).max_output(500);
    /// let mut headers = HeaderMap::new();
    /// headers.insert("accept-encoding", "gzip".parse()?);
    /// let mut body = Bytes::from(r#"{ "model": "gpt-4o", "messages": [], "stream": true }"#);
    ///
    /// let mut call = meter.call(Api::OpenAiChat, &body)?;
    /// call.prepare(&mut headers, &mut body)?;
    /// assert_eq!(headers["accept-encoding"], "identity");
    /// assert_eq!(
    ///     body,
    ///     r#"{"model":"gpt-4o","messages":[],"stream":true,"stream_options":{"include_usage":true},"max_completion_tokens":500}"#
    /// );
    /// # Ok(())
    /// # }
    /// ```
    pub fn prepare(&mut self, headers: &mut HeaderMap, body: &mut Bytes) -> Result<(), CallError> {
        let Planned { api, settings, hides_usage, .. } = &mut self.0;
        let asked = Asked::read(*api, body)?;
        let limit = settings.sent_limit.map(|name| (settings.max_output, name));
        if let Some(prepared) = prepare::body(*api, &asked, body, limit)? {
            *body = prepared;
        }
        *hides_usage = asked.hides_usage;
        prepare::headers(headers, body);
        Ok(())
    }

    /// Charges the estimate to the rules of `reservation`, in addition to their [cost](tower_ratelimit::Rule::cost):
    /// [`Reservation::charge_more`]. Not needed if the cost of the rules is an estimate already.
    ///
    /// # Errors
    ///
    /// The same as [`Reservation::charge_more`].
    pub fn charge(&self, reservation: &Reservation) -> Answer<Decision> {
        let units = self.0.settings.units(self.0.estimate.tokens(), self.estimated_micro_dollars());
        reservation.charge_more(units)
    }

    /// Waits for the upstream service's response, and settles `reservation` at what it
    /// [costs](super#what-a-call-is-charged). The response passes unchanged, without the usage that only
    /// [`prepare`](Self::prepare) has asked for.
    ///
    /// # Errors
    ///
    /// The error of `sent`, after which the call is refunded.
    pub async fn metered<B: Body<Data = Bytes>, E>(
        self,
        reservation: Reservation,
        sent: impl Future<Output = Result<Response<B>, E>>,
    ) -> Result<Response<MeteredBody<B>>, E> {
        // If this future is dropped, the estimate is charged.
        let mut settling = Settling::new(self.0, reservation);
        match sent.await {
            Ok(response) => {
                let (mut head, body) = response.into_parts();
                settling.begin(&mut head);
                Ok(Response::from_parts(head, MeteredBody::new(body, settling)))
            }
            Err(error) => {
                settling.refund();
                Err(error)
            }
        }
    }
}

/// Shows no key.
impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("api", &self.0.api)
            .field("model", &self.0.model)
            .field("price", &self.0.price)
            .field("estimate", &self.0.estimate)
            .finish_non_exhaustive()
    }
}
