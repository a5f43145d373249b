//! All results of a run, and what the tables and the targets ask of them.

use std::collections::HashMap;

use crate::{
    bench::{Results, Rounds, median},
    calls,
    contender::{Contender, Place, Role},
    growth::{Axis, Point},
    memory::KeySize,
    network::Network,
    scenario::Scenario,
    verify::Verified,
    whole_server::WholeServer,
};

pub(crate) struct Figures<'a> {
    pub(crate) contenders: &'a [Contender],
    pub(crate) verified: &'a HashMap<String, Result<Verified, String>>,
    pub(crate) results: Results,
    pub(crate) networks: Vec<Network>,
    pub(crate) calls: Vec<calls::Row>,
    pub(crate) growth: Vec<Point>,
    pub(crate) sizes: HashMap<String, KeySize>,
    /// The size of a GCRA key of 20 bytes.
    pub(crate) short_key: Option<KeySize>,
    pub(crate) whole_server: Option<WholeServer>,
}

/// One of the figures of [`Rounds`].
pub(crate) type Of = fn(&Rounds) -> &Vec<f64>;

impl Figures<'_> {
    /// The median result of a contender in the scenario's unit, unless it limits wrongly.
    pub(crate) fn result(&self, contender: &Contender, scenario: Scenario) -> Option<f64> {
        Some(median(&self.valid(contender, scenario)?.results(scenario.unit())))
    }

    /// The result of the contender with this role.
    pub(crate) fn of(&self, role: Role, scenario: Scenario) -> Option<f64> {
        self.named(role).and_then(|contender| self.result(contender, scenario))
    }

    /// The highest rate of the contenders with these roles, and the name of that contender.
    pub(crate) fn best(&self, roles: &[Role], scenario: Scenario) -> Option<(f64, &str)> {
        self.with(roles, |contender| self.result(contender, scenario)).max_by(|a, b| a.0.total_cmp(&b.0))
    }

    /// The lowest time of the contenders with these roles.
    pub(crate) fn least(&self, roles: &[Role], scenario: Scenario) -> Option<(f64, &str)> {
        self.with(roles, |contender| self.result(contender, scenario)).min_by(|a, b| a.0.total_cmp(&b.0))
    }

    /// The lowest CPU time of the contenders with these roles, of either side.
    pub(crate) fn least_cpu(&self, roles: &[Role], scenario: Scenario, of: Of) -> Option<f64> {
        let cpu = |contender: &Contender| Some(median(of(self.valid(contender, scenario)?)));
        self.with(roles, cpu).map(|(cpu, _)| cpu).min_by(f64::total_cmp)
    }

    fn with(
        &self,
        roles: &[Role],
        figure: impl Fn(&Contender) -> Option<f64>,
    ) -> impl Iterator<Item = (f64, &str)> {
        self.contenders
            .iter()
            .filter(|contender| roles.contains(&contender.role))
            .filter_map(move |contender| Some((figure(contender)?, contender.name.as_str())))
    }

    pub(crate) fn rounds(&self, contender: &Contender, scenario: Scenario) -> Option<&Rounds> {
        self.results.get(&(contender.name.clone(), scenario))
    }

    /// The rounds of a contender that limits exactly, and whose answers in them match the scenario.
    fn valid(&self, contender: &Contender, scenario: Scenario) -> Option<&Rounds> {
        self.rounds(contender, scenario).filter(|rounds| rounds.is_valid() && self.is_exact(contender))
    }

    pub(crate) fn is_exact(&self, contender: &Contender) -> bool {
        contender.role == Role::NoLimiter
            || matches!(self.verified.get(&contender.name), Some(Ok(found)) if found.exact)
    }

    pub(crate) fn named(&self, role: Role) -> Option<&Contender> {
        self.contenders.iter().find(|contender| contender.role == role)
    }

    pub(crate) fn in_redis(&self) -> impl Iterator<Item = &Contender> {
        let places = [Place::Redis, Place::RedisCell];
        self.contenders.iter().filter(move |contender| places.contains(&contender.place))
    }

    /// A figure over a network, of each contender with this role that does not limit wrongly.
    pub(crate) fn over<'n>(
        &'n self,
        network: &'n Network,
        role: Role,
        scenario: Scenario,
        of: Of,
    ) -> impl Iterator<Item = f64> + 'n {
        self.contenders
            .iter()
            .filter(move |contender| contender.role == role && self.is_exact(contender))
            .filter_map(move |contender| network.results.get(&(contender.name.clone(), scenario)))
            .filter(|rounds| rounds.is_valid())
            .map(move |rounds| median(of(rounds)))
    }

    /// The dearest point of a series over its cheapest, in microseconds of Redis.
    pub(crate) fn spread(&self, series: &str, axis: Axis) -> Option<f64> {
        let points = self.growth.iter().filter(|point| point.series == series && point.axis == axis);
        let cpu: Vec<f64> = points
            .map(|point| point.rounds.is_valid().then(|| median(&point.rounds.server_cpu)))
            .collect::<Option<_>>()?;
        let [least, most] = [f64::min, f64::max].map(|of| cpu.iter().copied().reduce(of));
        Some(most? / least?)
    }

    /// The p50 with 64 in flight over the p50 of a lone call of ours, and the rate with 256 in flight over the best
    /// module's.
    pub(crate) fn far(&self, network: &Network) -> (Option<f64>, Option<f64>) {
        let of = |scenario, of| self.over(network, Role::OurRedis, scenario, of).next();
        let (one, some) =
            (of(Scenario::Stored1, |rounds| &rounds.p50), of(Scenario::Stored64, |rounds| &rounds.p50));
        let modules = self.over(network, Role::ModulePeer, Scenario::Stored256, |rounds| &rounds.rate);
        let (ours, module) = (of(Scenario::Stored256, |rounds| &rounds.rate), modules.reduce(f64::max));
        (some.zip(one).map(|(some, one)| some / one), ours.zip(module).map(|(ours, module)| ours / module))
    }
}
