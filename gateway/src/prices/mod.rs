//! Prices of language models, and calls that are charged for their tokens and their money: [`UsageMeter`].
//!
//! A call is charged an estimate before it is made: what its request allows. So concurrent calls stay within the
//! limits, and what their clients ask for does not change that. It is settled at the usage that its answer reports. The
//! answer passes unchanged, while it is read.
//!
//! # Example
//!
//! A proxy in front of a vendor:
//!
//! ```
//! use std::convert::Infallible;
//!
//! use axum::{
//!     Router,
//!     body::{Body, Bytes},
//!     extract::State,
//!     http::{HeaderMap, Request, Response, StatusCode},
//!     response::IntoResponse,
//!     routing::post,
//! };
//! use tower::ServiceExt;
//! use tower_ratelimit::{
//!     Header, Key, Limiter, MemoryStore, Policy, Quota, RateLimitLayer, Rejection, Reservation, Rule, layer::Rules,
//! };
//! use tower_ratelimit_gateway::prices::{Api, Price, Prices, UsageMeter};
//!
//! /// Stands for a vendor. Your program sends the request with its own client.
//! async fn vendor(_headers: HeaderMap, _body: Bytes) -> Result<Response<Body>, Infallible> {
//!     let answer = r#"{
//!         "choices": [{ "message": { "role": "assistant", "content": "Hello!" } }],
//!         "usage": { "prompt_tokens": 20, "completion_tokens": 3 }
//!     }"#;
//!     Ok(Response::new(answer.into()))
//! }
//!
//! async fn complete(
//!     State(meter): State<UsageMeter>,
//!     reservation: Reservation,
//!     mut headers: HeaderMap,
//!     mut body: Bytes,
//! ) -> Result<Response<Body>, Rejection> {
//!     let prepared = meter.call(Api::OpenAiChat, &body).and_then(|mut call| {
//!         // Asks for an answer that can be metered, regardless of what the client asks for.
//!         call.prepare(&mut headers, &mut body)?;
//!         Ok(call)
//!     });
//!     let call = match prepared {
//!         Ok(call) => call,
//!         Err(error) => return Ok((StatusCode::BAD_REQUEST, error.to_string()).into_response()),
//!     };
//!     // Charges the estimate, or rejects the request.
//!     call.charge(&reservation).await?.into_result()?;
//!     match call.metered(reservation, vendor(headers, body)).await {
//!         Ok(answer) => Ok(answer.map(Body::new)),
//!         Err(_) => Ok(StatusCode::BAD_GATEWAY.into_response()),
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let prices = Prices::new("2025-06").model("gpt-4o", Price::new("2.50", "10").cached_input("1.25"));
//! let limiter = Limiter::new(MemoryStore::new());
//! let tokens = Policy::new("tokens", Quota::per_day(100_000)).max_debt(10_000);
//! // A dollar a day.
//! let money = Policy::new("money", Quota::per_day(1_000_000)).max_debt(100_000);
//! let rule = |policy: &Policy, unit| {
//!     Rule::new(policy.clone(), Header::new("x-api-key")).cost(|_| 0).unit(unit).reserve_or_refund()
//! };
//! let rules = Rules::new().always(rule(&tokens, "tokens")).always(rule(&money, "micro-dollars"));
//! let app = Router::new()
//!     .route("/v1/chat/completions", post(complete))
//!     .layer(RateLimitLayer::with_rules(limiter.clone(), rules))
//!     .with_state(UsageMeter::new(prices));
//!
//! let send = async |model: &str| {
//!     let body = format!(r#"{{ "model": "{model}", "max_tokens": 500, "messages": [] }}"#);
//!     let request = Request::post("/v1/chat/completions").header("x-api-key", "k1").body(Body::from(body))?;
//!     Ok::<_, Box<dyn std::error::Error>>(app.clone().oneshot(request).await?)
//! };
//! assert_eq!(send("gpt-0").await?.status(), 400);
//! let answer = send("gpt-4o").await?;
//! axum::body::to_bytes(answer.into_body(), usize::MAX).await?;
//! // 20 and 3 tokens, for 2.5 and 10 micro-dollars each.
//! assert_eq!(limiter.peek(&tokens, &Key::new("k1"), 0).await?.remaining(), Some(100_000 - 23));
//! assert_eq!(limiter.peek(&money, &Key::new("k1"), 0).await?.remaining(), Some(1_000_000 - 80));
//! # Ok(())
//! # }
//! ```
//!
//! If a [`BufferBodyLayer`](crate::body::BufferBodyLayer) with [`UsageMeter::parser`] is in front of the
//! limits, the rules charge the estimate themselves, so a call that does not fit is denied before the handler
//! runs: [`UsageMeter::money_rule`] and [`UsageMeter::tokens_rule`], as in the program `examples/gateway`.
//!
//! The rules have the units `"tokens"` and `"micro-dollars"`, unless
//! [`tokens_unit`](UsageMeter::tokens_unit) and [`money_unit`](UsageMeter::money_unit) set others. Give their
//! policies a [debt](tower_ratelimit::Policy::max_debt): a call that costs more than its estimate and what
//! remains is charged the rest as debt.
//!
//! # The estimate
//!
//! The prompt is estimated as the bytes of the request's body, divided by
//! [`bytes_per_token`](UsageMeter::bytes_per_token), and priced as input that is not cached. The answer is
//! estimated as `max_tokens` of the request (`max_completion_tokens`, `max_output_tokens`, `maxOutputTokens`)
//! for each choice (`n`, `best_of`, `candidateCount`, and each text of a list in `prompt`); without it, as
//! [`max_output`](UsageMeter::max_output). [`Call::learned`] estimates it lower, from earlier answers: then a
//! client can use more than the limit, [up to a bound](LearnedOutput#what-a-client-can-teach).
//!
//! # What a call is charged
//!
//! | what happens | charged | [`Basis`] |
//! |---|---|---|
//! | the answer reports its usage | the usage | `Reported` |
//! | the client leaves, the answer breaks off, is not JSON, or ends without a usage | the estimate, with the prompt if it was reported; what was counted, if that is more | `Estimated`, `Counted` |
//! | the same, the price [counts text](Price::count_text), and the answer is not one in the background | what was counted: the usage that was reported last, and the text that was sent since; until the first report, the estimated prompt and the text. Of a whole answer, all its bytes, from `content-length` if it has one | `Counted` |
//! | the client leaves before the response, or before the first byte of a whole answer | the estimate | `Estimated` |
//! | an answer has a `content-encoding`, which is not decoded and logged at warn once, or a whole answer is larger than [`max_buffer`](UsageMeter::max_buffer) | the estimate | `Estimated` |
//! | no connection, a status other than 2xx, a body that fails before its first byte, or an error as the first event or as the whole answer | nothing | `Refunded` |
//!
//! A token of text is counted for each event that has some, or for each
//! [`bytes_per_token`](UsageMeter::bytes_per_token) bytes of all of it, if that is more. An event that is
//! not of the [`Api`], or is larger than [`max_buffer`](UsageMeter::max_buffer), counts with all its bytes.
//! Tokens that a vendor does not send, such as hidden reasoning, cannot be counted, so the estimate is charged unless
//! a report has them.
//!
//! While a stream is sent, what it has used is [recorded](tower_ratelimit::Reservation::record), and
//! [charged](tower_ratelimit::Reservation::extend_to) if it exceeds the estimate. Cost is the exact sum of
//! tokens and prices, rounded up to a micro-dollar once for a call. What a vendor charges for other things
//! than tokens, such as searches, and discounts, such as for batches, are not in the prices.
//!
//! # What a client can cause
//!
//! A client chooses what it asks for, how, and when it leaves. It is billed at most the limit, and the debt, if the
//! request was [prepared](Call::prepare), nothing is [learned](Call::learned), and the prompt is in the request:
//!
//! | what the client does | what happens |
//! |---|---|
//! | it asks for a stream without a usage, for a compressed answer, or for a part of one | the vendor gets a prepared request, and the estimate is charged if the usage is not reported nevertheless |
//! | it sets no limit, or 0 | the estimate is [`max_output`](UsageMeter::max_output), which is sent to the vendor |
//! | it sets a limit of 0 beside another one | 400, because the vendor could read the 0, as no limit |
//! | it sets several limits, asks for several choices, or sends several prompts | the estimate has the highest limit, and all answers |
//! | it writes `Max_Tokens`, a name twice, a number as text, negative, or with a fraction | 400, because the vendor could read another number |
//! | it asks for a [dearer tier](UsageMeter::accept_tier), or a dearer region (`inference_geo`) | 400 |
//! | it asks for a cache with a longer lifetime | the usage is charged [one price](Price::cache_write) for all lifetimes: set the dearest |
//! | it asks for an answer that goes on without it (`background`, `deferred`) | the estimate is charged if the usage is not reported, even if the price counts text |
//! | it leaves before the usage is reported | the estimate is charged, unless the price [counts text](Price::count_text) |
//! | its prompt costs more than its bytes show: many tokens for a few bytes of a rare script; images, files and earlier answers to which it only refers; or tokens that are written to a cache | the rest is charged when the vendor reports it, up to the debt. Concurrent calls exceed the limit by what each one does: bound them with a [concurrency](tower_ratelimit::Policy::concurrency) policy. With [`bytes_per_token(1)`](UsageMeter::bytes_per_token), text does not exceed its estimate |
//! | it calls another path of the vendor, such as one for batches or files | nothing is charged: serve only paths whose answers you meter |
//!
//! # What clients see
//!
//! [`ApiErrors`] answers a rejected call in the form of the vendor, so the vendor's library shows the reason, and does
//! not sleep until the end of a month. The guide
//! [`clients`](https://docs.rs/tower-ratelimit/latest/tower_ratelimit/guide/clients/) has what real clients do.
//!
//! # Files
//!
//! [`Prices`] are read from this table with serde, and `LivePrices` of `tower-ratelimit-operate` follow a file that has
//! it:
//!
//! ```toml
//! version = "2025-06"
//! # What an unknown model costs: "deny", the default, "dearest", or a price.
//! unknown = { input = 15, output = 75 }
//!
//! # Dollars for a million tokens, exactly: at most six digits after the point.
//! [models."gpt-4o"]
//! input = 2.50
//! cached_input = 1.25
//! output = 10
//!
//! # Names that begin with it.
//! [models."claude-sonnet-4-*"]
//! input = 3
//! cached_input = "0.30"
//! # Of the dearest lifetime that a client can ask for.
//! cache_write = 6
//! output = 15
//! # It sends all tokens that it bills. Defaults to false.
//! count_text = true
//! ```
//!
//! `version` and `models` are required, and `input` and `output` of each price. `cached_input` and
//! `cache_write` default to `input`, and [`count_text`](Price::count_text) to false. An unknown entry is an error.

// `UsageMeter` makes a `Call`, which reads the request (`request`) and finds the price. `Settling` is its
// charge from then on, in a `MeteredBody`: its `Reader` splits the body into events or keeps a whole answer,
// `Api` reads each with the file of its vendor, and the `Tally` adds what they report. `prepare` changes the
// request to the vendor, and `usage_filter` removes from the answer what only that has asked for.

mod anthropic;
mod api;
mod bill;
mod body;
mod call;
mod chunk;
mod errors;
mod events;
mod gemini;
mod histogram;
mod learned;
mod meter;
mod only_table;
mod openai_chat;
mod openai_responses;
mod planned;
mod prepare;
mod price;
mod prices;
mod rate;
mod reader;
mod request;
mod settings;
mod settling;
mod source;
mod table;
mod tally;
mod text_bytes;
mod usage;
mod usage_filter;

pub use self::{
    api::Api,
    bill::{Basis, Bill},
    body::MeteredBody,
    call::Call,
    errors::ApiErrors,
    learned::LearnedOutput,
    meter::UsageMeter,
    price::Price,
    prices::{Prices, UnknownModel},
    request::CallError,
    source::PriceSource,
    usage::Usage,
};
