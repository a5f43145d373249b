//! The servers, the services made from the contenders, and the results.

use std::{collections::HashMap, error::Error, sync::Arc, time::Duration};

use http::HeaderValue;

use crate::{
    apart::Apart,
    contender::{Contender, Limit, Place, Setup, Subject},
    measure::{Load, keys},
    redis_server::{Info, RedisServer},
    scenario::{IDENTITIES, Scenario},
};

pub(crate) struct Bench {
    pub(crate) plain: RedisServer,
    /// The server with the module, or the reason why it is missing.
    pub(crate) cell: Result<RedisServer, String>,
    pub(crate) rounds: usize,
    pub(crate) time: Duration,
    spread: Arc<[HeaderValue]>,
    /// One for each round, so that no limit is ever near.
    hot: Arc<[HeaderValue]>,
    denied: Arc<[HeaderValue]>,
}

/// The two services of a contender.
pub(crate) struct Services {
    plenty: Box<dyn Subject>,
    five: Box<dyn Subject>,
}

/// The rounds of one contender in one scenario.
#[derive(Default)]
pub(crate) struct Rounds {
    /// Requests a second, or nanoseconds where the scenario is a time.
    pub(crate) results: Vec<f64>,
    /// Microseconds of CPU time of the server for a decision.
    pub(crate) cpu: Vec<f64>,
    /// Commands sent for a decision, and all commands executed.
    pub(crate) sent: Vec<f64>,
    pub(crate) commands: Vec<f64>,
    /// The largest share of requests in a round that were not answered as the scenario requires.
    pub(crate) astray: f64,
}

impl Rounds {
    /// Whether the results match the scenario. Otherwise they are not a reference for others.
    pub(crate) fn is_valid(&self) -> bool {
        self.astray < 0.0005
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
            hot: keys('h', rounds),
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
            plenty: (contender.make)(self.setup(contender, Limit::PLENTY, "p")).await?,
            five: (contender.make)(self.setup(contender, Limit::few(5), "f")).await?,
        })
    }

    /// One measurement, after a warm-up that opens connections, makes keys and uses limits up.
    pub(crate) async fn measure(
        &self,
        contender: &Contender,
        services: &Services,
        scenario: Scenario,
        round: usize,
        rounds: &mut Rounds,
    ) -> Result<(), Box<dyn Error>> {
        let service = if scenario.is_denied() { &services.five } else { &services.plenty };
        let keys = match scenario {
            _ if !scenario.is_hot() => self.spread.clone(),
            Scenario::Denied => self.denied.clone(),
            _ => Arc::from([self.hot[round].clone()]),
        };
        let timed = scenario == Scenario::OneInFlight;
        let load = Load { in_flight: scenario.in_flight(), keys, time: self.time, timed };
        let server = self.server(contender.place);
        let _apart = if timed { Apart::start(server)? } else { None };
        service.drive(Load { time: self.time / 4, ..load.clone() }).await;

        let before = server.map(RedisServer::info).transpose()?;
        let mut sample = service.drive(load).await;
        let after = server.map(RedisServer::info).transpose()?;

        let requests = sample.requests() as f64;
        let seconds = sample.elapsed.as_secs_f64();
        rounds.results.push(match scenario {
            Scenario::OneInFlight => median_of(&mut sample.times),
            Scenario::Alone => seconds * 1e9 / requests,
            _ => requests / seconds,
        });
        let right = if scenario.is_denied() && contender.place != Place::Nowhere {
            sample.denied
        } else {
            sample.allowed
        };
        rounds.astray = rounds.astray.max(1.0 - right as f64 / requests);
        if let (Some(before), Some(after)) = (before, after) {
            // The requests that callers finished after the end were decided too.
            let decisions = requests + scenario.in_flight() as f64;
            let each = |of: fn(&Info) -> f64| (of(&after) - of(&before)) / decisions;
            rounds.cpu.push(each(Info::cpu) * 1e6);
            rounds.sent.push(each(Info::sent));
            rounds.commands.push(each(Info::commands));
        }
        Ok(())
    }
}

fn median_of(times: &mut [u32]) -> f64 {
    if times.is_empty() {
        return f64::NAN;
    }
    let middle = times.len() / 2;
    f64::from(*times.select_nth_unstable(middle).1)
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
