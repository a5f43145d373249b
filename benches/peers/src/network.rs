//! The contenders on Redis with a network between them and it: through the delaying proxy.

use std::{error::Error, time::Duration};

use crate::{
    apart::Awake,
    bench::{Bench, Results},
    contender::{Contender, Limit, Place, Role, Subject},
    measure::Load,
    proxy::DelayingProxy,
    redis_server::{RedisServer, url},
    scenario::Scenario,
};

/// What the proxy adds to each round trip.
pub(crate) const ROUND_TRIPS: [Duration; 2] = [Duration::from_micros(250), Duration::from_millis(1)];

pub(crate) struct Network {
    pub(crate) round_trip: Duration,
    pub(crate) results: Results,
}

/// Fewer rounds than on the same host: with a delay, the results differ little between them.
pub(crate) fn rounds(bench: &Bench) -> usize {
    bench.rounds.div_ceil(2)
}

fn takes_part(contender: &Contender) -> bool {
    matches!(contender.role, Role::ScriptPeer | Role::ModulePeer | Role::OurRedis)
}

/// `contenders` are those that could be set up.
pub(crate) async fn measure(
    bench: &Bench,
    contenders: &[&Contender],
    round_trip: Duration,
) -> Result<Network, Box<dyn Error>> {
    let _awake = Awake::start()?;
    let proxy =
        |place| bench.server(place).map(|server: &RedisServer| DelayingProxy::start(server, round_trip));
    let (plain, cell) = (proxy(Place::Redis).transpose()?, proxy(Place::RedisCell).transpose()?);
    let mut services: Vec<(&Contender, Box<dyn Subject>)> = Vec::new();
    for contender in contenders.iter().filter(|contender| takes_part(contender)) {
        let proxy = if contender.place == Place::RedisCell { &cell } else { &plain };
        let Some(proxy) = proxy else { continue };
        let mut setup = bench.setup(contender, Limit::STORED, "n");
        setup.url = url(proxy.port());
        services.push((contender, (contender.make)(setup).await?));
    }
    let mut results = Results::new();
    for round in 0..rounds(bench) {
        for scenario in Scenario::NETWORK {
            let first = round % services.len().max(1);
            for (contender, service) in services[first..].iter().chain(&services[..first]) {
                let keys = bench.spread.clone();
                service.visit(keys.clone()).await;
                let load = Load {
                    in_flight: scenario.in_flight(),
                    keys,
                    time: bench.time,
                    timed: true,
                    is_eager: false,
                    on_one_thread: false,
                    is_extended: false,
                };
                let rounds = results.entry((contender.name.clone(), scenario)).or_default();
                bench.load(contender.place, &**service, load, false, rounds).await?;
            }
        }
    }
    Ok(Network { round_trip, results })
}
