//! JSON-RPC requests, and rejections of them.

use std::future::ready;

use bytes::Bytes;
use http::{Request, Response, request::Parts};
use http_body_util::Full;
use tower::{ServiceBuilder, ServiceExt as _, service_fn};
use tower_ratelimit::{
    Error, ErrorKind, Header, Key, MemoryStore, Policy, Quota, RateLimitLayer, Rejection, Rule,
    response::ResponseMapper as _,
};
use tower_ratelimit_gateway::body::{
    BufferBodyLayer, RequestBody,
    json_rpc::{JsonRpc, JsonRpcErrors},
};

use super::{answer, text};

fn request(content: impl Into<Bytes>) -> Request<Full<Bytes>> {
    Request::post("/mcp").body(Full::new(content.into())).unwrap()
}

/// The head of `request` behind the layer.
async fn parsed(request: Request<Full<Bytes>>) -> Parts {
    let layer = BufferBodyLayer::new(1 << 20).parse_with(JsonRpc::parse);
    let service = ServiceBuilder::new().layer(layer).service(service_fn(
        |request: Request<RequestBody<Full<Bytes>>>| {
            let mut response = Response::new(Full::<Bytes>::default());
            response.extensions_mut().insert(request.into_parts().0);
            ready(Ok::<_, std::convert::Infallible>(response))
        },
    ));
    let mut response = service.oneshot(request).await.unwrap();
    response.extensions_mut().remove().unwrap()
}

fn call(id: &str, tool: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"{tool}","arguments":{{}}}}}}"#
    )
}

#[tokio::test]
async fn the_tools_of_one_message_and_of_a_batch_are_found() {
    let (search, fetch) = (call("1", "search"), call("\"x\"", "fetch"));
    for (content, tools, is_batch) in [
        (search.clone(), &["search"][..], false),
        (format!(" \n{search} "), &["search"], false),
        (format!("[{search},{fetch},{search}]"), &["search", "fetch", "search"], true),
        (
            r#"{"params":{"arguments":{"name":"no"},"name":"s\u0065arch"},"method":"tools\/call","id":1}"#
                .into(),
            &["search"],
            false,
        ),
        (r#"{"method":"tools/list","params":{"name":"search"}}"#.into(), &[], false),
        (r#"{"method":"tools/call","params":{"name":7}}"#.into(), &[], false),
        (r#"{"method":"tools/call","params":["search"]}"#.into(), &[], false),
        (r#"{"method":"tools/call","params":null}"#.into(), &[], false),
        (r#"{"method":"tools/call"}"#.into(), &[], false),
        (r#"{"jsonrpc":"2.0","id":1,"result":{"name":"search","method":"tools/call"}}"#.into(), &[], false),
        ("[]".into(), &[], true),
        (String::new(), &[], false),
    ] {
        let parts = parsed(request(content.clone())).await;
        let rpc = JsonRpc::of(&parts).unwrap();
        assert_eq!(
            (rpc.tools().collect::<Vec<_>>().as_slice(), rpc.is_batch()),
            (tools, is_batch),
            "{content}"
        );
    }
}

#[tokio::test]
async fn a_body_that_a_service_may_read_in_another_way_is_rejected() {
    let layer = BufferBodyLayer::new(1 << 20).parse_with(JsonRpc::parse);
    let deep = "[".repeat(200_000);
    let long = format!("[{}]", vec!["{}"; 129].join(","));
    for content in [
        "{",
        "nonsense",
        "7",
        "\"tools/call\"",
        "\u{feff}{}",
        "{} {}",
        r#"{"method":"tools/list","method":"tools/call"}"#,
        r#"{"method":"tools/list","m\u0065thod":"tools/call"}"#,
        r#"{"id":1,"id":2}"#,
        r#"{"params":{"name":"a"},"params":{"name":"b"}}"#,
        r#"{"params":{"name":"a","name":"b"}}"#,
        r#"{"params":{"name":7,"n\u0061me":"b"}}"#,
        // Go and others match names without regard to case.
        r#"{"Method":"tools/call","Params":{"Name":"search"}}"#,
        r#"{"method":"ping","METHOD":"tools/call"}"#,
        r#"{"method":"ping","m\u0045thod":"tools/call"}"#,
        r#"{"id":1,"ID":2}"#,
        r#"{"method":"tools/call","params":{"name":"a"},"PARAMS":{"name":"b"}}"#,
        r#"{"method":"tools/call","params":{"name":"a","Name":"b"}}"#,
        r#"{"method":"tools/call","params":{"NAME":"b"}}"#,
        "{\"method\":\"tools/call\",\"param\u{17f}\":{}}",
        r#"{"JsonRPC":"2.0"}"#,
        r#"[{"method":"ping"},{"Method":"tools/call"}]"#,
        // Members by their order.
        r#"[["2.0","tools/call",1]]"#,
        r#"{"params":"search"}"#,
        r#"{"method":7}"#,
        "[7]",
        &deep,
        &long,
    ] {
        let response = answer(&layer, request(content.to_owned())).await;
        let shown: String = content.chars().take(60).collect();
        assert_eq!(response.status(), 400, "{shown}");
        assert_eq!(
            response.body(),
            r#"{"type":"about:blank","title":"Bad Request","status":400,"detail":"The body of the request is not valid JSON-RPC."}"#
        );
    }
    let mut bytes = request(vec![b'{', b'"', 0xff, b'"', b':', b'1', b'}']);
    assert_eq!(answer(&layer, bytes.clone()).await.status(), 400);
    bytes.headers_mut().insert("content-encoding", "gzip".parse().unwrap());
    let response = answer(&layer, bytes).await;
    assert_eq!(
        (response.status().as_u16(), &response.headers()["accept-encoding"]),
        (415, &"identity".parse().unwrap())
    );
    assert!(
        response.body().contains("The body of the request must not be compressed."),
        "{}",
        response.body()
    );

    // As many messages as are read, and a member whose depth does not matter.
    let most = format!("[{}]", vec!["{}"; 128].join(","));
    assert_eq!(JsonRpc::of(&parsed(request(most)).await).unwrap().messages().len(), 128);
}

#[tokio::test]
async fn members_that_are_not_read_may_be_nested_deeply_without_a_cost_of_stack() {
    let nested = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let content = format!(
        r#"{{"method":"tools/call","params":{{"name":"search","arguments":{nested}}},"result":{nested}}}"#
    );
    let parts = parsed(request(content)).await;
    assert!(JsonRpc::of(&parts).is_ok_and(|rpc| rpc.tool().is_ok_and(|tool| tool == "search")));
}

#[tokio::test]
async fn the_tool_of_a_request_is_one_or_an_error() {
    for (content, expected) in [
        (call("1", "search"), Ok("search")),
        (format!("[{},{}]", call("1", "search"), call("2", "search")), Ok("search")),
        (format!("[{},{}]", call("1", "search"), call("2", "fetch")), Err(ErrorKind::InvalidIdentity)),
        (r#"{"method":"ping"}"#.into(), Err(ErrorKind::MissingIdentity)),
        ("[]".into(), Err(ErrorKind::MissingIdentity)),
    ] {
        let parts = parsed(request(content.clone())).await;
        let tool = JsonRpc::of(&parts).unwrap().tool().map_err(|error| error.kind());
        assert_eq!(tool, expected, "{content}");
    }
    // A request that no layer has parsed.
    let (parts, ()) = Request::new(()).into_parts();
    assert_eq!(JsonRpc::of(&parts).unwrap_err().kind(), ErrorKind::MissingSetup);
}

/// A denial, answered to `content`.
async fn denial(mapper: JsonRpcErrors, content: impl Into<Bytes>) -> Response<String> {
    let policy = Policy::new("calls", Quota::per_minute(2));
    let layer =
        RateLimitLayer::with_rules(MemoryStore::new(), Rule::new(policy, Key::new("all")).cost(|_| 2));
    let service = ServiceBuilder::new()
        .layer(BufferBodyLayer::new(1_000).parse_with(JsonRpc::parse))
        .layer(layer.response(mapper))
        .service(service_fn(|_| {
            ready(Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::default())))
        }));
    service.clone().oneshot(request("")).await.unwrap();
    text(service.oneshot(request(content)).await.unwrap()).await
}

#[tokio::test]
async fn a_denial_echoes_the_id_and_has_the_wait() {
    let error = r#""error":{"code":-32029,"message":"over the rate limit; try again in 1 minute","data":{"retryAfterSeconds":60}}}"#;
    for (id, echoed) in [
        ("7", "7"),
        ("-1.50e2", "-1.50e2"),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
        (r#""a\u0022b""#, r#""a\u0022b""#),
        ("null", "null"),
        (r#"{"a":1}"#, "null"),
        ("[1]", "null"),
        ("true", "null"),
    ] {
        let response = denial(JsonRpcErrors::new(), call(id, "search")).await;
        assert_eq!(response.body(), &format!(r#"{{"jsonrpc":"2.0","id":{echoed},{error}"#));
        assert_eq!(
            (response.status().as_u16(), &response.headers()["retry-after"]),
            (429, &"60".parse().unwrap())
        );
        assert_eq!(response.headers()["content-type"], "application/json");
        assert!(response.headers().contains_key("ratelimit"));
    }
    for content in ["", r#"{"method":"notifications/cancelled"}"#, "[]", r#"[{"method":"ping"}]"#] {
        let response = denial(JsonRpcErrors::new(), content).await;
        assert_eq!(response.body(), &format!(r#"{{"jsonrpc":"2.0","id":null,{error}"#), "{content}");
    }
}

#[tokio::test]
async fn a_denied_batch_is_answered_with_an_error_for_each_request() {
    let batch = format!(r#"[{},{{"method":"notifications/x"}},{}]"#, call("1", "a"), call("\"2\"", "b"));
    let response = denial(JsonRpcErrors::new().code(-32_000), batch).await;
    let answers: Vec<serde_json::Value> = serde_json::from_str(response.body()).unwrap();
    let ids: Vec<_> = answers.iter().map(|answer| answer["id"].to_string()).collect();
    assert_eq!(ids, ["1", "\"2\""]);
    assert!(answers.iter().all(|answer| answer["error"]["code"] == -32_000), "{answers:?}");
}

#[tokio::test]
async fn other_rejections_have_the_code_of_their_cause() {
    let (parts, ()) = Request::new(()).into_parts();
    for (kind, status, code) in [
        (ErrorKind::MissingIdentity, 400, -32_600),
        (ErrorKind::UnknownIdentity, 401, -32_600),
        (ErrorKind::MissingSetup, 500, -32_603),
        (ErrorKind::StoreTimeout, 503, -32_603),
    ] {
        let rejection = Rejection::from(Error::new(kind, "secret.internal"));
        let is_wait = rejection.retry_after_seconds().is_some();
        let response = text(JsonRpcErrors::new().response(&rejection, &parts)).await;
        let body: serde_json::Value = serde_json::from_str(response.body()).unwrap();
        assert_eq!((response.status().as_u16(), &body["error"]["code"]), (status, &code.into()), "{kind:?}");
        assert_eq!(body["error"]["data"]["retryAfterSeconds"].is_number(), is_wait, "{body}");
    }
    let blocked = text(JsonRpcErrors::new().response(&Rejection::Blocked, &parts)).await;
    assert!(
        blocked.body().contains(r#""code":-32029,"#) && !blocked.body().contains("data"),
        "{}",
        blocked.body()
    );
}

#[tokio::test]
async fn a_body_that_is_not_buffered_is_answered_with_an_error_too() {
    let errors = JsonRpcErrors::new();
    let layer = BufferBodyLayer::new(3).response(move |rejection, _| errors.of_body(rejection));
    let response = answer(&layer, request("hello")).await;
    assert_eq!(response.status(), 413);
    assert_eq!(
        response.body(),
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"the body of the request is larger than 3 bytes"}}"#
    );
}

#[tokio::test]
async fn a_batch_is_charged_for_each_call() {
    let count = |request: &Parts| JsonRpc::of(request).map_or(1, |rpc| rpc.tools().count() as u64);
    let rule = Rule::new(Policy::new("calls", Quota::per_hour(4)), Header::new("x-api-key")).cost(count);
    let service = ServiceBuilder::new()
        .layer(BufferBodyLayer::new(1_000).parse_with(JsonRpc::parse))
        .layer(RateLimitLayer::with_rules(MemoryStore::new(), rule))
        .service(service_fn(|_| {
            ready(Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::default())))
        }));
    for (calls, status) in [(3, 200), (2, 429), (1, 200), (1, 429), (0, 200)] {
        let mut request = request(format!("[{}]", vec![call("1", "a"); calls].join(",")));
        request.headers_mut().insert("x-api-key", "k1".parse().unwrap());
        assert_eq!(service.clone().oneshot(request).await.unwrap().status(), status, "{calls}");
    }
}
