//! Futures that are polled a few times and then kept delay no other caller of one server.

use support::RedisServer;

use crate::each_store::kept_futures::{hold, settings_of};

async fn hold_on_a_server(pool: u32) {
    let server = RedisServer::start();
    let store = settings_of(pool).connect(&server.url()).await.unwrap();
    let mut admin = server.connection();
    let flush = || redis::cmd("SCRIPT").arg("FLUSH").exec(&mut admin).unwrap();
    hold(&format!("pool of {pool}"), store, flush).await;
}

#[tokio::test]
async fn futures_that_are_polled_and_kept_fail_no_other_caller() {
    hold_on_a_server(8).await;
}

#[tokio::test]
async fn futures_that_are_polled_and_kept_fail_no_other_caller_of_two_connections() {
    hold_on_a_server(2).await;
}

#[tokio::test]
async fn futures_that_are_polled_and_kept_fail_no_other_caller_of_one_connection() {
    hold_on_a_server(1).await;
}
