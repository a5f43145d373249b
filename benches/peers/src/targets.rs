//! The targets, each with the result of this run.

use std::fmt::Write;

use serde::Serialize;

use crate::{
    bench::median, contender::Role, figures::Figures, format::ratio, growth::Axis, report::REDIS_PEERS,
    scenario::Scenario, verify::TOGETHER,
};

/// A bound, and which side of it meets the target.
#[derive(Clone, Copy)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}
use Bound::{AtLeast, AtMost};

#[derive(Serialize)]
pub(crate) struct Target {
    name: String,
    /// Such as `>= 1.00 x`.
    target: String,
    now: String,
    met: Option<bool>,
}

pub(crate) fn targets(figures: &Figures<'_>) -> Vec<Target> {
    let mut targets = Vec::new();
    exact(figures, &mut targets);
    cpu(figures, &mut targets);
    shortcuts(figures, &mut targets);
    in_process(figures, &mut targets);
    elsewhere(figures, &mut targets);
    targets
}

pub(crate) fn section(targets: &[Target]) -> String {
    let mut text =
        "## Targets\n\ntower-redis-cell is the better one of its two rows, with its native module.\n\n\
                    | | target | now | met? |\n|---|---|---|---|\n"
            .to_owned();
    for Target { name, target, now, met } in targets {
        let met = match met {
            None => "not measured",
            Some(true) => "yes",
            Some(false) => "**no**",
        };
        let _ = writeln!(text, "| {name} | {target} | {now} | {met} |");
    }
    text + "\nNot measured by this program: instructions, a Cluster, and the memory of algorithms other than GCRA.\n"
}

fn exact(figures: &Figures<'_>, targets: &mut Vec<Target>) {
    let over =
        |scenario| divide(figures.of(Role::OurRedis, scenario), figures.best(&[Role::ModulePeer], scenario));
    let (stored, idle) = ("stored keys", "idle keys");
    let eager = "stored keys, eager callers";
    for (keys, scenario, least) in [
        (stored, Scenario::Stored1, 1.0),
        (stored, Scenario::Stored8, 0.95),
        (stored, Scenario::Stored16, 0.95),
        (stored, Scenario::Stored32, 1.05),
        (stored, Scenario::Stored64, 1.15),
        (stored, Scenario::Stored256, 1.3),
        (eager, Scenario::Eager1, 1.0),
        (eager, Scenario::Eager8, 0.95),
        (eager, Scenario::Eager16, 0.95),
        (eager, Scenario::Eager32, 1.05),
        (eager, Scenario::Eager64, 1.15),
        (eager, Scenario::Eager256, 1.3),
        (idle, Scenario::Idle1, 0.6),
        (idle, Scenario::Idle16, 0.85),
        (idle, Scenario::Idle64, 1.2),
        (idle, Scenario::Idle256, 1.4),
    ] {
        let name = format!("exact, {keys}, {} in flight: over tower-redis-cell", scenario.in_flight());
        let now = if scenario.in_flight() == 1 {
            // The results are times.
            figures
                .least(&[Role::ModulePeer], scenario)
                .zip(figures.of(Role::OurRedis, scenario))
                .map(|((module, _), ours)| module / ours)
        } else {
            over(scenario)
        };
        targets.push(times(&name, AtLeast(least), now));
    }
    for scenario in [Scenario::Hot64, Scenario::Hot256] {
        let name = format!("the same, one hot key, {} in flight", scenario.in_flight());
        targets.push(times(&name, AtLeast(2.0), over(scenario)));
    }
    let two = [Role::OurSeveral(2), Role::ModuleSeveral(2)].map(|role| figures.of(role, Scenario::Stored64));
    let two = two[0].zip(two[1]).map(|(ours, module)| ours / module);
    let name = "two policies, stored keys, 64 in flight: over two calls of the module in a pipeline";
    targets.push(times(name, AtLeast(1.3), two));
}

fn cpu(figures: &Figures<'_>, targets: &mut Vec<Target>) {
    let call = |decisions| {
        let calls = figures.calls.iter().find(|calls| calls.decisions == decisions)?;
        let [ours, module] =
            [&calls.ours, &calls.module].map(|rounds| Some(median(rounds)).filter(|cpu| !cpu.is_nan()));
        Some((ours?, module))
    };
    for (decisions, most) in [(16, 1.15), (64, 1.1)] {
        let now = call(decisions).and_then(|(ours, module)| Some(ours / module?));
        let name = format!("Redis CPU a decision in batches of {decisions}: over the module's");
        targets.push(times(&name, AtMost(most), now));
    }
    let module = call(1).and_then(|(_, module)| module);
    let name = match module {
        Some(module) => {
            format!("Redis CPU of a call with one decision (the module in this run: {module:.1} µs)")
        }
        None => "Redis CPU of a call with one decision".to_owned(),
    };
    let lone = call(1).map(|(ours, _)| ours);
    targets.push(Target::new(&name, AtMost(9.5), lone, |value| format!("{value:.1} µs")));
    for scenario in [Scenario::Stored16, Scenario::Stored64] {
        let least = |role| figures.least_cpu(&[role], scenario, |rounds| &rounds.client_cpu);
        let now = least(Role::OurRedis).zip(least(Role::ModulePeer)).map(|(ours, module)| ours / module);
        let name =
            format!("client CPU a decision, {} in flight: over tower-redis-cell's", scenario.in_flight());
        targets.push(times(&name, AtMost(0.6), now));
    }
}

fn shortcuts(figures: &Figures<'_>, targets: &mut Vec<Target>) {
    let denied = figures.of(Role::OurRedis, Scenario::Denied);
    let peer = divide(denied, figures.best(&REDIS_PEERS, Scenario::Denied));
    targets.push(times("denied, one hot key: over the best peer on Redis", AtLeast(10.0), peer));
    let none = divide(denied, figures.best(&[Role::NoLimiter], Scenario::Denied));
    targets.push(times("denied, one hot key: over no limiter", AtLeast(0.3), none));
    for (units, least) in [(10_000, 12.0), (1_000, 8.0)] {
        let role = Role::OurLeased(units);
        let over = divide(figures.of(role, Scenario::Hot64), figures.best(&REDIS_PEERS, Scenario::Hot64));
        let name = format!("allowed, one hot key, leased({units}): over the best peer on Redis");
        targets.push(times(&name, AtLeast(least), over));
        let p99 = figures.of(role, Scenario::HotTail).map(|nanoseconds| nanoseconds / 1e6);
        targets.push(Target::new(&format!("leased({units}): p99"), AtMost(0.5), p99, |value| {
            format!("{value:.3} ms")
        }));
        let found = figures.named(role).and_then(|leased| figures.verified.get(&leased.name)?.as_ref().ok());
        let above = found.map(|found| found.together.saturating_sub(TOGETHER.into()) as f64);
        let name = format!("leased({units}): units admitted above the limit, two instances");
        targets.push(Target::new(&name, AtMost(0.0), above, |value| format!("{value:.0}")));
    }
}

fn in_process(figures: &Figures<'_>, targets: &mut Vec<Target>) {
    let both = |scenario| figures.of(Role::OurMemory, scenario).zip(figures.of(Role::Governor, scenario));
    let name = "`MemoryStore`, 10,000 keys, allowed, 1 thread: over tower_governor";
    for (requests, one, two) in [
        ("requests with an extension", Scenario::Extended1, Scenario::Extended64),
        ("requests without an extension", Scenario::OneThread, Scenario::Stored64),
    ] {
        let one = both(one).map(|(ours, governor)| governor / ours);
        targets.push(times(&format!("{name}, {requests}"), AtLeast(0.85), one));
        let two = both(two).map(|(ours, governor)| ours / governor);
        targets.push(times("the same, 2 threads", AtLeast(0.9), two));
    }
    let denied = both(Scenario::Denied).map(|(ours, governor)| ours / governor);
    targets.push(times("`MemoryStore`, denied: over tower_governor", AtLeast(20.0), denied));
    let above = both(Scenario::Alone).zip(figures.of(Role::NoLimiter, Scenario::Alone));
    let above = above.map(|((ours, governor), none)| (ours - none) / (governor - none));
    let name = "layer with a ready answer, time above no limiter: over tower_governor's";
    targets.push(times(name, AtMost(1.0), above));
}

fn elsewhere(figures: &Figures<'_>, targets: &mut Vec<Target>) {
    let bytes = figures.short_key.as_ref().filter(|size| size.key == 20).map(|size| size.bytes as f64);
    let name = "Redis memory a key, GCRA, a key of 20 bytes";
    targets.push(Target::new(name, AtMost(80.0), bytes, |value| format!("{value:.0} B")));
    let (p50, rate) = match figures.networks.iter().find(|network| network.round_trip.as_millis() == 1) {
        Some(network) => figures.far(network),
        None => (None, None),
    };
    targets.push(times("1 ms of network: p50 at 64 in flight over a lone call's", AtMost(1.3), p50));
    targets.push(times("1 ms of network: 256 in flight over tower-redis-cell", AtLeast(1.4), rate));
    let series = [
        ("Gcra", Axis::Keys, "100 to 1,000,000 keys"),
        ("SlidingWindow", Axis::Keys, "100 to 1,000,000 keys"),
        ("Gcra", Axis::Limit, "a limit of 10 to 1,000,000"),
        ("SlidingWindow", Axis::Limit, "a limit of 10 to 1,000,000"),
        ("SlidingLog", Axis::Limit, "a limit of 10 to 1,000,000"),
    ];
    for (series, axis, from) in series {
        let name = format!("growth, {series}, {from}: dearest Redis CPU over cheapest");
        targets.push(times(&name, AtMost(FLAT), figures.spread(series, axis)));
    }
    for (kind, store, least) in [("memory", "MemoryStore", 0.88), ("redis", "RedisStore", 0.55)] {
        let share = figures.whole_server.as_ref().and_then(|server| server.share(kind));
        let name = format!("a whole axum server, `{store}`: share of requests/s kept");
        targets.push(Target::new(&name, AtLeast(least), share, |value| format!("{value:.2}")));
    }
    for connections in [8, 16] {
        let over = figures.whole_server.as_ref().and_then(|server| server.over_module(connections));
        let name = format!("a whole axum server, {connections} connections: over tower-redis-cell's layer");
        targets.push(times(&name, AtLeast(1.0), over));
    }
}

/// Cost that does not grow still differs from point to point, by the noise and by what the processor's caches hold.
const FLAT: f64 = 1.25;

fn divide(ours: Option<f64>, reference: Option<(f64, &str)>) -> Option<f64> {
    Some(ours? / reference?.0)
}

fn times(name: &str, bound: Bound, value: Option<f64>) -> Target {
    Target::new(name, bound, value, |value| format!("{} x", ratio(value)))
}

impl Target {
    fn new(name: &str, bound: Bound, value: Option<f64>, show: impl Fn(f64) -> String) -> Self {
        let (sign, limit) = match bound {
            AtLeast(limit) => (">=", limit),
            AtMost(limit) => ("<=", limit),
        };
        let met = value.map(|value| match bound {
            AtLeast(limit) => value >= limit,
            AtMost(limit) => value <= limit,
        });
        Self {
            name: name.to_owned(),
            target: format!("{sign} {}", show(limit)),
            now: value.map_or("-".to_owned(), show),
            met,
        }
    }
}
