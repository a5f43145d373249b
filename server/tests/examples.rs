//! The documented cases of envoyproxy/ratelimit's configuration: what `check` and `match` say of them, and what calls get.

use crate::process::{Files, Server, brief, descriptor, request, run};

/// One file for all, because a directory may have many.
const EXAMPLES: [(&str, &str); 9] = [
    (
        "1.yaml",
        "
domain: databases
descriptors:
  - key: database
    value: orders
    rate_limit:
      unit: second
      requests_per_unit: 400
  - key: database
    value: reports
    rate_limit:
      unit: second
      requests_per_unit: 30
",
    ),
    (
        "2.yaml",
        "
domain: messages
descriptors:
  # At most five advertisements a day for each number.
  - key: kind
    value: advertisement
    descriptors:
      - key: number
        rate_limit:
          unit: day
          requests_per_unit: 5
  # At most 100 messages of any kind.
  - key: number
    rate_limit:
      unit: day
      requests_per_unit: 100
",
    ),
    (
        "3.yaml",
        "
domain: addresses
descriptors:
  - key: remote_address
    rate_limit:
      unit: second
      requests_per_unit: 10
  - key: remote_address
    value: 192.0.2.66
    rate_limit:
      unit: second
      requests_per_unit: 0
",
    ),
    (
        "4.yaml",
        "
domain: depth
descriptors:
  - key: country
    value: ch
    rate_limit:
      requests_per_unit: 300
      unit: hour
  - key: country
    value: de
    descriptors:
      - key: city
        rate_limit:
          requests_per_unit: 200
          unit: HOUR
",
    ),
    (
        "5.yaml",
        "
domain: departments
descriptors:
  - key: finance
    rate_limit:
      unlimited: true
  - key: sales
    rate_limit:
      unit: minute
      requests_per_unit: 100
",
    ),
    (
        "6.yaml",
        "
domain: shadows
descriptors:
  - key: service
    descriptors:
      - key: user
        value: ann
        rate_limit:
          requests_per_unit: 1
          unit: year
        shadow_mode: true
      - key: user
        value: bob
        rate_limit:
          requests_per_unit: 2
          unit: year
",
    ),
    (
        "7.yaml",
        "
domain: replacing
descriptors:
  - key: kind
    value: read
    descriptors:
      - key: user
        value: ann
        rate_limit:
          name: reads
          requests_per_unit: 5
          unit: month
  - key: endpoint
    value: export
    descriptors:
      - key: user
        value: ann
        rate_limit:
          replaces:
            - name: reads
          requests_per_unit: 10
          unit: month
",
    ),
    (
        "8.yaml",
        "
domain: metrics
descriptors:
  - key: tenant
    detailed_metric: true
    rate_limit:
      unit: minute
      requests_per_unit: 10
  - key: tenant
    value: acme
    rate_limit:
      unit: minute
      requests_per_unit: 20
  - key: route
    value_to_metric: true
    descriptors:
      - key: user
        rate_limit: { unit: minute, requests_per_unit: 5 }
",
    ),
    (
        "9.yaml",
        "
domain: wildcards
descriptors:
  - key: path
    value: /api/*
    rate_limit:
      unit: month
      requests_per_unit: 2
  - key: path
    value: /files/*
    share_threshold: true
    value_to_metric: true
    rate_limit:
      unit: month
      requests_per_unit: 2
",
    ),
];

fn files() -> Files {
    let files = Files::new("domain: none\n");
    for (name, text) in EXAMPLES {
        files.write(name, text);
    }
    files
}

#[test]
fn check_lists_what_each_limit_means() {
    let (code, listed, errors) = run(&["check", &files().path()]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    let expected = "\
databases.database_orders                    400/s by fixed-window, policy `databases.database_orders`, local
databases.database_reports                   30/s by fixed-window, policy `databases.database_reports`, local
messages.kind_advertisement.number           5/day by fixed-window, policy `messages.kind_advertisement.number`, local
messages.number                              100/day by fixed-window, policy `messages.number`, local
addresses.remote_address                     10/s by fixed-window, policy `addresses.remote_address`, local
addresses.remote_address_192.0.2.66          blocked
depth.country_ch                             300/h by fixed-window, policy `depth.country_ch`, local
depth.country_de.city                        200/h by fixed-window, policy `depth.country_de.city`, local
departments.finance                          unlimited
departments.sales                            100/min by fixed-window, policy `departments.sales`, local
shadows.service.user_ann                     1/365d by fixed-window, policy `shadows.service.user_ann`, local, shadow
shadows.service.user_bob                     2/365d by fixed-window, policy `shadows.service.user_bob`, local
replacing.kind_read.user_ann                 5/30d by fixed-window, policy `replacing.kind_read.user_ann`, local, name `reads`
replacing.endpoint_export.user_ann           10/30d by fixed-window, policy `replacing.endpoint_export.user_ann`, local, replaces `reads`
metrics.tenant                               10/min by fixed-window, policy `metrics.tenant`, local
metrics.tenant_acme                          20/min by fixed-window, policy `metrics.tenant_acme`, local
metrics.route.user                           5/min by fixed-window, policy `metrics.route.user`, local
wildcards.path_/api/*                        2/30d by fixed-window, policy `wildcards.path_/api/*`, local
wildcards.path_/files/*                      2/30d by fixed-window, policy `wildcards.path_/files/*`, local
";
    let squeezed = |text: &str| {
        text.split('\n').map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    assert_eq!(squeezed(&listed), squeezed(expected));
}

#[test]
fn match_shows_the_limit_of_a_descriptor_and_whose_counts_it_has() {
    let files = files();
    let none = "no descriptor with a limit matches: OK";
    let rows: [(&[&str], &str); 19] = [
        (&["databases", "database=orders"], "databases.database_orders: 400/s .. key `all`"),
        (&["databases", "database=other"], none),
        (&["databases", "Database=orders"], none),
        (&["other", "database=orders"], "there is no domain `other`: each call is OK"),
        (
            &["messages", "kind=advertisement", "number=1"],
            "messages.kind_advertisement.number: 5/day .. key `1`",
        ),
        (&["messages", "kind=news", "number=1"], none),
        (&["messages", "number=1"], "messages.number: 100/day .. key `1`"),
        (&["messages", "kind=advertisement"], none),
        (&["addresses", "remote_address=192.0.2.1"], "addresses.remote_address: 10/s .. key `192.0.2.1`"),
        (&["addresses", "remote_address=192.0.2.66"], "addresses.remote_address_192.0.2.66: blocked"),
        // As many entries as levels.
        (&["depth", "country=ch", "city=bern"], none),
        (&["depth", "country=ch"], "depth.country_ch: 300/h"),
        (&["depth", "country=de", "city=ulm"], "depth.country_de.city: 200/h .. key `ulm`"),
        (&["departments", "finance=x"], "departments.finance: unlimited"),
        (&["shadows", "service=s", "user=ann"], "shadows.service.user_ann: 1/365d .. key `s`"),
        (&["metrics", "route=/a", "user=ann"], "metrics.route.user: 5/min .. key `%(/a%|ann%)`"),
        (&["wildcards", "path=/api/a=b"], "wildcards.path_/api/*: 2/30d .. key `/api/a=b`"),
        (&["wildcards", "path=/files/1"], "wildcards.path_/files/*: 2/30d .. key `all`"),
        (&["wildcards", "path=/other"], none),
    ];
    for (words, expected) in rows {
        let (code, text, errors) = run(&[&["match", &files.path()], words].concat());
        assert_eq!(code, Some(0), "{errors}");
        for part in expected.split(" .. ") {
            assert!(text.contains(part), "{words:?}: {text}, and not {part}");
        }
    }
}

#[tokio::test]
async fn calls_get_what_the_examples_say() {
    let server = Server::alone(&files(), &[]).await;
    let caller = server.caller().await;
    let ask = async |domain: &str, entries: &[&str]| {
        let descriptors: Vec<_> = entries.iter().map(|entries| descriptor(entries)).collect();
        brief(&caller.call(request(domain, &descriptors)).await.unwrap())
    };
    // The answer is OK in shadow mode, and the denials are counted.
    for rest in [0, 0, 0] {
        let status = format!("OK: OK {rest} of 1/YEAR");
        assert_eq!(ask("shadows", &["service=s user=ann"]).await, status);
    }
    let shadow = "ratelimit_server_hits_total{descriptor=\"shadows.service.user_ann\",verdict=\"shadow\"}";
    assert_eq!(server.metric(shadow).await, Some(2.0));
    for expected in ["OK: OK 1 of 2/YEAR", "OK: OK 0 of 2/YEAR", "OVER_LIMIT: OVER_LIMIT 0 of 2/YEAR"] {
        assert_eq!(ask("shadows", &["service=s user=bob"]).await, expected);
    }

    let (read, export) = ("kind=read user=ann", "endpoint=export user=ann");
    assert_eq!(ask("replacing", &[read]).await, "OK: OK 4 of 5/MONTH \"reads\"");
    assert_eq!(ask("replacing", &[read, export]).await, "OK: OK, OK 9 of 10/MONTH");
    // The replaced limit was not charged.
    assert_eq!(ask("replacing", &[read]).await, "OK: OK 3 of 5/MONTH \"reads\"");

    for entries in ["tenant=one", "tenant=two", "tenant=acme", "route=/a user=ann", "route=/a user=bob"] {
        assert!(ask("metrics", &[entries]).await.starts_with("OK"));
    }
    for (name, hits) in
        [("tenant_one", 1.0), ("tenant_two", 1.0), ("tenant_acme", 1.0), ("route_/a.user", 2.0)]
    {
        let name = format!("ratelimit_server_hits_total{{descriptor=\"metrics.{name}\",verdict=\"ok\"}}");
        assert_eq!(server.metric(&name).await, Some(hits), "{name}");
    }

    // Each path under /api has separate counts. The paths under /files share their counts and their metric.
    for path in ["/api/a", "/api/b"] {
        let entries = format!("path={path}");
        let mut answers = Vec::new();
        for _ in 0..3 {
            answers.push(ask("wildcards", &[&entries]).await.starts_with("OK"));
        }
        assert_eq!(answers, [true, true, false], "{path}");
    }
    assert!(ask("wildcards", &["path=/files/a"]).await.starts_with("OK"));
    assert!(ask("wildcards", &["path=/files/b"]).await.starts_with("OK"));
    assert!(ask("wildcards", &["path=/files/c"]).await.starts_with("OVER_LIMIT"));
    let shared = "ratelimit_server_hits_total{descriptor=\"wildcards.path_/files/*\",verdict=\"over_limit\"}";
    assert_eq!(server.metric(shared).await, Some(1.0));
}
