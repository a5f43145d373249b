//! The memory of an identity in Redis: `MEMORY USAGE` of its keys.

use std::error::Error;

use http::HeaderValue;

use crate::{
    bench::Bench,
    contender::{Contender, Limit},
};

/// Of all keys of one identity.
#[derive(Default)]
pub(crate) struct KeySize {
    pub(crate) bytes: u64,
    /// The length of the keys themselves.
    pub(crate) key: usize,
}

/// The memory after three requests of `identity`, or `None` if the counts are not in Redis.
pub(crate) async fn of(
    bench: &Bench,
    contender: &Contender,
    prefix: &str,
    identity: &str,
) -> Result<Option<KeySize>, Box<dyn Error>> {
    let Some(server) = bench.server(contender.place) else { return Ok(None) };
    let mut setup = bench.setup(contender, Limit::few(1000), "");
    setup.prefix = prefix.to_owned();
    let mut connection = redis::Client::open(server.url())?.get_connection()?;
    // The keys of earlier measurements are not needed any more.
    redis::cmd("FLUSHALL").exec(&mut connection)?;
    let service = (contender.make)(setup).await?;
    for _ in 0..3 {
        service.ask(HeaderValue::from_str(identity)?).await;
    }
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection)?;
    let mut size = KeySize::default();
    for key in &keys {
        let bytes: u64 = redis::cmd("MEMORY").arg("USAGE").arg(key).query(&mut connection)?;
        size.bytes += bytes;
        size.key += key.len();
    }
    Ok(Some(size))
}
