//! What a client does after the rejections of large APIs, with the headers as their documentation shows them. The table
//! in the documentation of `tower_ratelimit_retry` has the same rows.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{Method, StatusCode};
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
    retry_policy::{
        Fields,
        Then::{self, BacksOff, Returns, Waits},
        UNCLEAR, ask, check, exact, paused, request, waits,
    },
};

// 1798761600 seconds since 1970.
const DATE: (&str, &str) = ("date", "Fri, 01 Jan 2027 00:00:00 GMT");

#[test]
fn the_rejections_of_large_apis_are_retried_after_the_waits_they_state() {
    let rows: &[(&str, Method, u16, Fields<'_>, Then)] = &[
        (
            "Anthropic",
            Method::POST,
            429,
            &[
                ("retry-after", "34"),
                ("anthropic-ratelimit-requests-limit", "50"),
                ("anthropic-ratelimit-requests-remaining", "49"),
                ("anthropic-ratelimit-requests-reset", "2027-01-01T00:00:01Z"),
                ("anthropic-ratelimit-tokens-limit", "40000"),
                ("anthropic-ratelimit-tokens-remaining", "0"),
                ("anthropic-ratelimit-tokens-reset", "2027-01-01T00:00:42Z"),
            ],
            waits(34),
        ),
        (
            "Anthropic, no Retry-After",
            Method::POST,
            429,
            &[
                ("anthropic-ratelimit-requests-remaining", "49"),
                ("anthropic-ratelimit-requests-reset", "2027-01-01T00:05:00Z"),
                ("anthropic-ratelimit-tokens-remaining", "0"),
                ("anthropic-ratelimit-tokens-reset", "2027-01-01T00:00:42Z"),
            ],
            waits(42),
        ),
        (
            "Atlassian",
            Method::GET,
            429,
            &[
                ("retry-after", "5"),
                ("x-ratelimit-limit", "350"),
                ("x-ratelimit-remaining", "0"),
                ("x-ratelimit-reset", "2027-01-01T00:01Z"),
            ],
            waits(5),
        ),
        (
            "Atlassian, no Retry-After",
            Method::GET,
            429,
            &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "2027-01-01T00:01Z")],
            waits(60),
        ),
        ("AWS", Method::POST, 429, &[("x-amzn-errortype", "TooManyRequestsException")], BacksOff),
        ("AWS S3, read", Method::GET, 503, &[("x-amz-request-id", "1")], BacksOff),
        ("AWS S3, POST", Method::POST, 503, &[("x-amz-request-id", "1")], Returns),
        ("Azure Resource Manager", Method::GET, 429, &[("retry-after", "17")], waits(17)),
        (
            "Azure Cosmos DB",
            Method::POST,
            429,
            &[("x-ms-retry-after-ms", "2341")],
            Waits(Duration::from_millis(2_341)),
        ),
        (
            "Azure OpenAI",
            Method::POST,
            429,
            &[
                ("retry-after-ms", "1500"),
                ("retry-after", "2"),
                ("x-ratelimit-remaining-tokens", "-1"),
                ("x-ratelimit-reset-tokens", "0"),
            ],
            waits(2),
        ),
        (
            "Cloudflare",
            Method::GET,
            429,
            &[
                ("ratelimit", r#""default";r=0;t=30"#),
                ("ratelimit-policy", r#""default";q=1200;w=300"#),
                ("retry-after", "30"),
            ],
            waits(30),
        ),
        (
            "Discord",
            Method::POST,
            429,
            &[
                ("retry-after", "65"),
                ("x-ratelimit-limit", "10"),
                ("x-ratelimit-remaining", "0"),
                ("x-ratelimit-reset", "1798761664.57"),
                ("x-ratelimit-reset-after", "64.57"),
                ("x-ratelimit-scope", "user"),
            ],
            waits(65),
        ),
        (
            "Discord, no Retry-After",
            Method::POST,
            429,
            &[
                ("x-ratelimit-remaining", "0"),
                ("x-ratelimit-reset", "1798761664.57"),
                ("x-ratelimit-reset-after", "64.57"),
            ],
            waits(65),
        ),
        (
            "GitHub, primary limit",
            Method::GET,
            403,
            &[
                ("x-ratelimit-limit", "60"),
                ("x-ratelimit-remaining", "0"),
                ("x-ratelimit-used", "60"),
                ("x-ratelimit-reset", "1798761640"),
                ("x-ratelimit-resource", "core"),
            ],
            waits(40),
        ),
        (
            "GitHub, primary limit, 429",
            Method::GET,
            429,
            &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1798761640")],
            waits(40),
        ),
        (
            "GitHub, secondary limit",
            Method::POST,
            403,
            &[("retry-after", "60"), ("x-ratelimit-remaining", "4000"), ("x-ratelimit-reset", "1798764000")],
            waits(60),
        ),
        (
            "GitHub, secondary limit, no Retry-After",
            Method::POST,
            429,
            &[("x-ratelimit-remaining", "4000"), ("x-ratelimit-reset", "1798764000")],
            UNCLEAR,
        ),
        (
            "GitHub, no permission",
            Method::POST,
            403,
            &[("x-ratelimit-remaining", "4000"), ("x-ratelimit-reset", "1798764000")],
            Returns,
        ),
        (
            "GitLab",
            Method::GET,
            429,
            &[
                ("ratelimit-limit", "60"),
                ("ratelimit-name", "throttle_authenticated_web"),
                ("ratelimit-observed", "67"),
                ("ratelimit-remaining", "0"),
                ("ratelimit-reset", "1798761630"),
                ("ratelimit-resettime", "Fri, 01 Jan 2027 00:00:30 GMT"),
                ("retry-after", "30"),
            ],
            waits(30),
        ),
        (
            "GitLab, no Retry-After",
            Method::GET,
            429,
            &[
                ("ratelimit-remaining", "0"),
                ("ratelimit-reset", "1798761630"),
                ("ratelimit-resettime", "Fri, 01 Jan 2027 00:00:30 GMT"),
            ],
            waits(30),
        ),
        ("Google", Method::GET, 429, &[("content-type", "application/json")], BacksOff),
        ("Google, Retry-After", Method::POST, 503, &[("retry-after", "30")], waits(30)),
        ("Google, limit in the body", Method::GET, 403, &[("content-type", "application/json")], Returns),
        (
            "HubSpot",
            Method::GET,
            429,
            &[
                ("x-hubspot-ratelimit-daily-remaining", "249000"),
                ("x-hubspot-ratelimit-interval-milliseconds", "10000"),
                ("x-hubspot-ratelimit-max", "100"),
                ("x-hubspot-ratelimit-remaining", "0"),
            ],
            BacksOff,
        ),
        (
            "Linear",
            Method::POST,
            429,
            &[
                ("x-ratelimit-requests-limit", "5000"),
                ("x-ratelimit-requests-remaining", "0"),
                ("x-ratelimit-requests-reset", "1798761609000"),
                ("x-ratelimit-complexity-remaining", "9"),
                ("x-ratelimit-complexity-reset", "1798765200000"),
            ],
            waits(9),
        ),
        ("Microsoft Graph", Method::GET, 429, &[("retry-after", "10")], waits(10)),
        ("Notion", Method::GET, 429, &[("retry-after", "12")], waits(12)),
        (
            "Okta",
            Method::GET,
            429,
            &[
                ("x-rate-limit-limit", "600"),
                ("x-rate-limit-remaining", "0"),
                ("x-rate-limit-reset", "1798761651"),
            ],
            waits(51),
        ),
        (
            "OpenAI",
            Method::POST,
            429,
            &[
                ("retry-after-ms", "2000"),
                ("retry-after", "2"),
                ("x-ratelimit-limit-requests", "60"),
                ("x-ratelimit-remaining-requests", "59"),
                ("x-ratelimit-reset-requests", "1s"),
                ("x-ratelimit-remaining-tokens", "0"),
                ("x-ratelimit-reset-tokens", "6m0s"),
            ],
            waits(2),
        ),
        (
            "OpenAI, no Retry-After",
            Method::POST,
            429,
            &[
                ("x-ratelimit-remaining-requests", "59"),
                ("x-ratelimit-reset-requests", "20ms"),
                ("x-ratelimit-remaining-tokens", "0"),
                ("x-ratelimit-reset-tokens", "6m0s"),
            ],
            waits(360),
        ),
        (
            "Reddit",
            Method::GET,
            429,
            &[("x-ratelimit-remaining", "0.0"), ("x-ratelimit-used", "600"), ("x-ratelimit-reset", "28")],
            waits(28),
        ),
        (
            "Shopify",
            Method::GET,
            429,
            &[("retry-after", "2.0"), ("x-shopify-shop-api-call-limit", "40/40")],
            waits(2),
        ),
        ("Slack", Method::POST, 429, &[("retry-after", "30")], waits(30)),
        ("Stripe", Method::POST, 429, &[("stripe-rate-limited-reason", "global-rate")], BacksOff),
        ("Twilio", Method::POST, 429, &[("twilio-concurrent-requests", "100")], BacksOff),
        (
            "X",
            Method::GET,
            429,
            &[
                ("x-rate-limit-limit", "900"),
                ("x-rate-limit-remaining", "0"),
                ("x-rate-limit-reset", "1798761655"),
                ("x-app-limit-24hour-remaining", "100"),
                ("x-app-limit-24hour-reset", "1798848000"),
            ],
            waits(55),
        ),
        (
            "Zendesk",
            Method::GET,
            429,
            &[
                ("retry-after", "53"),
                ("x-rate-limit", "700"),
                ("ratelimit-limit", "700"),
                ("x-rate-limit-remaining", "0"),
                ("ratelimit-remaining", "0"),
                ("ratelimit-reset", "41"),
                ("zendesk-ratelimit-tickets-index", "total=100; remaining=0; resets=41"),
            ],
            waits(53),
        ),
    ];
    for (name, method, denied, fields, then) in rows {
        let fields = [*fields, &[DATE]].concat();
        let (status, waits) = paused(ask(exact(), request(method), 1, (*denied, &fields)));
        check(name, StatusCode::from_u16(*denied).unwrap(), status, &waits, *then);
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
