//! Posts a webhook when a customer has used 80 % of a monthly quota, and all of it.
//!
//! Run with `cargo run -p example-client-retry --bin example-webhook`
//!
//! It starts a service with ten requests a month for each API key, and the receiver of the webhook, and sends the service
//! ten requests. The receiver prints two lines. It drops repeats by their id: after a refund, a customer can reach a
//! share twice.

#![allow(clippy::print_stdout, reason = "the example prints its results")]

use std::{
    collections::HashSet,
    error::Error,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::UNIX_EPOCH,
};

use axum::{Router, routing::get, routing::post};
use reqwest::{Client, Method, Request};
use tokio::{net::TcpListener, sync::mpsc};
use tower::{Service, ServiceBuilder, ServiceExt, retry::RetryLayer};
use tower_ratelimit::{Header, Limiter, MemoryStore, Policy, Quota, RateLimitLayer};
use tower_ratelimit_retry::RetryPolicy;

/// The service, which sends what is to be posted.
fn app(notices: mpsc::UnboundedSender<String>) -> Router {
    let limiter = Limiter::new(MemoryStore::new());
    limiter.on_threshold(move |event| {
        let ends = event.ends.and_then(|ends| Some(ends.duration_since(UNIX_EPOCH).ok()?.as_secs()));
        // The key is the identity; the hash names it in logs. A receiver may need either.
        let notice = format!("{}\n{} % of {}, until {ends:?}", event.id(), event.percent, event.limit);
        // Requests must not wait for the receiver.
        drop(notices.send(notice));
    });
    let plan = Policy::new("plan", Quota::per_month(10)).notify_at([80, 100]);
    let limit = RateLimitLayer::new(limiter, plan, Header::new("x-api-key"));
    Router::new().route("/", get(async || "done")).layer(limit)
}

/// The receiver: prints each notice once.
fn receiver(done: mpsc::UnboundedSender<()>) -> Router {
    let seen = Arc::new(Mutex::new(HashSet::new()));
    Router::new().route(
        "/",
        post(async move |notice: String| {
            let Some((id, text)) = notice.split_once('\n') else { return };
            let is_new = seen.lock().is_ok_and(|mut seen| seen.insert(id.to_owned()));
            if is_new {
                println!("{}", text.split(',').next().unwrap_or_default());
                let _ = done.send(());
            }
        }),
    )
}

async fn serve(app: Router) -> Result<SocketAddr, Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(address)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (sender, mut notices) = mpsc::unbounded_channel();
    let (done, mut received) = mpsc::unbounded_channel();
    let (app, receiver) = (serve(app(sender)).await?, serve(receiver(done)).await?);
    let client = Client::builder().no_proxy().build()?;

    // A receiver that is overloaded or restarts gets the notice later.
    let mut poster = ServiceBuilder::new().layer(RetryLayer::new(RetryPolicy::new())).service(client.clone());
    tokio::spawn(async move {
        while let Some(notice) = notices.recv().await {
            let Ok(url) = format!("http://{receiver}/").parse() else { return };
            let mut request = Request::new(Method::POST, url);
            *request.body_mut() = Some(notice.into());
            if let Ok(poster) = poster.ready().await {
                drop(poster.call(request).await);
            }
        }
    });

    for _ in 0..10 {
        client.get(format!("http://{app}/")).header("x-api-key", "k1").send().await?.error_for_status()?;
    }
    for _ in 0..2 {
        received.recv().await;
    }
    Ok(())
}
