//! The servers, the services made from the contenders, and the results.

use std::{collections::HashMap, error::Error, sync::Arc, time::Duration};

use http::HeaderValue;
use serde::Serialize;

use crate::{
    apart::Apart,
    contender::{Contender, Limit, Place, Setup, Subject},
    cpu::{Meter, Used},
    measure::{Load, Sample, keys},
    redis_server::RedisServer,
    scenario::{IDENTITIES, Scenario, Unit},
};

pub(crate) struct Bench {
    pub(crate) plain: RedisServer,
    /// The server with the module, or the reason why it is missing.
    pub(crate) cell: Result<RedisServer, String>,
    pub(crate) rounds: usize,
    pub(crate) time: Duration,
    pub(crate) spread: Arc<[HeaderValue]>,
    /// One for each round and scenario, so that no limit is ever near.
    hot: Arc<[HeaderValue]>,
    denied: Arc<[HeaderValue]>,
}

/// The services of a contender, by limit.
pub(crate) struct Services {
    stored: Box<dyn Subject>,
    idle: Box<dyn Subject>,
    plenty: Box<dyn Subject>,
    five: Box<dyn Subject>,
}

/// The rounds of one contender in one scenario.
#[derive(Default, Serialize)]
pub(crate) struct Rounds {
    /// Requests a second.
    pub(crate) rate: Vec<f64>,
    /// Nanoseconds, if each request was timed.
    pub(crate) p50: Vec<f64>,
    pub(crate) p99: Vec<f64>,
    /// Microseconds of CPU time for a decision: of this process, harness included, and of the server.
    pub(crate) client_cpu: Vec<f64>,
    pub(crate) server_cpu: Vec<f64>,
    /// Commands sent for a decision, and all commands executed.
    pub(crate) sent: Vec<f64>,
    pub(crate) commands: Vec<f64>,
    /// The largest share of requests in a round that were not answered as the scenario requires.
    pub(crate) astray: f64,
}

impl Rounds {
    /// Whether the answers match the scenario. Otherwise the figures are not a reference for others.
    pub(crate) fn is_valid(&self) -> bool {
        self.astray < 0.0005
    }

    /// The result of each round, in the scenario's unit.
    pub(crate) fn results(&self, unit: Unit) -> Vec<f64> {
        match unit {
            Unit::Rate => self.rate.clone(),
            Unit::Each => self.rate.iter().map(|rate| 1e9 / rate).collect(),
            Unit::P50 => self.p50.clone(),
            Unit::P99 => self.p99.clone(),
        }
    }

    /// `decisions` counts the decisions of `sample`, of which `right` were as they should be, and the decisions under
    /// way when it ended.
    pub(crate) fn add(&mut self, mut sample: Sample, right: u64, used: &Used, in_flight: usize) {
        let requests = sample.requests() as f64;
        let decisions = requests + in_flight as f64;
        self.rate.push(requests / sample.elapsed.as_secs_f64());
        if !sample.times.is_empty() {
            self.p50.push(quantile(&mut sample.times, 0.5));
            self.p99.push(quantile(&mut sample.times, 0.99));
        }
        self.astray = self.astray.max(1.0 - right as f64 / requests);
        self.client_cpu.push(used.client / decisions * 1e6);
        if let Some(server) = &used.server {
            self.server_cpu.push(server.cpu / decisions * 1e6);
            self.sent.push(server.sent / decisions);
            self.commands.push(server.commands / decisions);
        }
    }
}

/// By the contender's name.
pub(crate) type Results = HashMap<(String, Scenario), Rounds>;

impl Bench {
    pub(crate) fn start(rounds: usize, time: Duration) -> Result<Self, Box<dyn Error>> {
        let cell = match option_env!("REDIS_CELL_MODULE") {
            Some(module) => RedisServer::start(Some(module)).map_err(|error| error.to_string()),
            None => Err(format!("the module: {}", option_env!("REDIS_CELL_PROBLEM").unwrap_or("not built"))),
        };
        Ok(Self {
            plain: RedisServer::start(None)?,
            cell,
            rounds,
            time,
            spread: keys('s', IDENTITIES),
            hot: keys('h', rounds * Scenario::ALL.len()),
            denied: keys('r', 1),
        })
    }

    pub(crate) fn server(&self, place: Place) -> Option<&RedisServer> {
        match place {
            Place::Redis => Some(&self.plain),
            Place::RedisCell => self.cell.as_ref().ok(),
            Place::Nowhere | Place::Process => None,
        }
    }

    /// `purpose` keeps the keys apart.
    pub(crate) fn setup(&self, contender: &Contender, limit: Limit, purpose: &str) -> Setup {
        let name = contender.name.bytes().fold(0_u16, |sum, byte| sum.wrapping_mul(31) ^ u16::from(byte));
        Setup {
            url: self.server(contender.place).map(RedisServer::url).unwrap_or_default(),
            limit,
            prefix: format!("{name:04x}{purpose}"),
        }
    }

    pub(crate) async fn services(&self, contender: &Contender) -> Result<Services, Box<dyn Error>> {
        Ok(Services {
            stored: (contender.make)(self.setup(contender, Limit::STORED, "s")).await?,
            idle: (contender.make)(self.setup(contender, Limit::IDLE, "i")).await?,
            plenty: (contender.make)(self.setup(contender, Limit::PLENTY, "p")).await?,
            five: (contender.make)(self.setup(contender, Limit::few(5), "f")).await?,
        })
    }

    /// One measurement on the same host. With one request in flight, client and server are kept apart.
    pub(crate) async fn measure(
        &self,
        contender: &Contender,
        services: &Services,
        scenario: Scenario,
        round: usize,
        rounds: &mut Rounds,
    ) -> Result<(), Box<dyn Error>> {
        let service = match scenario {
            _ if scenario.is_denied() => &services.five,
            _ if scenario.is_stored() => &services.stored,
            _ if scenario.is_idle() => &services.idle,
            _ => &services.plenty,
        };
        let timed = matches!(scenario.unit(), Unit::P50 | Unit::P99);
        let apart = matches!(scenario, Scenario::Stored1 | Scenario::Eager1 | Scenario::Idle1);
        let _apart = if apart { Apart::start(self.server(contender.place))? } else { None };
        let keys = match scenario {
            Scenario::Denied => self.denied.clone(),
            _ if scenario.is_hot() => {
                Arc::from([self.hot[round * Scenario::ALL.len() + scenario as usize].clone()])
            }
            _ => self.spread.clone(),
        };
        if scenario.is_stored() {
            service.visit(keys.clone()).await;
        }
        let load = Load {
            in_flight: scenario.in_flight(),
            keys,
            time: self.time,
            timed,
            is_eager: scenario.is_eager(),
            on_one_thread: scenario.unit() == Unit::Each,
            is_extended: scenario.is_extended(),
        };
        let denied = scenario.is_denied() && contender.place != Place::Nowhere;
        self.load(contender.place, &**service, load, denied, rounds).await
    }

    /// One measurement, after a warm-up that opens connections, makes keys and uses limits up.
    pub(crate) async fn load(
        &self,
        place: Place,
        service: &dyn Subject,
        load: Load,
        denied: bool,
        rounds: &mut Rounds,
    ) -> Result<(), Box<dyn Error>> {
        let in_flight = load.in_flight;
        service.drive(Load { time: load.time / 4, ..load.clone() }).await;
        let meter = Meter::start(self.server(place))?;
        let sample = service.drive(load).await;
        let used = meter.stop()?;
        let right = if denied { sample.denied } else { sample.allowed };
        rounds.add(sample, right, &used, in_flight);
        Ok(())
    }
}

fn quantile(times: &mut [u32], share: f64) -> f64 {
    let place = ((times.len() as f64 * share) as usize).min(times.len() - 1);
    f64::from(*times.select_nth_unstable(place).1)
}

pub(crate) fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}
