//! Connects to Redis as the options say.

use std::env;

use tower_ratelimit::{RedisStore, store::Servers};

use crate::{failure::Failure, options::Options, tls::read};

/// A store. With `lazily`, no server is contacted.
pub(crate) async fn connect(options: &Options, lazily: bool) -> Result<RedisStore, Failure> {
    let urls: Vec<&str> = options.redis.iter().map(|url| url.trim()).filter(|url| !url.is_empty()).collect();
    if urls.is_empty() {
        return Err(Failure::Usage(
            "name the server with --redis redis://host:6379, or in the variable REDIS_URL".to_owned(),
        ));
    }
    let mut settings = RedisStore::builder().prefix(&options.prefix).deadline(options.deadline).pool_size(2);
    if let Some(path) = &options.ca {
        settings = settings.tls_ca_certificate(read(path)?);
    }
    if let (Some(certificate), Some(key)) = (&options.client_certificate, &options.client_key) {
        settings = settings.tls_client_certificate(read(certificate)?, read(key)?);
    }
    let servers = if options.cluster {
        settings = settings.cluster_shards(options.cluster_shards);
        Servers::cluster(urls)
    } else if let Some(primary) = &options.sentinel {
        let servers = Servers::sentinel(urls, primary);
        let password = env::var("SENTINEL_PASSWORD").ok().filter(|password| !password.is_empty());
        match (&options.sentinel_user, password) {
            (user, Some(password)) => {
                servers.sentinel_credentials(user.as_deref().unwrap_or_default(), password)
            }
            (Some(_), None) => {
                return Err(Failure::Usage(
                    "--sentinel-user needs its password in the variable SENTINEL_PASSWORD".to_owned(),
                ));
            }
            (None, None) => servers,
        }
    } else if let [url] = urls[..] {
        Servers::from(url)
    } else {
        return Err(Failure::Usage(
            "several URLs are of nodes of a Redis Cluster or of sentinels: add --cluster or --sentinel <PRIMARY>, or \
             write a comma in a password as %2C"
                .to_owned(),
        ));
    };
    let store = if lazily { settings.connect_lazy(servers) } else { settings.connect(servers).await };
    Ok(store?)
}
