//! One file for each limiter, and the order of the tables.

mod axum_gcra;
mod barnacle;
mod none;
mod ours;
mod pipelined_module;
mod textbook;
mod tower_governor;
mod tower_rate_limit_redis;
mod tower_rate_limiter;
pub(crate) mod tower_redis_cell;

use crate::contender::Contender;

pub(crate) fn all() -> Vec<Contender> {
    let mut all = vec![
        none::contender(),
        textbook::contender(),
        tower_rate_limiter::gcra(),
        tower_rate_limiter::fixed_window(),
        tower_redis_cell::as_documented(),
        tower_redis_cell::nodelay(),
        pipelined_module::contender(2),
        pipelined_module::contender(3),
        tower_rate_limit_redis::contender(),
        barnacle::contender(),
        tower_governor::contender(),
        axum_gcra::contender(),
    ];
    all.extend(ours::modes());
    all
}
