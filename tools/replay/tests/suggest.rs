//! The smallest limit that denies few clients.

use std::fs;

use support::Directory;

use crate::{errors, replay};

/// 1,000 clients, in one minute: 997 with 3 requests, two with 7 and one with 50.
fn log() -> String {
    let line = |client: usize| format!("{{\"t\": 1767225600000000, \"key\": \"c{client}\"}}\n");
    let requests = |client| match client {
        0 => 50,
        1 | 2 => 7,
        _ => 3,
    };
    (0..1_000).map(|client| line(client).repeat(requests(client))).collect()
}

#[test]
fn the_smallest_limit_that_denies_one_client_in_a_thousand_is_found() {
    for algorithm in ["fixed-window", "gcra", "sliding-log", "sliding-window", "token-bucket", "leaky-bucket"]
    {
        let output = replay(&["--suggest", "--period", "1min", "--algorithm", algorithm], log());
        assert!(output.status.success(), "{}", errors(&output));
        let table = String::from_utf8(output.stdout).unwrap();
        let has = |text: &str| assert!(table.contains(text), "{algorithm}, {text}:\n{table}");
        has("3,055 requests of 1,000 clients; a limit may deny 1 of them\nsuggested: 7/min,");
        has("\n           6               3     0.30 %              46      1.5 %\n");
        has("\n           7               1     0.10 %              43      1.4 %  suggested\n");
        has("the suggested limit denies 1 client:\n        43  c0\n");
    }
}

#[test]
fn the_share_of_denied_clients_is_an_option() {
    let limit = |share: &str| {
        let options = ["--suggest", "--suggest-share", share, "--period", "1min"];
        let table = String::from_utf8(replay(&options, log()).stdout).unwrap();
        table.split_once("suggested: ").unwrap().1.split_once(',').unwrap().0.to_owned()
    };
    assert_eq!(limit("0"), "50/min");
    assert_eq!(limit("0.0029"), "7/min");
    assert_eq!(limit("0.003"), "3/min");
    assert_eq!(limit("0.9999"), "3/min");
}

#[test]
fn a_limit_for_a_policy_of_a_file_keeps_its_other_settings() {
    let directory = Directory::new();
    let path = directory.file("limits.toml");
    let policies = "
        [[policies]]
        name = 'other'
        quota = '1/s'
        [[policies]]
        name = 'plan'
        quota = '100/month'
        max_debt = 5";
    fs::write(&path, policies).unwrap();
    let options = ["--policies", path.to_str().unwrap()];
    let output = replay(&[&options[..], &["--suggest=plan"]].concat(), log());
    let table = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(table.contains("suggested: 7/month,"), "{table}{}", errors(&output));
    // Lines with charges under several policies.
    let several = log()
        .replace(
            "\"key\": ",
            "\"charges\": [{\"policy\": \"other\", \"key\": \"x\"}, {\"policy\": \"plan\", \"key\": ",
        )
        .replace("}\n", "}]}\n");
    let output = replay(&[&options[..], &["--suggest=plan"]].concat(), several);
    assert!(str::from_utf8(&output.stdout).unwrap().contains("suggested: 7/month,"), "{}", errors(&output));
    let output = replay(&[&options[..], &["--suggest"]].concat(), log());
    assert!(errors(&output).contains("needs one policy of other, plan"), "{}", errors(&output));
}

#[test]
fn a_burst_that_denies_at_any_limit_is_an_error() {
    let output = replay(&["--suggest", "--period", "1min", "--burst", "2"], log());
    assert!(errors(&output).contains("every limit denies more clients"), "{}", errors(&output));
}
