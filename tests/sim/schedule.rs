//! A schedule from a seed, carried out to its end.

use std::{
    collections::BTreeMap,
    future::{Future as _, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use tokio::{
    runtime::Handle,
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep, timeout},
};

use super::{
    callers::{Shared, call},
    end,
    faults::{Event, Weather, events},
    holders::{self, drain_at_times, hold, hold_in},
    instance::Instances,
    ledger::Ledger,
    log::Log,
    network::Network,
    operators::operate,
    permits::Permits,
    random::Random,
    rules::rules,
    sides::Sides,
    usage::{Usage, stream},
};

/// How a schedule went.
pub(super) struct Report {
    pub(super) hash: u64,
    pub(super) steps: u64,
    pub(super) decisions: u64,
    pub(super) faults: BTreeMap<&'static str, u64>,
    pub(super) violation: Option<String>,
}

/// Runs the schedule of `seed`.
pub(super) fn run(seed: u64, prints: bool) -> Report {
    let count = if Random::new(!seed).chance(400) { 2 } else { 0 };
    let (runtime, sides) = Sides::new(count);
    let mut schedule = pin!(carry_out(seed, prints, sides.clone()));
    loop {
        let report = runtime.block_on(poll_fn(|cx| match schedule.as_mut().poll(cx) {
            Poll::Ready(report) => Poll::Ready(Some(report)),
            Poll::Pending => sides.poll_asked(cx).map(|()| None),
        }));
        match report {
            Some(report) => return report,
            None => sides.work(),
        }
    }
}

async fn carry_out(seed: u64, prints: bool, sides: Arc<Sides>) -> Report {
    let mut random = Random::new(seed);
    let log = Arc::new(Log::new(prints));
    let network = Arc::new(Network::new(log.clone(), random.fork()));
    let instances = Instances::new(network.clone(), &mut random.fork());
    let rules = rules(&mut random.fork(), instances.count());
    for rule in &rules {
        log.note(format_args!("{:?}, changed to {:?}", rule.policy, rule.changed.quota()));
    }
    let ledger = Ledger::new(rules, random.between(1, 2), network.clone());
    let permits = Permits::new(&mut random.fork(), instances.count(), network.clone());
    let usage = Usage::new(instances.count());
    let shared = Arc::new(Shared { ledger, permits, usage, instances, sides, network: network.clone() });
    let loses_data = random.chance(500);
    let events = events(&mut random, shared.instances.count(), loses_data);
    let mut callers = JoinSet::new();
    for _ in 0..random.between(2, 12) {
        callers.spawn(call(shared.clone(), random.fork()));
    }
    if random.chance(600) {
        for _ in 0..random.between(1, 4) {
            callers.spawn(hold(shared.clone(), random.fork()));
        }
    }
    for side in 0..shared.sides.count() {
        callers.spawn(hold_in(side, shared.clone(), random.fork()));
    }
    if random.chance(400) {
        for _ in 0..random.between(1, 3) {
            callers.spawn(stream(shared.clone(), random.fork()));
        }
    }
    if random.chance(500) {
        callers.spawn(drain_at_times(shared.clone(), random.fork()));
    }
    if random.chance(500) {
        callers.spawn(operate(shared.clone(), random.fork()));
    }
    let watch = tokio::spawn(watch(shared.clone(), network.clone()));
    for (pause, event) in events {
        sleep(pause).await;
        if log.violation().is_some() {
            break;
        }
        apply(&network, &shared, event);
    }
    for side in 0..shared.sides.count() {
        holders::end(side, &shared).await;
    }
    heal(&network);
    end::recovers(&shared, &network).await;
    let waits = Instant::now();
    if timeout(Duration::from_secs(60), async { while callers.join_next().await.is_some() {} }).await.is_err()
    {
        log.violated(format_args!("a caller waits since {:?}", waits.elapsed()));
    }
    drop(callers);
    stop(watch).await;
    if log.violation().is_none() {
        end::counts_are_right(&shared, &network).await;
    }
    // It takes minutes.
    if seed % 4 == 1 && log.violation().is_none() {
        end::permits_keep_their_period(&shared, &network).await;
    }
    // So does this. After the clock was set back, those that have ended expire later.
    if seed.is_multiple_of(4) && log.violation().is_none() && !shared.ledger.clock_was_set() {
        end::instances_are_counted(&shared, &network).await;
    }
    let decisions = shared.ledger.decisions();
    if log.violation().is_none() {
        end::nothing_is_left(shared, &network).await;
    }
    let (hash, steps) = log.hash();
    let violation = log.violation().map(ToOwned::to_owned);
    Report { hash, steps, decisions, faults: network.counts(), violation }
}

fn apply(network: &Arc<Network>, shared: &Shared, event: Event) {
    network.log.note(format_args!("{event:?}"));
    network.count(event.name());
    let server = || network.server.lock().unwrap();
    match event {
        Event::Weather(weather) => network.set_weather(weather),
        Event::CutAll => network.cut_all(),
        Event::CutOne => network.cut_one(),
        Event::ForgetAll => network.forget_all(),
        Event::Freeze => server().power = super::server::Power::Frozen,
        Event::Thaw => network.thaw(),
        Event::Kill => network.kill(),
        Event::Restart { keeps_data } => {
            server().restart(keeps_data);
            if !keeps_data {
                shared.ledger.data_lost();
                shared.permits.lost();
            }
        }
        Event::FlushScripts => server().flush_scripts(),
        Event::Fail(error) => server().failing = error,
        Event::FailWrites(error) => {
            server().data.failing_writes = error;
            shared.ledger.full(error.is_some_and(|error| error.starts_with("OOM")));
        }
        Event::StepClock { by, back } => {
            server().step_clock(by, back);
            shared.ledger.clock_set(if back { Duration::ZERO } else { by });
            if back { shared.permits.clock_set_back() } else { shared.permits.lost() }
        }
        Event::Crash(number) => {
            shared.ledger.crashed();
            shared.permits.crashed(&shared.instances.get(number).owner.name);
            shared.instances.crash(number);
        }
        Event::Change(number) => shared.instances.change(number),
    }
}

/// Ends all faults.
fn heal(network: &Network) {
    network.log.note(format_args!("all faults end"));
    network.heal();
    network.set_weather(Weather::CALM);
    network.thaw();
    let server = &mut *network.server.lock().unwrap();
    (server.failing, server.data.failing_writes) = (None, None);
}

/// Checks from time to time what must always hold.
async fn watch(shared: Arc<Shared>, network: Arc<Network>) {
    loop {
        sleep(Duration::from_millis(100)).await;
        shared.permits.check();
        for instance in shared.instances.all() {
            let (connections, most) = (instance.pool.state().connections, instance.connections);
            if connections > most {
                network.log.violated(format_args!("{connections} connections in a pool of {most}"));
            }
            let leased = instance.store.lease_status();
            let hot = shared.ledger.rules.last().unwrap();
            let bound = hot.leased.min(hot.largest);
            if leased.units > bound {
                network.log.violated(format_args!("{leased:?}, and at most {bound} may be"));
            }
        }
        if Handle::current().metrics().num_alive_tasks() > 3_000 {
            network.log.violated(format_args!("tasks pile up"));
        }
    }
}

async fn stop(task: JoinHandle<()>) {
    task.abort();
    let _ = task.await;
}
