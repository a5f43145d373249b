//! The tests of the crate that need no server: one module per concern.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

mod bans;
mod client_ip;
mod composition;
mod enforcement;
mod features_meet;
mod handler_rejections;
mod handlers;
mod http_layer;
mod identity;
mod key_extractors;
mod key_forms;
mod key_tables;
mod keyed_layer;
mod lua_rules;
mod metric_names;
mod random_routes;
mod responses;
mod settled_outages;
mod standards;
mod unrouted;
mod values;
mod warnings;
