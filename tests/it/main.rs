//! The integration tests: one module per concern, and what several of them share in `support`.

mod support;

mod bad_input;
mod bans;
mod client_ip;
mod cluster;
mod composition;
mod concurrency_policy;
mod custom_algorithm;
mod deny_cache;
mod differential;
mod exact_limit;
mod examples;
mod generated_greeter;
mod grpc;
mod handler_rejections;
mod hostile;
mod http_layer;
mod identity;
mod key_extractors;
mod keyed_layer;
mod leases;
mod logs;
mod lua_rules;
mod memory_store;
mod preflight;
mod quickstart;
mod refunds;
mod replay;
mod retry_policy;
mod scaling_formulas;
mod scripts;
mod shaping;
mod standards;
mod store_failure;
mod values;
