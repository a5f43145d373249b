//! Checks that a contender enforces its limit: a fast limiter that admits too much is not comparable.

use std::{error::Error, time::Duration};

use serde::Serialize;

use crate::{
    bench::Bench,
    contender::{Contender, Limit, Place},
    measure::{Load, keys},
};

#[derive(Serialize)]
pub(crate) struct Verified {
    /// The responses to ten requests, one after the other, under a limit of 5.
    pub(crate) one_by_one: String,
    /// The headers of an admitted and of a denied response.
    pub(crate) headers: [Vec<String>; 2],
    /// The number of simultaneous requests that were admitted under a limit of [`TOGETHER`]. Over two instances if the
    /// counts are in Redis.
    pub(crate) together: u64,
    pub(crate) denied: u64,
    pub(crate) exact: bool,
}

pub(crate) const TOGETHER: u32 = 1000;
const CALLERS: usize = 64;
const TIME: Duration = Duration::from_millis(300);
const TURNS: usize = 5;

pub(crate) async fn verify(bench: &Bench, contender: &Contender) -> Result<Verified, Box<dyn Error>> {
    let key = keys('v', 1);
    let service = (contender.make)(bench.setup(contender, Limit::few(5), "five")).await?;
    let mut answers: Vec<(u16, u32)> = Vec::new();
    let mut headers = [Vec::new(), Vec::new()];
    for _ in 0..10 {
        let asked = service.ask(key[0].clone()).await;
        let status = asked.status.as_u16();
        headers[usize::from(status != 200)] = asked.headers;
        match answers.last_mut() {
            Some((last, times)) if *last == status => *times += 1,
            _ => answers.push((status, 1)),
        }
    }

    let limit = bench.setup(contender, Limit::few(TOGETHER), "thousand");
    let load = |in_flight| Load {
        in_flight,
        keys: key.clone(),
        time: TIME,
        timed: false,
        is_eager: false,
        on_one_thread: false,
        is_extended: false,
    };
    let one = (contender.make)(limit.clone()).await?;
    let other = match contender.place {
        Place::Redis | Place::RedisCell => Some((contender.make)(limit).await?),
        Place::Nowhere | Place::Process => None,
    };
    let (mut together, mut denied) = (0, 0);
    // On a busy machine, a slow limiter needs more than one turn to reach its limit.
    for _ in 0..TURNS {
        let samples = if let Some(other) = &other {
            let (one, other) = tokio::join!(one.drive(load(CALLERS / 2)), other.drive(load(CALLERS / 2)));
            vec![one, other]
        } else {
            vec![one.drive(load(CALLERS)).await]
        };
        together += samples.iter().map(|sample| sample.allowed + sample.late).sum::<u64>();
        denied += samples.iter().map(|sample| sample.denied).sum::<u64>();
        if denied > 0 || contender.place == Place::Nowhere {
            break;
        }
    }

    Ok(Verified {
        exact: answers == [(200, 5), (429, 5)] && together == u64::from(TOGETHER),
        one_by_one: answers
            .iter()
            .map(|(status, times)| format!("{times} x {status}"))
            .collect::<Vec<_>>()
            .join(", "),
        headers,
        together,
        denied,
    })
}
