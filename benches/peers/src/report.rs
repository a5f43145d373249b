//! The document: what took part, whether it limits, and the tables of the scenarios.

use std::fmt::Write;

use crate::{
    bench::{Bench, median},
    contender::{Contender, Place, Role},
    figures::{Figures, Of},
    format::{heading, microseconds, one_line, rate, ratio, row},
    machine,
    scenario::{Scenario, Unit},
    verify::TOGETHER,
};

pub(crate) const REDIS_PEERS: [Role; 2] = [Role::ScriptPeer, Role::ModulePeer];

impl Figures<'_> {
    pub(crate) fn document(&self, bench: &Bench) -> String {
        let mut text = format!(
            "Medians; rounds: {}, of {} ms, interleaved. `± n %` is half of what lies between the best and the \
             worst round.\n\nOne run on one machine: a ratio means something, a single figure does \
             not. A result that is marked with wrong answers is not a reference for others.\n\n",
            bench.rounds,
            bench.time.as_millis()
        );
        self.versions(&mut text);
        self.verification(&mut text);
        if !self.results.is_empty() {
            self.redis(&mut text);
            self.process(&mut text);
            self.ratios(&mut text);
        }
        self.networks(bench, &mut text);
        self.call_sizes(&mut text);
        self.growing(&mut text);
        text
    }

    fn versions(&self, text: &mut String) {
        *text += "## Contenders\n\nA contender writes the headers that it can write. The headers of an admitted and of a \
                  denied response, as received:\n\n\
                  | contender | counts in | headers, admitted | denied | versions |\n|---|---|---|---|---|\n";
        for contender in self.contenders {
            let place = match contender.place {
                Place::Nowhere => "-",
                Place::Process => "process",
                Place::Redis => "Redis",
                Place::RedisCell => "Redis, with a module",
            };
            let headers = match self.verified.get(&contender.name) {
                Some(Ok(found)) => found.headers.clone().map(|names| match &names[..] {
                    [] => "none".to_owned(),
                    names => names.join(", "),
                }),
                _ => [(); 2].map(|()| "-".to_owned()),
            };
            let versions: Vec<String> =
                contender.packages.iter().map(|package| machine::version(package)).collect();
            let (headers, versions) = (headers.join(" | "), versions.join(", "));
            let _ = writeln!(text, "| {} | {place} | {headers} | {versions} |", contender.name);
        }
        text.push('\n');
    }

    fn verification(&self, text: &mut String) {
        let _ = write!(
            text,
            "## Verification\n\nTen requests under a limit of 5, one after the other; and requests of 64 concurrent callers \
             under a limit of {TOGETHER}, over two instances if the counts are in Redis.\n\n\
             | contender | 5 of 10 | {TOGETHER} concurrent: admitted | denied | |\n|---|---|---|---|---|\n"
        );
        for contender in self.contenders {
            let row = match self.verified.get(&contender.name) {
                Some(Ok(found)) => format!(
                    "{} | {} | {} | {}",
                    found.one_by_one,
                    found.together,
                    found.denied,
                    match (contender.role, found.exact) {
                        (Role::NoLimiter, _) => "no limit, as it should be".to_owned(),
                        (_, true) => "exact".to_owned(),
                        _ if found.together > u64::from(TOGETHER) => "**admits too much**".to_owned(),
                        _ => "**not the limit**".to_owned(),
                    }
                ),
                Some(Err(problem)) => format!("| | | does not work: {}", one_line(problem)),
                None => "| | | not tried".to_owned(),
            };
            let _ = writeln!(text, "| {} | {row} |", contender.name);
        }
        text.push('\n');
    }

    fn redis(&self, text: &mut String) {
        *text += "## Counted in Redis\n\nRequests a second, except the columns of times. Stored keys have 10,000 a day: their state \
                  is in Redis when a request comes. Idle keys have 1,000 a second: their quota is full again, and \
                  Redis has no state of them.\n\n";
        *text += "With one request in flight, server and client have a core each that does not halt.\n\n";
        self.scenarios(text, Scenario::REDIS, &[Place::Nowhere, Place::Redis, Place::RedisCell]);
        *text += "Microseconds of the server's CPU time for a decision (`used_cpu_user` + `used_cpu_sys`, without what \
                  the idle server uses):\n\n";
        self.cpu(text, |rounds| &rounds.server_cpu);
        *text += "Microseconds of this process' CPU time for a decision (`getrusage`). The callers, the requests and \
                  the handler are included: see the row of no limiter.\n\n";
        self.cpu(text, |rounds| &rounds.client_cpu);
        *text += "Commands for a decision, sent and run (what a script calls is a command too: \
                  `total_commands_processed`), and what `MEMORY USAGE` says of a key for an identity of 20 \
                  bytes:\n\n";
        heading(text, ["sent, allowed", "run, allowed", "sent, denied", "run, denied", "bytes a key"]);
        for contender in self.in_redis() {
            let mut cells = Vec::new();
            for scenario in [Scenario::Stored64, Scenario::Denied] {
                cells.push(self.figure(contender, scenario, |rounds| &rounds.sent, 2));
                cells.push(self.figure(contender, scenario, |rounds| &rounds.commands, 2));
            }
            cells.push(self.sizes.get(&contender.name).map_or("-".to_owned(), |size| size.bytes.to_string()));
            row(text, &contender.name, cells);
        }
        text.push('\n');
    }

    fn cpu(&self, text: &mut String, of: Of) {
        let scenarios = Scenario::REDIS.iter().copied().filter(|scenario| scenario.unit() != Unit::P99);
        heading(text, scenarios.clone().map(Scenario::title));
        let nowhere = self.contenders.iter().filter(|contender| contender.place == Place::Nowhere);
        for contender in nowhere.chain(self.in_redis()) {
            row(
                text,
                &contender.name,
                scenarios.clone().map(|scenario| self.figure(contender, scenario, of, 2)),
            );
        }
        text.push('\n');
    }

    fn figure(&self, contender: &Contender, scenario: Scenario, of: Of, digits: usize) -> String {
        let rounds = self.rounds(contender, scenario).filter(|rounds| !of(rounds).is_empty());
        rounds.map_or("-".to_owned(), |rounds| format!("{:.digits$}", median(of(rounds))))
    }

    fn process(&self, text: &mut String) {
        *text += "## Counted in process\n\nRequests a second on two threads, by 64 callers that never wait, except the \
                  columns of times.\n\n";
        self.scenarios(text, &Scenario::PROCESS, &[Place::Nowhere, Place::Process]);
    }

    fn scenarios(&self, text: &mut String, scenarios: &[Scenario], places: &[Place]) {
        heading(text, scenarios.iter().map(|scenario| scenario.title()));
        for contender in self.contenders.iter().filter(|contender| places.contains(&contender.place)) {
            row(text, &contender.name, scenarios.iter().map(|&scenario| self.cell(contender, scenario)));
        }
        text.push('\n');
    }

    fn cell(&self, contender: &Contender, scenario: Scenario) -> String {
        let Some(rounds) = self.rounds(contender, scenario) else { return "-".to_owned() };
        let results = rounds.results(scenario.unit());
        let middle = median(&results);
        let result = match scenario.unit() {
            Unit::Rate => rate(middle),
            Unit::Each => format!("{middle:.0} ns"),
            Unit::P50 | Unit::P99 => microseconds(middle),
        };
        let least = results.iter().copied().fold(f64::INFINITY, f64::min);
        let most = results.iter().copied().fold(0.0, f64::max);
        let mut cell = format!("{result} ± {:.0} %", (most - least) / 2.0 / middle * 100.0);
        if !rounds.is_valid() {
            let wanted = if scenario.is_denied() { "not denied" } else { "not allowed" };
            let _ = write!(cell, " (**{:.1} % {wanted}**)", rounds.astray * 100.0);
        }
        cell
    }

    /// Ours over the references that the targets name. Above 1 is better for ours, in the times below 1.
    fn ratios(&self, text: &mut String) {
        *text += "## Ours over the references\n\nMore is better, except in the rows of times.\n\n\
                  | ours | scenario | reference | ratio |\n|---|---|---|---|\n";
        for contender in self.contenders.iter().filter(|contender| contender.role.is_ours()) {
            for scenario in Scenario::ALL {
                let Some(ours) = self.result(contender, scenario) else { continue };
                for (name, reference) in self.references(contender, scenario) {
                    let _ = writeln!(
                        text,
                        "| {} | {} | {name} | {} |",
                        contender.name,
                        scenario.title(),
                        ratio(ours / reference)
                    );
                }
            }
        }
        text.push('\n');
    }

    fn references(&self, contender: &Contender, scenario: Scenario) -> Vec<(String, f64)> {
        let one = |role| {
            let name = self.named(role).map_or("", |contender| contender.name.as_str());
            self.of(role, scenario).map(|result| (name.to_owned(), result))
        };
        let best = |what: &str, roles: &[Role]| {
            let best = match scenario.unit() {
                Unit::Rate => self.best(roles, scenario),
                _ => self.least(roles, scenario),
            };
            best.map(|(result, name)| (format!("{what}: {name}"), result))
        };
        let references = match (contender.place, contender.role, scenario) {
            (Place::Process, ..) => {
                vec![one(Role::Governor), one(Role::MemoryPeer), one(Role::NoLimiter)]
            }
            (_, Role::OurSeveral(policies), _) => vec![one(Role::ModuleSeveral(policies))],
            (.., Scenario::Denied) => vec![best("best on Redis", &REDIS_PEERS), one(Role::NoLimiter)],
            _ => vec![best("module", &[Role::ModulePeer]), best("best script", &[Role::ScriptPeer])],
        };
        references.into_iter().flatten().collect()
    }
}
