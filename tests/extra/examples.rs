//! The examples of the crate answer the curl lines in their doc comments with the responses written there.

#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../../extra/examples/adaptive.rs"]
mod adaptive;
#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../../extra/examples/tiers.rs"]
mod tiers;

use support::{
    eventually,
    examples::{says_what_is_written, store},
};

#[tokio::test]
async fn tiers_says_what_is_written() {
    says_what_is_written(tiers::app(store()), include_str!("../../extra/examples/tiers.rs"), 9).await;
}

#[tokio::test]
async fn adaptive_says_what_is_written() {
    let (app, api) = adaptive::app(store()).unwrap();
    let parts = include_str!("../../extra/examples/adaptive.rs").split("//! sleep ");
    for ((part, count), share) in parts.zip([4, 3, 2]).zip([1.0, 0.25, 1.0]) {
        // While the quota follows, nothing is sent, so its time need not pass.
        tokio::time::pause();
        assert!(eventually(async || api.share() == share).await, "{api:?}");
        tokio::time::resume();
        let lines = part.trim_start_matches(|character: char| character != '/');
        says_what_is_written(app.clone(), lines, count).await;
    }
}
