//! Guides, by task. Each program in them is compiled and, unless it needs a Redis server or a fixed port,
//! run.
//!
//! | guide | question it answers |
//! |---|---|
//! | [`quickstart`] | How do I limit my service? |
//! | [`concepts`] | What are units, keys, policies, decisions? The glossary |
//! | [`client_ip`] | Which address is the client's behind nginx, an ingress, AWS, Cloudflare, Google Cloud, Fly.io, Envoy? |
//! | [`keys`] | Whom do I limit: addresses, API keys, users, tenants? |
//! | [`choosing`] | Which numbers, which burst, which algorithm? |
//! | [`several_limits`] | How do I combine limits, routes and costs? |
//! | [`overload`] | There is not enough for all: who is denied first? |
//! | [`logins`] | How do I protect a login, and ban abusive clients? |
//! | [`budgets`] | How do I sell a quota per month, give teams budgets, and warn before they are used up? |
//! | [`streams`] | How do I limit LLM tokens, bytes and streams? |
//! | [`body`] | How do I limit MCP tools, GraphQL queries, or anything else in a request's body? |
//! | [`grpc`] | How do I limit a tonic service, and what does its client see? |
//! | [`envoy`] | How do services in other languages get the same limits? Envoy, Istio, Envoy Gateway |
//! | [`clients`] | What do client libraries do with a 429, and why does a program hang? |
//! | [`websocket`] | How do I limit messages of a WebSocket, and server-sent events? |
//! | [`outgoing`] | How do I keep jobs and outgoing calls within a limit? |
//! | [`failure`] | What happens if Redis is unavailable? What does an outage admit? |
//! | [`redis`] | Which Redis, which settings, how large? Cluster, Sentinel, TLS, ACL |
//! | [`servers`] | Does my managed Redis, Valkey or compatible server work? Tokens that rotate, several regions |
//! | [`deployment`] | What do I check before production? |
//! | [`upgrades`] | What happens to the counts when I deploy a change? |
//! | [`operations`] | How do I look at a client, lift a limit, ban, or turn limits off? |
//! | [`metrics_and_alerts`] | What can I measure, and when should it alert? |
//! | [`tracing`] | Which limit decided this request, and how long did it take? Spans for OpenTelemetry |
//! | [`troubleshooting`] | What does this log line, status or error mean? |
//! | [`your_code`] | What happens if my hook, extractor or store panics or blocks? |
//! | [`testing`] | How do I test limits without sleeping and without Redis? |
//! | [`migration`] | I come from `tower_governor`, `axum_gcra`, `tower-redis-cell`, express-rate-limit, Bucket4j, nginx, Spring or Envoy |
//! | [`faq`] | Why 400? Why did a limit of 5 admit 9? Why do all my users share one limit? |

#[doc = include_str!("body.md")]
pub mod body {}
#[doc = include_str!("budgets.md")]
pub mod budgets {}
#[doc = include_str!("choosing.md")]
pub mod choosing {}
#[doc = include_str!("client_ip.md")]
pub mod client_ip {}
#[doc = include_str!("clients.md")]
pub mod clients {}
#[doc = include_str!("concepts.md")]
pub mod concepts {}
#[doc = include_str!("deployment.md")]
pub mod deployment {}
#[doc = include_str!("envoy.md")]
pub mod envoy {}
#[doc = include_str!("failure.md")]
pub mod failure {}
#[doc = include_str!("faq.md")]
pub mod faq {}
#[doc = include_str!("grpc.md")]
pub mod grpc {}
#[doc = include_str!("keys.md")]
pub mod keys {}
#[doc = include_str!("logins.md")]
pub mod logins {}
#[doc = include_str!("metrics_and_alerts.md")]
pub mod metrics_and_alerts {}
#[doc = include_str!("migration.md")]
pub mod migration {}
#[doc = include_str!("operations.md")]
pub mod operations {}
#[doc = include_str!("outgoing.md")]
pub mod outgoing {}
#[doc = include_str!("overload.md")]
pub mod overload {}
#[doc = include_str!("quickstart.md")]
pub mod quickstart {}
#[doc = include_str!("redis.md")]
pub mod redis {}
#[doc = include_str!("servers.md")]
pub mod servers {}
#[doc = include_str!("several_limits.md")]
pub mod several_limits {}
#[doc = include_str!("streams.md")]
pub mod streams {}
#[doc = include_str!("testing.md")]
pub mod testing {}
#[doc = include_str!("tracing.md")]
pub mod tracing {}
#[doc = include_str!("troubleshooting.md")]
pub mod troubleshooting {}
#[doc = include_str!("upgrades.md")]
pub mod upgrades {}
#[doc = include_str!("websocket.md")]
pub mod websocket {}
#[doc = include_str!("your_code.md")]
pub mod your_code {}
