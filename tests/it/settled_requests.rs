//! What the rules of one or two layers charge for a request, by what its handler does and how it ends. The rows are in
//! `tables/settled-requests.txt`.

use std::{
    future::pending,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{Request, Response};
use http_body::Body;
use support::{PATIENT, day, inner::text, table::rows, units_left};
use tokio::sync::Notify;
use tower::{BoxError, Layer as _, Service, ServiceExt as _, service_fn};
use tower_ratelimit::{
    Key, Limiter, Policy, PolicySource, RateLimitLayer, Reservation, Rule, layer::Rules, policy::Enforcement,
};

use crate::{
    reservations::{chosen, facts},
    stores::stores,
};

const LIMIT: u64 = 1_000;

/// The rule of `tokens: cost 50 reserve unit output`, and its policy.
fn rule(definition: &str, row: usize) -> (Rule, Policy) {
    let (name, words) = definition.split_once(": ").unwrap();
    let words: Vec<&str> = words.split(' ').collect();
    let after = |word| words.iter().position(|one| *one == word).map(|place| words[place + 1].to_owned());
    let policy = day(&format!("{name}-{row}"), LIMIT);
    let looked_up = policy.clone();
    let source = if words.contains(&"looked-up") {
        PolicySource::per_request(move |_, _| Some(looked_up.clone()))
    } else {
        looked_up.into()
    };
    let cost = after("cost").map_or(1, |cost| cost.parse().unwrap());
    let mut rule = Rule::new(source, Key::new("all")).cost(move |_| cost);
    if let Some(unit) = after("unit") {
        rule = rule.unit(if unit == "tokens" { "tokens" } else { "money" });
    }
    if let Some(counted) = after("counts") {
        rule = rule.count_if(move |response| match &*counted {
            "all" => true,
            "none" => false,
            "success" => response.status.is_success(),
            status => response.status.as_str() == status,
        });
    }
    for word in words {
        rule = match word {
            "reserve" => rule.reserve(),
            "or-refund" => rule.reserve_or_refund(),
            "skipped" => rule.skip_if(|_| true),
            _ => rule,
        };
    }
    (rule, policy)
}

/// The layer of a definition such as `a: cost 1, b: cost 2 reserve, refund cancelled`, and its policies.
fn layer(limiter: &Limiter, definition: &str, row: usize) -> (RateLimitLayer, Vec<Policy>) {
    let (settings, rules): (Vec<_>, Vec<_>) = definition.split(", ").partition(|part| !part.contains(": "));
    let (rules, policies): (Vec<_>, Vec<_>) = rules.into_iter().map(|one| rule(one, row)).unzip();
    let rules = rules.into_iter().fold(Rules::new(), Rules::always);
    let layer = RateLimitLayer::with_rules(limiter.clone(), rules);
    let with = |layer: RateLimitLayer, setting| match setting {
        "refund cancelled" => layer.refund_cancelled(),
        "report only" => layer.enforcement(Enforcement::ReportOnly),
        "off" => layer.enforcement(Enforcement::Off),
        _ => panic!("not a setting: {setting}"),
    };
    (settings.into_iter().fold(layer, with), policies)
}

/// What a handler does, and what of it differs from the row.
#[derive(Clone)]
struct Handler {
    steps: String,
    limiter: Limiter,
    hangs: Arc<Notify>,
    differ: Arc<Mutex<Vec<String>>>,
}

impl Handler {
    async fn handle(self, request: Request<String>) -> Result<Response<String>, BoxError> {
        let reservation = Reservation::from_extensions(request.extensions()).cloned();
        let respond = |status: u16| Ok(Response::builder().status(status).body("done".to_owned()).unwrap());
        for step in self.steps.split("; ") {
            let (call, expected) = step.split_once(" = ").unwrap_or((step, "admitted"));
            let words: Vec<&str> = call.split(' ').collect();
            // Such as `30`, or `tokens 30 money 5`.
            let units = || {
                words[1..]
                    .chunks(2)
                    .filter(|pair| pair.len() == 2)
                    .map(|pair| (pair[0], pair[1].parse().unwrap()))
                    .collect::<Vec<(&str, u64)>>()
            };
            let total = || words[1].parse::<u64>().unwrap();
            let is_total = words.len() == 2;
            let own = || reservation.as_ref().unwrap();
            let answer = match words[0] {
                "settle" => {
                    if is_total {
                        own().settle(total())
                    } else {
                        own().settle(units())
                    }
                }
                "extend" => own().extend_to(total()),
                "more" => {
                    if is_total {
                        own().charge_more(total())
                    } else {
                        own().charge_more(units())
                    }
                }
                "record" => {
                    own().record(total());
                    continue;
                }
                "later" => {
                    let (later, units) = (own().clone(), total());
                    tokio::spawn(async move {
                        tokio::time::sleep(Duration::from_millis(30)).await;
                        later.settle(units).await.unwrap();
                    });
                    continue;
                }
                "fails" => return Err("failed".into()),
                "hangs" => {
                    self.hangs.notify_one();
                    return pending().await;
                }
                // With what another limiter answers.
                "rejects" => {
                    let denied = self.limiter.check(&day("exports", 1), &Key::new("all"), 2).await.unwrap();
                    return Ok(denied.into_result().unwrap_err().into_http().map(|_| String::new()));
                }
                status => return respond(status.parse().unwrap()),
            };
            let seen = facts(&answer.await);
            if expected.split(", ").any(|fact| !seen.iter().any(|seen| seen == fact)) {
                self.differ.lock().unwrap().push(format!("`{step}`: {}", seen.join(", ")));
            }
        }
        respond(200)
    }
}

/// Sends a request to `service`, and cancels it if its handler hangs. Returns the status, if any.
async fn end<S, B>(service: S, hangs: &Notify) -> Option<u16>
where
    S: Service<Request<String>, Response = Response<B>, Error: Send + 'static, Future: Send> + Send + 'static,
    B: Body<Error: std::fmt::Debug> + Send + 'static,
{
    let mut request = tokio::spawn(service.oneshot(Request::new(String::new())));
    let response = tokio::select! {
        response = &mut request => response.unwrap().ok()?,
        () = hangs.notified() => {
            request.abort();
            request.await.err()?;
            return None;
        }
    };
    let status = response.status().as_u16();
    assert!(status == 429 || text(response).await == "done");
    Some(status)
}

#[tokio::test]
async fn a_request_is_charged_by_what_its_handler_used_and_how_it_ended() {
    let table = include_str!("tables/settled-requests.txt");
    let mut differ = Vec::new();
    for (store, limiter) in stores("settled-requests").await {
        for [name, layers, steps, expected] in rows(table) {
            let line = 1 + table.lines().position(|line| line.starts_with(&name)).unwrap();
            for place in 0..=usize::from([&layers, &steps, &expected].iter().any(|cell| cell.contains('('))) {
                let [layers, steps, expected] = [&layers, &steps, &expected].map(|cell| chosen(cell, place));
                let made = layers.split(" / ").map(|one| layer(&limiter, one, 2 * line + place));
                let (layers, policies): (Vec<_>, Vec<_>) = made.unzip();
                let (hangs, wrong) = (Arc::new(Notify::new()), Arc::default());
                let exports = Limiter::new(tower_ratelimit::MemoryStore::new());
                let handler = Handler { steps, limiter: exports, hangs: hangs.clone(), differ: wrong };
                let (steps, wrong) = (handler.steps.clone(), handler.differ.clone());
                let service = service_fn(move |request| handler.clone().handle(request));
                let status = match &layers[..] {
                    [only] => end(only.layer(service), &hangs).await,
                    [outer, inner] => end(outer.layer(inner.layer(service)), &hangs).await,
                    _ => panic!("line {line}: one or two layers"),
                };
                limiter.drain(PATIENT).await.unwrap();
                let mut charged = Vec::new();
                for policy in policies.concat() {
                    charged.push((LIMIT - units_left(&limiter, &policy).await).to_string());
                }
                let is_answered = match steps.rsplit("; ").next().unwrap() {
                    "fails" | "hangs" => None,
                    "rejects" => Some(429),
                    last => Some(last.parse().unwrap_or(200)),
                };
                let mut wrong = std::mem::take(&mut *wrong.lock().unwrap());
                if charged.join(" ") != expected || status != is_answered {
                    wrong.push(format!(
                        "{expected} expected, {} charged, status {status:?}",
                        charged.join(" ")
                    ));
                }
                differ
                    .extend(wrong.iter().map(|one| format!("line {line}, {name}, {place}, {store}: {one}")));
            }
        }
    }
    assert!(differ.is_empty(), "{} differ:\n{}", differ.len(), differ.join("\n"));
}
