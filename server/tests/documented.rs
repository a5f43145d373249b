//! The README and the guide: their tests exist, and an Envoy with the guide's own files limits.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use support::{RedisServer, http::Client};

use crate::{
    envoy::{Envoy, program},
    process::{Files, Server, run},
};

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

#[test]
fn each_row_of_the_readmes_tables_names_tests_that_exist() {
    let sources = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")).unwrap();
    let sources = sources.filter_map(|entry| fs::read_to_string(entry.unwrap().path()).ok());
    let sources: String = sources.collect();
    let (readme, mut rows) = (read("README.md"), 0);
    let mut is_table = false;
    for line in readme.lines() {
        is_table = line.ends_with("| tests |") || is_table && line.starts_with('|');
        if !is_table || line.ends_with("| tests |") || line.starts_with("|---") {
            continue;
        }
        rows += 1;
        let cell = line.trim_end_matches('|').rsplit(" | ").next().unwrap();
        let tests: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
        assert!(!tests.is_empty(), "{line}");
        for test in tests {
            assert!(sources.contains(&format!("fn {test}(")), "no test {test}: {line}");
        }
    }
    assert!(rows > 40, "{rows} rows");
}

#[test]
fn the_readme_has_each_key_that_a_file_may_have() {
    // The error of an unknown key lists the known ones.
    let keys = |text: &str| {
        let (_, _, error) = run(&["check", &Files::new(text).path()]);
        let known = error.split("expected one of ").nth(1).unwrap_or_else(|| panic!("{error}")).trim();
        known.split(", ").map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let of_descriptor = keys("domain: d\ndescriptors: [{ key: a, x: 1 }]");
    let of_limit = keys("domain: d\ndescriptors: [{ key: a, rate_limit: { x: 1 } }]");
    let readme = read("README.md");
    for key in of_descriptor.union(&of_limit) {
        let is_row = |line: &str| {
            line.starts_with("| `") && line.split(" | ").next().unwrap().contains(&format!("`{key}`"))
        };
        assert!(readme.lines().any(is_row), "{key}");
    }
}

/// The block of the guide that begins with this comment.
fn block(guide: &str, name: &str) -> String {
    let start = guide.find(&format!("# {name}\n")).unwrap_or_else(|| panic!("{name}"));
    guide[start..].split("```").next().unwrap().to_owned()
}

#[tokio::test]
async fn the_guides_own_files_make_an_envoy_with_a_limit() {
    let guide = read("../src/guide/envoy.md");
    let files = Files::new(&block(&guide, "limits/edge.yaml"));
    let (code, said, _) = run(&["match", &files.path(), "edge", "api_key=k-ann"]);
    assert_eq!(code, Some(0));
    assert!(said.ends_with("counted for the key `k-ann`\n"), "{said}");
    let Some(program) = program() else { return };
    let redis = RedisServer::start();
    let server = Server::start(&files, &redis, &[]).await;
    let bootstrap = block(&guide, "envoy.yaml");
    let envoy = Envoy::with(&program, |address, admin, service| {
        let bootstrap = bootstrap.replace("timeout: 1s\n", "timeout: 20s\n");
        let bootstrap =
            bootstrap.replace("domain: edge\n", "domain: edge\n                      timeout: 20s\n");
        let ports = [
            ("8000", address.port()),
            ("9901", admin.port()),
            ("3000", service.port()),
            ("8081", server.calls.port()),
        ];
        ports.iter().fold(bootstrap, |text, (old, new)| {
            text.replace(&format!("port_value: {old} "), &format!("port_value: {new} "))
        })
    });
    let envoy = envoy.await;
    envoy.sees(1).await;
    let mut statuses = Vec::new();
    // A window may end in between.
    for _ in 0..12 {
        let request =
            http::Request::get(envoy.url("/")).header("x-api-key", "k-ann").body(String::new()).unwrap();
        statuses.push(Client::new().send(request).await.status().as_u16());
    }
    assert!(statuses.starts_with(&[200]) && statuses.contains(&429), "{statuses:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn grpcio_is_another_client() {
    // `make test-clients` installs it.
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = directory.join("../target/clients/bin/python");
    let ready = Command::new(&python).args(["-c", "import grpc, grpc_tools, grpc_health"]).output();
    if !ready.is_ok_and(|output| output.status.success()) {
        return eprintln!("skipped: there is no grpcio; `make test-clients` installs it");
    }
    let files = Files::new(
        "domain: d\ndescriptors: [{ key: user, rate_limit: { unit: year, requests_per_unit: 3, name: users } }]\n",
    );
    let server = Server::alone(&files, &[]).await;
    let mut client = Command::new(&python);
    client.arg("client.py").arg(server.calls.to_string()).current_dir(directory.join("tests/grpcio"));
    let output = client.env("PYTHONDONTWRITEBYTECODE", "1").output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let expected = "\
health SERVING
1 1 2 3 6 users
1 1 0 3 6 users
2 2 0 3 6 users
INVALID_ARGUMENT the domain is empty, or there is no descriptor
";
    assert_eq!(said, expected, "{}", String::from_utf8_lossy(&output.stderr));
}
