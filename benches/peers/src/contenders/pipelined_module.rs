//! Several policies for a request without this crate: a call of the module redis-cell for each, all in one pipeline, on a
//! connection manager with TCP_NODELAY.
//!
//! It does not answer quite the same: if one policy denies, the others have charged the request.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::body::Body;
use http::{Request, Response, StatusCode};
use redis::{
    Client, IntoConnectionInfo, Pipeline, RedisResult, aio::ConnectionManager, io::tcp::TcpSettings,
};
use tower::Service;
use tower_redis_cell::redis_cell::{AllowedDetails, Cmd, Key, Policy, Verdict};

use super::tower_redis_cell::{policy, write};
use crate::contender::{Contender, Handler, Place, Role, key_of, subject};

/// `policies` calls for each request.
pub(super) fn contender(policies: usize) -> Contender {
    Contender {
        name: format!("redis-cell, {policies} calls in a pipeline"),
        role: Role::ModuleSeveral(policies),
        place: Place::RedisCell,
        packages: &["redis-cell-rs", "redis-cell", "redis@1"],
        make: Box::new(move |setup| {
            Box::pin(async move {
                let server = setup.url.as_str().into_connection_info()?;
                let server = server.set_tcp_settings(TcpSettings::default().set_nodelay(true));
                let connection = ConnectionManager::new(Client::open(server)?).await?;
                let prefixes = (0..policies).map(|number| format!("{}:{number}", setup.prefix)).collect();
                let limits = Arc::new(Limits { prefixes, policy: policy(setup.limit) });
                Ok(subject(Pipelined { limits, connection, inner: Handler }))
            })
        }),
    }
}

struct Limits {
    /// One for each policy.
    prefixes: Vec<String>,
    policy: Policy,
}

#[derive(Clone)]
struct Pipelined {
    limits: Arc<Limits>,
    connection: ConnectionManager,
    inner: Handler,
}

impl Pipelined {
    /// What each policy says.
    async fn verdicts(&mut self, key: &str) -> RedisResult<Vec<Verdict>> {
        let mut calls = Pipeline::with_capacity(self.limits.prefixes.len());
        for prefix in &self.limits.prefixes {
            calls.add_command(Cmd::new(&Key::pair(prefix, key), &self.limits.policy).into());
        }
        calls.query_async(&mut self.connection).await
    }
}

impl Service<Request<Body>> for Pipelined {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let mut service = self.clone();
        Box::pin(async move {
            let Some(key) = key_of(&request) else {
                return Ok(denial(StatusCode::BAD_REQUEST));
            };
            let Ok(verdicts) = service.verdicts(key).await else {
                return Ok(denial(StatusCode::INTERNAL_SERVER_ERROR));
            };
            let allowed = verdicts.into_iter().map(|verdict| match verdict {
                Verdict::Allowed(details) => Some(details),
                Verdict::Blocked(_) => None,
            });
            let Some(allowed) = allowed.collect::<Option<Vec<AllowedDetails>>>() else {
                return Ok(denial(StatusCode::TOO_MANY_REQUESTS));
            };
            let Ok(mut response) = service.inner.call(request).await;
            if let Some(tightest) = allowed.iter().min_by_key(|details| details.remaining) {
                write(&mut response, tightest.total, tightest.remaining, tightest.reset_after);
            }
            Ok(response)
        })
    }
}

fn denial(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}
