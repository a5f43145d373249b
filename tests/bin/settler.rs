//! Settles the tokens of its standard input, of which each line has one and its units, more than once and in another
//! order. Prints how many it was the first to settle, at the half and at the end.
//!
//! ```text
//! settler redis://127.0.0.1:6379 7 < tokens
//! ```
//!
//! The number decides the order.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, reason = "only a test runs it")]

use std::{env, io, sync::Arc, time::Duration};

use tokio::task::JoinSet;
use tower_ratelimit::{
    ErrorKind, Limiter, Policy, Quota, RedisStore, algorithm::FixedWindow, settlement::SettlementSecret,
};

/// The calls that are made at the same time.
const TOGETHER: usize = 40;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = env::args().collect();
    let store = RedisStore::builder().deadline(Duration::from_secs(20)).connect_lazy(&*arguments[1]).unwrap();
    let limiter = Limiter::new(store);
    let policy = |name| Policy::new(name, Quota::per_day(1_000_000_000)).algorithm(FixedWindow::anchored());
    let policies = Arc::new([policy("up"), policy("down")]);
    let secret = SettlementSecret::new([7; 32]);
    let line = |line: io::Result<String>| {
        let (token, units) = line
            .unwrap()
            .split_once(' ')
            .map(|(token, units)| (token.to_owned(), units.parse::<u64>().unwrap()))
            .unwrap();
        (token, units)
    };
    let tokens: Vec<_> = io::stdin().lines().map(line).collect();
    let mut order: Vec<usize> = (0..tokens.len()).chain(0..tokens.len() / 3).collect();
    fastrand::Rng::with_seed(arguments[2].parse().unwrap()).shuffle(&mut order);
    let (mut calls, mut settled, mut firsts) = (JoinSet::new(), 0, 0);
    for place in order.iter().copied() {
        let (limiter, policies, secret) = (limiter.clone(), policies.clone(), secret.clone());
        let (token, units) = tokens[place].clone();
        calls.spawn(async move {
            loop {
                match limiter.settle_token(&secret, &token, &*policies, units).await {
                    Ok(settled) => return !settled.is_repeated(),
                    Err(error) if error.kind() != ErrorKind::InvalidToken => tokio::task::yield_now().await,
                    Err(error) => panic!("{error}"),
                }
            }
        });
        while calls.len() >= TOGETHER || (settled + calls.len() == order.len() && !calls.is_empty()) {
            firsts += u64::from(calls.join_next().await.unwrap().unwrap());
            settled += 1;
            if settled == order.len() / 2 {
                println!("{firsts}");
            }
        }
    }
    println!("{firsts}");
}
