//! The sections of the document about a network, the size of calls, and growth.

use std::fmt::Write;

use crate::{
    bench::{Bench, median},
    figures::Figures,
    format::{heading, microseconds, rate, row},
    growth::{Axis, Point},
    network,
    scenario::Scenario,
};

impl Figures<'_> {
    pub(crate) fn networks(&self, bench: &Bench, text: &mut String) {
        for network in &self.networks {
            let _ = write!(
                text,
                "## Over a network, {} ms\n\nThrough a proxy that delivers every chunk of bytes half of that later, in \
                 each direction; rounds: {}. No core halts.\n\n",
                network.round_trip.as_secs_f64() * 1e3,
                network::rounds(bench)
            );
            let columns = [
                "1 in flight, p50",
                "64 in flight",
                "64, p50",
                "64, µs of client",
                "64, µs of Redis",
                "256 in flight",
                "256, p50",
            ];
            heading(text, columns);
            for contender in self.contenders {
                let rounds = |scenario| network.results.get(&(contender.name.clone(), scenario));
                let [Some(one), Some(some), Some(many)] = Scenario::NETWORK.map(rounds) else { continue };
                let p50 = |of: &[f64]| microseconds(median(of));
                let cpu = |of: &[f64]| format!("{:.1}", median(of));
                let wrong = [one, some, many].iter().any(|rounds| !rounds.is_valid());
                let name = format!("{}{}", contender.name, if wrong { " (**wrong answers**)" } else { "" });
                let cells = [
                    p50(&one.p50),
                    rate(median(&some.rate)),
                    p50(&some.p50),
                    cpu(&some.client_cpu),
                    cpu(&some.server_cpu),
                    rate(median(&many.rate)),
                    p50(&many.p50),
                ];
                row(text, &name, cells);
            }
            text.push('\n');
        }
    }

    pub(crate) fn call_sizes(&self, text: &mut String) {
        if self.calls.is_empty() {
            return;
        }
        *text += "## Redis alone\n\nMicroseconds of the server's CPU time for a decision, without a limiter around it: calls \
                  of this crate, recorded and repeated, and commands of the module, from one blocking connection. 64 \
                  decisions are written together in each row.\n\n";
        heading(text, ["this crate", "the module", "ratio"]);
        for calls in &self.calls {
            let name = format!("{} in a call", calls.decisions);
            let [ours, module] = [&calls.ours, &calls.module].map(|rounds| median(rounds));
            let cells = [format!("{ours:.2}"), format!("{module:.2}"), format!("{:.2}", ours / module)];
            row(text, &name, cells.map(|cell| cell.replace("NaN", "-")));
        }
        text.push('\n');
    }

    pub(crate) fn growing(&self, text: &mut String) {
        if self.growth.is_empty() {
            return;
        }
        *text += "## Growth\n\nThis crate on Redis, 64 in flight, deny cache off; in each cell the microseconds of Redis and \
                  of the client for a decision. By the limit: 250,000 keys, all allowed; a full log: one exhausted \
                  key, whose log has as many entries as the limit, all denied. The client's time includes the \
                  callers, whose list of keys leaves the cache where there are many.\n\n";
        for (axis, title) in
            [(Axis::Keys, "keys"), (Axis::Limit, "limit"), (Axis::Policies, "policies of a request")]
        {
            let points = || self.growth.iter().filter(move |point| point.axis == axis);
            let mut columns: Vec<u64> = points().map(|point| point.at).collect();
            columns.sort_unstable();
            columns.dedup();
            let titles: Vec<String> = columns.iter().map(|at| format!("{title}: {at}")).collect();
            heading(text, titles.iter().map(String::as_str));
            let mut series: Vec<&str> = points().map(|point| point.series).collect();
            series.dedup();
            for name in series {
                let cell = |at: &u64| {
                    points().find(|point| point.series == name && point.at == *at).map(Point::cell)
                };
                row(text, name, columns.iter().map(|at| cell(at).unwrap_or_default()));
            }
            text.push('\n');
        }
    }
}

impl Point {
    fn cell(&self) -> String {
        let cell = format!("{:.1}, {:.1}", median(&self.rounds.server_cpu), median(&self.rounds.client_cpu));
        if self.rounds.is_valid() { cell } else { format!("{cell} (**wrong answers**)") }
    }
}
