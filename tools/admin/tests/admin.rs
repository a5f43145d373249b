//! The command `ratelimit-admin`, as operators run it.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

use std::{
    fs::File,
    io,
    path::PathBuf,
    process::{Command, Output, Stdio},
    time::Duration,
};

use serde_json::{Value, json};
use support::{
    Directory, RedisServer,
    certificates::Authority,
    redis_cluster::RedisCluster,
    redis_sentinel::{PRIMARY, SentinelGroup},
    settings,
};
use tower_ratelimit::{
    Key, Limiter, Policy, Quota, RedisStore,
    algorithm::{Concurrency, FixedWindow},
    policy::Penalty,
    store::{RedisStoreBuilder, Servers},
};
use tower_ratelimit_operate::explain::Explanation;

const POLICIES: &str = "
[[policies]]
name = 'login'
quota = '5/week'
failure_mode = 'closed'

[[policies]]
name = 'daily'
quota = '1000/day'
algorithm = 'fixed-window'

[[policies]]
name = 'banning'
quota = '10/s'
penalty = { after = 10, within = '1h', ban = '1week' }

[[policies]]
name = 'exports'
quota = '2/30s'
algorithm = 'concurrency'
";

/// How a warning begins where no instance runs, as in most of these tests.
const UNUSED: &str = "warning: no instance has used the limits";

/// The command, and its file of policies.
struct Operator {
    directory: Directory,
    options: Vec<String>,
}

impl Operator {
    fn new(options: &[&str]) -> Self {
        let directory = Directory::new();
        let operator = Self { options: options.iter().map(ToString::to_string).collect(), directory };
        std::fs::write(operator.policies(), POLICIES).unwrap();
        operator
    }

    fn policies(&self) -> PathBuf {
        self.directory.file("limits.toml")
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ratelimit-admin"));
        command
            .env_remove("REDIS_URL")
            .env_remove("RATELIMIT_POLICIES")
            .env_remove("RATELIMIT_PREFIX")
            .env("SENTINEL_PASSWORD", "hunter2");
        // So long that nothing is late on a busy machine.
        command.args(["--deadline", "20s"]);
        command.arg("--policies").arg(self.policies()).args(&self.options).args(words);
        command
    }

    /// The exit code and the messages if what it prints goes to `stdout`.
    fn to(&self, stdout: impl Into<Stdio>, words: &[&str]) -> (i32, String) {
        let output = self.command(words).stdout(stdout).stderr(Stdio::piped()).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        let others = errors.split_inclusive('\n').filter(|line| !line.starts_with(UNUSED));
        (output.status.code().unwrap(), others.collect())
    }

    /// What it prints, once it is done.
    fn text(&self, words: &[&str]) -> String {
        let output = self.run(words);
        let errors = String::from_utf8_lossy(&output.stderr);
        let others = errors.lines().filter(|line| !line.starts_with(UNUSED));
        assert!(output.status.success() && others.count() == 0, "{words:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.text(&[&["--json"], words].concat())).unwrap()
    }

    /// The exit code and the error.
    fn error(&self, words: &[&str]) -> (i32, String) {
        let output = self.run(words);
        assert!(output.stdout.is_empty(), "{words:?}: {}", String::from_utf8_lossy(&output.stdout));
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    }
}

fn login() -> Policy {
    Policy::new("login", Quota::new(5, Duration::from_secs(604_800)))
}

fn daily() -> Policy {
    Policy::new("daily", Quota::per_day(1_000)).algorithm(FixedWindow::anchored())
}

/// A store whose clock is the server's own.
async fn connect(server: &RedisServer) -> RedisStore {
    settings().connect(&server.url()).await.unwrap()
}

#[tokio::test]
async fn a_client_is_shown_refunded_and_reset() {
    let server = RedisServer::start();
    let limiter = Limiter::new(connect(&server).await);
    let alice = Key::new("alice");
    // The first decision was made a moment ago, so times have parts of a second, which are rounded up.
    limiter.check(&login(), &alice, 5).await.unwrap();
    let operator = Operator::new(&["--redis", &server.url()]);

    let shown = operator.text(&["show", "login", "alice"]);
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines[0], "policy login: 5/7d, gcra, failure mode closed");
    assert_eq!(lines[1], "key alice, stored as rl:login:gcra:{alice}");
    assert!(lines[2].starts_with("0 of 5 units remain; fully replenished in "), "{shown}");
    assert!(lines[3].starts_with("a request of 1 unit is denied; admitted in 1d 9h "), "{shown}");
    assert_eq!(lines.len(), 4);

    let refunded = operator.text(&["refund", "login", "alice", "3"]);
    assert!(refunded.contains("\n3 of 5 units remain; "), "{refunded}");
    assert!(refunded.ends_with("\na request of 1 unit is admitted\n"), "{refunded}");
    assert!(limiter.peek(&login(), &alice, 3).await.unwrap().is_admitted());
    assert!(
        operator
            .text(&["show", "login", "alice", "--cost", "4"])
            .contains("a request of 4 units is denied; admitted")
    );

    let reset = operator.text(&["reset", "login", "alice"]);
    assert!(reset.contains("\n5 of 5 units remain\n"), "{reset}");
    assert_eq!(server.command::<u8>(&["EXISTS", "rl:login:gcra:{alice}"]), 0);

    // As other keys are named.
    let joined = Key::from(("acme", "-José"));
    limiter.check(&daily(), &joined, 400).await.unwrap();
    for key in ["%(acme%|-José%)", joined.as_str()] {
        let shown = operator.json(&["show", "daily", key]);
        assert_eq!(shown["charges"][0]["remaining"], 600, "{key}");
    }
    assert!(operator.text(&["show", "daily", "-x"]).contains("\nkey -x, "));
}

#[tokio::test]
async fn a_key_without_a_charge_says_which_names_have_one() {
    let server = RedisServer::start();
    let limiter = Limiter::new(connect(&server).await);
    // The service uses another algorithm than the file.
    let window = Policy::new("login", Quota::per_hour(5)).algorithm(FixedWindow::anchored());
    limiter.check(&window, &Key::new("carol"), 5).await.unwrap();
    let operator = Operator::new(&["--redis", &server.url()]);
    let note = "nothing is charged to rl:login:gcra:{carol}, but there is rl:login:fixed-window:{carol}: does the service \
                use another algorithm than the policy file?\n";
    for command in ["show", "reset"] {
        let text = operator.text(&[command, "login", "carol"]);
        assert!(text.contains("5 of 5 units remain") && text.ends_with(note), "{command}: {text}");
        let json = operator.json(&[command, "login", "carol"]);
        assert_eq!(json["is_charged"], false, "{command}");
        assert_eq!(json["charged_names"], json!(["rl:login:fixed-window:{carol}"]), "{command}");
        let text = operator.text(&[command, "login", "dave"]);
        let nothing =
            "nothing is charged to rl:login:gcra:{dave}, nor to the key under another built-in algorithm\n";
        assert!(text.ends_with(nothing), "{command}: {text}");
    }
    // It stays.
    assert_eq!(server.command::<u8>(&["EXISTS", "rl:login:fixed-window:{carol}"]), 1);
    limiter.check(&login(), &Key::new("dave"), 1).await.unwrap();
    for command in ["show", "reset"] {
        let text = operator.text(&[command, "login", "dave"]);
        assert!(!text.contains("nothing is charged"), "{command}: {text}");
    }
}

#[tokio::test]
async fn texts_name_the_options_of_the_command() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let (_optional, tls) = authority.serve(&["--tls-auth-clients", "no"]);
    let (_strict, strict) = authority.serve(&[]);
    let directory = Directory::new();
    let file = |name: &str, text: &str| {
        std::fs::write(directory.file(name), text).unwrap();
        directory.file(name).display().to_string()
    };
    let (ca, other) = (file("ca.pem", &authority.ca), file("other.pem", &stranger.ca));
    let (certificate, key) = (file("client.pem", &authority.certificate), file("client.key", &authority.key));
    let server = RedisServer::start();
    let plain = Operator::new(&["--redis", &server.url(), "--prefix", "shop"]);
    let rule = plain.text(&["acl"]);
    assert!(rule.starts_with("~shop:* -@all +evalsha "), "{rule}");
    assert_eq!(rule, settings().prefix("shop").connect_lazy(server.url()).unwrap().acl_rule() + "\n");
    let hashes = Operator::new(&["--redis", &server.url(), "--prefix", "shop", "--live"]).text(&["acl"]);
    assert!(!rule.contains("+hset") && hashes.contains("+hset"), "{hashes}");
    let mut words = vec!["ACL", "SETUSER", "limiter", "on", ">secret"];
    words.extend(rule.trim().split(' '));
    let () = server.command(&words);
    let user = server.url().replace("//", "//limiter:secret@");
    let node = RedisServer::node(&[]);
    let rows: [(&[&str], &[&str]); 6] = [
        (&["--redis", &user, "--prefix", "other"], &["run ACL SETUSER <user> ~other:*"]),
        (&["--redis", &node.url()], &["connect to the nodes with --cluster"]),
        (&["--redis", &server.url(), "--cluster"], &["leave out --cluster"]),
        (&["--redis", &tls], &["from an unknown authority: pass the authority's certificate to --ca"]),
        (&["--redis", &tls, "--ca", &other], &["--ca"]),
        (&["--redis", &strict, "--ca", &ca], &["--client-certificate"]),
    ];
    for (options, parts) in rows {
        let (code, error) = Operator::new(options).error(&["show", "login", "alice"]);
        assert_eq!(code, 1, "{options:?}: {error}");
        assert!(parts.iter().all(|part| error.contains(part)), "{options:?}: {error}");
        assert!(!error.contains("RedisStore"), "{options:?}: {error}");
    }
    let client = ["--ca", &ca, "--client-certificate", &certificate, "--client-key", &key];
    let operator = Operator::new(&[&["--redis", &strict], &client[..]].concat());
    assert!(operator.text(&["show", "login", "alice"]).contains("5 of 5 units remain"));
}

#[tokio::test]
async fn json_equals_the_json_of_the_router() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    let limiter = Limiter::new(store);
    let operator = Operator::new(&["--redis", &server.url()]);
    let closed = login().failure_mode(tower_ratelimit::FailureMode::Closed);
    let expected = Explanation::of(&limiter, &closed, &Key::new("bob"), 1).await.unwrap();
    let mut expected = serde_json::to_value(&expected).unwrap();
    (expected["is_charged"], expected["charged_names"]) = (json!(false), json!([]));
    assert_eq!(operator.json(&["show", "login", "bob"]), expected);
    let policies = operator.json(&["policies"]);
    assert_eq!(policies["policies"].as_array().unwrap().len(), 4);
    assert_eq!(policies["policies"][0]["name"], "banning");
}

#[tokio::test]
async fn policies_are_listed_without_redis_and_as_the_hash_changes_them() {
    let operator = Operator::new(&[]);
    let expected = "\
POLICY   SETTINGS
banning  10/s, gcra, penalty, failure mode local
daily    1000/day, fixed-window, failure mode local
exports  2/30s, concurrency, failure mode local
login    5/7d, gcra, failure mode closed
warning: the policy \"login\" admits up to 9 units in 604800s, and its limit is 5: count it by SlidingLog, or \
give it a burst of 1
";
    assert_eq!(operator.text(&["policies"]), expected);

    let server = RedisServer::start();
    let () = server.command(&["HSET", "rl:policies", "login", "9/h"]);
    let operator = Operator::new(&["--redis", &server.url()]);
    assert!(operator.text(&["--live", "policies"]).contains("login    9/h, gcra"));
    assert!(operator.text(&["--live", "show", "login", "a"]).contains("9 of 9 units remain"));
    assert!(operator.text(&["show", "login", "a"]).contains("5 of 5 units remain"));
    let () = server.command(&["HSET", "rl:policies", "login", "many"]);
    let (code, error) = operator.error(&["--live", "show", "login", "a"]);
    assert_eq!(code, 2);
    assert!(error.contains("field `login`"), "{error}");
}

#[tokio::test]
async fn keys_are_listed_with_their_state() {
    let server = RedisServer::start();
    // The clock is set to the server's time, so that nothing is replenished between the two.
    let limiter = Limiter::new(connect(&server).await);
    for (key, cost) in [("alice", 5), ("José", 2)] {
        limiter.check(&login(), &Key::new(key), cost).await.unwrap();
    }
    limiter.check(&daily(), &Key::from(("acme", "bob")), 1).await.unwrap();
    let () = server.command(&["SET", "rl:old:gcra:{x}", "1"]);
    let () = server.command(&["SET", "other:login:gcra:{x}", "1"]);
    let operator = Operator::new(&["--redis", &server.url()]);

    let all = operator.text(&["keys"]);
    let lines: Vec<Vec<&str>> = all.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["POLICY", "KEY", "REMAINING", "RESET", "A", "REQUEST", "OF", "1", "UNIT"]);
    assert_eq!(lines[1][..5], ["daily", "%(acme%|bob%)", "999", "of", "1000"], "{all}");
    assert_eq!(lines[2][..5], ["login", "Jos%C3%A9", "3", "of", "5"], "{all}");
    assert_eq!(lines[3][..5], ["login", "alice", "0", "of", "5"], "{all}");
    assert!(all.lines().nth(3).unwrap().contains("denied, admitted in 1d 9h "), "{all}");
    assert_eq!(all.lines().last().unwrap(), "3 of 3 keys; other names under the prefix: 1");

    let some = operator.json(&["keys", "login", "--limit", "1"]);
    assert_eq!((&some["found"], &some["others"], &some["is_complete"]), (&json!(2), &json!(2), &json!(true)));
    assert_eq!(some["keys"].as_array().unwrap().len(), 1);
    assert_eq!(some["keys"][0]["identity"], "José");
}

#[tokio::test]
async fn keys_are_banned_listed_and_unbanned() {
    let server = RedisServer::start();
    let operator = Operator::new(&["--redis", &server.url()]);
    assert_eq!(operator.text(&["bans"]), "POLICY  KEY  BANNED FOR\n0 keys\n");
    let banned = operator.text(&["ban", "banning", "alice", "1day"]);
    let lines: Vec<&str> = banned.lines().collect();
    assert!(lines[2].starts_with("the key is banned for "), "{banned}");
    operator.text(&["ban", "banning", "José", "2days"]);
    let limiter = Limiter::new(connect(&server).await);
    let policy = Policy::new("banning", Quota::per_second(10)).penalty(Penalty::manual());
    assert!(limiter.check(&policy, &Key::new("alice"), 1).await.unwrap().banned_for().is_some());

    let bans = operator.text(&["bans"]);
    let words: Vec<Vec<&str>> = bans.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!((&words[1][..2], &words[2][..2]), (&["banning", "Jos%C3%A9"][..], &["banning", "alice"][..]));
    assert_eq!(words[3], ["2", "keys"]);
    let bans = operator.json(&["bans", "banning"]);
    assert_eq!(
        (&bans["bans"][0]["identity"], &bans["bans"][0]["policy"]),
        (&json!("José"), &json!("banning"))
    );
    let keys = operator.text(&["keys", "banning"]);
    assert!(keys.lines().nth(1).unwrap().contains("banned for "), "{keys}");

    assert!(operator.text(&["unban", "banning", "alice"]).contains("10 of 10 units remain"));
    // This instance had it in its deny cache.
    assert!(
        Limiter::new(connect(&server).await)
            .check(&policy, &Key::new("alice"), 1)
            .await
            .unwrap()
            .is_admitted()
    );
    let (code, error) = operator.error(&["ban", "login", "alice", "1day"]);
    assert_eq!(code, 2);
    assert!(error.contains("the policy `login` has no penalty"), "{error}");
    for (words, expected) in [
        (&["bans", "login"][..], "has no penalty"),
        (&["ban", "banning", "alice", "0s"], "1 ms to 3650 days"),
        (&["ban", "banning", "alice", "soon"], "expected number"),
    ] {
        let (code, error) = operator.error(words);
        assert_eq!(code, 2, "{error}");
        assert!(error.contains(expected), "{error}");
    }
}

#[tokio::test]
async fn a_locked_out_client_is_unlocked_by_one_command() {
    let server = RedisServer::start();
    let limiter = Limiter::new(connect(&server).await);
    let banning = Policy::new("banning", Quota::new(10, Duration::from_secs(604_800)))
        .penalty(Penalty::after(1, Duration::from_secs(3_600)));
    let operator = Operator::new(&["--redis", &server.url()]);
    let policies =
        "[[policies]]\nname = 'banning'\nquota = '10/week'\npenalty = { after = 1, within = '1h' }\n";
    std::fs::write(operator.policies(), policies).unwrap();
    let ann = Key::new("ann");
    for _ in 0..12 {
        limiter.check(&banning, &ann, 1).await.unwrap();
    }
    assert!(operator.text(&["show", "banning", "ann"]).contains("the key is banned for"));
    let unlocked = operator.text(&["unlock", "banning", "ann"]);
    assert!(unlocked.ends_with("10 of 10 units remain\na request of 1 unit is admitted\n"), "{unlocked}");
    // Another instance: the limiter above may repeat the denial from its deny cache.
    let another = Limiter::new(connect(&server).await);
    assert_eq!(another.check(&banning, &ann, 1).await.unwrap().remaining(), Some(9));
    let nothing = operator.text(&["unlock", "banning", "bob"]);
    assert!(nothing.contains("nothing is charged to rl:banning:gcra:{bob}"), "{nothing}");
}

#[tokio::test]
async fn bans_of_all_policies_are_listed_the_longest_first() {
    let server = RedisServer::start();
    let operator = Operator::new(&["--redis", &server.url()]);
    let other = "[[policies]]\nname = 'other'\nquota = '1/s'\npenalty = 'manual'\n";
    std::fs::write(operator.policies(), format!("{POLICIES}{other}")).unwrap();
    for (policy, key, time) in [("banning", "a", "1day"), ("other", "b", "3days"), ("banning", "c", "2days")]
    {
        operator.text(&["ban", policy, key, time]);
    }
    let bans = operator.text(&["bans"]);
    let lines: Vec<Vec<&str>> = bans.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["POLICY", "KEY", "BANNED", "FOR"]);
    // A part of a second has passed, which is rounded up.
    assert!(lines[1].starts_with(&["other", "b"]), "{bans}");
    assert!(lines[2].starts_with(&["banning", "c"]), "{bans}");
    assert!(lines[3].starts_with(&["banning", "a"]), "{bans}");
    assert_eq!(lines[4..], [["3", "keys"]]);
    let bans = operator.json(&["bans"]);
    let keys: Vec<_> = bans["bans"].as_array().unwrap().iter().map(|ban| ban["key"].clone()).collect();
    assert_eq!((keys, &bans["is_complete"]), (vec![json!("b"), json!("c"), json!("a")], &json!(true)));
}

#[tokio::test]
async fn a_list_of_bans_that_is_cut_says_so() {
    let server = RedisServer::start();
    let script = "local now = redis.call('TIME')[1] * 1000000
    for i = 1, 10001 do
        redis.call('SET', 'rl:banning:penalty:{' .. i .. '}', struct.pack('<Bdd', 1, now, 0) .. string.format('0;%d', now + 3600000000))
    end";
    let () = server.command(&["EVAL", script, "0"]);
    let operator = Operator::new(&["--redis", &server.url()]);
    assert!(operator.text(&["bans"]).ends_with("\n10000 keys; there may be others\n"));
    assert_eq!(operator.json(&["bans"])["is_complete"], false);
}

#[tokio::test]
async fn a_value_of_another_program_is_listed_with_question_marks() {
    let server = RedisServer::start();
    let limiter = Limiter::new(connect(&server).await);
    limiter.check(&login(), &Key::new("alice"), 5).await.unwrap();
    let () = server.command(&["SET", "rl:login:gcra:{bob}", "of another program"]);
    let () = server.command(&["HSET", "rl:daily:fixed-window:{carol}", "of", "another"]);
    let () = server.command(&["SET", "rl:banning:penalty:{dora}", "of another program"]);
    let operator = Operator::new(&["--redis", &server.url()]);
    let keys = operator.text(&["keys"]);
    let lines: Vec<Vec<&str>> = keys.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[1], ["banning", "dora", "?", "?", "?"]);
    assert_eq!(lines[2], ["daily", "carol", "?", "?", "?"]);
    assert_eq!(lines[3][..3], ["login", "alice", "0"]);
    assert_eq!(lines[4], ["login", "bob", "?", "?", "?"]);
    assert!(keys.ends_with("\n4 of 4 keys; ?: the limiter did not write the value\n"), "{keys}");
    let keys = operator.json(&["keys"])["keys"].clone();
    let bob = &keys[3];
    assert_eq!((&bob["key"], &bob["stored_as"]), (&json!("bob"), &json!("rl:login:gcra:{bob}")));
    assert_eq!(bob["policy"]["name"], "login");
    assert!(bob["error"].as_str().unwrap().contains("the limiter did not write"), "{bob}");
    assert!(keys[1]["error"].as_str().unwrap().contains("WRONGTYPE") && keys[2]["error"].is_null());
    let (code, error) = operator.error(&["show", "login", "bob"]);
    assert!(code == 1 && error.contains("the limiter did not write"), "{error}");
}

#[tokio::test]
async fn a_change_that_is_made_succeeds_even_if_its_state_is_unknown() {
    let server = RedisServer::start();
    let limiter = Limiter::new(connect(&server).await);
    let policy = Policy::new("banning", Quota::per_second(10)).penalty(Penalty::manual());
    let operator = Operator::new(&["--redis", &server.url()]);
    let reset = async |options: &[&str]| {
        limiter.check(&policy, &Key::new("alice"), 1).await.unwrap();
        let () = server.command(&["SET", "rl:banning:penalty:{alice}", "of another program"]);
        let text = operator.text(&[options, &["reset", "banning", "alice"]].concat());
        assert_eq!(server.command::<u8>(&["EXISTS", "rl:banning:gcra:{alice}"]), 0);
        let () = server.command(&["DEL", "rl:banning:penalty:{alice}"]);
        text
    };
    let text = reset(&[]).await;
    assert!(text.starts_with("done; its state is unknown: "), "{text}");
    assert!(text.contains("the limiter did not write") && text.lines().count() == 1, "{text}");
    let json: Value = serde_json::from_str(&reset(&["--json"]).await).unwrap();
    assert_eq!(json["done"], true);
    assert!(json["error"].as_str().unwrap().contains("the limiter did not write"), "{json}");
}

#[tokio::test]
async fn it_finds_the_keys_of_a_cluster_and_of_another_prefix() {
    let cluster = RedisCluster::shared();
    let connect =
        async |settings: RedisStoreBuilder| settings.connect(Servers::cluster(cluster.urls())).await.unwrap();
    let limiter = Limiter::new(connect(settings().prefix("command")).await);
    let other = Limiter::new(connect(settings().prefix("command24").cluster_shards(24)).await);
    for user in 0..20 {
        limiter.check(&login(), &Key::new(format!("user-{user}")), 2).await.unwrap();
    }
    other.check(&login(), &Key::new("user-3"), 1).await.unwrap();
    let urls = cluster.urls().join(",");
    let operator = Operator::new(&["--redis", &urls, "--cluster", "--prefix", "command"]);
    assert!(operator.text(&["show", "login", "user-3"]).contains("3 of 5 units remain"));
    assert_eq!(operator.json(&["keys"])["found"], 20);
    assert!(operator.text(&["reset", "login", "user-3"]).contains("5 of 5 units remain"));
    assert_eq!(operator.json(&["keys"])["found"], 19);
    let operator =
        Operator::new(&["--redis", &urls, "--cluster", "--cluster-shards", "24", "--prefix", "command24"]);
    assert!(operator.text(&["show", "login", "user-3"]).contains("4 of 5 units remain"));
}

#[tokio::test]
async fn it_works_on_the_primary_that_sentinels_name() {
    let group = SentinelGroup::with_passwords(Some("right-horse"), Some("hunter2"));
    let urls: Vec<String> = group.urls().iter().map(|url| url.replace("//", "//:right-horse@")).collect();
    let servers = Servers::sentinel(&urls, PRIMARY).sentinel_credentials("default", "hunter2");
    let limiter = Limiter::new(settings().connect(servers).await.unwrap());
    limiter.check(&login(), &Key::new("alice"), 2).await.unwrap();
    let urls = urls.join(",");
    let operator = Operator::new(&["--redis", &urls, "--sentinel", PRIMARY, "--sentinel-user", "default"]);
    assert!(operator.text(&["show", "login", "alice"]).contains("3 of 5 units remain"));
    assert_eq!(operator.json(&["keys"])["found"], 1);

    // Without a user, the user is `default`.
    let operator = Operator::new(&["--redis", &urls, "--sentinel", PRIMARY]);
    assert!(operator.text(&["show", "login", "alice"]).contains("3 of 5 units remain"));
    let missing =
        operator.command(&["show", "login", "alice"]).env_remove("SENTINEL_PASSWORD").output().unwrap();
    let error = String::from_utf8(missing.stderr).unwrap();
    assert_eq!(missing.status.code(), Some(1), "{error}");
    assert!(
        error.contains("the sentinel requires a password: set the variable SENTINEL_PASSWORD"),
        "{error}"
    );
}

#[tokio::test]
async fn unprintable_output_does_not_crash_and_the_change_is_made() {
    let server = RedisServer::start();
    let limiter = Limiter::new(connect(&server).await);
    let banning = Policy::new("banning", Quota::per_second(10)).penalty(Penalty::manual());
    let operator = Operator::new(&["--redis", &server.url()]);
    // Of a reader that has ended.
    let broken = || io::pipe().unwrap().1;
    let full = || File::options().write(true).open("/dev/full").unwrap();

    assert_eq!(operator.to(broken(), &["policies"]), (0, String::new()));
    assert_eq!(operator.to(broken(), &["--help"]), (0, String::new()));
    let (code, error) = operator.to(full(), &["policies"]);
    assert_eq!((code, error.lines().count()), (1, 1), "{error}");
    assert!(error.starts_with("error: the result cannot be printed: "), "{error}");

    for (key, stdout) in [("alice", Stdio::from(broken())), ("bob", full().into())] {
        let (code, error) = operator.to(stdout, &["ban", "banning", key, "1h"]);
        assert_eq!((code, error.lines().count()), (0, 1), "{error}");
        assert!(error.starts_with("the change was made; "), "{error}");
        assert!(limiter.peek(&banning, &Key::new(key), 1).await.unwrap().banned_for().is_some(), "{key}");
    }
}

#[test]
fn every_mistake_has_an_exit_code_and_a_remedy() {
    let server = RedisServer::start();
    let url = server.url();
    let rows: [(&[&str], &[&str], i32, &str); 18] = [
        (&[], &["show", "login", "alice"], 2, "--redis redis://host:6379, or in the variable REDIS_URL"),
        (
            &["--redis", &url],
            &["show", "logn", "alice"],
            2,
            "there is no policy `logn`; the policies: `banning`, `daily`, `exports`, `login`",
        ),
        (&["--redis", &url], &["show", "login", "100%"], 2, "write `%25` for a percent sign"),
        // As of a script with an unset variable.
        (&["--redis", &url], &["show", "login", ""], 2, "it is empty: write `%` for the empty identity"),
        (&["--redis", &url], &["reset", "login", ""], 2, "it is empty: write `%` for the empty identity"),
        (&["--redis", &url], &["ban", "banning", "", "1h"], 2, "it is empty: write `%` for"),
        (&["--redis", &url], &["show", "", "alice"], 2, "there is no policy ``; the policies: `banning`"),
        (&["--redis", &url], &["refund", "login", "alice", "0"], 2, "0 is not in 1..=17592186044416"),
        (&["--redis", &url], &["refund", "login", "alice", "-5"], 2, "'-5'"),
        (&["--redis", &url], &["refund", "login", "alice", "99999999999999999999"], 2, "number too large"),
        (&["--redis", &url], &["refund", "exports", "alice", "1"], 2, "`reset` releases all of them"),
        (&["--redis", &url, "--prefix", "a b"], &["keys"], 2, "a Redis key prefix must have"),
        (&["--redis", "redis://127.0.0.1:1"], &["keys"], 1, "cannot connect to Redis at 127.0.0.1:1"),
        (&["--redis", "redis://a,redis://b"], &["keys"], 2, "add --cluster or --sentinel"),
        (&["--redis", "127.0.0.1:6379"], &["keys"], 2, "the Redis URL is invalid"),
        (&["--redis", &url, "--cluster"], &["keys"], 1, "not a node of a Redis Cluster"),
        (&["--redis", &url, "--ca", "/no/such/file"], &["keys"], 2, "cannot read /no/such/file"),
        (&["--redis", &url], &["shw", "login", "alice"], 2, "unrecognized subcommand"),
    ];
    for (options, words, code, message) in rows {
        let (actual, error) = Operator::new(options).error(words);
        assert_eq!(actual, code, "{options:?} {words:?}: {error}");
        assert!(error.contains(message), "{options:?} {words:?}: {error}");
    }
    let operator = Operator::new(&["--redis", &url]);
    std::fs::write(operator.policies(), "[[policies]]\nname = 'login'\nquota = 'many'\n").unwrap();
    let (code, error) = operator.error(&["policies"]);
    assert_eq!(code, 2);
    assert!(
        error.contains("limits.toml, line 3: policy `login`: entry `quota`: invalid quota `many`"),
        "{error}"
    );
}

#[test]
fn no_error_shows_a_password() {
    let server = RedisServer::with(&["--requirepass", "right-horse"]);
    let address = format!("127.0.0.1:{}", server.port());
    let operator = Operator::new(&[]);
    let url = format!("redis://:hunter2@{address}");
    let rows: [(&[&str], i32); 15] = [
        (&["--redis", &url, "--sentinel", &url, "keys"], 2),
        (&["--redis", "redis://127.0.0.1:1", "--ca", &url, "keys"], 2),
        (&["--redis", &format!("redis://:right-horse@{address}"), "show", &url, "alice"], 2),
        (&["--redis", &format!("redis://:right-horse@{address}"), "show", "redis://hunter2", "alice"], 2),
        (&["--redis", &format!("redis://:hunter2@{address}"), "keys"], 1),
        (&["--redis", &format!("redis://{address}"), "keys"], 1),
        (&["--redis", "redis://:hunter2@127.0.0.1:1", "keys"], 1),
        (&["--redis", &format!("redis://:hunter2/x@{address}"), "keys"], 2),
        (&["--redis", "redis//:hunter2@127.0.0.1:1", "keys"], 2),
        (&["--redis", "redis://:hunter2@a,redis://:hunter2@b", "keys"], 2),
        (&[&format!("redis://:hunter2@{address}"), "keys"], 2),
        (&["keys", "login", &format!("redis://:hunter2@{address}")], 2),
        (&["keys", "login", &format!("redis://:it's-hunter2@{address}")], 2),
        (&["keys", "login", &format!("redis://:a hunter2@{address}")], 2),
        (
            &[
                "--redis",
                &format!("redis://{address}"),
                "--sentinel",
                "mymaster",
                "--sentinel-user",
                "u",
                "keys",
            ],
            1,
        ),
    ];
    for (words, code) in rows {
        let (actual, error) = operator.error(words);
        assert_eq!(actual, code, "{words:?}: {error}");
        assert!(!error.contains("hunter2") && !error.contains("right-horse"), "{words:?}: {error}");
    }
    let right =
        operator.run(&["--redis", &format!("redis://:right-horse@{address}"), "show", "login", "alice"]);
    assert!(right.status.success());

    let mut wrong_file = Command::new(env!("CARGO_BIN_EXE_ratelimit-admin"));
    let wrong_file = wrong_file.args(["--policies", &url, "policies"]).output().unwrap();
    let error = String::from_utf8(wrong_file.stderr).unwrap();
    assert!(wrong_file.status.code() == Some(2) && !error.contains("hunter2"), "{error}");

    let mut help = Command::new(env!("CARGO_BIN_EXE_ratelimit-admin"));
    let help = help.arg("--help").env("REDIS_URL", "redis://:hunter2@127.0.0.1").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    assert!(help.contains("Exit codes: 0 done") && !help.contains("hunter2"), "{help}");
}

#[tokio::test]
async fn a_prefix_that_no_instance_uses_is_a_warning_and_a_variable_names_another_one() {
    let server = RedisServer::start();
    // As an instance announces itself.
    let store = settings().prefix("shop").connect(&server.url()).await.unwrap();
    let instances = Policy::new("%instances", Quota::new(100_000, Duration::from_secs(15)));
    let limiter = Limiter::new(store);
    let instances = instances.algorithm(Concurrency::new());
    let permit = limiter.check(&instances, &Key::new("%instances"), 1).await.unwrap();

    let operator = Operator::new(&["--redis", &server.url()]);
    let warning = "warning: no instance has used the limits under the prefix `rl` in the last 15 seconds: if your service \
                   has had requests, name its prefix with --prefix, or in the variable RATELIMIT_PREFIX\n";
    for words in [
        &["ban", "banning", "alice", "10min"][..],
        &["show", "login", "alice"],
        &["why", "alice"],
        &["blocklist"],
    ] {
        let output = operator.run(words);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), &*errors), (Some(0), warning), "{words:?}");
        for by_option in [true, false] {
            let mut command = operator.command(if by_option { &["--prefix", "shop"] } else { &[] });
            let output = command
                .args(words)
                .env("RATELIMIT_PREFIX", if by_option { "rl" } else { "shop" })
                .output()
                .unwrap();
            let errors = String::from_utf8(output.stderr).unwrap();
            assert_eq!((output.status.code(), &*errors), (Some(0), ""), "{words:?}");
        }
    }
    drop(permit);
}
