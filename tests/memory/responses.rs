//! Tables of responses. A row is a name, what a request passes from the outside in, and what happens then, a line each:
//!
//! ```text
//! a name that says what the row shows
//!     api 5/min (cost 2) + wide 9/h with draft-07, no headers > sets etag: 1 > handler exports
//!     2 x GET /export (x-user: alice) -> 200 & ratelimit: "api";r=4;t=48 & no retry-after & body has hello
//!     wait 60s
//!     left wide 7
//! ```
//!
//! A layer has rules with ` + ` between them, then its settings; `then rule` makes another layer with the settings before it.
//! The store of a layer has the clock of the row. `sets` and `answers` change a response on its way out. Without a handler,
//! the service answers `hello`. A header with several lines has ` + ` between them. A row whose layers have alternatives,
//! `{draft-06|draft-07}`, runs once for each; several such lists of a row advance together.

use std::{convert::Infallible, fmt::Write as _, time::Duration};

use axum::{
    Json,
    body::Body,
    handler::{Handler, HandlerWithoutStateExt as _},
    response::IntoResponse,
};
use http::{HeaderMap, HeaderName, Request, Response, request::Parts};
use serde_json::json;
use sfv::{Dictionary, FieldType as _, List, Parser};
use support::{Down, Fake, Says, inner::text, table, units_left};
use tower::{Layer as _, ServiceExt as _};
use tower_ratelimit::{
    Answer, Charge, Decision, Error, ErrorKind, FailureMode, Header, Key, KeyExtractor, Limiter, MemoryStore,
    PeerIp, Policy, PolicySource, Quota, RateLimitHeaders, RateLimitLayer, Rejection, Rule,
    algorithm::{FixedWindow, TokenBucket},
    decision::{Outcome, Verdict},
    key::GrpcMethod,
    policy::{Enforcement, Penalty, QuotaUnit},
    response::{Dialect, GrpcStatus, RejectionBody, ResponseMapper},
    store::ManualClock,
};

/// The name of the policy that a table calls `HOSTILE`.
pub(crate) const HOSTILE: &str = r#"a "quoted" \ {name}, ;q=1"#;

type Service = tower::util::BoxCloneSyncService<Request<Body>, Response<Body>, Infallible>;

/// Runs the rows of a file in `tables`, and reports all that differ.
pub(crate) async fn check(file: &str) {
    let table = format!("{}/memory/tables/{file}", env!("CARGO_MANIFEST_DIR"));
    let table = std::fs::read_to_string(table).unwrap();
    let mut wrong = String::new();
    for [name, layers, lines] in table::rows(&table) {
        let line = 1 + table.lines().position(|line| line.split(" | ").next() == Some(&name)).unwrap();
        for layers in alternatives(&layers) {
            let mut row = Row::new(&layers);
            for step in lines.split(" | ") {
                if let Err(seen) = row.step(step).await {
                    writeln!(wrong, "{file}:{line}, {name}, {layers}\n  expected {step}\n  seen     {seen}")
                        .unwrap();
                }
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

/// `text` with the first alternative of each of its lists, then with the second one.
fn alternatives(text: &str) -> Vec<String> {
    let text = text.replace("{single-value}", "{draft-07|draft-06|delta|epoch}");
    let count =
        text.split_once('{').map_or(1, |(_, rest)| rest.split('}').next().unwrap().split('|').count());
    let part = |at: usize, part: &str| match part.split_once('}') {
        Some((list, rest)) => list.split('|').nth(at).unwrap().to_owned() + rest,
        None => part.to_owned(),
    };
    (0..count).map(|at| text.split('{').map(|text| part(at, text)).collect()).collect()
}

fn time(text: &str) -> Duration {
    format!("1/{text}").parse::<Quota>().unwrap().period()
}

fn dialect(name: &str) -> Option<Dialect> {
    Some(match name {
        "ietf" => Dialect::Ietf,
        "next" => Dialect::IetfNext,
        "draft-07" => Dialect::IetfDraft07,
        "draft-06" => Dialect::IetfDraft06,
        "delta" => Dialect::LegacyDelta,
        "epoch" => Dialect::LegacyEpoch,
        _ => return None,
    })
}

/// A policy in the extensions of a request.
#[derive(Clone)]
struct Plan(Policy);

/// `api 5/min (option, option)`: the policy, and the rule.
fn rule(text: &str) -> (Policy, Rule) {
    let (text, options) = text.split_once(" (").unwrap_or((text, ""));
    let options = options.trim_end_matches(')').split(", ").filter(|option| !option.is_empty());
    let options = options.map(|option| option.split_once(' ').unwrap_or((option, "")));
    let (name, quota) = text.split_once(' ').unwrap();
    let name = if name == "HOSTILE" { HOSTILE } else { name };
    let mut policy = match quota.strip_suffix(" permits") {
        Some(permits) => Policy::concurrency(name, permits.parse().unwrap()),
        None => Policy::new(name, quota.parse().unwrap()),
    };
    let mut key: Box<dyn KeyExtractor> = Box::new(Key::new("all"));
    let (mut others, mut source) = (Vec::new(), None);
    let plans = || PolicySource::from_extension(|plan: &Plan| plan.0.clone());
    for (option, value) in options {
        match option {
            "anchored" => policy = policy.algorithm(FixedWindow::anchored()),
            "aligned" => policy = policy.algorithm(FixedWindow::aligned()),
            "step" => policy = policy.algorithm(TokenBucket::new().refill_every(time(value))),
            "closed" => policy = policy.failure_mode(FailureMode::Closed),
            "open" => policy = policy.failure_mode(FailureMode::Open),
            "bytes" => policy = policy.quota_unit(QuotaUnit::ContentBytes),
            "banning" => policy = policy.penalty(Penalty::after(1, time(value)).ban(time(value))),
            "key" => key = Box::new(Key::new(value)),
            "header" => key = Box::new(Header::new(value)),
            "grpc-method" => key = Box::new(GrpcMethod::new()),
            // The policy is in the extensions of the request; `or-plan` has the other one if it is missing.
            "plan" => source = Some(plans()),
            "or-plan" => source = Some(plans().or(policy.clone())),
            "peer" => key = Box::new(PeerIp::new()),
            "failing-key" => {
                let secret = "secret of an extractor";
                key = Box::new(move |_: &Parts| Err::<Key, _>(Error::new(ErrorKind::StoreReply, secret)));
            }
            "late-key" => {
                let missing = || Error::new(ErrorKind::MissingIdentity, "the request shows no identity");
                key = Box::new(move |_: &Parts| Answer::<Key>::pending(async move { Err(missing()) }));
            }
            _ => others.push((option, value)),
        }
    }
    let mut rule = Rule::new(source.unwrap_or_else(|| policy.clone().into()), key);
    for (option, value) in others {
        rule = match option {
            "cost" => {
                let cost: u64 = value.parse().unwrap();
                rule.cost(move |_| cost)
            }
            // The request states its cost.
            "priced" => rule.cost(|request| {
                request.headers.get("x-cost").map_or(1, |cost| cost.to_str().unwrap().parse().unwrap())
            }),
            "skipping" => {
                let path = value.to_owned();
                rule.skip_if(move |request| request.uri.path() == path)
            }
            "unit" => rule.unit(value.to_owned().leak()),
            "refunding" => {
                let status: u16 = value.parse().unwrap();
                rule.count_if(move |response| response.status != status)
            }
            _ => panic!("the option {option} is unknown"),
        };
    }
    (policy, rule)
}

/// `rule + rule with setting, setting`: the layer, and what its rules charge.
fn layer(text: &str, clock: &ManualClock) -> (RateLimitLayer, Vec<(Policy, Limiter)>) {
    let (rules, settings) = text.split_once(" with ").unwrap_or((text, ""));
    let settings: Vec<_> = settings.split(", ").filter(|setting| !setting.is_empty()).collect();
    let most = |verdict: Verdict, left| {
        Limiter::new(Says(move |charge: &Charge| Outcome::new(charge, verdict, left, Duration::MAX)))
    };
    let mut stores = settings.iter().filter_map(|setting| match *setting {
        "a store that is down" => Some(Limiter::new(Down)),
        "a store that admits with the largest numbers" => Some(most(Verdict::Admit, u64::MAX)),
        "a store that denies with the largest numbers" => Some(most(Verdict::deny(Some(Duration::MAX)), 0)),
        _ => setting
            .strip_prefix("a store that fails with ")
            .map(|name| Limiter::new(Fake::failing(kind(name)))),
    });
    let limiter = stores.next().unwrap_or_else(|| Limiter::new(MemoryStore::with_clock(clock.clone())));
    let (mut policies, mut rules): (Vec<_>, Vec<_>) = rules.split(" + ").map(rule).unzip();
    let first = RateLimitLayer::with_rules(limiter.clone(), rules.remove(0));
    let mut layer = rules.into_iter().fold(first, RateLimitLayer::rule);
    let mut headers: Option<RateLimitHeaders> = None;
    for setting in settings {
        let is_default = headers.is_none();
        let shown = headers.clone().unwrap_or_default();
        headers = Some(match setting {
            "no headers" => RateLimitHeaders::off(),
            "binding only" => shown.binding_only(),
            "on redirects" => shown.on_redirects(),
            "on rejections only" => shown.on_rejections_only(),
            "milliseconds" => shown.retry_after_ms(),
            _ => match (setting.strip_prefix("secret "), dialect(setting)) {
                (Some(secret), _) => shown.partition_key(secret),
                (None, Some(dialect)) if is_default => RateLimitHeaders::new(dialect),
                (None, Some(dialect)) => shown.and(dialect),
                (None, None) => {
                    if let Some(text) = setting.strip_prefix("then ") {
                        let (policy, rule) = rule(text);
                        policies.push(policy);
                        layer = layer.headers(shown).with_same_settings(rule);
                        headers = None;
                    } else {
                        layer = set(layer, setting);
                    }
                    continue;
                }
            },
        });
    }
    if let Some(headers) = headers {
        layer = layer.headers(headers);
    }
    (layer, policies.into_iter().map(|policy| (policy, limiter.clone())).collect())
}

/// `layer` with a setting that is not one of its headers.
fn set(layer: RateLimitLayer, setting: &str) -> RateLimitLayer {
    match setting.split_once(' ').unwrap_or((setting, "")) {
        ("report", "only") => layer.enforcement(Enforcement::ReportOnly),
        ("off", "") => layer.enforcement(Enforcement::Off),
        ("exempting", "all") => layer.exempt_if(|_| true),
        ("exempting", "the health checks of gRPC") => {
            layer.exempt_if(GrpcMethod::service().any_of(["grpc.health.v1.Health"]))
        }
        ("exempting", path) => {
            let path = path.to_owned();
            layer.exempt_if(move |request| request.uri.path() == path)
        }
        ("blocking", "all") => layer.block_if(|_| true),
        ("blocking", header) => {
            let header = header.to_owned();
            layer.block_if(move |request| request.headers.contains_key(&header))
        }
        ("a", store) if store.starts_with("store that ") => layer,
        ("mapper", "ours") => layer.response(ours),
        ("mapper", "rejection") => layer.response(|rejection: &Rejection, _: &Parts| rejection.clone()),
        ("mapper", "without a status") => {
            layer.response(|rejection: &Rejection, _: &Parts| Json(json!({ "error": rejection.to_string() })))
        }
        ("mapper", "blind") => layer.response(Blind),
        ("mapper", "aborting") => layer.grpc_response(aborted),
        // A status, and headers with `;` between them, or a text. The body has the path.
        ("mapper", text) => {
            let text = text.to_owned();
            layer.response(move |rejection: &Rejection, request: &Parts| {
                let mut parts = text.split("; ");
                let status = match parts.next().unwrap() {
                    "its-status" => rejection.status(),
                    status => status.parse().unwrap(),
                };
                let response = Response::builder().status(status);
                let lines = parts.map(|line| line.split_once(": ").unwrap());
                let response = lines.fold(response, |response, (name, value)| response.header(name, value));
                response.body(request.uri.path().to_owned()).unwrap()
            })
        }
        _ => panic!("the setting {setting} is unknown"),
    }
}

/// A custom format that shows parts of the request and of the rejection.
pub(crate) fn ours(rejection: &Rejection, request: &Parts) -> impl IntoResponse + use<> {
    let agent = request.headers.get("user-agent").map(|agent| agent.to_str().unwrap().to_owned());
    let user = request.extensions.get::<u32>().copied();
    // In this order with each feature of serde_json.
    Json(json!({ "agent": agent, "path": request.uri.path(), "user": user, "why": rejection.to_string() }))
}

/// Another code than the default one.
fn aborted(rejection: &Rejection, call: &Parts) -> Response<RejectionBody> {
    let mut response = GrpcStatus::default().response(rejection, call);
    response.headers_mut().insert("grpc-status", 10.into());
    response
}

/// A mapper whose `reads_request` returns `false`.
struct Blind;

impl ResponseMapper for Blind {
    fn response(&self, _: &Rejection, request: &Parts) -> Response<RejectionBody> {
        Response::new(RejectionBody::new(format!("{} {}", request.method, request.headers.len())))
    }

    fn reads_request(&self) -> bool {
        false
    }
}

fn returns(status: u16, decision: Decision) -> Response<Body> {
    let mut response = Response::builder().status(status).body(Body::empty()).unwrap();
    response.extensions_mut().insert(decision);
    response
}

/// Charges a unit of a policy to a key, which a layer of the row does not know.
async fn checks(limiter: &Limiter, name: &str, quota: &str, key: &str) -> Result<Decision, Rejection> {
    let policy = Policy::new(name, quota.parse().unwrap());
    limiter.check(&policy, &Key::new(key), 1).await?.into_result()
}

fn kind(name: &str) -> ErrorKind {
    use ErrorKind as Kind;
    let of_clients = [Kind::MissingIdentity, Kind::UnknownIdentity, Kind::InvalidIdentity];
    let others = [Kind::StoreTimeout, Kind::StoreReply, Kind::IdentityUnavailable];
    let kinds = of_clients.into_iter().chain(others).chain([Kind::MissingSetup, Kind::InvalidConfig]);
    kinds.into_iter().find(|kind| format!("{kind:?}") == name).unwrap()
}

/// A rejection of this kind, with this text for operators.
fn rejection(text: &str) -> Rejection {
    let (name, message) = text.split_once(' ').unwrap();
    Rejection::from(Error::new(kind(name), message.to_owned()))
}

fn of<T: 'static>(handler: impl Handler<T, ()>) -> Service {
    Service::new(handler.into_service())
}

fn handler(text: &str) -> Service {
    let (name, value) = text.split_once(' ').unwrap_or((text, ""));
    let value = value.to_owned();
    let status = value.parse().unwrap_or(200);
    match name {
        // Admits one request an hour, with the limiter of the layer; or this quota, with a separate limiter.
        "exports" if value.is_empty() => {
            of(async |limiter: Limiter| checks(&limiter, "exports", "1/h", "alice").await.map(|_| "exported"))
        }
        "exports" => {
            let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::new()));
            of(move || async move { checks(&limiter, "exports", &value, "alice").await.map(|_| "exported") })
        }
        "rejects" => of(move || async move { rejection(&value) }),
        "says-nothing" => {
            of(move || async move { Response::builder().status(status).body(Body::empty()).unwrap() })
        }
        "returns-its-decision" => of(move |decision: Decision| async move { returns(status, decision) }),
        "debits" => of(move |limiter: Limiter, decision: Decision| async move {
            returns(status, limiter.debit(&decision, 2).await.unwrap())
        }),
        "refunds" => of(move |limiter: Limiter, decision: Decision| async move {
            returns(status, limiter.refund(&decision, 2).await.unwrap())
        }),
        "charges-another-key" => {
            of(async |limiter: Limiter| returns(200, checks(&limiter, "p", "9/h", "another").await.unwrap()))
        }
        "takes-what-is-left" => of(async |limiter: Limiter| {
            let other = Policy::new("other", Quota::per_hour(90));
            returns(200, limiter.check_up_to(&other, &Key::new("all"), 100).await.unwrap())
        }),
        "shows-remaining" => of(async |decision: Decision| decision.outcomes()[0].remaining().to_string()),
        // What it sees of a layer that only reports.
        "shows-marks" => of(async |request: Request<Body>| {
            let decision = match Decision::from_extensions(request.extensions()) {
                Some(decision) if !decision.is_admitted() => "denied",
                Some(decision) if decision.binding().is_some() => "admitted",
                _ => "undecided",
            };
            let marks = values(request.headers(), "x-ratelimit-exceeded");
            format!("{decision}, {}", marks.as_deref().unwrap_or("no mark"))
        }),
        _ => panic!("the handler {name} is unknown"),
    }
}

/// All lines of a header.
fn values(headers: &HeaderMap, name: &str) -> Option<String> {
    let lines: Vec<_> = headers.get_all(name).iter().map(|line| line.to_str().unwrap()).collect();
    (!lines.is_empty()).then(|| lines.join(" + "))
}

/// Limit, remaining and reset in any dialect of one policy. The reset of an epoch is from now on `clock`.
fn numbers(headers: &HeaderMap, clock: &ManualClock) -> String {
    if let Some(dictionary) = values(headers, "ratelimit").filter(|text| text.starts_with("limit=")) {
        return dictionary;
    }
    let now = clock.now().as_secs();
    let number = |name: &str| {
        let legacy =
            values(headers, &format!("x-ratelimit-{name}")).map(|value| match value.parse::<u64>() {
                Ok(epoch) if name == "reset" && epoch >= now => (epoch - now).to_string(),
                _ => value,
            });
        let value = values(headers, &format!("ratelimit-{name}")).or(legacy)?;
        Some(format!("{name}={value}"))
    };
    let numbers: Vec<_> = ["limit", "remaining", "reset"].into_iter().filter_map(number).collect();
    numbers.join(", ")
}

/// `GET /path (name: value; name: value)`. With `decision`, a middleware in front reads the decision of the response; `user 7`
/// and `plan gold` are extensions.
fn request(text: &str) -> Request<Body> {
    let (line, options) = text.split_once(" (").unwrap_or((text, ""));
    let (method, path) = line.split_once(' ').unwrap_or((line, "/"));
    let mut request = match method {
        "gRPC" => Request::post(path).header("content-type", "application/grpc"),
        "preflight" => Request::options(path)
            .header("origin", "https://example.org")
            .header("access-control-request-method", "POST"),
        method => Request::builder().method(method).uri(path),
    };
    for option in options.trim_end_matches(')').split("; ").filter(|option| !option.is_empty()) {
        request = match option.split_once(": ") {
            Some((name, value)) => request.header(name, value),
            None if option == "decision" => request.extension(Decision::new([])),
            None => match option.split_once(' ').unwrap() {
                ("plan", name) => request.extension(Plan(Policy::new(name, Quota::per_hour(5)))),
                (_, user) => request.extension(user.parse::<u32>().unwrap()),
            },
        };
    }
    request.body(Body::empty()).unwrap()
}

/// `service` behind something that changes its responses: `sets name: value; name: value` or `answers 302`.
fn changed(service: Service, what: &str) -> Service {
    let what = what.to_owned();
    Service::new(service.map_response(move |mut response: Response<Body>| {
        match what.strip_prefix("answers ") {
            Some(status) => *response.status_mut() = status.parse().unwrap(),
            None => {
                for line in what.strip_prefix("sets ").unwrap().split("; ") {
                    let (name, value) = line.split_once(": ").unwrap();
                    response
                        .headers_mut()
                        .insert(HeaderName::try_from(name).unwrap(), value.parse().unwrap());
                }
            }
        }
        response
    }))
}

/// A row that runs.
struct Row {
    clock: ManualClock,
    service: Service,
    limits: Vec<(Policy, Limiter)>,
    /// Responses that are not read yet.
    held: Vec<Response<Body>>,
}

impl Row {
    fn new(text: &str) -> Self {
        let (clock, mut limits) = (ManualClock::new(), Vec::new());
        let hello = async || Response::new(Body::from("hello"));
        let service = text.rsplit(" > ").fold(Service::new(hello.into_service()), |service, part| {
            if let Some(name) = part.strip_prefix("handler ") {
                return handler(name);
            }
            if part.starts_with("sets ") || part.starts_with("answers ") {
                return changed(service, part);
            }
            let (layer, charged) = layer(part, &clock);
            limits.extend(charged);
            Service::new(layer.layer(service).map_response(|response| response.map(Body::new)))
        });
        Self { clock, service, limits, held: Vec::new() }
    }

    /// Runs a line. The error is what is seen instead of it.
    async fn step(&mut self, step: &str) -> Result<(), String> {
        if let Some(by) = step.strip_prefix("wait ") {
            self.clock.advance(time(by));
            return Ok(());
        }
        if let Some((name, units)) = step.strip_prefix("left ").and_then(|left| left.split_once(' ')) {
            let (policy, limiter) = self.limits.iter().find(|(policy, _)| policy.name() == name).unwrap();
            let seen = units_left(limiter, policy).await.to_string();
            return if seen == units { Ok(()) } else { Err(format!("left {name} {seen}")) };
        }
        let (asked, expected) = step.split_once(" -> ").unwrap();
        let (count, asked) = asked.split_once(" x ").unwrap_or(("1", asked));
        for _ in 0..count.parse().unwrap() {
            let held = asked.strip_prefix("hold ");
            let Ok(response) = self.service.clone().oneshot(request(held.unwrap_or(asked))).await;
            let (head, body) = response.into_parts();
            let said = if held.is_some() {
                self.held.push(Response::new(body));
                String::new()
            } else {
                text(Response::new(body)).await
            };
            let decision = match head.extensions.get::<Decision>() {
                Some(decision) => {
                    let verdict = if decision.is_admitted() { "admitted" } else { "denied" };
                    format!("decision: {verdict} with {} left", decision.remaining().unwrap_or_default())
                }
                None => "no decision".to_owned(),
            };
            let seen = expected.split(" & ").map(|part| match part.split_once(' ').unwrap_or((part, "")) {
                ("body:", _) => format!("body: {said}"),
                ("body", text) => match text.split_once(' ').unwrap() {
                    ("has", text) if said.contains(text) => part.to_owned(),
                    ("lacks", text) if !said.contains(text) => part.to_owned(),
                    _ => format!("body: {said}"),
                },
                ("no", "body") if said.is_empty() => part.to_owned(),
                ("no", "body") => format!("body: {said}"),
                ("length:", _) => format!("length: {}", said.len()),
                ("decision:", _) | ("no", "decision") => decision.clone(),
                ("has", name) if head.headers.contains_key(name) => part.to_owned(),
                ("units:", _) => {
                    let numbers = numbers(&head.headers, &self.clock);
                    format!("units: {}", numbers.split(", reset").next().unwrap_or_default())
                }
                ("numbers:", _) => format!("numbers: {}", numbers(&head.headers, &self.clock)),
                ("no" | "has", name) => shown(&head.headers, name),
                (status, "") if status.len() == 3 => head.status.as_str().to_owned(),
                (name, _) => shown(&head.headers, name.strip_suffix(':').unwrap()),
            });
            let seen = seen.collect::<Vec<_>>().join(" & ");
            if seen != expected {
                return Err(format!("{asked} -> {seen}"));
            }
            for name in ["ratelimit-limit", "x-ratelimit-limit", "x-ratelimit-reset"] {
                if head.headers.get_all(name).iter().count() > 1 {
                    return Err(format!("{name} occurs twice"));
                }
            }
            // A structured header is in its canonical form.
            for name in ["ratelimit", "ratelimit-policy", "x-ratelimit-exceeded"] {
                let field = values(&head.headers, name).unwrap_or_default().replace(" + ", ", ");
                let list = Parser::new(&field).parse::<List>().ok().and_then(|list| list.serialize());
                let dictionary =
                    Parser::new(&field).parse::<Dictionary>().ok().and_then(|all| all.serialize());
                if !field.is_empty() && list.as_ref().or(dictionary.as_ref()) != Some(&field) {
                    return Err(format!("{name} is not canonical: {field}"));
                }
            }
        }
        Ok(())
    }
}

fn shown(headers: &HeaderMap, name: &str) -> String {
    values(headers, name).map_or_else(|| format!("no {name}"), |lines| format!("{name}: {lines}"))
}
