//! A gRPC service with a limit for each client, and a client that exceeds it and shows the status.
//!
//! Run with `cargo run -p example-tonic`
//!
//! It ends after a few calls. `greeter.rs` is generated from `greeter.proto`, so it needs no protoc.
//!
//! The handler charges further units for streams, with the limiter of the layer, and returns a rejection as a
//! status.
#![allow(clippy::print_stdout, reason = "the example prints its results")]

#[allow(clippy::all, missing_docs, unnameable_types, unreachable_pub, unused_qualifications, reason = "generated")]
#[rustfmt::skip]
mod greeter;

use std::{error::Error, net::SocketAddr, pin::Pin};

use greeter::{
    HelloReply, HelloRequest,
    greeter_client::GreeterClient,
    greeter_server::{Greeter, GreeterServer},
};
use tokio::net::TcpListener;
use tokio_stream::{Stream, StreamExt, wrappers::TcpListenerStream};
use tonic::{Request, Response, Status, transport::Server};
use tonic_types::StatusExt as _;
use tower::Layer as _;
use tower_ratelimit::{
    Key, Limiter, MemoryStore, PeerIp, Policy, Quota, RateLimitLayer, response::GrpcStatus,
};

struct Hello;

#[tonic::async_trait]
impl Greeter for Hello {
    async fn say_hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        let message = format!("hello {}", request.into_inner().name);
        Ok(Response::new(HelloReply { message }))
    }

    type SayHellosStream = Pin<Box<dyn Stream<Item = Result<HelloReply, Status>> + Send>>;

    async fn say_hellos(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<Self::SayHellosStream>, Status> {
        // The layer has charged one unit under its own policy. Under this one, each reply costs a unit.
        let limiter = Limiter::from_extensions(request.extensions()).cloned();
        let limiter = limiter.ok_or_else(|| Status::internal("the rate limit layer is missing"))?;
        let HelloRequest { name, count } = request.into_inner();
        let replies = Policy::new("replies", Quota::per_minute(100));
        limiter.check(&replies, &Key::new(&name), count.into()).await?.into_result()?;
        let hellos = (1..=count).map(move |n| Ok(HelloReply { message: format!("hello {name}, {n}") }));
        Ok(Response::new(Box::pin(tokio_stream::iter(hellos))))
    }
}

/// A burst of four calls for each client, then one every three seconds.
fn limits() -> RateLimitLayer {
    let policy = Policy::new("calls", Quota::per_minute(20).burst(4));
    RateLimitLayer::new(MemoryStore::new(), policy, PeerIp::new())
        .grpc_response(GrpcStatus::default().name_identities())
}

async fn serve() -> Result<SocketAddr, Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    // For all services: `Server::builder().layer(limits())`.
    let server = Server::builder().add_service(limits().layer(GreeterServer::new(Hello)));
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    Ok(address)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = serve().await?;
    let mut client = GreeterClient::connect(format!("http://{address}")).await?;
    let request = |count| HelloRequest { name: "you".into(), count };

    // The layer charges a stream once.
    let mut stream = client.say_hellos(request(5)).await?.into_inner();
    while let Some(reply) = stream.next().await {
        println!("{}", reply?.message);
    }

    let rejection = loop {
        match client.say_hello(request(1)).await {
            Ok(reply) => println!("{}", reply.into_inner().message),
            Err(status) => break status,
        }
    };
    println!("code: {:?}", rejection.code());
    println!("message: {}", rejection.message());
    let details = rejection.get_error_details();
    if let Some(retry) = details.retry_info() {
        println!("retry in: {:?}", retry.retry_delay.unwrap_or_default());
    }
    for violation in details.quota_failure().map(|failure| &failure.violations[..]).unwrap_or_default() {
        println!(
            "quota: {}, burst {}, for {}: {}",
            violation.quota_id, violation.quota_value, violation.subject, violation.description
        );
    }
    Ok(())
}
