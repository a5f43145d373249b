//! The examples of the crate answer the curl lines in their doc comments with the responses written there.

#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../../operate/examples/admin.rs"]
mod admin;
#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../../operate/examples/reload.rs"]
mod reload;

use support::{
    Directory, eventually,
    examples::{says_what_is_written, store},
};
use tower_ratelimit_operate::live::LivePolicies;

#[tokio::test]
async fn admin_says_what_is_written() {
    let source = include_str!("../../operate/examples/admin.rs");
    // The service and its administration have no path in common.
    let (service, admin) = admin::apps(store(), "correct-horse-battery");
    let source = source.replace("http://127.0.0.1:3001", "http://127.0.0.1:3000");
    says_what_is_written(service.merge(admin), &source, 24).await;
}

#[tokio::test]
async fn reload_says_what_is_written() {
    let directory = Directory::new();
    let path = directory.file("limits.toml");
    std::fs::write(&path, reload::FIRST).unwrap();
    let live = LivePolicies::file(&path).unwrap();
    let app = reload::app(store(), live.clone()).unwrap();
    let source =
        include_str!("../../operate/examples/reload.rs").replace("/tmp/limits.toml", path.to_str().unwrap());
    let state = || (live.version(), live.last_error().map(|error| error.to_string()));
    let mut parts = source.split("//! sed ");
    says_what_is_written(app.clone(), parts.next().unwrap(), 3).await;
    for (part, count) in parts.zip([3, 2, 1]) {
        let (edit, before) = (format!("sed {}", part.lines().next().unwrap()), state());
        assert!(std::process::Command::new("sh").args(["-c", &edit]).status().unwrap().success());
        assert!(eventually(async || state() != before).await, "{edit}");
        let lines: String = part.lines().skip(1).flat_map(|line| [line, "\n"]).collect();
        says_what_is_written(app.clone(), &lines, count).await;
    }
}
