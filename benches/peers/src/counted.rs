//! One contender alone, for callgrind: `peers count CONTENDER REQUESTS`. The difference of two numbers of requests counts.

use std::{env, error::Error, sync::Arc};

use tokio::runtime::Builder;

use crate::{
    contender::{Limit, Setup},
    contenders,
    measure::keys,
    scenario::IDENTITIES,
};

/// Does so and ends the process, if its arguments ask for it.
pub(crate) fn count_if_asked() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [argument, name, requests] = &arguments[..] else { return Ok(()) };
    if argument != "count" {
        return Ok(());
    }
    let requests: usize = requests.parse()?;
    let contender = contenders::all().into_iter().find(|contender| contender.name == *name);
    let contender = contender.ok_or("there is no such contender")?;
    let setup = Setup { url: String::new(), limit: Limit::STORED, prefix: String::new() };
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let service = (contender.make)(setup).await?;
        let one = keys('s', IDENTITIES);
        let keys: Arc<[_]> = one.iter().cycle().take(requests).cloned().collect();
        let admitted = service.visit(keys).await;
        assert_eq!(admitted, requests as u64, "each request is admitted");
        Ok::<_, Box<dyn Error>>(())
    })?;
    std::process::exit(0)
}
