//! Policies from a file. Time is virtual: a file is read again as soon as nothing else is left to do.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{error, quotas};
use support::{
    Directory, eventually, file_of,
    inner::{ask, get},
    table::{rows, unescaped},
};
use tokio::time::sleep;
use tower_ratelimit::{
    ErrorKind, FailureMode, Key, MemoryStore, Policy, Quota, RateLimitLayer, algorithm::FixedWindow,
    policy::Enforcement,
};
use tower_ratelimit_operate::live::LivePolicies;

/// The path of a file with these policies.
fn written(policies: &[(&str, &str)]) -> (Directory, PathBuf) {
    let directory = Directory::new();
    let path = directory.file("limits.toml");
    fs::write(&path, file_of(policies)).unwrap();
    (directory, path)
}

/// Replaces a file in one step.
fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(new, path).unwrap();
}

/// Long enough for two reads.
pub(super) async fn followed() {
    sleep(Duration::from_secs(2)).await;
}

#[tokio::test(start_paused = true)]
async fn a_changed_file_changes_the_limit_of_a_running_layer_and_keeps_the_counts() {
    let (_directory, path) = written(&[("api", "2/h")]);
    let live = LivePolicies::file(&path).unwrap();
    let layer = RateLimitLayer::new(MemoryStore::new(), live.get("api").unwrap(), Key::new("all"))
        .enforcement(live.enforcement());
    let status = async || ask(&layer, get()).await.status().as_u16();
    assert_eq!([status().await, status().await, status().await], [200, 200, 429]);

    replace(&path, &file_of(&[("api", "3/h")]));
    followed().await;
    assert_eq!([status().await, status().await], [200, 429]);
    // Lowered, and binding immediately.
    replace(&path, &file_of(&[("api", "1/h")]));
    followed().await;
    assert_eq!(status().await, 429);
    assert_eq!((live.version(), error(&live)), (2, String::new()));

    replace(&path, &format!("enforcement = \"report-only\"\n{}", file_of(&[("api", "1/h")])));
    followed().await;
    assert_eq!(ask(&layer, get()).await.headers()["x-ratelimit-exceeded"], "\"api\"");
    replace(&path, &format!("enforcement = \"off\"\n{}", file_of(&[("api", "1/h")])));
    followed().await;
    assert_eq!(status().await, 200);
    replace(&path, &file_of(&[("api", "1/h")]));
    followed().await;
    assert_eq!((status().await, live.version()), (429, 5));
}

#[tokio::test(start_paused = true)]
async fn a_file_is_followed_however_it_is_replaced() {
    let directory = Directory::new();
    let (path, real) = (directory.file("limits.toml"), directory.file("real.toml"));
    let write = |path: &Path, quota: &str| fs::write(path, file_of(&[("api", quota)])).unwrap();
    write(&path, "1/h");
    let live = LivePolicies::file(&path).unwrap();

    // In place, with the same length and within the same tick of the file system's clock.
    write(&path, "2/h");
    followed().await;
    assert_eq!(quotas(&live), ["api 2/h"]);
    // As an editor that renames.
    replace(&path, &file_of(&[("api", "3/h")]));
    followed().await;
    assert_eq!(quotas(&live), ["api 3/h"]);
    // As a ConfigMap: a symbolic link that leads elsewhere.
    write(&real, "4/h");
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&real, &path).unwrap();
    followed().await;
    assert_eq!(quotas(&live), ["api 4/h"]);
    write(&real, "5/h");
    followed().await;
    assert_eq!(quotas(&live), ["api 5/h"]);

    // Missing for a while.
    fs::remove_file(&path).unwrap();
    followed().await;
    assert_eq!(quotas(&live), ["api 5/h"]);
    assert!(error(&live).contains("cannot be read: No such file or directory"), "{}", error(&live));
    write(&path, "5/h");
    followed().await;
    assert_eq!((error(&live), live.version()), (String::new(), 4));
}

#[tokio::test(start_paused = true)]
async fn a_file_is_not_read_while_it_is_being_written() {
    let (_directory, path) = written(&[("a", "1/h"), ("b", "1/h")]);
    let live = LivePolicies::file(&path).unwrap();
    let whole = file_of(&[("a", "10/h"), ("b", "10/h"), ("c", "10/h")]);
    // Prefixes of it are valid files, with fewer policies.
    for length in 0..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        sleep(Duration::from_millis(20)).await;
        assert_eq!(quotas(&live), ["a 1/h", "b 1/h"], "after {length} bytes");
    }
    assert!(error(&live).contains(CHANGES), "{}", error(&live));
    fs::write(&path, &whole).unwrap();
    followed().await;
    assert_eq!((quotas(&live).join(", "), live.version()), ("a 10/h, b 10/h, c 10/h".to_owned(), 1));
}

/// The error of a file that is different at each read.
const CHANGES: &str = " changes all the time, and is used once two reads 50ms apart agree: replace it less often, and \
                       with `mv` instead of writing it in place";

#[tokio::test(start_paused = true)]
async fn a_file_that_is_replaced_all_the_time_changes_nothing_and_is_read_once_it_stays() {
    let (_directory, path) = written(&[("a", "1/h")]);
    let live = LivePolicies::file(&path).unwrap();
    for limit in 2..200 {
        replace(&path, &file_of(&[("a", &format!("{limit}/h"))]));
        sleep(Duration::from_millis(7)).await;
        assert_eq!(quotas(&live), ["a 1/h"]);
    }
    assert!(error(&live).contains(CHANGES), "{}", error(&live));
    followed().await;
    assert_eq!((error(&live), quotas(&live)), (String::new(), vec!["a 199/h".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn an_invalid_file_changes_nothing_and_says_what_to_do() {
    let directory = Directory::new();
    let path = directory.file("limits.toml");
    let good = file_of(&[("api", "2/h"), ("login", "5/min")]);
    fs::write(&path, &good).unwrap();
    let live = LivePolicies::file(&path).unwrap();
    let _layer = RateLimitLayer::new(MemoryStore::new(), live.get("login").unwrap(), Key::new("all"));
    let changed = file_of(&[("api", "3/h"), ("login", "6/min")]);
    let empty = ": the file has no entries: write a table `[[policies]]`";
    let text_of = |text: &str| {
        let text = format!("{text}\n").replace(" | ", "\n").replace("{as it was}\n", &good);
        let api = file_of(&[("api", "3/h")]);
        text.replace("{changed}\n", &changed).replace("{api}\n", &api)
    };
    let table = rows(include_str!("../tables/invalid-files.txt"));
    let table = table.into_iter().map(|[name, error, text]| (name, text_of(&text), unescaped(&error)));
    let others = [
        ("nothing", String::new(), empty),
        ("whitespace", " \n\t\r\n".to_owned(), empty),
        ("a byte order mark", "\u{feff}".to_owned(), empty),
        ("half a string", changed[..36].to_owned(), ", line 3: no valid TOML: "),
        ("too much", format!("{good}#{}", " ".repeat(1 << 20)), "cannot be read: it is larger than 1 MiB"),
    ];
    let others = others.map(|(name, text, error)| (name.to_owned(), text, error.to_owned()));
    for (name, text, message) in table.chain(others) {
        replace(&path, &text);
        followed().await;
        let error = error(&live);
        assert!(error.contains(&message), "{name}: {error}");
        assert!(error.starts_with(path.to_str().unwrap()), "{name}: {error}");
        assert_eq!(error.lines().count(), 1, "{name}: {error}");
        assert_eq!((quotas(&live).join(", "), live.version()), ("api 2/h, login 5/min".into(), 0), "{name}");
        // The same is an error when the service starts, unless a policy is only missing.
        let started = LivePolicies::file(&path).map(|_| ()).map_err(|error| error.to_string());
        assert_eq!(started.err(), Some(error).filter(|error| !error.contains("is missing")), "{name}");
    }
    fs::write(&path, [0xff, 0xfe]).unwrap();
    followed().await;
    assert!(error(&live).contains("not UTF-8 after 0 bytes"), "{}", error(&live));
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    followed().await;
    assert!(error(&live).contains("cannot be read: not a regular file"), "{}", error(&live));
    fs::remove_dir(&path).unwrap();
    replace(&path, &changed);
    followed().await;
    assert_eq!((quotas(&live).join(", "), live.version()), ("api 3/h, login 6/min".into(), 1));
    assert_eq!(error(&live), "");
}

#[tokio::test]
async fn a_pipe_in_the_place_of_the_file_does_not_stop_the_watcher() {
    let directory = Directory::new();
    let (path, pipe) = (directory.file("limits.toml"), directory.file("pipe"));
    let (real, link) = (directory.file("real.toml"), directory.file("link"));
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    fs::write(&real, file_of(&[("api", "1/h")])).unwrap();
    fs::write(&path, file_of(&[("api", "1/h")])).unwrap();
    let live = LivePolicies::file(&path).unwrap().poll_every(Duration::from_millis(10));
    let swaps = std::thread::spawn({
        let (path, real) = (path.clone(), real.clone());
        move || {
            let end = std::time::Instant::now() + Duration::from_secs(2);
            while std::time::Instant::now() < end {
                for target in [&pipe, &real] {
                    std::os::unix::fs::symlink(target, &link).unwrap();
                    fs::rename(&link, &path).unwrap();
                }
            }
        }
    });
    while !swaps.is_finished() {
        sleep(Duration::from_millis(20)).await;
    }
    swaps.join().unwrap();
    fs::write(&real, file_of(&[("api", "2/h")])).unwrap();
    assert!(eventually(async || quotas(&live) == ["api 2/h"]).await, "{live:?}");
}

#[tokio::test(start_paused = true)]
async fn a_deep_file_is_rejected_before_it_is_parsed_and_its_correction_is_followed() {
    let lines = |levels: usize, line: &dyn Fn(usize) -> String| (0..levels).map(line).collect::<String>();
    let in_brackets =
        |open: &str, levels: usize, close: &str| open.repeat(levels) + "1" + &close.repeat(levels);
    // Each has a table around `levels` levels more.
    let rows: [(&str, &dyn Fn(usize) -> String, usize); 11] = [
        ("a.json", &|levels| format!("{{\"policies\":{}}}", in_brackets("[", levels, "]")), 500_000),
        ("b.json", &|levels| format!("{{\"policies\":{}}}", in_brackets("{\"a\":", levels, "}")), 150_000),
        ("a.toml", &|levels| format!("policies = {}", in_brackets("[", levels, "]")), 500_000),
        ("b.toml", &|levels| format!("policies = {}", in_brackets("{a=", levels, "}")), 200_000),
        ("c.toml", &|levels| format!("{}a = 1", "a.".repeat(levels)), 500_000),
        ("d.toml", &|levels| format!("[{}a]\n{}a = 1", "a.".repeat(levels - 32), "a.".repeat(31)), 500_000),
        // Each key has fewer parts than the parser allows.
        (
            "e.toml",
            &|levels| {
                format!("policies = {}", in_brackets(&format!("{{{}a=", "a.".repeat(15)), levels / 16, "}"))
            },
            16 * 70,
        ),
        ("a.yaml", &|levels| format!("policies: {}", in_brackets("[", levels, "]")), 500_000),
        ("b.yaml", &|levels| format!("policies: {}", in_brackets("{a: ", levels, "}")), 150_000),
        ("c.yaml", &|levels| lines(levels + 1, &|level| format!("{}a:\n", " ".repeat(level))), 1_400),
        ("d.yaml", &|levels| format!("policies:\n{} 1\n", "- ".repeat(levels)), 500_000),
    ];
    let directory = Directory::new();
    for (name, text, most) in rows {
        let path = directory.file(name);
        let good = match name.rsplit('.').next() {
            Some("toml") => file_of(&[("api", "1/h")]),
            _ => r#"{"policies": [{"name": "api", "quota": "1/h"}]}"#.to_owned(),
        };
        replace(&path, &good);
        let live = LivePolicies::file(&path).unwrap();
        // A table around 63 levels is wrong for another reason.
        replace(&path, &text(63));
        followed().await;
        assert!(
            !error(&live).is_empty() && !error(&live).contains("more than 64"),
            "{name}: {}",
            error(&live)
        );
        for levels in [80, most] {
            replace(&path, &text(levels));
            followed().await;
            let problem = error(&live);
            assert!(
                problem.contains(", line ") && problem.contains(": more than 64 lists and tables"),
                "{name}: {problem}"
            );
            assert_eq!(LivePolicies::file(&path).unwrap_err().to_string(), problem, "{name}");
        }
        replace(&path, &good.replace("1/h", "2/h"));
        followed().await;
        assert_eq!((quotas(&live).join(", "), error(&live)), ("api 2/h".to_owned(), String::new()), "{name}");
    }
}

/// The processor time of this thread.
fn processor_time() -> Duration {
    let times = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(times.split(' ').next().unwrap().parse().unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_large_file_is_parsed_outside_the_runtime_and_an_invalid_one_only_once() {
    let (_directory, path) = written(&[("api", "1/h")]);
    let live = LivePolicies::file(&path).unwrap();
    // An error in the last of thousands.
    let table = |number: usize| format!("[[policies]]\nname = \"p{number}\"\nquota = \"1/s\"\n");
    let many: String = (0..10_000).map(table).collect();
    replace(&path, &format!("{many}[[policies]]\nname = \"last\"\n"));
    let before = processor_time();
    assert!(LivePolicies::file(&path).is_err());
    let parsing = processor_time() - before;
    // This runtime has one thread.
    let before = processor_time();
    for _ in 0..5 {
        followed().await;
    }
    let following = processor_time() - before;
    assert!(error(&live).contains("policy `last`: missing field `quota`"), "{}", error(&live));
    assert!(following < parsing / 2, "followed for {following:?}, parsed for {parsing:?}");
}

#[tokio::test(start_paused = true)]
async fn every_entry_of_a_policy_is_read_and_a_policy_that_is_not_in_use_can_be_removed() {
    let directory = Directory::new();
    let path = directory.file("limits.toml");
    let daily = "[[policies]]\nname = \"daily\"\nquota = \"10_000/day\"\nalgorithm = { name = \"fixed-window\", \
                 aligned = true }\nfailure_mode = \"closed\"\nmax_lease = 100\n";
    fs::write(&path, daily).unwrap();
    let live = LivePolicies::file(&path).unwrap();
    let expected = Policy::new("daily", Quota::per_day(10_000))
        .algorithm(FixedWindow::aligned())
        .failure_mode(FailureMode::Closed)
        .max_lease(100);
    assert_eq!(live.current(), [expected]);
    replace(&path, &file_of(&[("api", "1/s")]));
    followed().await;
    assert_eq!(quotas(&live), ["api 1/s"]);
    assert_eq!(live.policy("api").unwrap(), live.current()[0]);
    assert!(live.policy("daily").is_err());
    let error = live.get("daily").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert_eq!(error.to_string(), format!("{} has no policy `daily`: it has `api`", path.display()));
    replace(&path, "enforcement = \"off\"\n");
    followed().await;
    assert_eq!(live.enforcement().get(), Enforcement::Off);
    assert!(live.get("api").unwrap_err().to_string().ends_with("it has no policies"));
}

#[tokio::test(start_paused = true)]
async fn a_handle_waits_for_each_change_once() {
    let (_directory, path) = written(&[("api", "1/h")]);
    let mut live = LivePolicies::file(&path).unwrap();
    let mut other = live.clone();
    let change = |quota: &'static str| {
        let path = path.clone();
        tokio::spawn(async move {
            sleep(Duration::from_secs(5)).await;
            fs::write(&path, file_of(&[("api", quota)])).unwrap();
        })
    };
    change("2/h");
    live.changed().await;
    assert_eq!(quotas(&live), ["api 2/h"]);
    other.changed().await;
    change("3/h");
    live.changed().await;
    assert_eq!((quotas(&live).join(""), live.version()), ("api 3/h".to_owned(), 2));
    // A comment is not a change.
    fs::write(&path, format!("# mine\n{}", file_of(&[("api", "3/h")]))).unwrap();
    let long = tokio::time::timeout(Duration::from_secs(60), live.changed()).await;
    assert!(long.is_err());
    assert_eq!(live.version(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_switch_that_the_service_moves_stays_until_the_file_says_something_else() {
    let (_directory, path) = written(&[("api", "1/h")]);
    let live = LivePolicies::file(&path).unwrap();
    live.enforcement().set(Enforcement::Off);
    replace(&path, &file_of(&[("api", "2/h")]));
    followed().await;
    assert_eq!((live.enforcement().get(), live.version()), (Enforcement::Off, 1));
    replace(&path, &format!("enforcement = \"report-only\"\n{}", file_of(&[("api", "2/h")])));
    followed().await;
    assert_eq!(live.enforcement().get(), Enforcement::ReportOnly);
}

#[tokio::test(start_paused = true)]
async fn the_file_is_followed_until_the_last_handle_source_and_layer_is_dropped() {
    let directory = Directory::new();
    let path = directory.file("limits.toml");
    let mut quota = 1;
    let mut rewrite = || {
        quota += 1;
        fs::write(&path, file_of(&[("api", &format!("{quota}/h"))])).unwrap();
    };
    rewrite();
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert_eq!(tasks(), 0);
    // Each keeps it alive alone: a handle, a source, a layer, a layer with the switch only.
    let keep: [fn(LivePolicies) -> Box<dyn std::any::Any>; 4] = [
        |live| Box::new(live),
        |live| Box::new(live.get("api").unwrap()),
        |live| {
            let source = live.get("api").unwrap();
            Box::new(RateLimitLayer::new(MemoryStore::new(), source, Key::new("all")))
        },
        |live| {
            let policy = Policy::new("own", Quota::per_hour(1));
            let layer = RateLimitLayer::new(MemoryStore::new(), policy, Key::new("all"));
            Box::new(layer.enforcement(live.enforcement()))
        },
    ];
    for (row, keep) in keep.into_iter().enumerate() {
        let live = LivePolicies::file(&path).unwrap().poll_every(Duration::from_secs(3_600));
        let kept = keep(live);
        sleep(Duration::from_secs(10_000)).await;
        assert_eq!(tasks(), 1, "row {row}");
        drop(kept);
        // It notices long before the next read.
        sleep(Duration::from_secs(1)).await;
        assert_eq!(tasks(), 0, "row {row}");
    }
}

#[test]
fn without_a_runtime_the_error_says_where_to_make_them() {
    let error = LivePolicies::file("limits.toml").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MissingSetup);
    assert!(error.to_string().contains("need a Tokio runtime"), "{error}");

    // They stay active after their runtime has ended.
    let (_directory, path) = written(&[("api", "1/h")]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let live = {
        let _guard = runtime.enter();
        LivePolicies::file(&path).unwrap()
    };
    assert!(live.last_error().is_none());
    drop(runtime);
    assert_eq!(quotas(&live), ["api 1/h"]);
    let error = live.last_error().unwrap();
    assert_eq!(error.kind(), ErrorKind::MissingSetup);
    assert!(
        error.to_string().contains("limits.toml is not read any more: its Tokio runtime was shut down"),
        "{error}"
    );
    assert!(format!("{live:?}").contains("version: 0"), "{live:?}");
}

#[tokio::test]
async fn a_file_is_read_in_the_format_of_its_name() {
    let directory = Directory::new();
    let rows = [
        (
            "limits.toml",
            "enforcement = 'report-only'\n[[policies]]\nname = 'api'\nquota = '2/h'\n[[policies]]\nname = 'login'\nquota = { limit = 5, per = 'month' }\n",
        ),
        (
            "limits.JSON",
            "{ \"enforcement\": \"report-only\", \"policies\": [\n{ \"name\": \"api\", \"quota\": \"2/h\" },\n{ \"name\": \"login\", \"quota\": { \"limit\": 5, \"per\": \"month\" } } ] }",
        ),
        (
            "limits.yml",
            "enforcement: report-only\npolicies:\n  - name: api\n    quota: 2/h\n  - name: login\n    quota: { limit: 5, per: month }\n",
        ),
    ];
    for (name, text) in rows {
        let path = directory.file(name);
        replace(&path, text);
        let live = LivePolicies::file(&path).unwrap().poll_every(Duration::from_millis(10));
        assert_eq!(quotas(&live).join(", "), "api 2/h, login 5/month", "{name}");
        assert_eq!(live.enforcement().get(), Enforcement::ReportOnly, "{name}");
        // A change that is wrong, and one that is not.
        replace(&path, &text.replace("2/h", "two"));
        assert!(eventually(async || live.last_error().is_some()).await, "{name}");
        let error = live.last_error().unwrap().to_string();
        assert!(error.contains("policy `api`: entry `quota`: invalid quota `two`"), "{name}: {error}");
        assert!(error.contains(", line "), "{name}: {error}");
        replace(&path, &text.replace("2/h", "3/h"));
        assert!(eventually(async || quotas(&live)[0] == "api 3/h").await, "{name}");
        replace(&path, "{ \"half");
        assert!(eventually(async || live.last_error().is_some()).await, "{name}");
        let error = live.last_error().unwrap().to_string();
        assert!(error.contains(": no valid "), "{name}: {error}");
    }
    for (name, text, problem) in [
        ("empty.json", "{}", "write an object in the array `policies` for each policy"),
        ("empty.yaml", "{}", "write an item in the list `policies` for each policy"),
        ("twice.yaml", "policies: []\npolicies: []\n", ", line 2: no valid YAML: duplicate entry `policies`"),
        (
            "list.json",
            "[null, [{ \"name\": \"api\", \"quota\": \"2/h\" }]]",
            ", line 1: invalid type: sequence, expected a table with `policies`",
        ),
        (
            "list.yaml",
            "# mine\n- null\n- [{ name: api, quota: 2/h }]\n",
            ", line 2: invalid type: sequence, expected a table with `policies`",
        ),
        (
            "text.json",
            "\"policies\"",
            ", line 1: invalid type: string \"policies\", expected a table with `policies`",
        ),
        (
            "text.yaml",
            "policies\n",
            ", line 1: invalid type: string \"policies\", expected a table with `policies`",
        ),
        (
            "number.json",
            "{ \"policies\": [\n{ \"name\": 1, \"quota\": \"2/h\" }] }",
            ", line 2: policy 1 of the file: entry `name`: invalid type: integer `1`, expected a string",
        ),
        (
            "number.yaml",
            "policies:\n  - quota: 2/h\n    name: 1\n",
            ", line 3: policy 1 of the file: entry `name`: invalid type: integer `1`, expected a string",
        ),
        (
            "bool.yaml",
            "policies:\n  - { name: true, quota: 2/h }\n",
            ", line 2: policy 1 of the file: entry `name`: invalid type: boolean `true`, expected a string",
        ),
        (
            "tag.yaml",
            "policies:\n  - name: api\n    quota: !!python/object 2/h\n",
            ", line 3: no valid YAML: the tag `tag:yaml.org,2002:python/object` is not supported: remove it",
        ),
        (
            "own_tag.yaml",
            "policies: !mine\n  - { name: api, quota: 2/h }\n",
            ", line 1: no valid YAML: the tag `!mine` is not supported: remove it",
        ),
        (
            "documents.yaml",
            "policies: []\n---\npolicies: []\n",
            ", line 3: no valid YAML: there is a second document: remove it",
        ),
        (
            "nothing.yaml",
            "# policies:\n",
            ": the file has no entries: write an item in the list `policies` for each policy",
        ),
        ("more.json", "{ \"policies\": [] } true", "no valid JSON: trailing characters"),
        (
            "unknown.yaml",
            "policies:\n  - name: api\n    quota: 2/h\n    limit: 5\n",
            "policy `api`: entry `limit`: unknown field `limit`",
        ),
    ] {
        let path = directory.file(name);
        replace(&path, text);
        let error = LivePolicies::file(&path).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(problem), "{name}: {error}");
        assert_eq!(error.lines().count(), 1, "{name}: {error}");
    }
}
