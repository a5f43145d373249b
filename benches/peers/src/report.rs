//! The tables.

use std::{collections::HashMap, fmt::Write};

use crate::{
    bench::{Bench, Results, Rounds, median},
    contender::{Contender, Place, Role},
    machine,
    memory::KeySize,
    scenario::Scenario,
    verify::{TOGETHER, Verified},
};

pub(crate) struct Report<'a> {
    pub(crate) contenders: &'a [Contender],
    pub(crate) verified: &'a HashMap<String, Result<Verified, String>>,
    pub(crate) results: &'a Results,
    pub(crate) sizes: &'a HashMap<String, KeySize>,
}

impl Report<'_> {
    pub(crate) fn document(&self, bench: &Bench) -> String {
        let mut text = format!(
            "Medians; rounds: {}, of {} ms, interleaved. `± n %` is half of what lies between the best and the \
             worst round.\n\nOne run on one machine: a ratio means something, a figure of its own does \
             not. A result that is marked with wrong answers is no reference for others.\n\n",
            bench.rounds,
            bench.time.as_millis()
        );
        self.versions(&mut text);
        self.verification(&mut text);
        text += "## Counted in Redis\n\nRequests a second, except the column of times.\n\n";
        text += "With one request in flight, server and client have a core each that does not halt.\n\n";
        self.scenarios(&mut text, &Scenario::REDIS, &[Place::Nowhere, Place::Redis, Place::RedisCell]);
        self.server(&mut text);
        text += "## Counted in process\n\nRequests a second, except the column of times. 64 callers that never \
                 wait, on two threads.\n\n";
        self.scenarios(&mut text, &Scenario::PROCESS, &[Place::Nowhere, Place::Process]);
        self.ratios(&mut text);
        text
    }

    /// The median of the contender with this role, if it was measured and its results match the scenario.
    pub(crate) fn of(&self, role: Role, scenario: Scenario) -> Option<f64> {
        self.contenders
            .iter()
            .filter(|contender| contender.role == role)
            .find_map(|contender| self.valid(contender, scenario))
    }

    /// The highest median of the contenders with these roles, and the name of that contender.
    pub(crate) fn best(&self, roles: &[Role], scenario: Scenario) -> Option<(f64, &str)> {
        self.contenders
            .iter()
            .filter(|contender| roles.contains(&contender.role))
            .filter_map(|contender| Some((self.valid(contender, scenario)?, contender.name.as_str())))
            .max_by(|one, other| one.0.total_cmp(&other.0))
    }

    pub(crate) fn rounds(&self, contender: &Contender, scenario: Scenario) -> Option<&Rounds> {
        self.results.get(&(contender.name.clone(), scenario))
    }

    fn valid(&self, contender: &Contender, scenario: Scenario) -> Option<f64> {
        let rounds = self.rounds(contender, scenario).filter(|rounds| rounds.is_valid())?;
        Some(median(&rounds.results))
    }

    pub(crate) fn named(&self, role: Role) -> Option<&Contender> {
        self.contenders.iter().find(|contender| contender.role == role)
    }

    fn versions(&self, text: &mut String) {
        *text += "## Contenders\n\n| contender | counts in | versions |\n|---|---|---|\n";
        for contender in self.contenders {
            let place = match contender.place {
                Place::Nowhere => "-",
                Place::Process => "process",
                Place::Redis => "Redis",
                Place::RedisCell => "Redis, with a module",
            };
            let versions: Vec<String> =
                contender.packages.iter().map(|package| machine::version(package)).collect();
            let _ = writeln!(text, "| {} | {place} | {} |", contender.name, versions.join(", "));
        }
        text.push('\n');
    }

    fn verification(&self, text: &mut String) {
        let _ = write!(
            text,
            "## Verification\n\nTen requests under a limit of 5, one after the other; and requests of 64 callers at once under \
             a limit of {TOGETHER}, over two instances if the counts are in Redis.\n\n\
             | contender | 5 of 10 | {TOGETHER} at once: admitted | denied | |\n|---|---|---|---|---|\n"
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

    fn scenarios(&self, text: &mut String, scenarios: &[Scenario], places: &[Place]) {
        heading(text, scenarios.iter().map(|scenario| scenario.title()));
        for contender in self.contenders.iter().filter(|contender| places.contains(&contender.place)) {
            let cells = scenarios.iter().map(|&scenario| self.cell(contender, scenario));
            row(text, &contender.name, cells);
        }
        text.push('\n');
    }

    fn cell(&self, contender: &Contender, scenario: Scenario) -> String {
        let Some(rounds) = self.rounds(contender, scenario) else { return "-".to_owned() };
        let middle = median(&rounds.results);
        let result = match scenario {
            Scenario::OneInFlight => format!("{:.*} us", if middle < 1e4 { 2 } else { 1 }, middle / 1e3),
            Scenario::Alone => format!("{middle:.0} ns"),
            _ => rate(middle),
        };
        let least = rounds.results.iter().copied().fold(f64::INFINITY, f64::min);
        let most = rounds.results.iter().copied().fold(0.0, f64::max);
        let mut cell = format!("{result} ± {:.0} %", (most - least) / 2.0 / middle * 100.0);
        if !rounds.is_valid() {
            let wanted = if scenario.is_denied() { "not denied" } else { "not allowed" };
            let _ = write!(cell, " (**{:.1} % {wanted}**)", rounds.astray * 100.0);
        }
        cell
    }

    fn server(&self, text: &mut String) {
        *text +=
            "Microseconds of the server's processor for a decision (`used_cpu_user` + `used_cpu_sys`):\n\n";
        heading(text, Scenario::REDIS.iter().map(|scenario| scenario.title()));
        for contender in self.in_redis() {
            row(
                text,
                &contender.name,
                Scenario::REDIS
                    .iter()
                    .map(|&scenario| self.figure(contender, scenario, |rounds| &rounds.cpu, 1)),
            );
        }
        *text += "\nCommands for a decision, sent and run (what a script calls is a command too: \
                  `total_commands_processed`), and what `MEMORY USAGE` says of a key for an identity of 20 \
                  bytes:\n\n";
        let columns = ["sent, allowed", "run, allowed", "sent, denied", "run, denied", "bytes a key"];
        heading(text, columns.into_iter());
        for contender in self.in_redis() {
            let mut cells = Vec::new();
            for scenario in [Scenario::Allowed64, Scenario::Denied] {
                cells.push(self.figure(contender, scenario, |rounds| &rounds.sent, 2));
                cells.push(self.figure(contender, scenario, |rounds| &rounds.commands, 2));
            }
            cells.push(self.sizes.get(&contender.name).map_or("-".to_owned(), |size| size.bytes.to_string()));
            row(text, &contender.name, cells.into_iter());
        }
        text.push('\n');
    }

    fn in_redis(&self) -> impl Iterator<Item = &Contender> {
        let places = [Place::Redis, Place::RedisCell];
        self.contenders.iter().filter(move |contender| places.contains(&contender.place))
    }

    fn figure(
        &self,
        contender: &Contender,
        scenario: Scenario,
        of: fn(&Rounds) -> &Vec<f64>,
        digits: usize,
    ) -> String {
        let rounds = self.rounds(contender, scenario);
        rounds.map_or("-".to_owned(), |rounds| format!("{:.digits$}", median(of(rounds))))
    }

    /// Ours over the references that the targets name. Above 1 is better for ours, in the times below 1.
    fn ratios(&self, text: &mut String) {
        *text += "## Ours over the references\n\nMore is better, but in the rows of times.\n\n\
                  | ours | scenario | reference | ratio |\n|---|---|---|---|\n";
        for contender in self.contenders.iter().filter(|contender| contender.role.is_ours()) {
            for scenario in Scenario::ALL {
                let Some(ours) = self.valid(contender, scenario) else { continue };
                for (name, reference) in self.references(contender.place, scenario) {
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

    fn references(&self, place: Place, scenario: Scenario) -> Vec<(String, f64)> {
        let one = |role| {
            let name = self.named(role).map_or("", |contender| contender.name.as_str());
            self.of(role, scenario).map(|median| (name.to_owned(), median))
        };
        let best = |what: &str, roles: &[Role]| {
            self.best(roles, scenario).map(|(median, name)| (format!("{what}: {name}"), median))
        };
        let references = if place == Place::Process {
            vec![one(Role::Governor), one(Role::MemoryPeer), one(Role::NoLimiter)]
        } else {
            match scenario {
                Scenario::Allowed64 | Scenario::Allowed256 => {
                    vec![one(Role::ModulePeer), best("best script", &[Role::ScriptPeer])]
                }
                Scenario::Denied | Scenario::HotKey => {
                    vec![best("best on Redis", &REDIS_PEERS), one(Role::NoLimiter)]
                }
                _ => vec![one(Role::ModulePeer)],
            }
        };
        references.into_iter().flatten().collect()
    }
}

pub(crate) const REDIS_PEERS: [Role; 2] = [Role::ScriptPeer, Role::ModulePeer];

fn heading<'a>(text: &mut String, columns: impl Iterator<Item = &'a str>) {
    let columns: Vec<&str> = columns.collect();
    let _ = writeln!(text, "| | {} |\n|---|{}", columns.join(" | "), "---|".repeat(columns.len()));
}

fn row(text: &mut String, name: &str, cells: impl Iterator<Item = String>) {
    let _ = writeln!(text, "| {name} | {} |", cells.collect::<Vec<_>>().join(" | "));
}

pub(crate) fn ratio(ratio: f64) -> String {
    format!("{ratio:.*}", if ratio < 0.1 { 4 } else { 2 })
}

pub(crate) fn rate(rate: f64) -> String {
    match rate {
        rate if rate >= 1e6 => format!("{:.2} M", rate / 1e6),
        rate if rate >= 1e4 => format!("{:.0} k", rate / 1e3),
        rate if rate >= 1e3 => format!("{:.1} k", rate / 1e3),
        rate => format!("{rate:.0}"),
    }
}

fn one_line(text: &str) -> String {
    text.replace(['\n', '|'], " ")
}
