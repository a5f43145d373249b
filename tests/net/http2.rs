//! Requests over HTTP/2.

use http::Request;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use support::http::{app, serve};
use tokio::net::TcpStream;
use tower_ratelimit::{Header, MemoryStore, Policy, Quota, RateLimitLayer};

#[tokio::test]
async fn spaces_around_a_header_do_not_change_the_identity_over_http_2() {
    let policy = Policy::new("p", Quota::per_hour(2));
    let layer = RateLimitLayer::new(MemoryStore::new(), policy, Header::new("x-api-key"));
    let address = serve(app(layer)).await;
    let socket = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let (mut client, connection) = http2::handshake(TokioExecutor::new(), socket).await.unwrap();
    tokio::spawn(connection);
    let rows = [("k1", 200), ("k1 ", 200), (" \tk1", 429), ("k 1", 200), (" \t ", 400), ("", 400)];
    for (value, status) in rows {
        let request = Request::get(format!("http://{address}/")).header("x-api-key", value);
        let response = client.send_request(request.body(String::new()).unwrap()).await.unwrap();
        assert_eq!(response.status(), status, "{value:?}");
    }
}
