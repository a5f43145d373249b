//! Addresses of nodes that do not answer when a connection is opened.
//!
//! redis-rs opens missing connections while it looks the nodes up, and makes no other call during that time. So a host that is
//! lost would stall the decisions of all other nodes again and again. It stalls them once: from then on its address is
//! tried in the background, and attempts of the client fail immediately until it answers.

use std::{collections::BTreeMap, future::Future, sync::Mutex, time::Duration};

use redis::RedisError;
use tokio::{
    runtime::Handle,
    time::{Instant, sleep},
};

use crate::base::sync::lock;

/// The addresses in each runtime, because another one may not be driven, with the time of the client's latest attempt.
static SILENT: Mutex<BTreeMap<String, Instant>> = Mutex::new(BTreeMap::new());

/// The pause between two attempts in the background.
const PAUSE: Duration = Duration::from_millis(250);
/// An address that no client needs for this time is forgotten.
const FORGET: Duration = Duration::from_secs(5);

fn here(address: &str) -> String {
    format!("{} {address}", Handle::current().id())
}

/// Whether attempts to connect to `address` fail. Call it at each attempt.
pub(super) fn is_silent(address: &str) -> bool {
    let mut silent = lock(&SILENT);
    silent.get_mut(&here(address)).map(|asked| *asked = Instant::now()).is_some()
}

/// Lets attempts to connect to `address` fail until one of `connect` ends otherwise than in a timeout.
pub(super) fn mark<C, F>(address: &str, connect: C)
where
    C: Fn() -> F + Send + 'static,
    F: Future<Output = Result<(), RedisError>> + Send,
{
    let address = here(address);
    if lock(&SILENT).insert(address.clone(), Instant::now()).is_some() {
        return;
    }
    let mark = Mark(address);
    tokio::spawn(async move {
        while mark.is_needed() {
            sleep(PAUSE).await;
            if !connect().await.is_err_and(|error| error.is_timeout()) {
                return;
            }
        }
    });
}

/// Removes the address when it is dropped, also with its runtime.
struct Mark(String);

impl Mark {
    fn is_needed(&self) -> bool {
        let silent = lock(&SILENT);
        silent.get(&self.0).is_some_and(|asked| asked.elapsed() < FORGET)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        lock(&SILENT).remove(&self.0);
    }
}
