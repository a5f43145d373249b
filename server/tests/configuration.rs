//! What a configuration may contain, what is wrong in one, and how changes are followed.

use std::{fs, os::unix::fs::symlink};

use support::RedisServer;

use crate::process::{Files, Server, descriptor, run};

/// What `check` says of a directory with one file, with the exit code. Without the path of the directory.
fn check(text: &str, policies: Option<&str>) -> (Option<i32>, String) {
    let files = Files::new(text);
    let mut words = vec!["check".to_owned(), files.path()];
    if let Some(policies) = policies {
        words.extend(["--policies".to_owned(), files.beside("policies.toml", policies)]);
    }
    let (code, listed, errors) = run(&words.iter().map(String::as_str).collect::<Vec<_>>());
    (code, format!("{listed}{errors}").replace(&format!("{}/", files.path()), ""))
}

/// A file with one descriptor, whose lines these are.
fn with(lines: &[&str]) -> String {
    format!("domain: d\ndescriptors:\n  - key: a\n    {}\n", lines.join("\n    "))
}

#[test]
fn an_invalid_configuration_says_where_and_what_to_write() {
    let rows = [
        ("no domain", "descriptors: []".to_owned(), "limits.yaml: line 1 column 1: missing field `domain`"),
        ("an empty domain", "domain: ''".to_owned(), "limits.yaml: `domain` is empty"),
        ("an empty file", String::new(), "limits.yaml: "),
        ("no YAML", "domain: [".to_owned(), "limits.yaml: line 1"),
        ("two documents", "domain: d\n---\ndomain: e\n".to_owned(), "limits.yaml: line 3"),
        ("an unknown key", with(&["limits: 3"]), "limits.yaml: line 4 column 5: unknown field `limits`"),
        ("an unknown key of a limit", with(&["rate_limit: { algorithm: gcra }"]), "line 4 column 19: unknown field `algorithm`"),
        ("no key", "domain: d\ndescriptors: [{ value: b }]".to_owned(), "line 2 column 17: missing field `key`"),
        ("an empty key", "domain: d\ndescriptors: [{ key: '' }]".to_owned(), "line 2: `d.`: `key` is empty"),
        ("an unknown unit", with(&["rate_limit: { unit: fortnight, requests_per_unit: 1 }"]), "line 3: `d.a`: invalid unit `fortnight`: write second, minute,"),
        ("no unit", with(&["rate_limit: { requests_per_unit: 1 }"]), "line 3: `d.a`: write `unit` and `requests_per_unit`"),
        ("no number", with(&["rate_limit: { unit: day }"]), "line 3: `d.a`: write `unit` and `requests_per_unit`, of which 0 blocks"),
        ("a negative number", with(&["rate_limit: { unit: day, requests_per_unit: -1 }"]), "line 4 column 49: invalid u32"),
        ("a unit of no limit", with(&["rate_limit: { unlimited: true, unit: day }"]), "line 3: `d.a`: an unlimited descriptor has no `unit`"),
        ("an empty replaced name", with(&["rate_limit: { unlimited: true, replaces: [{ name: '' }] }"]), "line 3: `d.a`: `replaces` has an empty name or the limit's own"),
        ("its own name", with(&["rate_limit: { unlimited: true, name: x, replaces: [{ name: x }] }"]), "line 3: `d.a`: `replaces` has an empty name or the limit's own"),
        ("the same twice", "domain: d\ndescriptors:\n  - key: a\n  - key: b\n  - key: a\n".to_owned(), "limits.yaml: line 5: `d.a`: there is another descriptor of this name"),
        ("the same name by another way", "domain: d\ndescriptors:\n  - { key: a, value: b, rate_limit: { unlimited: true } }\n  - { key: a_b, rate_limit: { unlimited: true } }\n".to_owned(), "line 4: `d.a_b`: there is another descriptor of this name"),
        ("one path by two", "domain: d\ndescriptors:\n  - { key: a.b, rate_limit: { unlimited: true } }\n  - { key: a, descriptors: [{ key: b, rate_limit: { unlimited: true } }] }\n".to_owned(), "line 4: `d.a.b`: there is another descriptor of this name"),
        ("quota mode", with(&["quota_mode: true", "rate_limit: { unlimited: true }"]), "line 3: `d.a`: `quota_mode` is not supported: it admits requests that are over a limit"),
        ("shared without a wildcard", with(&["value: b", "share_threshold: true", "rate_limit: { unlimited: true }"]), "line 3: `d.a_b`: `share_threshold` needs a value that ends with `*`"),
        ("an unknown policy without any", with(&["rate_limit: { policy: p }"]), "line 3: `d.a`: there is no policy `p`: --policies and --live have no policy"),
    ];
    for (name, text, expected) in rows {
        let (code, said) = check(&text, None);
        assert_eq!(code, Some(2), "{name}: {said}");
        assert!(said.starts_with("error: ") && said.contains(expected), "{name}: {said}");
    }
    let own = "domain: d\ndescriptors:\n  - { key: user, rate_limit: { unit: day, requests_per_unit: 1 } }\n  - { key: other, rate_limit: { policy: d.user } }\n";
    let (code, said) = check(own, Some("[[policies]]\nname = 'd.user'\nquota = '5/s'\n"));
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("line 4: `d.other`: `d.user` has the policy `d.user` too"), "{said}");
    let files = Files::new("domain: d\n");
    let pipe = files.directory().join("pipe.yaml");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let (code, _, said) = run(&["check", &files.path()]);
    assert_eq!(code, Some(2));
    assert!(said.contains("pipe.yaml: not a file of at most 4 MiB"), "{said}");
    let (code, _, said) = run(&["check", "/nowhere/limits"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("/nowhere/limits: "), "{said}");
}

#[test]
fn policies_that_need_a_release_or_a_delay_are_errors() {
    let policies = "
[[policies]]
name = 'jobs'
quota = '2/30s'
algorithm = 'concurrency'
[[policies]]
name = 'queue'
quota = '5/s'
algorithm = { name = 'leaky-bucket', max_wait = '2s' }
[[policies]]
name = 'late-queue'
quota = '5/s'
algorithm = { name = 'leaky-bucket', max_wait = '2s', delay_after = 3 }
[[policies]]
name = 'meter'
quota = '5/s'
algorithm = 'leaky-bucket'
";
    let of = |policy: &str| check(&with(&[&format!("rate_limit: {{ policy: {policy} }}")]), Some(policies));
    let rows = [
        ("jobs", "the policy `jobs` counts concurrent requests, and the protocol has no release"),
        ("queue", "the policy `queue` delays requests, and the protocol has no delay"),
        ("late-queue", "the policy `late-queue` delays requests"),
        (
            "other",
            "there is no policy `other`: --policies and --live have `jobs`, `late-queue`, `meter`, `queue`",
        ),
        ("meter, unit: day", "`policy` has the whole limit: remove `unit`"),
    ];
    for (policy, expected) in rows {
        let (code, said) = of(policy);
        assert_eq!(code, Some(2), "{policy}: {said}");
        assert!(said.contains(&format!("line 3: `d.a`: {expected}")), "{policy}: {said}");
    }
    let (code, said) = of("meter");
    assert_eq!((code, said.trim_end()), (Some(0), "d.a  5/s by leaky-bucket, policy `meter`, local"));
}

#[test]
fn check_warns_of_what_is_probably_a_mistake() {
    let policies = Some("[[policies]]\nname = 'p'\nquota = '5/s'\n");
    let two = "
domain: d
descriptors:
  - { key: a, rate_limit: { policy: p } }
  - { key: b, rate_limit: { policy: p } }
  - { key: c, shadow_mode: true, metadata: { x: 1 } }
";
    let (code, said) = check(two, policies);
    assert_eq!(code, Some(0));
    assert!(
        said.contains(
            "warning: `d.b` and `d.a` have the policy `p`, and share its counts: equal values are one client"
        ),
        "{said}"
    );
    assert!(
        said.contains(
            "warning: limits.yaml: line 6: `d.c`: `shadow_mode` and `metadata` have no effect without `rate_limit` beside them"
        ),
        "{said}"
    );
    let nested = "
domain: d
descriptors:
  - { key: a, rate_limit: { policy: p }, descriptors: [{ key: b, rate_limit: { policy: p } }] }
";
    let (code, said) = check(nested, policies);
    assert_eq!(code, Some(2));
    assert!(
        said.contains("line 4: `d.a.b`: `d.a` has the policy `p` too, for keys of another kind"),
        "{said}"
    );
}

#[test]
fn every_unit_is_read_in_any_case_and_texts_are_kept_as_they_are_written() {
    let units = ["second", "MINUTE", "Hour", "day", "week", "month", "year"];
    let limits = units.map(|unit| {
        format!("  - {{ key: {unit}, value: 1.50, rate_limit: {{ unit: {unit}, requests_per_unit: 3 }} }}\n")
    });
    let (code, said) = check(&format!("domain: d\ndescriptors:\n{}", limits.concat()), None);
    assert_eq!(code, Some(0), "{said}");
    let quotas: Vec<&str> = said.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
    assert_eq!(quotas, ["3/s", "3/min", "3/h", "3/day", "3/7d", "3/30d", "3/365d"]);
    assert!(said.contains("d.second_1.50 "), "{said}");
    // A name of a policy is short and plain.
    let long =
        with(&[&format!("value: {}é", "b".repeat(90)), "rate_limit: { unit: day, requests_per_unit: 3 }"]);
    let (code, said) = check(&long, None);
    assert_eq!(code, Some(0), "{said}");
    let name = said.split("policy `").nth(1).unwrap().split('`').next().unwrap();
    assert!(name.len() == 64 && name.starts_with("d.a_bbb") && name.contains('~'), "{name}");
}

#[tokio::test]
async fn the_first_wildcard_counts_and_an_exact_value_comes_before_it() {
    let files = Files::new(
        "
domain: d
descriptors:
  - { key: p, value: /a*, rate_limit: { unit: year, requests_per_unit: 1 } }
  - { key: p, value: /a/b*, rate_limit: { unit: year, requests_per_unit: 2 } }
  - { key: p, value: /a/b/c, rate_limit: { unit: year, requests_per_unit: 3 } }
  - { key: p, rate_limit: { unit: year, requests_per_unit: 4 } }
  # Only the last character of a pattern stands for others.
  - { key: star, value: a**, rate_limit: { unit: year, requests_per_unit: 6 } }
  - key: q
    descriptors:
      - { key: p, value: x*, rate_limit: { unit: year, requests_per_unit: 5 } }
",
    );
    let server = Server::alone(&files, &[]).await;
    let caller = server.caller().await;
    let rows = [("p=/a/b", 1), ("p=/a/b/c", 3), ("p=/a", 1), ("p=/b", 4), ("q=1 p=xy", 5), ("star=a*b", 6)];
    for (entries, limit) in rows {
        let expected = format!("OK: OK {} of {limit}/YEAR", limit - 1);
        assert_eq!(caller.ask(&[descriptor(entries)]).await, expected, "{entries}");
    }
    assert_eq!(caller.ask(&[descriptor("star=ab")]).await, "OK: OK");
}

#[tokio::test]
async fn files_of_a_domain_are_one_and_metadata_is_sent_for_what_is_ok() {
    let files = Files::new(
        "
domain: d
descriptors:
  - key: model
    value: large
    metadata: { backend: large-1, weights: [1, 0.5], more: { is: true, none: null } }
    rate_limit: { unit: month, requests_per_unit: 1 }
",
    );
    files.write("more.yml", "domain: d\ndescriptors: [{ key: user, metadata: { tier: free }, rate_limit: { unlimited: true } }]\n");
    files.write("notes.txt", "not read");
    files.write(".hidden.yaml", "not read");
    let server = Server::alone(&files, &[]).await;
    let caller = server.caller().await;
    let both = ["model=large", "user=ann"].map(descriptor);
    let metadata = async || {
        let response = caller.call(crate::process::request("d", &both)).await.unwrap();
        response.dynamic_metadata.map(|metadata| {
            format!("{:?}", metadata.fields.keys().collect::<std::collections::BTreeSet<_>>())
        })
    };
    assert_eq!(metadata().await.unwrap(), r#"{"backend", "more", "tier", "weights"}"#);
    // The model is over its limit.
    assert_eq!(metadata().await.unwrap(), r#"{"tier"}"#);
}

#[tokio::test]
async fn a_change_is_followed_and_keeps_counts_and_an_invalid_one_changes_nothing() {
    let limit = |requests: &str| {
        format!(
            "domain: d\ndescriptors: [{{ key: user, rate_limit: {{ unit: year, requests_per_unit: {requests} }} }}]\n"
        )
    };
    let (files, redis) = (Files::new(&limit("2")), RedisServer::start());
    let server = Server::start(&files, &redis, &[]).await;
    let caller = server.caller().await;
    let user = [descriptor("user=ann")];
    assert_eq!(caller.admitted(4, &user).await, 2);
    files.write("limits.yaml", &limit("5"));
    server.has_applied(2).await;
    // What was denied before is admitted, because nothing remembers the denial.
    assert_eq!(caller.ask(&user).await, "OK: OK 2 of 5/YEAR");

    files.write("limits.yaml", &limit("many"));
    server.logs("the configuration stays as it is: ").await;
    let log = server.log();
    assert!(log.contains("limits.yaml: line 2 column"), "{log}");
    assert_eq!(server.metric("ratelimit_failed_policy_sources").await, Some(1.0));
    let (_, page) = server.get("/config").await;
    assert!(page.contains("5/365d") && page.contains("error, so what is above stays"), "{page}");
    assert_eq!(caller.ask(&user).await, "OK: OK 1 of 5/YEAR");
    assert_eq!(server.get("/ready").await.0, 200);

    // Lower than what was charged.
    files.write("limits.yaml", &limit("3"));
    assert!(
        support::eventually(async || server.metric("ratelimit_failed_policy_sources").await == Some(0.0))
            .await
    );
    assert_eq!(caller.ask(&user).await, "OVER_LIMIT: OVER_LIMIT 0 of 3/YEAR");
    // Each error was logged once.
    assert_eq!(server.log().matches("the configuration stays as it is").count(), 1);
}

#[tokio::test]
async fn a_mounted_directory_of_kubernetes_is_followed() {
    let files = Files::new("domain: d\n");
    let of = |name: &str, requests: u32| {
        let directory = files.directory().join(name);
        fs::create_dir(&directory).unwrap();
        let text = format!(
            "domain: d\ndescriptors: [{{ key: user, rate_limit: {{ unit: year, requests_per_unit: {requests} }} }}]\n"
        );
        fs::write(directory.join("limits.yaml"), text).unwrap();
    };
    of("..one", 1);
    symlink("..one", files.directory().join("..data")).unwrap();
    fs::remove_file(files.directory().join("limits.yaml")).unwrap();
    symlink("..data/limits.yaml", files.directory().join("limits.yaml")).unwrap();
    let server = Server::alone(&files, &[]).await;
    let caller = server.caller().await;
    assert_eq!(caller.ask(&[descriptor("user=ann")]).await, "OK: OK 0 of 1/YEAR");
    of("..two", 7);
    symlink("..two", files.directory().join("..next")).unwrap();
    fs::rename(files.directory().join("..next"), files.directory().join("..data")).unwrap();
    server.has_applied(2).await;
    assert_eq!(caller.ask(&[descriptor("user=ann")]).await, "OK: OK 5 of 7/YEAR");
}

#[tokio::test]
async fn a_changed_policy_is_followed_and_one_that_the_protocol_cannot_have_is_not() {
    let files = Files::new("domain: d\ndescriptors: [{ key: user, rate_limit: { policy: p } }]\n");
    let policies = files.beside("policies.toml", "[[policies]]\nname = 'p'\nquota = '2/week'\n");
    let server = Server::alone(&files, &["--policies", &policies]).await;
    let caller = server.caller().await;
    let user = [descriptor("user=ann")];
    assert_eq!(caller.ask(&user).await, "OK: OK 1 of 2/WEEK");
    files.beside("policies.toml", "[[policies]]\nname = 'p'\nquota = '9/week'\n");
    server.has_applied(2).await;
    assert_eq!(caller.ask(&user).await, "OK: OK 7 of 9/WEEK");
    files.beside("policies.toml", "[[policies]]\nname = 'p'\nquota = '9/30s'\nalgorithm = 'concurrency'\n");
    server.logs("the configuration stays as it is: ").await;
    assert!(server.log().contains("counts concurrent requests"), "{}", server.log());
    assert_eq!(caller.ask(&user).await, "OK: OK 6 of 9/WEEK");
}

#[tokio::test]
async fn policies_in_redis_are_live_for_all_servers() {
    let files = Files::new("domain: d\ndescriptors: [{ key: user, rate_limit: { policy: p } }]\n");
    let redis = RedisServer::start();
    redis.command::<i64>(&["HSET", "rl:policies", "p", "2 a week"]);
    let url = redis.url();
    let (code, _, said) =
        run(&["serve", &files.path(), "--redis", &url, "--live", "--operators", "127.0.0.1:0"]);
    assert_eq!(code, Some(2));
    let last = said.lines().last().unwrap();
    assert!(last.starts_with("error: ") && last.contains("`rl:policies`, field `p`: "), "{said}");
    redis.command::<i64>(&["HSET", "rl:policies", "p", r#"{"quota": "2/week"}"#]);
    let one = Server::start(&files, &redis, &["--live"]).await;
    let two = Server::start(&files, &redis, &["--live"]).await;
    let (first, second) = (one.caller().await, two.caller().await);
    let user = [descriptor("user=ann")];
    assert_eq!(first.ask(&user).await, "OK: OK 1 of 2/WEEK");
    assert_eq!(second.ask(&user).await, "OK: OK 0 of 2/WEEK");
    redis.command::<i64>(&["HSET", "rl:policies", "p", r#"{"quota": "5/week"}"#]);
    for server in [&one, &two] {
        server.has_applied(2).await;
    }
    assert_eq!(second.ask(&user).await, "OK: OK 2 of 5/WEEK");
}
