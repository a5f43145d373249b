//! What a client does after the rejections of large APIs, with the headers as their documentation shows them. The table
//! in the documentation of `tower_ratelimit_retry` has the same rows.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use http::Method;
use support::table::rows;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    time::Instant,
};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{
    Code, Status,
    metadata::MetadataMap,
    transport::{Channel, Server},
};
use tonic_types::{ErrorDetails, StatusExt as _};
use tower::{ServiceBuilder, ServiceExt as _, retry::RetryLayer};
use tower_ratelimit_retry::BufferedRetryLayer;

use crate::{
    grpc::{
        greeter::{
            HelloReply, HelloRequest,
            greeter_client::GreeterClient,
            greeter_server::{Greeter, GreeterServer},
        },
        hello,
    },
    retry_policy::{check_row, exact},
};

// 1798761600 seconds since 1970.
const DATE: (&str, &str) = ("date", "Fri, 01 Jan 2027 00:00:00 GMT");

#[test]
fn the_rejections_of_large_apis_are_retried_after_the_waits_they_state() {
    for row in rows(include_str!("tables/large-apis.txt")) {
        check_row(&row, &[DATE]);
    }
}

// The clock is paused: it advances to the end of the wait while no socket is ready.
#[tokio::test(start_paused = true)]
async fn a_reqwest_client_waits_as_long_as_a_server_states_on_its_socket() {
    let rows: [(&str, &str, u64); 9] = [
        ("403 Forbidden", "x-ratelimit-remaining: 0\r\nx-ratelimit-reset: 1798761640", 40),
        ("429 Too Many Requests", "retry-after: 3\r\nretry-after: 5", 5),
        ("429 Too Many Requests", "retry-after: 7.493", 8),
        ("429 Too Many Requests", "retry-after-ms: 7000", 7),
        ("429 Too Many Requests", "x-ratelimit-reset: 1798761607000", 7),
        ("429 Too Many Requests", "ratelimit: \"a\";a=0;w=7;c=1", 7),
        ("429 Too Many Requests", "ratelimit: \"a\";a=0;w=7;c=1\r\nratelimit: \"b\";r=0;t=9", 9),
        ("429 Too Many Requests", "x-ratelimit-remaining-tokens: 0\r\nx-ratelimit-reset-tokens: 1m0s", 60),
        ("503 Service Unavailable", "retry-after: \u{e9}\r\nretry-after: 2", 5),
    ];
    for (status, headers, seconds) in rows {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap()).parse().unwrap();
        let (name, value) = DATE;
        let answers = [format!("{status}\r\n{name}: {value}\r\n{headers}"), "200 OK".to_owned()];
        let server = tokio::spawn(async move {
            let mut asked = Vec::new();
            for answer in answers {
                let (mut socket, _) = listener.accept().await.unwrap();
                assert!(socket.read(&mut [0; 1024]).await.unwrap() > 0);
                asked.push(Instant::now());
                let head = format!("HTTP/1.1 {answer}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
                socket.write_all(head.as_bytes()).await.unwrap();
            }
            asked[1] - asked[0]
        });
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let client = ServiceBuilder::new().layer(RetryLayer::new(exact())).service(client);
        let response = client.oneshot(reqwest::Request::new(Method::POST, url)).await.unwrap();
        assert_eq!(response.status(), 200, "{headers}");
        assert!(server.await.unwrap() >= Duration::from_secs(seconds), "{headers}");
    }
}

/// A greeter that denies its first call.
#[derive(Clone)]
struct DeniesOnce {
    denial: Status,
    asked: Arc<Mutex<Vec<Instant>>>,
}

#[tonic::async_trait]
impl Greeter for DeniesOnce {
    async fn say_hello(
        &self,
        request: tonic::Request<HelloRequest>,
    ) -> Result<tonic::Response<HelloReply>, Status> {
        let mut asked = self.asked.lock().unwrap();
        asked.push(Instant::now());
        if asked.len() == 1 {
            return Err(self.denial.clone());
        }
        Ok(tonic::Response::new(HelloReply { message: request.into_inner().name }))
    }

    type SayHellosStream = tokio_stream::Empty<Result<HelloReply, Status>>;

    async fn say_hellos(
        &self,
        _: tonic::Request<HelloRequest>,
    ) -> Result<tonic::Response<Self::SayHellosStream>, Status> {
        Ok(tonic::Response::new(tokio_stream::empty()))
    }
}

#[tokio::test(start_paused = true)]
async fn a_tonic_client_waits_as_long_as_a_server_states_on_its_socket() {
    let info = |seconds| {
        let details = ErrorDetails::with_retry_info(Some(Duration::from_secs(seconds)));
        Status::with_error_details(Code::ResourceExhausted, "busy", details)
    };
    let metadata = |code, name: &'static str, values: &[&'static str]| {
        let mut metadata = MetadataMap::new();
        for value in values {
            metadata.append(name, value.parse().unwrap());
        }
        Status::with_metadata(code, "busy", metadata)
    };
    let rows = [
        ("RetryInfo", info(7), Some(7)),
        ("8 and Retry-After", metadata(Code::ResourceExhausted, "retry-after", &["7"]), Some(7)),
        ("14 and Retry-After", metadata(Code::Unavailable, "retry-after", &["7"]), Some(7)),
        ("14 and Retry-After twice", metadata(Code::Unavailable, "retry-after", &["7", "9"]), Some(9)),
        ("14 and a fraction", metadata(Code::Unavailable, "retry-after", &["6.5"]), Some(7)),
        ("14 and pushback", metadata(Code::Unavailable, "grpc-retry-pushback-ms", &["7000"]), Some(7)),
        ("14 and a bad Retry-After", metadata(Code::Unavailable, "retry-after", &["soon"]), None),
        ("14", Status::unavailable("gone"), None),
    ];
    for (name, denial, wait) in rows {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let channel = Channel::from_shared(format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let greeter = GreeterServer::new(DeniesOnce { denial, asked: asked.clone() });
        let server = Server::builder().add_service(greeter);
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        let channel = channel.connect().await.unwrap();
        let channel = ServiceBuilder::new().layer(BufferedRetryLayer::new(exact())).service(channel);
        let answer = GreeterClient::new(channel).say_hello(hello()).await;
        assert_eq!(answer.is_ok(), wait.is_some(), "{name}: {answer:?}");
        let asked = asked.lock().unwrap();
        let waits: Vec<_> = asked.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(waits.len(), usize::from(wait.is_some()), "{name}");
        assert!(
            waits.iter().all(|waited| *waited >= Duration::from_secs(wait.unwrap_or(0))),
            "{name}: {waits:?}"
        );
    }
}
