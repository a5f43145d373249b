//! Providers of credentials for a [`RedisStore`](tower_ratelimit::RedisStore): [`StreamedCredentials`].

mod streamed;

pub use self::streamed::StreamedCredentials;
