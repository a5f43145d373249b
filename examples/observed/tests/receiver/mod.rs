//! A receiver of OTLP over gRPC, and what it received.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::{KeyValue, any_value::Value},
    trace::v1::{Span, span::SpanKind, status::StatusCode},
};
use prost::Message as _;
use tokio::net::TcpListener;
use tonic::{Request, Response, Status, service::Routes};

/// The received messages.
#[derive(Clone, Default)]
pub(crate) struct Receiver(Arc<Mutex<Vec<ExportTraceServiceRequest>>>);

#[tonic::async_trait]
impl TraceService for Receiver {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0.lock().unwrap().push(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Receiver {
    /// Receives on a free port until the runtime ends.
    pub(crate) async fn listen(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = Routes::new(TraceServiceServer::new(self.clone())).into_axum_router();
        tokio::spawn(async move { axum::serve(listener, service).await });
        address
    }

    fn spans(&self) -> Vec<Span> {
        let received = self.0.lock().unwrap();
        let resources = received.iter().flat_map(|request| &request.resource_spans);
        resources.flat_map(|spans| &spans.scope_spans).flat_map(|spans| spans.spans.clone()).collect()
    }

    /// The spans of a trace, by the time at which they started.
    pub(crate) fn trace(&self, id: &[u8]) -> Vec<Span> {
        let mut spans: Vec<_> = self.spans().into_iter().filter(|span| span.trace_id == id).collect();
        spans.sort_by_key(|span| span.start_time_unix_nano);
        spans
    }

    /// Whether a received message has `text` anywhere.
    pub(crate) fn has(&self, text: &str) -> bool {
        let received = self.0.lock().unwrap();
        received
            .iter()
            .any(|request| request.encode_to_vec().windows(text.len()).any(|bytes| bytes == text.as_bytes()))
    }
}

/// The attributes that this crate gives a span. The others are from tracing-opentelemetry.
pub(crate) fn attributes(span: &Span) -> BTreeMap<&str, String> {
    let others = ["busy_ns", "code.", "idle_ns", "target", "thread."];
    let is_own = |attribute: &&KeyValue| !others.iter().any(|other| attribute.key.starts_with(other));
    span.attributes.iter().filter(is_own).map(|attribute| (&*attribute.key, text(attribute))).collect()
}

/// A string has quotes, a double has a point, and an integer has neither.
fn text(attribute: &KeyValue) -> String {
    match attribute.value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(value)) => format!("{value:?}"),
        Some(Value::IntValue(value)) => format!("{value}"),
        Some(Value::DoubleValue(value)) => format!("{value:?}"),
        other => format!("{other:?}"),
    }
}

/// One line for each span, indented below its parent, with its kind, its name, its attributes and its status.
pub(crate) fn tree(spans: &[Span]) -> String {
    let has_parent = |span: &Span| spans.iter().any(|parent| parent.span_id == span.parent_span_id);
    let mut text = String::new();
    for root in spans.iter().filter(|span| !has_parent(span)) {
        write_below(&mut text, root, spans, 0);
    }
    text
}

fn write_below(text: &mut String, span: &Span, spans: &[Span], depth: usize) {
    let indent = "  ".repeat(depth);
    let kind = format!("{:?}", SpanKind::try_from(span.kind).unwrap()).to_lowercase();
    let is_error = span.status.as_ref().is_some_and(|status| status.code() == StatusCode::Error);
    let error = if is_error { ", an error" } else { "" };
    writeln!(text, "{indent}{} ({kind}{error})", span.name).unwrap();
    for (name, value) in attributes(span) {
        writeln!(text, "{indent}  . {name} = {value}").unwrap();
    }
    for child in spans.iter().filter(|child| child.parent_span_id == span.span_id) {
        write_below(text, child, spans, depth + 1);
    }
}
