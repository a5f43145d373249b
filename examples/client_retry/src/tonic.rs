//! A tonic client that retries denied calls after the wait the server asks for.
//!
//! Run with `cargo run -p example-client-retry --bin example-client-retry-tonic`
//!
//! It starts a server that admits a burst of two calls and then one a second, and calls it five times, one
//! after the other. The first two calls are admitted immediately. Each of the others is denied with a
//! `RetryInfo`, waits that time and up to a tenth more, and is admitted. All five are done after a little
//! more than three seconds.

#![allow(clippy::print_stdout, reason = "the example prints its results")]

#[allow(clippy::all, dead_code, missing_docs, unnameable_types, unreachable_pub, unused_qualifications, reason = "generated")]
#[path = "../../tonic/src/greeter.rs"]
#[rustfmt::skip]
mod greeter;

use std::{error::Error, time::Instant};

use greeter::{
    HelloReply, HelloRequest,
    greeter_client::GreeterClient,
    greeter_server::{Greeter, GreeterServer},
};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{
    Request, Response, Status,
    transport::{Channel, Server},
};
use tower::{Layer, ServiceBuilder};
use tower_ratelimit::{MemoryStore, PeerIp, Policy, Quota, RateLimitLayer};
use tower_ratelimit_retry::{BufferedRetryLayer, RetryPolicy};

struct Hello;

#[tonic::async_trait]
impl Greeter for Hello {
    async fn say_hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        Ok(Response::new(HelloReply { message: format!("hello {}", request.into_inner().name) }))
    }

    type SayHellosStream = tokio_stream::Empty<Result<HelloReply, Status>>;

    async fn say_hellos(&self, _: Request<HelloRequest>) -> Result<Response<Self::SayHellosStream>, Status> {
        Err(Status::unimplemented("see the example of tonic"))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let policy = Policy::new("calls", Quota::per_second(1).burst(2));
    let limit = RateLimitLayer::new(MemoryStore::new(), policy, PeerIp::new());
    let server = Server::builder().add_service(limit.layer(GreeterServer::new(Hello)));
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));

    let channel = Channel::from_shared(format!("http://{address}"))?.connect().await?;
    let channel = ServiceBuilder::new().layer(BufferedRetryLayer::new(RetryPolicy::new())).service(channel);
    let mut client = GreeterClient::new(channel);

    let start = Instant::now();
    for call in 1..=5 {
        let request = HelloRequest { name: format!("you, call {call}"), count: 1 };
        let reply = client.say_hello(request).await?.into_inner();
        println!("{:.2} s  {}", start.elapsed().as_secs_f64(), reply.message);
    }
    Ok(())
}
