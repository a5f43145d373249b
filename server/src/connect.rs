//! The store that the options name.

use std::{env, fs, path::Path};

use tower_ratelimit::{
    RedisStore,
    store::{RedisStoreBuilder, Servers},
};

use crate::{failure::Failure, options::Serve};

/// The store in Redis. No server is contacted.
pub(crate) fn connect(options: &Serve) -> Result<RedisStore, Failure> {
    let redis = &options.redis;
    let urls: Vec<&str> = redis.redis.iter().map(|url| url.trim()).filter(|url| !url.is_empty()).collect();
    let settings = RedisStore::builder()
        .prefix(&redis.prefix)
        .deadline(options.calls.deadline)
        .pool_size(redis.pool_size);
    let settings = trusting(settings, options)?;
    let servers = match (&redis.sentinel, &urls[..]) {
        (_, []) => {
            return Err(Failure::Usage(
                "name the server with --redis redis://host:6379, or in the variable REDIS_URL, or count with --memory in this \
                 process"
                    .to_owned(),
            ));
        }
        _ if redis.cluster => Servers::cluster(urls),
        (Some(primary), _) => {
            match env::var("SENTINEL_PASSWORD").ok().filter(|password| !password.is_empty()) {
                Some(password) => {
                    let user = redis.sentinel_user.as_deref().unwrap_or_default();
                    Servers::sentinel(urls, primary).sentinel_credentials(user, password)
                }
                None => Servers::sentinel(urls, primary),
            }
        }
        (None, [url]) => Servers::from(*url),
        _ => {
            return Err(Failure::Usage(
                "several URLs are of nodes of a Redis Cluster or of sentinels: add --cluster or --sentinel <PRIMARY>, or write \
                 a comma in a password as %2C"
                    .to_owned(),
            ));
        }
    };
    Ok(settings.connect_lazy(servers)?)
}

/// `settings` with the certificates that the options name.
fn trusting(mut settings: RedisStoreBuilder, options: &Serve) -> Result<RedisStoreBuilder, Failure> {
    let redis = &options.redis;
    if let Some(path) = &redis.redis_ca {
        settings = settings.tls_ca_certificate(read(path)?);
    }
    if let (Some(certificate), Some(key)) = (&redis.redis_client_certificate, &redis.redis_client_key) {
        settings = settings.tls_client_certificate(read(certificate)?, read(key)?);
    }
    Ok(settings)
}

/// The content of a file that an option names.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(path).map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))
}
