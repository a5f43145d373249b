//! A vendor over HTTP, which bills each request.
//!
//! A token of a prompt is four bytes of the request, and a token of an answer is a word. What was sent of a stream that is
//! cut is billed, without a discount for caches unless the stream has reported one. This is what a meter counts, so even
//! the bills of these requests can be expected exactly.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Path, State},
    http::{Response, header},
    routing::post,
};
use futures_util::{Stream, StreamExt as _, stream};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use support::pipes::{self, PipeClient};
use tokio::sync::Semaphore;

/// The bills of the requests, by their number, and gates that let streams break off.
#[derive(Clone, Default)]
pub(super) struct Vendor {
    bills: Arc<Mutex<HashMap<u64, Invoice>>>,
    gates: Arc<Mutex<HashMap<u64, Arc<Semaphore>>>>,
}

/// The tokens that a request is billed until now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Invoice {
    pub(super) input: u64,
    pub(super) cached: u64,
    pub(super) written: u64,
    pub(super) output: u64,
}

impl Invoice {
    pub(super) const fn tokens(self) -> u64 {
        self.input + self.cached + self.written + self.output
    }

    /// At 2.5, 1.25, 3.125 and 10.1 dollars a million tokens.
    pub(super) const fn micro_dollars(self) -> u64 {
        self.cost([2_500, 1_250, 3_125, 10_100])
    }

    /// In micro-dollars, rounded up once. A rate is in dollars for a thousand million tokens, in the order of the
    /// fields.
    pub(super) const fn cost(self, [input, cached, written, output]: [u64; 4]) -> u64 {
        let sum = self.input * input + self.cached * cached + self.written * written + self.output * output;
        sum.div_ceil(1_000)
    }

    /// A prompt of which a part was read from a cache, and one was written to it, where the vendor reports that.
    const fn with_cache(prompt: u64, writes: bool, output: u64) -> Self {
        let (cached, written) = (prompt / 3, if writes { prompt / 5 } else { 0 });
        Self { input: prompt - cached - written, cached, written, output }
    }
}

impl Vendor {
    pub(super) fn serve(&self) -> PipeClient {
        pipes::serve(Router::new().route("/{form}", post(answer)).with_state(self.clone()))
    }

    pub(super) fn bill(&self, number: u64) -> Invoice {
        self.bills.lock().unwrap().get(&number).copied().unwrap_or_default()
    }

    pub(super) fn bills(&self) -> HashMap<u64, Invoice> {
        self.bills.lock().unwrap().clone()
    }

    fn set(&self, number: u64, bill: Invoice) {
        self.bills.lock().unwrap().insert(number, bill);
    }

    /// Reads the answer to the request `number`, and leaves. After all words of its `output`, and
    /// then once `may_end` is ready, a stream that hangs is left, and one that breaks off does so. Returns the status.
    pub(super) async fn read(
        &self,
        answer: Response<impl http_body::Body<Data = Bytes> + Unpin>,
        number: u64,
        end: &str,
        output: u64,
        may_end: impl Future<Output = ()>,
    ) -> u16 {
        let status = answer.status().as_u16();
        let (mut body, mut received, mut may_end) = (answer.into_body(), Vec::new(), Some(may_end));
        while let Some(Ok(frame)) = body.frame().await {
            received.extend_from_slice(frame.data_ref().unwrap());
            if status != 200 || !matches!(end, "hangs" | "breaks off") {
                continue;
            }
            let words = String::from_utf8_lossy(&received).matches("\"word\"").count() as u64;
            assert!(words <= output);
            if words == output
                && let Some(may_end) = may_end.take()
            {
                may_end.await;
                if end == "hangs" {
                    break;
                }
                // The stream waits for it.
                self.gate(number).add_permits(1);
            }
        }
        status
    }

    fn gate(&self, number: u64) -> Arc<Semaphore> {
        self.gates.lock().unwrap().entry(number).or_insert_with(|| Arc::new(Semaphore::new(0))).clone()
    }
}

const ASKS_FOR_USAGE: &[u8] = br#","stream_options":{"include_usage":true}"#;

/// Answers a request with `metadata`: its number, the tokens of its answer, and how it ends.
async fn answer(State(vendor): State<Vendor>, Path(form): Path<String>, body: Bytes) -> Response<Body> {
    let request: Value = serde_json::from_slice(&body).unwrap();
    let plan = &request["metadata"];
    let number = plan["number"].as_u64().unwrap();
    // What the gateway adds is not a part of the prompt.
    let added = body.windows(ASKS_FOR_USAGE.len()).filter(|part| *part == ASKS_FOR_USAGE).count();
    let length = body.len() - added * ASKS_FOR_USAGE.len();
    let (prompt, output) = ((length as u64).div_ceil(4), plan["output"].as_u64().unwrap());
    let end = plan["end"].as_str().unwrap();
    if let Some(status) = end.strip_prefix("status ") {
        let error = Body::from(r#"{ "error": { "message": "not now" } }"#);
        return Response::builder().status(status).body(error).unwrap();
    }
    if end == "breaks off before a byte" {
        return Response::new(Body::from_stream(stream::iter([Err::<Bytes, _>(io::Error::other("broken"))])));
    }
    let full = Invoice::with_cache(prompt, form == "messages", output);
    if request["stream"] != json!(true) {
        vendor.set(number, full);
        return Response::new(Body::from(whole(&form, full).to_string()));
    }
    let begun = match &*form {
        "messages" => Invoice { output: 0, ..full },
        _ => Invoice { input: prompt, ..Invoice::default() },
    };
    let ending = ending(vendor.clone(), number, form.clone(), full, end.to_owned());
    let events = stream::iter(0..=output).map(move |sent| {
        vendor.set(number, Invoice { output: sent, ..begun });
        Ok(if sent == 0 { first(&form, begun) } else { word(&form, prompt, sent) }.into())
    });
    let body = Body::from_stream(events.chain(ending));
    Response::builder().header(header::CONTENT_TYPE, "text/event-stream").body(body).unwrap()
}

/// What comes after the words of a stream.
fn ending(
    vendor: Vendor,
    number: u64,
    form: String,
    full: Invoice,
    end: String,
) -> impl Stream<Item = Result<Bytes, io::Error>> + Send {
    stream::once(async move {
        match &*end {
            "completes" => {
                vendor.set(number, full);
                Ok(last(&form, full).into())
            }
            "completes without a usage" => Ok("data: [DONE]\n\n".into()),
            "hangs" => std::future::pending().await,
            "breaks off" => {
                vendor.gate(number).acquire().await.unwrap().forget();
                Err(io::Error::other("broken"))
            }
            other => unreachable!("{other}"),
        }
    })
}

fn usage(form: &str, Invoice { input, cached, written, output }: Invoice) -> Value {
    let prompt = input + cached;
    match form {
        "chat" => json!({
            "prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output,
            "prompt_tokens_details": { "cached_tokens": cached },
        }),
        "responses" => json!({
            "input_tokens": prompt, "output_tokens": output, "input_tokens_details": { "cached_tokens": cached },
        }),
        "messages" => json!({
            "input_tokens": input, "output_tokens": output,
            "cache_read_input_tokens": cached, "cache_creation_input_tokens": written,
        }),
        _ => json!({
            "promptTokenCount": prompt, "cachedContentTokenCount": cached,
            "candidatesTokenCount": output - output / 2, "thoughtsTokenCount": output / 2,
        }),
    }
}

fn whole(form: &str, bill: Invoice) -> Value {
    let (usage, text) = (usage(form, bill), "word ".repeat(bill.output as usize));
    match form {
        "chat" => json!({ "choices": [{ "message": { "content": text } }], "usage": usage }),
        "responses" => json!({ "output": [{ "content": [{ "text": text }] }], "usage": usage }),
        "messages" => json!({ "type": "message", "content": [{ "text": text }], "usage": usage }),
        _ => {
            json!({ "candidates": [{ "content": { "parts": [{ "text": text }] } }], "usageMetadata": usage })
        }
    }
}

fn event(data: &Value) -> String {
    format!("event: any\ndata: {data}\n\n")
}

fn first(form: &str, begun: Invoice) -> String {
    match form {
        "chat" => event(&json!({ "choices": [{ "delta": { "role": "assistant", "content": "" } }] })),
        "responses" => event(&json!({ "type": "response.created", "response": { "usage": null } })),
        "messages" => {
            let usage = usage(form, Invoice { output: 1, ..begun });
            event(&json!({ "type": "message_start", "message": { "usage": usage } }))
        }
        _ => ": begins\n\n".to_owned(),
    }
}

/// The event of one token. Its text has at most four bytes.
fn word(form: &str, prompt: u64, sent: u64) -> String {
    match form {
        "chat" => event(&json!({ "choices": [{ "delta": { "content": "word" } }] })),
        "responses" => event(&json!({ "type": "response.output_text.delta", "delta": "word" })),
        "messages" => event(
            &json!({ "type": "content_block_delta", "delta": { "type": "text_delta", "text": "word" } }),
        ),
        _ => {
            // A part of them report the usage until then.
            let begun = Invoice { input: prompt, output: sent, ..Invoice::default() };
            let mut part = json!({ "candidates": [{ "content": { "parts": [{ "text": "word" }] } }] });
            if sent.is_multiple_of(3) {
                part["usageMetadata"] = usage(form, begun);
            }
            event(&part)
        }
    }
}

fn last(form: &str, full: Invoice) -> String {
    let usage = usage(form, full);
    match form {
        "chat" => event(&json!({ "choices": [], "usage": usage })) + "data: [DONE]\n\n",
        "responses" => event(&json!({ "type": "response.completed", "response": { "usage": usage } })),
        "messages" => {
            let delta = json!({ "stop_reason": "end_turn" });
            event(&json!({ "type": "message_delta", "delta": delta, "usage": usage }))
                + &event(&json!({ "type": "message_stop" }))
        }
        _ => event(&json!({ "candidates": [{ "finishReason": "STOP" }], "usageMetadata": usage })),
    }
}
