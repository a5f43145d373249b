//! Calls of language models, which are charged the tokens and the money that their answers report.

mod billing;
mod charges;
mod errors;
mod estimates;
mod forms;
mod gateway;
mod hostile;
mod passing;
mod prepare;
mod table;
mod vendor;

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::{StreamExt as _, future::Either, stream};
use http::{Response, header};
use http_body::{Body, Frame};
use http_body_util::{BodyExt as _, StreamBody};
use support::{PATIENT, day};
use tower_ratelimit::{Charge, Key, Limiter, MemoryStore, Policy, Reservation};
use tower_ratelimit_gateway::prices::{Api, Basis, Bill, Price, Prices, Usage, UsageMeter};

const LIMIT: u64 = 100_000_000;

/// A request, estimated at 10 + 100 tokens.
const REQUEST: &str = r#"{ "model": "model", "max_tokens": 100 }"#;

/// The price of all models here: 2, 1, 3 and 10 micro-dollars for a token. They send all tokens that they bill.
fn price() -> Price {
    Price::new("2", "10").cached_input("1").cache_write("3").count_text()
}

const fn micro_dollars(usage: Usage) -> u64 {
    2 * usage.input + usage.cached_input + 3 * usage.cache_write + 10 * usage.output
}

/// A meter, and the limits that its calls are charged to.
struct Desk {
    limiter: Limiter,
    policies: [(&'static str, Policy); 2],
    meter: UsageMeter,
    settled: Arc<Mutex<Vec<Bill>>>,
}

impl Desk {
    fn new() -> Self {
        Self::with(|meter| meter)
    }

    fn with(change: impl FnOnce(UsageMeter) -> UsageMeter) -> Self {
        Self::with_price(price(), change)
    }

    fn with_price(price: Price, change: impl FnOnce(UsageMeter) -> UsageMeter) -> Self {
        let settled = Arc::<Mutex<Vec<_>>>::default();
        let notes = settled.clone();
        let meter = UsageMeter::new(Prices::new("1").model("model", price));
        let meter = change(meter).on_settled(move |call| notes.lock().unwrap().push(call.clone()));
        let policies = [("tokens", day("tokens", LIMIT)), ("micro-dollars", day("money", LIMIT))];
        Self { limiter: Limiter::new(MemoryStore::new()), policies, meter, settled }
    }

    /// A reservation of nothing, to which a call adds its estimate.
    async fn reservation(&self) -> Reservation {
        let key = Key::new("all");
        let charges = self.policies.each_ref().map(|(_, policy)| Charge::new(policy, &key, 0));
        let decision = self.limiter.check_all(&charges).await.unwrap();
        let part = |(unit, policy): &(&'static str, Policy)| {
            Reservation::of_unit(&self.limiter, &decision.for_policy(policy.name()).unwrap(), unit)
                .or_refund()
        };
        part(&self.policies[0]).and(part(&self.policies[1]))
    }

    /// The metered response to a request of `api`, after its estimate was charged.
    async fn send<B: Body<Data = Bytes>>(
        &self,
        api: Api,
        request: &str,
        response: Response<B>,
    ) -> Response<impl Body<Data = Bytes, Error = B::Error> + use<B>> {
        let reservation = self.reservation().await;
        let call = self.meter.call_of(api, "model", request.as_bytes()).unwrap();
        assert!(call.charge(&reservation).await.unwrap().is_admitted());
        call.metered(reservation, async { Ok::<_, ()>(response) }).await.unwrap()
    }

    /// The tokens and the micro-dollars that are charged.
    async fn charged(&self) -> (u64, u64) {
        self.limiter.drain(PATIENT).await.unwrap();
        self.charged_now().await
    }

    async fn charged_now(&self) -> (u64, u64) {
        let mut charged = [0; 2];
        for (charged, (_, policy)) in charged.iter_mut().zip(&self.policies) {
            *charged = LIMIT - support::units_left(&self.limiter, policy).await;
        }
        charged.into()
    }

    /// Asserts that one call was settled, which is charged `usage`, and forgets it.
    async fn assert_charged(&self, name: &str, usage: Usage, basis: Basis) {
        let charged = self.charged().await;
        let settled = std::mem::take(&mut *self.settled.lock().unwrap());
        let [call] = &settled[..] else { panic!("{name}: {settled:?}") };
        assert_eq!((call.usage, call.basis), (usage, basis), "{name}");
        assert_eq!(charged, (usage.tokens(), micro_dollars(usage)), "{name}");
        assert_eq!(
            (&*call.model, &*call.prices_version, call.micro_dollars),
            ("model", "1", charged.1),
            "{name}"
        );
        for (_, policy) in &self.policies {
            self.limiter.operator().reset(policy, &Key::new("all")).await.unwrap();
        }
    }
}

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream; charset=utf-8";

/// A response with these parts as its body, after which it ends, fails or says nothing more.
fn response(
    content_type: &str,
    parts: Vec<Bytes>,
    end: Then,
) -> Response<impl Body<Data = Bytes, Error = &'static str> + Unpin + use<>> {
    let frames = parts.into_iter().map(|part| Ok(Frame::data(part)));
    let frames = frames.chain((end == Then::Fails).then_some(Err("broken off")));
    let frames = stream::iter(frames).chain(match end {
        Then::Hangs => Either::Left(stream::pending()),
        Then::Ends | Then::Fails => Either::Right(stream::empty()),
    });
    Response::builder().header(header::CONTENT_TYPE, content_type).body(StreamBody::new(frames)).unwrap()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    Ends,
    Fails,
    Hangs,
}

/// All frames of a body until it ends or fails.
async fn all_of<B: Body<Data = Bytes>>(response: Response<B>) -> (Vec<u8>, Option<B::Error>) {
    let (mut body, mut received) = (Box::pin(response.into_body()), Vec::new());
    loop {
        match body.frame().await {
            Some(Ok(frame)) => received.extend_from_slice(frame.data_ref().unwrap()),
            Some(Err(error)) => return (received, Some(error)),
            None => return (received, None),
        }
    }
}

/// The first `count` frames of a body, which is dropped after them.
async fn some_of<B: Body<Data = Bytes>>(response: Response<B>, count: usize) {
    let mut body = Box::pin(response.into_body());
    for _ in 0..count {
        assert!(body.frame().await.unwrap().is_ok());
    }
}
