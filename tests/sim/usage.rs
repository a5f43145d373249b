//! Requests through two layers that reserve tokens and cents, from clients that leave at any moment: what stays charged
//! is what was used, of each unit.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{Request, Response};
use tokio::time::{sleep, timeout};
use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_ratelimit::{
    FailureMode, Key, Policy, Quota, RateLimitLayer, Reservation, Rule, algorithm::FixedWindow,
};

use super::{callers::Shared, instance::Instance, random::Random};

const LIMIT: u64 = 1_000_000;
/// The estimates of both units.
const ESTIMATES: [u64; 2] = [400, 20];
pub(super) const UNITS: [&str; 2] = ["tokens", "cents"];
pub(super) const CLIENTS: u64 = 3;
const DAY: Duration = Duration::from_secs(86_400);

/// What clients have used.
pub(super) struct Usage {
    policies: [Policy; 2],
    clients: Mutex<Vec<Client>>,
}

/// What a client has used, of each unit.
#[derive(Clone, Copy, Default)]
struct Client {
    used: [u64; 2],
    /// Units that requests may have been charged in addition: those that were dropped while they were decided.
    unclear: [u64; 2],
    /// Whether an instance crashed that had decided about it.
    is_unknown: bool,
}

/// What the handler of a request does.
#[derive(Clone)]
struct Work {
    random: Random,
    /// What it has used, once it has begun.
    used: Arc<Mutex<Option<[u64; 2]>>>,
}

impl Usage {
    pub(super) fn new(instances: usize) -> Self {
        let policy = |name| {
            Policy::new(name, Quota::new(LIMIT, DAY))
                .algorithm(FixedWindow::anchored())
                .max_debt(LIMIT)
                .notify_at([1, 2, 5])
                .failure_mode(FailureMode::Local { instances: instances as u32 })
        };
        Self { policies: UNITS.map(policy), clients: Mutex::new(vec![Client::default(); CLIENTS as usize]) }
    }

    fn layer(&self, instance: &Instance, unit: usize) -> RateLimitLayer {
        let key =
            |request: &http::request::Parts| Key::new(request.extensions.get::<u64>().unwrap().to_string());
        let rule =
            Rule::new(self.policies[unit].clone(), key).cost(move |_| ESTIMATES[unit]).unit(UNITS[unit]);
        RateLimitLayer::with_rules(instance.limiter.clone(), rule.reserve_or_refund())
    }
}

/// Reports what it uses, part by part.
async fn handle(request: Request<Work>) -> Result<Response<String>, Infallible> {
    let reservation = Reservation::from_extensions(request.extensions()).unwrap().clone();
    let Work { mut random, used, .. } = request.into_body();
    let mut total = [0, 0];
    *used.lock().unwrap() = Some(total);
    for _ in 0..random.between(0, 6) {
        sleep(Duration::from_millis(random.below(80))).await;
        total = [total[0] + random.below(200), total[1] + random.below(10)];
        *used.lock().unwrap() = Some(total);
        let each = [(UNITS[0], total[0]), (UNITS[1], total[1])];
        reservation.record(each);
        if random.chance(300) {
            drop(reservation.extend_to(each));
        }
    }
    let each = [(UNITS[0], total[0]), (UNITS[1], total[1])];
    match random.below(3) {
        0 => drop(reservation.settle(each).await),
        1 => drop(reservation.settle(each)),
        _ => {}
    }
    Ok(Response::new(String::new()))
}

/// Sends requests of clients, one after another, some of which leave.
pub(super) async fn stream(shared: Arc<Shared>, mut random: Random) {
    let number = random.below(shared.instances.count() as u64) as usize;
    for _ in 0..random.between(3, 25) {
        let instance = shared.instances.get(number);
        let client = random.below(CLIENTS);
        let used = Arc::new(Mutex::new(None));
        let mut request = Request::new(Work { random: random.fork(), used: used.clone() });
        request.extensions_mut().insert(client);
        let [tokens, cents] = [0, 1].map(|unit| shared.usage.layer(&instance, unit));
        let service = tokens.layer(cents.layer(service_fn(handle)));
        let leaves = random.chance(400);
        let patience = Duration::from_millis(if leaves { random.below(250) } else { 60_000 });
        // Its decisions start the reconciling of an outage, too.
        shared.ledger.drains(&instance.owner.name, true);
        let answer = timeout(patience, service.oneshot(request)).await;
        shared.ledger.drains(&instance.owner.name, false);
        let shown = answer.as_ref().map(|answer| answer.as_ref().unwrap().status().as_u16());
        let used = *used.lock().unwrap();
        shared.network.log.note(format_args!("stream of {client}: {shown:?}, {used:?} used"));
        let clients = &mut *shared.usage.clients.lock().unwrap();
        let known = &mut clients[client as usize];
        // After a crash, what it would settle is lost.
        known.is_unknown |= !shared.instances.is_running(&instance);
        for unit in 0..2 {
            match used {
                Some(used) => known.used[unit] += used[unit],
                None => known.unclear[unit] += ESTIMATES[unit],
            }
        }
        drop(answer);
    }
}

/// Checks what stays charged. Call it after all instances are drained.
pub(super) async fn is_charged(shared: &Shared) {
    let instance = shared.instances.get(0);
    let clients = shared.usage.clients.lock().unwrap().clone();
    for (number, client) in clients.iter().enumerate() {
        for (unit, policy) in shared.usage.policies.iter().enumerate() {
            let key = format!("rl:{}:fixed-window:{{{number}}}", UNITS[unit]);
            let is_clear = !shared.ledger.loses_leases()
                && !shared.network.had_late_reply()
                && shared.network.last_trouble(&key).is_none()
                && !shared.network.is_repeated(&key);
            if !is_clear || client.is_unknown {
                continue;
            }
            let peek = instance.limiter.peek(policy, &Key::new(number.to_string()), 0).await;
            let charged = peek.ok().and_then(|peek| peek.remaining()).map(|remaining| LIMIT - remaining);
            let (used, unclear) = (client.used[unit], client.unclear[unit]);
            if charged.is_none_or(|charged| charged < used || charged > used + unclear) {
                let log = &shared.network.log;
                log.violated(format_args!(
                    "{key}: {charged:?} charged, {used} used, and {unclear} of dropped requests"
                ));
            }
        }
    }
}
