//! Programs as a new user writes them. What a user writes is in `app` or in the functions before the first test.
//!
//! Programs that come from other limiters are in the guide `migration`. A tonic server and a client that retries are in `tests/net/buffered_retry.rs`.

mod crawler;
mod messages;
mod shop;
mod tenants;
mod vendor;
mod worker;
