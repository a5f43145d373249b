//! The credentials of connections that the Cluster client of redis-rs opens.
//!
//! The client has one way to pass credentials that change: a provider, to which a connection subscribes while it
//! is being opened. [`opening`] runs around that, so that it learns which credentials the connection has.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, OnceLock},
};

use futures_util::{Stream, stream};
use redis::{
    RedisResult,
    auth::{BasicAuth, StreamingCredentialsProvider},
};

use super::authenticator::{Authenticator, Login};

tokio::task_local! {
    /// What the connection that is being opened logs in with.
    static OPENING: Arc<OnceLock<Opened>>;
}

type Opened = (Arc<Authenticator>, Arc<Login>);
type Subscription = Pin<Box<dyn Stream<Item = RedisResult<BasicAuth>> + Send>>;

/// The output of `connect`, and the credentials that the connection used, if the client has a [`Bridge`].
pub(crate) async fn opening<T>(connect: impl Future<Output = T>) -> (T, Option<Opened>) {
    let opened = Arc::new(OnceLock::new());
    let output = OPENING.scope(opened.clone(), connect).await;
    (output, opened.get().cloned())
}

/// An authenticator as the provider of a Cluster client.
pub(crate) struct Bridge(pub(crate) Arc<Authenticator>);

impl StreamingCredentialsProvider for Bridge {
    /// The first subscription of a connection is for its login. The second one would authenticate it again,
    /// which its session does.
    fn subscribe(&self) -> Subscription {
        let opening = OPENING.try_with(Arc::clone).unwrap_or_default();
        if opening.get().is_some() {
            return Box::pin(stream::pending());
        }
        let authenticator = self.0.clone();
        Box::pin(stream::once(async move {
            let login = authenticator.login().await?;
            let auth = BasicAuth::new(login.credentials.user.clone(), login.credentials.password.clone());
            // Each connection logs in once.
            let _ = opening.set((authenticator, login));
            Ok(auth)
        }))
    }
}
