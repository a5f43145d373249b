//! The targets, each with the result of this run.

use std::fmt::Write;

use crate::{
    bench::median,
    contender::Role,
    memory::KeySize,
    report::{REDIS_PEERS, Report, ratio},
    scenario::Scenario,
    verify::TOGETHER,
};

/// A bound, and which side of it meets the target.
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}
use Bound::{AtLeast, AtMost};

struct Table(String);

pub(crate) fn table(report: &Report<'_>, short_key: Option<&KeySize>) -> String {
    use Role::{Governor, ModulePeer, NoLimiter, OurLeased, OurMemory, OurRedis, ScriptPeer};
    use Scenario::{Allowed64, Allowed256, Alone, Denied, HotKey, OneInFlight};

    let over = |ours: Role, reference: Option<f64>, scenario: Scenario| {
        Some(report.of(ours, scenario)? / reference?)
    };
    let best = |roles: &[Role], scenario: Scenario| Some(report.best(roles, scenario)?.0);
    let mut table = Table("## Targets\n\n| target | reached | met? |\n|---|---|---|\n".to_owned());

    for (scenario, load) in [(Allowed64, "64"), (Allowed256, "256")] {
        table.ratio(
            &format!("exact, allowed, {load} in flight: over tower-redis-cell"),
            over(OurRedis, report.of(ModulePeer, scenario), scenario),
            AtLeast(1.2),
        );
        table.ratio(
            &format!("exact, allowed, {load} in flight: over the best script"),
            over(OurRedis, best(&[ScriptPeer], scenario), scenario),
            AtLeast(2.0),
        );
    }
    table.ratio(
        "exact, 1 in flight, p50: over tower-redis-cell's",
        over(OurRedis, report.of(ModulePeer, OneInFlight), OneInFlight),
        AtMost(1.15),
    );
    table.ratio(
        "denied, one hot key: over the best peer on Redis",
        over(OurRedis, best(&REDIS_PEERS, Denied), Denied),
        AtLeast(10.0),
    );
    table.ratio(
        "denied, one hot key: over no limiter",
        over(OurRedis, report.of(NoLimiter, Denied), Denied),
        AtLeast(0.5),
    );
    table.ratio(
        "allowed, one hot key, leased: over the best peer on Redis",
        over(OurLeased, best(&REDIS_PEERS, HotKey), HotKey),
        AtLeast(10.0),
    );
    let leased = report.named(OurLeased).and_then(|leased| report.verified.get(&leased.name)?.as_ref().ok());
    table.row(
        "leased: units admitted above the limit, two instances",
        leased.map(|found| found.together.saturating_sub(TOGETHER.into()) as f64),
        AtMost(0.0),
        |value| format!("{value:.0}"),
    );
    table.ratio(
        "`MemoryStore`, 10 000 keys, allowed: over tower_governor",
        over(OurMemory, report.of(Governor, Allowed64), Allowed64),
        AtLeast(1.2),
    );
    table.ratio(
        "`MemoryStore`, denied: over tower_governor",
        over(OurMemory, report.of(Governor, Denied), Denied),
        AtLeast(5.0),
    );
    let layer = report.of(OurMemory, Alone).zip(report.of(NoLimiter, Alone));
    table.row(
        "layer with a ready answer, over no limiter, ns a request",
        layer.map(|(ours, none)| ours - none),
        AtMost(350.0),
        |value| format!("{value:.0} ns"),
    );
    table.row(
        "Redis memory a key, GCRA, a key of 20 bytes",
        short_key.filter(|size| size.key == 20).map(|size| size.bytes as f64),
        AtMost(80.0),
        |value| format!("{value:.0} B"),
    );
    let cpu = report.named(OurRedis).and_then(|ours| Some(median(&report.rounds(ours, Allowed64)?.cpu)));
    table.row("Redis CPU a decision, 64 in flight", cpu, AtMost(5.0), |value| format!("{value:.1} us"));

    table.0 += "\nNot measured by this program: the memory of algorithms other than GCRA, and how cost grows \
                with the number of keys and the limit.\n";
    table.0
}

impl Table {
    fn ratio(&mut self, target: &str, value: Option<f64>, bound: Bound) {
        self.row(target, value, bound, |value| format!("{} x", ratio(value)));
    }

    fn row(&mut self, target: &str, value: Option<f64>, bound: Bound, show: impl Fn(f64) -> String) {
        let (sign, limit) = match bound {
            AtLeast(limit) => (">=", limit),
            AtMost(limit) => ("<=", limit),
        };
        let (reached, met) = match value {
            None => ("-".to_owned(), "not measured"),
            Some(value) => {
                let met = match bound {
                    AtLeast(limit) => value >= limit,
                    AtMost(limit) => value <= limit,
                };
                (show(value), if met { "yes" } else { "**no**" })
            }
        };
        let _ = writeln!(self.0, "| {target} {sign} {} | {reached} | {met} |", show(limit));
    }
}
