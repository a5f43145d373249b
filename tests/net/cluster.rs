//! A store on a Redis Cluster of real nodes, with slot migrations and failovers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use support::{
    RedisServer, eventually,
    redis_cluster::{RedisCluster, SLOTS},
    settings, within,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy},
    net::{TcpListener, TcpStream},
    runtime::Handle,
    task::{JoinSet, spawn_blocking},
    time::sleep,
};
use tower_ratelimit::{
    Charge, Criticality, ErrorKind, FailureMode, Key, Limiter, Policy, Quota, RedisStore,
    algorithm::{FixedWindow, Gcra, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket},
    decision::Verdict,
    policy::{Headroom, Penalty},
    store::{Servers, Store as _},
};
use tower_ratelimit_operate::live::LivePolicies;

async fn store(cluster: &RedisCluster) -> RedisStore {
    settings().connect(Servers::cluster(cluster.urls())).await.unwrap()
}

pub(crate) fn closed(name: &str, limit: u64) -> Policy {
    Policy::new(name, Quota::per_day(limit)).failure_mode(FailureMode::Closed)
}

/// The default number of shards.
const SHARDS: u32 = 8;

/// The shard of an identity.
fn shard(cluster: &RedisCluster, identity: &str) -> u32 {
    u32::from(cluster.slot(identity)) * SHARDS / u32::from(SLOTS)
}

/// An identity in the first shard of `node`.
pub(crate) fn key_of(cluster: &RedisCluster, node: usize) -> Key {
    keys_of_one_shard(cluster, node, 1).remove(0)
}

/// Different identities of the first shard of `node`.
pub(crate) fn keys_of_one_shard(cluster: &RedisCluster, node: usize, count: usize) -> Vec<Key> {
    // The slot of a shard is near the middle of its part.
    let middle = |shard: u32| u16::try_from((2 * shard + 1) * u32::from(SLOTS) / (2 * SHARDS)).unwrap();
    let wanted = (0..SHARDS).find(|&shard| cluster.first_owner(middle(shard)) == node).unwrap();
    let identities = (0..).map(|number| format!("user-{number}"));
    identities.filter(|identity| shard(cluster, identity) == wanted).take(count).map(Key::new).collect()
}

/// The slot of an identity that was charged under one policy.
pub(crate) fn slot_of(cluster: &RedisCluster, node: usize, identity: &Key) -> u16 {
    let keys: Vec<String> = cluster.nodes[node].command(&["KEYS", &format!("*{}*", identity.as_str())]);
    cluster.slot(&keys[0])
}

#[derive(Debug, Default, PartialEq)]
struct Counts {
    admitted: u64,
    denied: u64,
    failed: u64,
}

/// Runs sixteen tasks that check the key until `stop`, each at least `least` times.
async fn load(
    limiters: &[Limiter],
    policy: &Policy,
    key: &Key,
    least: usize,
    stop: &Arc<AtomicBool>,
) -> Counts {
    load_with(16, limiters, policy, key, least, stop).await
}

async fn load_with(
    tasks: usize,
    limiters: &[Limiter],
    policy: &Policy,
    key: &Key,
    least: usize,
    stop: &Arc<AtomicBool>,
) -> Counts {
    let mut running = JoinSet::new();
    for task in 0..tasks {
        let limiter = limiters[task % limiters.len()].clone();
        let (policy, key, stop) = (policy.clone(), key.clone(), stop.clone());
        running.spawn(async move {
            let mut counts = Counts::default();
            for asked in 0.. {
                if asked >= least && stop.load(Ordering::Relaxed) {
                    break;
                }
                match limiter.check(&policy, &key, 1).await {
                    Ok(decision) if decision.is_admitted() => counts.admitted += 1,
                    Ok(_) => counts.denied += 1,
                    Err(error) => {
                        eprintln!("{error}");
                        counts.failed += 1;
                        // An open breaker answers immediately.
                        sleep(Duration::from_millis(1)).await;
                    }
                }
            }
            counts
        });
    }
    running.join_all().await.into_iter().fold(Counts::default(), |all, one| Counts {
        admitted: all.admitted + one.admitted,
        denied: all.denied + one.denied,
        failed: all.failed + one.failed,
    })
}

/// Ends the load when it is dropped, on panic too.
struct Stop(Arc<AtomicBool>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn stopped() -> Arc<AtomicBool> {
    Arc::new(AtomicBool::new(true))
}

#[tokio::test(flavor = "multi_thread")]
async fn moved_and_ask_redirects_are_followed_while_slots_move() {
    let mut cluster = RedisCluster::start(3);
    // Without the deny cache, so that denials reach Redis too.
    let limiters = [
        Limiter::new(
            settings().deny_cache(Duration::ZERO).connect(Servers::cluster(cluster.urls())).await.unwrap(),
        ),
        Limiter::new(
            settings().deny_cache(Duration::ZERO).connect(Servers::cluster(cluster.urls())).await.unwrap(),
        ),
    ];
    let new = cluster.add_node();
    let key = key_of(&cluster, 0);
    let policy = closed("moved", 30_000).algorithm(FixedWindow::anchored());
    // The key exists before the first migration begins.
    assert!(limiters[0].check(&policy, &key, 1).await.unwrap().is_admitted());
    let slot = slot_of(&cluster, 0, &key);
    let stop = Arc::new(AtomicBool::new(false));
    let moves = {
        let stop = Stop(stop.clone());
        spawn_blocking(move || {
            let _stop = stop;
            let asked = AtomicUsize::new(0);
            // First to a node that no client knows yet, because it had no slots.
            for (from, to) in [(0, new), (new, 1), (1, 2), (2, new), (new, 0), (0, 1), (1, 0)] {
                cluster.move_slot(slot, from, to, || {
                    // Time for some checks before and after the key moves.
                    std::thread::sleep(Duration::from_millis(30));
                    asked.fetch_add(1, Ordering::Relaxed);
                });
            }
            (cluster, asked)
        })
    };
    let counts = load(&limiters, &policy, &key, 2_000, &stop).await;
    let (cluster, halfway) = moves.await.unwrap();
    assert!(halfway.into_inner() >= 14, "the keys existed while the slot moved");
    assert_eq!((counts.admitted, counts.failed), (29_999, 0), "{counts:?}");
    let redirected: u64 = cluster.nodes.iter().map(|node| errors(node, "MOVED") + errors(node, "ASK")).sum();
    assert!(redirected > 0, "{redirected} redirections");
}

/// The number of error replies of this kind that the server has sent.
fn errors(node: &RedisServer, kind: &str) -> u64 {
    let info: String = node.command(&["INFO", "errorstats"]);
    let line = info.lines().find_map(|line| line.strip_prefix(&format!("errorstat_{kind}:count=")));
    line.map_or(0, |count| count.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_algorithm_admits_exactly_the_limit_over_all_nodes_and_instances() {
    let cluster = RedisCluster::shared();
    let stores = [
        settings().prefix("every-algorithm").connect(Servers::cluster(cluster.urls())).await.unwrap(),
        settings().prefix("every-algorithm").connect(Servers::cluster(cluster.urls())).await.unwrap(),
    ];
    let limiters = stores.clone().map(Limiter::new);
    let policies = [
        closed("gcra", 100).algorithm(Gcra::new()),
        closed("fixed", 100).algorithm(FixedWindow::anchored()),
        Policy::new("month", Quota::per_month(100)).failure_mode(FailureMode::Closed),
        closed("token", 100).algorithm(TokenBucket::new()),
        closed("leaky", 100).algorithm(LeakyBucket::meter()),
        closed("log", 100).algorithm(SlidingLog::new()),
        closed("sliding", 100).algorithm(SlidingWindow::new()),
        closed("leased", 100).max_lease(20),
    ];
    for policy in &policies {
        for node in 0..3 {
            let key = key_of(cluster, node);
            let mut counts = load(&limiters, policy, &key, 20, &stopped()).await;
            // One instance may hold leased units while the other one denies requests.
            eventually(async || {
                for store in &stores {
                    store.drain().await.unwrap();
                }
                while limiters[0].check(policy, &key, 1).await.unwrap().is_admitted() {
                    counts.admitted += 1;
                    counts.denied -= 1;
                }
                counts.admitted >= 100
            })
            .await;
            let exactly = Counts { admitted: 100, denied: 220, failed: 0 };
            assert_eq!(counts, exactly, "{} on node {node}", policy.name());
        }
    }
}

/// Checks each key in two tasks for each limiter, `times` times and until `stop`.
async fn load_on_all(
    limiters: &[Limiter],
    policy: &Policy,
    keys: &[Key],
    times: usize,
    stop: &Arc<AtomicBool>,
) -> Vec<Counts> {
    let mut running = JoinSet::new();
    for (place, key) in keys.iter().enumerate() {
        let (limiters, policy, key, stop) = (limiters.to_vec(), policy.clone(), key.clone(), stop.clone());
        running.spawn(async move {
            (place, load_with(2 * limiters.len(), &limiters, &policy, &key, times, &stop).await)
        });
    }
    let mut counts = running.join_all().await;
    counts.sort_by_key(|(place, _)| *place);
    counts.into_iter().map(|(_, counts)| counts).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn decisions_of_one_shard_share_calls() {
    let cluster = RedisCluster::start(2);
    let store = settings().connect(Servers::cluster(cluster.urls())).await.unwrap();
    let calls = || cluster.nodes.iter().map(RedisServer::script_calls).sum::<u64>();
    let limiter = Limiter::new(store);
    let policy = closed("our-pool", 1_000);
    let keys = keys_of_one_shard(&cluster, 1, 64);
    // Also the scripts are loaded now.
    assert!(limiter.check(&policy, &keys[0], 1).await.unwrap().is_admitted());
    let before = calls();
    let counts = load_on_all(std::slice::from_ref(&limiter), &policy, &keys, 20, &stopped()).await;
    let decisions: u64 = counts.iter().map(|counts| counts.admitted).sum();
    assert_eq!(decisions, 64 * 2 * 20);
    let calls = calls() - before;
    assert!(calls < decisions / 4, "{calls} calls");
    let names: Vec<String> =
        cluster.nodes.iter().flat_map(|node| node.command::<Vec<String>>(&["KEYS", "*"])).collect();
    let identity = key_of(&cluster, 1);
    assert!(
        names.iter().any(|name| name.starts_with("rl:our-pool:gcra:{")
            && name.ends_with(&format!("}}:{}", identity.as_str())))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_of_two_instances_admit_exactly_the_limit_of_each_key() {
    let cluster = RedisCluster::shared();
    let settings = || settings().prefix("batches").deny_cache(Duration::ZERO);
    let limiters = [
        Limiter::new(settings().connect(Servers::cluster(cluster.urls())).await.unwrap()),
        Limiter::new(settings().connect(Servers::cluster(cluster.urls())).await.unwrap()),
    ];
    let policy = closed("exact", 50).algorithm(FixedWindow::anchored());
    let keys: Vec<Key> = (0..60).map(|number| Key::new(format!("user-{number}"))).collect();
    let counts = load_on_all(&limiters, &policy, &keys, 20, &stopped()).await;
    for (key, counts) in keys.iter().zip(counts) {
        assert_eq!(counts, Counts { admitted: 50, denied: 30, failed: 0 }, "{}", key.as_str());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migrating_slot_fails_no_decision_of_a_batch() {
    let cluster = RedisCluster::start(2);
    let store = async || {
        settings()
            .deadline(IN_TIME)
            .deny_cache(Duration::ZERO)
            .connect(Servers::cluster(cluster.urls()))
            .await
            .unwrap()
    };
    let limiters = [Limiter::new(store().await), Limiter::new(store().await)];
    migrate_under_load(cluster, limiters).await;
}

/// Moves a slot with many keys, key by key, while all of them are charged.
async fn migrate_under_load(mut cluster: RedisCluster, limiters: [Limiter; 2]) {
    let new = cluster.add_node();
    let policy = closed("moved", 1_000).algorithm(FixedWindow::anchored());
    let keys = keys_of_one_shard(&cluster, 0, 30);
    for key in &keys[..20] {
        assert!(limiters[0].check(&policy, key, 1).await.unwrap().is_admitted());
    }
    let slot = slot_of(&cluster, 0, &keys[0]);
    let stop = Arc::new(AtomicBool::new(false));
    let moves = {
        let stop = Stop(stop.clone());
        spawn_blocking(move || {
            let _stop = stop;
            for (from, to) in [(0, new), (new, 1), (1, 0)] {
                cluster.move_slot(slot, from, to, || std::thread::sleep(Duration::from_millis(10)));
            }
            cluster
        })
    };
    // The last keys do not exist before the slot migrates.
    let counts = load_on_all(&limiters, &policy, &keys, 300, &stop).await;
    let cluster = moves.await.unwrap();
    for (place, counts) in counts.into_iter().enumerate() {
        let admitted = if place < 20 { 999 } else { 1_000 };
        assert_eq!((counts.admitted, counts.failed), (admitted, 0), "{place}: {counts:?}");
    }
    // Redis 6.2 redirects a batch to the new node if one of its keys is missing on the old one.
    let server: String = cluster.nodes[0].command(&["INFO", "server"]);
    let answer = if server.contains("redis_version:6.") { "ASK" } else { "TRYAGAIN" };
    let divided: u64 = cluster.nodes.iter().map(|node| errors(node, answer)).sum();
    assert!(divided > 0, "no batch met a slot whose keys were on two nodes");
}

#[tokio::test]
async fn two_identities_in_two_slots_are_decided_all_or_nothing() {
    let cluster = RedisCluster::shared();
    let store = settings().prefix("two-identities").connect(Servers::cluster(cluster.urls())).await.unwrap();
    let limiter = Limiter::new(store.clone());
    let (address, user) = (key_of(cluster, 0), key_of(cluster, 2));
    let (by_address, by_user) = (closed("address", 5), closed("user", 2));
    let both = [Charge::new(&by_address, &address, 1), Charge::new(&by_user, &user, 1)];
    let left = async || {
        let [address, user] = [(&by_address, &address), (&by_user, &user)];
        let address = limiter.peek(address.0, address.1, 1).await.unwrap();
        let user = limiter.peek(user.0, user.1, 1).await.unwrap();
        (address.remaining().unwrap(), user.remaining().unwrap())
    };

    for admitted in 1..=2 {
        let decision = limiter.check_all(&both).await.unwrap();
        assert!(decision.is_admitted());
        let remaining: Vec<_> = decision.outcomes().iter().map(|outcome| outcome.remaining()).collect();
        assert_eq!(remaining, [5 - admitted, 2 - admitted]);
        assert_eq!(left().await, (5 - admitted, 2 - admitted));
    }
    // The second one denies: the charge of the first is refunded, and the decision reports that.
    for _ in 0..10 {
        let decision = limiter.check_all(&both).await.unwrap();
        assert!(!decision.is_admitted());
        let remaining: Vec<_> = decision.outcomes().iter().map(|outcome| outcome.remaining()).collect();
        assert_eq!(remaining, [3, 0]);
        assert_eq!(decision.outcomes()[0].verdict(), Verdict::Admit);
        assert_eq!(decision.binding().unwrap().policy().name(), "user");
        assert_eq!(left().await, (3, 0));
    }
    // The first one denies: the second is not charged and reports its remaining units.
    let dear = [Charge::new(&by_address, &address, 4), Charge::new(&by_user, &Key::new("other"), 1)];
    let decision = limiter.check_all(&dear).await.unwrap();
    assert!(!decision.is_admitted());
    assert_eq!(decision.outcomes()[1].remaining(), 2);
    assert_eq!(left().await, (3, 0));
    // Refund both.
    for charge in &both {
        limiter.operator().refund_latest(charge.policy(), charge.key(), 2).await.unwrap();
    }
    assert_eq!(left().await, (5, 2));
}

/// In a later shard too: a denial for the sake of others counts for no penalty, and one that degrades denies nothing.
#[tokio::test]
async fn headroom_and_degrading_hold_over_two_slots() {
    let cluster = RedisCluster::shared();
    let store = settings().prefix("criticality").connect(Servers::cluster(cluster.urls())).await.unwrap();
    let limiter = Limiter::new(store);
    let penalty = Penalty::after(1, Duration::from_secs(60));
    let site = closed("site", 3).headroom(Criticality::Sheddable, Headroom::Units(2)).penalty(penalty);
    let (user, all) = (closed("user", 9), [key_of(cluster, 0), key_of(cluster, 2)]);
    for (user_key, site_key) in [(&all[0], &all[1]), (&all[1], &all[0])] {
        let charges = [Charge::new(&user, user_key, 1), Charge::new(&site, site_key, 1)]
            .map(|charge| charge.with_criticality(Criticality::Sheddable));
        assert!(limiter.check_all(&charges).await.unwrap().is_admitted());
        for _ in 0..2 {
            let shed = limiter.check_all(&charges).await.unwrap();
            assert!(shed.is_shed() && shed.banned_for().is_none(), "{shed:?}");
        }
        let [of_user, of_site] = charges;
        let degraded = limiter.check_all(&[of_user, of_site.or_degrade()]).await.unwrap();
        assert!(degraded.is_admitted() && degraded.degraded().count() == 1, "{degraded:?}");
        assert_eq!(limiter.peek(&user, user_key, 0).await.unwrap().remaining(), Some(7));
        assert_eq!(limiter.peek(&site, site_key, 0).await.unwrap().remaining(), Some(2));
    }
}

/// A guarantee is in the shard of its pool, so both are decided in one step.
#[tokio::test]
async fn a_guarantee_is_decided_with_its_pool_wherever_its_tenant_would_be() {
    let cluster = RedisCluster::start(3);
    let limiter = Limiter::new(store(&cluster).await);
    let pool = closed("pool", 10).headroom(Criticality::Sheddable, Headroom::Units(6));
    let tenant = Policy::new("tenant", Quota::per_day(3));
    for node in 0..3 {
        let (all, tenants) = (key_of(&cluster, node), [0, 1, 2].map(|node| key_of(&cluster, node)));
        // Too long to be stored with the pool's.
        let long = Key::new("x".repeat(96));
        for key in tenants.iter().chain([&long]) {
            let charge = Charge::new(&pool, &all, 1).with_criticality(Criticality::Sheddable);
            let guarantee = charge.guarantee(&tenant, key).unwrap();
            let calls = cluster.nodes.iter().map(RedisServer::script_calls).sum::<u64>();
            let decision = limiter.check_all(&[guarantee, charge]).await.unwrap();
            assert_eq!(cluster.nodes.iter().map(RedisServer::script_calls).sum::<u64>(), calls + 1);
            // A new one borrows.
            assert!(decision.shadows()[0].verdict().is_denied(), "{decision:?}");
            let refunded = limiter.refund(&decision, 1).await.unwrap();
            assert_eq!(refunded.outcomes()[0].remaining(), 4, "{refunded:?}");
        }
    }
}

#[tokio::test]
async fn a_denial_by_the_second_identity_is_remembered_too() {
    let cluster = RedisCluster::start(2);
    let limiter = Limiter::new(store(&cluster).await);
    let (by_address, by_user) = (closed("address", 1_000), closed("user", 1));
    let (address, user) = (key_of(&cluster, 0), key_of(&cluster, 1));
    let both = [Charge::new(&by_address, &address, 1), Charge::new(&by_user, &user, 1)];
    assert!(limiter.check_all(&both).await.unwrap().is_admitted());
    assert!(!limiter.check_all(&both).await.unwrap().is_admitted());
    let before = cluster.nodes[1].script_calls();
    for _ in 0..20 {
        let decision = limiter.check_all(&both).await.unwrap();
        assert!(!decision.is_admitted());
        assert_eq!(decision.outcomes()[0].remaining(), 999);
    }
    // One call a second, if the machine is that slow.
    assert!(cluster.nodes[1].script_calls() < before + 10);
    // A reset takes effect immediately.
    limiter.operator().reset(&by_user, &user).await.unwrap();
    assert!(limiter.check_all(&both).await.unwrap().is_admitted());
}

/// The mark is in the slot of its key, and the refund of each slot reads its own.
#[tokio::test]
async fn a_refund_over_two_slots_returns_nothing_of_the_key_that_was_reset() {
    let cluster = RedisCluster::shared();
    let store = settings().prefix("resets").connect(Servers::cluster(cluster.urls())).await.unwrap();
    let limiter = Limiter::new(store);
    let policies = [closed("address", 100), closed("user", 100)];
    let keys = [key_of(cluster, 0), key_of(cluster, 1)];
    let charges = [0, 1].map(|place| Charge::new(&policies[place], &keys[place], 50));
    let before = limiter.check_all(&charges).await.unwrap();
    limiter.operator().reset(&policies[1], &keys[1]).await.unwrap();
    assert!(limiter.check(&policies[1], &keys[1], 50).await.unwrap().is_admitted());
    let refunded = limiter.refund(&before, 50).await.unwrap();
    let left: Vec<u64> = refunded.outcomes().iter().map(|outcome| outcome.remaining()).collect();
    assert_eq!(left, [100, 50]);
}

/// No mark is on either node, so a call that names one would be rejected until the slot has moved.
#[tokio::test(flavor = "multi_thread")]
async fn a_migrating_slot_fails_no_refund() {
    let cluster = RedisCluster::start(2);
    let limiter = Limiter::new(store(&cluster).await);
    let (policy, key) = (closed("moved", 100), key_of(&cluster, 0));
    let mut charged = Vec::new();
    for _ in 0..8 {
        charged.push(limiter.check(&policy, &key, 10).await.unwrap());
    }
    let (slot, refunding, runtime) = (slot_of(&cluster, 0, &key), limiter.clone(), Handle::current());
    let moved = spawn_blocking(move || {
        let mut charged = charged.iter();
        let mut refunded = 0;
        cluster.move_slot(slot, 0, 1, || {
            for decision in charged.by_ref().take(3) {
                runtime.block_on(refunding.refund(decision, 10)).unwrap();
                refunded += 10;
            }
        });
        (cluster, refunded)
    });
    let (_cluster, refunded) = moved.await.unwrap();
    assert_eq!(refunded, 60, "the key was on one node and on the other");
    assert_eq!(limiter.peek(&policy, &key, 0).await.unwrap().remaining(), Some(20 + refunded));
}

/// In the meantime, each node redirects to the other one.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_is_made_and_a_hash_is_set_while_slots_change_hands() {
    let cluster = RedisCluster::start(2);
    let old = store(&cluster).await;
    let limiter = Limiter::new(old.clone());
    let policy = closed("moved", 10);
    let hash = (0..)
        .map(|number| old.hash(&format!("hash-{number}")))
        .find(|hash| cluster.first_owner(cluster.slot(hash.key())) == 0);
    let hash = hash.unwrap().timeout(IN_TIME);
    // A probe uses any shard.
    for number in 0..100 {
        limiter.check(&policy, &Key::new(format!("user-{number}")), 1).await.unwrap();
    }
    let keys: Vec<String> = cluster.nodes[0].command(&["KEYS", "*"]);
    let mut slots: Vec<u16> = keys.iter().map(|key| cluster.slot(key)).collect();
    slots.sort_unstable();
    slots.dedup();
    assert_eq!(slots.len(), 4, "{slots:?}");
    slots.push(cluster.slot(hash.key()));
    let () = cluster.nodes[0].command(&["FLUSHALL"]);

    cluster.give_slots(&slots, 0, 1);
    let mut started = JoinSet::new();
    for _ in 0..8 {
        let urls = cluster.urls();
        started.spawn(async { settings().connect(Servers::cluster(urls)).await.map(drop) });
    }
    started.spawn(async move { hash.set(&[("field", "value")]).await });
    sleep(Duration::from_millis(200)).await;
    cluster.take_slots(&slots, 1);
    let failed: Vec<_> = started.join_all().await.into_iter().filter_map(Result::err).collect();
    assert!(failed.is_empty(), "{failed:?}");
}

#[tokio::test]
async fn a_denial_stands_when_a_later_identity_is_unavailable() {
    let mut cluster = RedisCluster::start(3);
    let limiter = Limiter::new(store(&cluster).await);
    let policies = [closed("first", 10), closed("second", 1), closed("third", 10)];
    let charges: Vec<_> =
        (0..3).map(|node| Charge::new(&policies[node], &key_of(&cluster, node), 1)).collect();
    assert!(limiter.check_all(&charges).await.unwrap().is_admitted());
    cluster.nodes[2].kill();
    for _ in 0..5 {
        let decision = limiter.check_all(&charges).await.unwrap();
        assert!(!decision.is_admitted());
        let names: Vec<_> = decision.outcomes().iter().map(|outcome| outcome.policy().name()).collect();
        assert_eq!(names, ["first", "second"]);
    }
    // Each denied charge was refunded once, and no other charge was.
    let left = limiter.peek(&policies[0], charges[0].key(), 1).await.unwrap();
    assert_eq!(left.remaining(), Some(9));
    // If no policy denies, the decision is an error and nothing stays charged. The refund runs after the error is
    // returned.
    let charges = [charges[0].clone(), charges[2].clone()];
    assert!(limiter.check_all(&charges).await.is_err());
    let peek = async || limiter.peek(&policies[0], charges[0].key(), 1).await.unwrap();
    assert!(eventually(async || peek().await.remaining() == Some(9)).await, "the charge was not refunded");
}

#[tokio::test(flavor = "multi_thread")]
async fn charges_of_a_late_decision_are_refunded_at_its_deadline() {
    let cluster = RedisCluster::start(2);
    let store = settings()
        .deny_cache(Duration::ZERO)
        .deadline(Duration::from_millis(100))
        .connect(Servers::cluster(cluster.urls()))
        .await
        .unwrap();
    let limiter = Limiter::new(store);
    let (by_address, by_user) = (closed("address", 150), closed("user", 1_000));
    let (address, user) = (key_of(&cluster, 0), key_of(&cluster, 1));
    let charges = [Charge::new(&by_address, &address, 1), Charge::new(&by_user, &user, 1)];
    assert!(limiter.check_all(&charges).await.unwrap().is_admitted());
    cluster.nodes[1].signal("STOP");
    let stop = Arc::new(AtomicBool::new(false));
    let mut running = JoinSet::new();
    for _ in 0..32 {
        let (limiter, charges, stop) = (limiter.clone(), charges.clone(), stop.clone());
        running.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                assert!(!limiter.check_all(&charges).await.is_ok_and(|decision| decision.is_admitted()));
            }
        });
    }
    let mut least = 150;
    {
        let _stop = Stop(stop);
        for _ in 0..10 {
            sleep(Duration::from_millis(100)).await;
            if let Ok(decision) = limiter.peek(&by_address, &address, 1).await {
                least = least.min(decision.remaining().unwrap());
            }
        }
    }
    running.join_all().await;
    assert!(least > 50, "more units are charged than concurrent requests can hold: {least} left");
}

#[tokio::test]
async fn a_denial_is_not_remembered_when_only_some_of_a_refund_fails() {
    let mut cluster = RedisCluster::start(3);
    let limiter = Limiter::new(
        settings()
            .deny_cache(Duration::from_secs(60))
            .connect(Servers::cluster(cluster.urls()))
            .await
            .unwrap(),
    );
    let (address, user) = (key_of(&cluster, 0), key_of(&cluster, 1));
    let (by_address, by_user) = (closed("address", 1), closed("user", 1));
    let both = [Charge::new(&by_address, &address, 1), Charge::new(&by_user, &user, 1)];
    let decision = limiter.check_all(&both).await.unwrap();
    assert!(decision.is_admitted());
    assert!(!limiter.check(&by_address, &address, 1).await.unwrap().is_admitted());
    cluster.nodes[1].kill();
    assert!(limiter.refund(&decision, 1).await.is_err());
    // The rest of the refund goes on if the deadline passes first.
    let is_admitted = async || limiter.check(&by_address, &address, 1).await.unwrap().is_admitted();
    assert!(eventually(is_admitted).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_decisions_over_two_slots_never_admit_more_than_either_limit() {
    let cluster = RedisCluster::shared();
    let limiter = Limiter::new(
        settings().prefix("two-at-once").connect(Servers::cluster(cluster.urls())).await.unwrap(),
    );
    let (address, user) = (key_of(cluster, 0), key_of(cluster, 1));
    let (by_address, by_user) = (closed("address", 1_000), closed("user", 60));
    let mut running = JoinSet::new();
    for _ in 0..16 {
        let limiter = limiter.clone();
        let charges = [Charge::new(&by_address, &address, 1), Charge::new(&by_user, &user, 1)];
        running.spawn(async move {
            let mut admitted = 0;
            for _ in 0..20 {
                admitted += u64::from(limiter.check_all(&charges).await.unwrap().is_admitted());
            }
            admitted
        });
    }
    assert_eq!(running.join_all().await.into_iter().sum::<u64>(), 60);
    let left = limiter.peek(&by_address, &address, 1).await.unwrap();
    assert_eq!(left.remaining(), Some(940), "denied requests are not charged");
}

#[tokio::test]
async fn permits_of_two_identities_are_released_when_one_denies() {
    let cluster = RedisCluster::shared();
    let limiter =
        Limiter::new(settings().prefix("in-use").connect(Servers::cluster(cluster.urls())).await.unwrap());
    let running = Policy::concurrency("running", 3).failure_mode(FailureMode::Closed);
    let rate = closed("rate", 1);
    let (alice, all) = (key_of(cluster, 0), key_of(cluster, 1));
    let charges = || [Charge::new(&running, &alice, 1), Charge::new(&rate, &all, 1)];
    let admitted = limiter.check_all(&charges()).await.unwrap();
    assert!(admitted.is_admitted());
    for _ in 0..5 {
        assert!(!limiter.check_all(&charges()).await.unwrap().is_admitted());
    }
    assert_eq!(limiter.peek(&running, &alice, 1).await.unwrap().remaining(), Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_node_fails_only_its_own_keys_until_it_is_back() {
    let mut cluster = RedisCluster::start(3);
    let limiter = Limiter::new(
        // The decisions of the other nodes have this long on a busy machine, and the lost node's decisions wait for it.
        settings().deadline(Duration::from_secs(1)).connect(Servers::cluster(cluster.urls())).await.unwrap(),
    );
    let policy = closed("lost", 1_000_000);
    let keys: Vec<Key> = (0..3).map(|node| key_of(&cluster, node)).collect();
    for key in &keys {
        assert!(limiter.check(&policy, key, 1).await.unwrap().is_admitted());
    }
    cluster.nodes[1].kill();
    let mut lost = 0;
    for _ in 0..20 {
        for (node, key) in keys.iter().enumerate() {
            match limiter.check(&policy, key, 1).await {
                Ok(decision) => assert!(decision.is_admitted() && node != 1),
                Err(error) => {
                    assert_eq!(node, 1, "{error}");
                    lost += 1;
                }
            }
        }
    }
    assert_eq!(lost, 20);
    cluster.nodes[1].restart();
    assert!(comes_back(&limiter, &policy, &keys[1]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_hangs_under_load_fails_only_its_own_keys() {
    let cluster = RedisCluster::start(3);
    let settings = settings().deadline(Duration::from_millis(50)).deny_cache(Duration::ZERO);
    let limiter = Limiter::new(settings.connect(Servers::cluster(cluster.urls())).await.unwrap());
    let policy = closed("hung", 1_000_000);
    let keys: Vec<Key> = (0..3).map(|node| key_of(&cluster, node)).collect();
    for key in &keys {
        assert!(limiter.check(&policy, key, 1).await.unwrap().is_admitted());
    }
    cluster.nodes[1].signal("STOP");
    let stop = Arc::new(AtomicBool::new(false));
    let lost = {
        let (limiter, policy, key, stop) = (limiter.clone(), policy.clone(), keys[1].clone(), stop.clone());
        tokio::spawn(async move { load(&[limiter], &policy, &key, 1, &stop).await })
    };
    let (mut decided, mut failed) = (0, 0);
    {
        let (_stop, started) = (Stop(stop), Instant::now());
        // Long enough for two topology refreshes.
        while started.elapsed() < Duration::from_secs(4) {
            for key in [&keys[0], &keys[2]] {
                let decision = limiter.check(&policy, key, 1).await;
                *if decision.is_ok() { &mut decided } else { &mut failed } += 1;
            }
            sleep(Duration::from_millis(5)).await;
        }
    }
    assert_eq!(lost.await.unwrap().admitted, 0);
    // A busy machine misses a deadline now and then.
    assert!(decided > 200 && failed * 20 < decided, "{decided} decided, {failed} failed");
    cluster.nodes[1].signal("CONT");
    assert!(comes_back(&limiter, &policy, &keys[1]).await);
}

#[test]
fn a_store_outlives_the_runtime_that_connected_it() {
    let cluster = RedisCluster::start(1);
    let first = tokio::runtime::Runtime::new().unwrap();
    let limiter = Limiter::new(first.block_on(store(&cluster)));
    let (policy, key) = (closed("runtimes", 100), Key::new("a"));
    assert!(first.block_on(limiter.check(&policy, &key, 1)).unwrap().is_admitted());
    drop(first);
    let second = tokio::runtime::Runtime::new().unwrap();
    assert!(second.block_on(comes_back(&limiter, &policy, &key)));
}

/// The longest time that a failover may take on a busy machine.
const RECOVERY: Duration = Duration::from_secs(30);

async fn comes_back(limiter: &Limiter, policy: &Policy, key: &Key) -> bool {
    within(RECOVERY, async || limiter.check(policy, key, 1).await.is_ok()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_is_followed_and_keeps_replicated_charges() {
    for signal in ["KILL", "STOP"] {
        let cluster = RedisCluster::with_replicas(3, 1);
        let limiter = Limiter::new(
            settings()
                .deadline(Duration::from_millis(50))
                .connect(Servers::cluster(cluster.urls()))
                .await
                .unwrap(),
        );
        let (policy, key, other) = (closed("promoted", 10), key_of(&cluster, 0), key_of(&cluster, 1));
        for _ in 0..4 {
            assert!(limiter.check(&policy, &key, 1).await.unwrap().is_admitted());
        }
        // Earlier charges have reached the replica. `WAIT` alone waits only for writes on its connection.
        let replicated: u64 = cluster.nodes[0].command(&["WAIT", "1", "10000"]);
        assert_eq!(replicated, 1);
        let offset = |node: &RedisServer, name: &str| -> u64 {
            let info: String = node.command(&["INFO", "replication"]);
            info.lines().find_map(|line| line.strip_prefix(name)?.parse().ok()).unwrap()
        };
        cluster.wait_until("the replica has the charges", |cluster| {
            let written = offset(&cluster.nodes[0], "master_repl_offset:");
            offset(&cluster.nodes[3], "slave_repl_offset:") >= written
        });
        cluster.nodes[0].signal(signal);
        assert!(limiter.check(&policy, &key, 1).await.is_err(), "{signal}");
        for asked in 0..20 {
            let decision = limiter.check(&policy, &other, 1).await;
            assert!(decision.is_ok(), "{signal}: other nodes still decide, {asked}: {decision:?}");
        }
        assert!(comes_back(&limiter, &policy, &key).await, "{signal}");
        let mut left = None;
        let peeked = async || {
            left = limiter.peek(&policy, &key, 1).await.ok();
            left.is_some()
        };
        assert!(eventually(peeked).await, "{signal}");
        let left = left.unwrap().remaining();
        assert!(left <= Some(5), "{signal}: {left:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn scripts_that_a_node_lost_are_loaded_again_without_failures() {
    let cluster = RedisCluster::start(3);
    // Without the deny cache, so that every decision needs the script.
    let limiters = [Limiter::new(
        settings().deny_cache(Duration::ZERO).connect(Servers::cluster(cluster.urls())).await.unwrap(),
    )];
    let (policy, key) = (closed("flushed", 500), key_of(&cluster, 1));
    let stop = Arc::new(AtomicBool::new(false));
    let flushing = {
        let stop = Stop(stop.clone());
        spawn_blocking(move || {
            let _stop = stop;
            for _ in 0..200 {
                for node in &cluster.nodes {
                    let () = node.command(&["SCRIPT", "FLUSH"]);
                }
            }
            cluster
        })
    };
    let counts = load(&limiters, &policy, &key, 100, &stop).await;
    assert_eq!((counts.admitted, counts.failed), (500, 0), "{counts:?}");
    drop(flushing.await.unwrap());
}

/// Long enough that no decision is late on a busy machine.
const IN_TIME: Duration = Duration::from_secs(10);

/// A store on a cluster of one node, and how to cut its connection in place of the next decision.
pub(crate) async fn store_that_is_cut() -> (RedisCluster, RedisStore, Arc<AtomicBool>) {
    let cut = Arc::new(AtomicBool::new(false));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let cluster = RedisCluster::behind(port);
    let (node, armed) = (cluster.nodes[0].port(), cut.clone());
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let armed = armed.clone();
            tokio::spawn(async move {
                let server = TcpStream::connect(("127.0.0.1", node)).await.unwrap();
                let (mut requests, mut to_client) = client.into_split();
                let (mut replies, mut to_server) = server.into_split();
                let forth = tokio::spawn(async move { copy(&mut requests, &mut to_server).await });
                let mut bytes = vec![0; 65_536];
                while let Ok(read @ 1..) = replies.read(&mut bytes).await {
                    // Only the reply to a decision is a time and a record, or two: 48 or 88 bytes.
                    let is_decision = bytes.starts_with(b"$48\r\n") || bytes.starts_with(b"$88\r\n");
                    if is_decision && armed.swap(false, Ordering::Relaxed)
                        || to_client.write_all(&bytes[..read]).await.is_err()
                    {
                        break;
                    }
                }
                forth.abort();
            });
        }
    });
    let settings = settings().deny_cache(Duration::ZERO);
    let store = settings.connect(Servers::cluster([format!("redis://127.0.0.1:{port}")])).await.unwrap();
    (cluster, store, cut)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refund_is_not_sent_twice_when_its_connection_breaks() {
    let (_cluster, store, cut) = store_that_is_cut().await;
    let (limiter, key) = (Limiter::new(store), Key::new("a"));
    let policy = closed("refunded", 100);
    assert!(limiter.check(&policy, &key, 50).await.unwrap().is_admitted());
    for refunds in 1..=5 {
        cut.store(true, Ordering::Relaxed);
        let error = limiter.operator().refund_latest(&policy, &key, 1).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StoreDisconnected, "{error}");
        assert!(
            within(RECOVERY, async || limiter.operator().refund_latest(&policy, &key, 0).await.is_ok()).await
        );
        assert_eq!(limiter.peek(&policy, &key, 1).await.unwrap().remaining(), Some(50 + refunds));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permit_is_released_when_its_connection_breaks() {
    let (_cluster, store, cut) = store_that_is_cut().await;
    let (limiter, key) = (Limiter::new(store), Key::new("a"));
    let running = Policy::concurrency("running", 1).failure_mode(FailureMode::Closed);
    drop(limiter.check(&running, &key, 1).await.unwrap());
    let is_free = async || limiter.peek(&running, &key, 1).await.is_ok_and(|decision| decision.is_admitted());
    assert!(within(RECOVERY, is_free).await);
    cut.store(true, Ordering::Relaxed);
    assert!(
        limiter.check(&running, &key, 1).await.is_err(),
        "the client cannot know whether its permit was charged"
    );
    assert!(within(RECOVERY, is_free).await);
}

/// The charge of a denied decision on another identity is refunded in the window of the charge, or not at all.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_rollback_refunds_nothing_in_the_next_window() {
    let cluster = RedisCluster::start(1);
    let limiter = Limiter::new(
        settings().deny_cache(Duration::ZERO).connect(Servers::cluster(cluster.urls())).await.unwrap(),
    );
    let period = Duration::from_secs(2);
    let window = Policy::new("window", Quota::new(3_000, period))
        .algorithm(FixedWindow::aligned())
        .failure_mode(FailureMode::Closed);
    let nothing_left = closed("nothing-left", 1);
    let (one, other) = (Key::new("one"), Key::new("other"));
    assert!(limiter.check(&nothing_left, &other, 1).await.unwrap().is_admitted());
    let both = [Charge::new(&window, &one, 1), Charge::new(&nothing_left, &other, 1)];
    for _ in 0..2 {
        let time = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let left = || period - Duration::from_micros((time().as_micros() % period.as_micros()) as u64);
        sleep(left().checked_sub(Duration::from_millis(60)).unwrap_or_default()).await;
        let mut running = JoinSet::new();
        for _ in 0..1_500 {
            let (limiter, both) = (limiter.clone(), both.clone());
            running.spawn(async move {
                assert!(!limiter.check_all(&both).await.is_ok_and(|said| said.is_admitted()))
            });
        }
        // Wait for the next window, then use all of its units.
        sleep(left()).await;
        let edge = time().as_micros() / period.as_micros();
        let mut loads = JoinSet::new();
        for _ in 0..32 {
            let (limiter, window, one) = (limiter.clone(), window.clone(), one.clone());
            loads.spawn(async move {
                let mut admitted = 0;
                for _ in 0..120 {
                    if limiter.check(&window, &one, 1).await.is_ok_and(|said| said.is_admitted()) {
                        // Requests admitted after the end of this window belong to the next one.
                        admitted += u64::from(time().as_micros() / period.as_micros() == edge);
                    }
                }
                admitted
            });
        }
        let admitted: u64 = loads.join_all().await.into_iter().sum();
        running.join_all().await;
        assert!(admitted <= 3_000, "{admitted} of 3000");
    }
}

#[tokio::test]
async fn connecting_lazily_works_with_a_cluster_that_starts_later() {
    let mut cluster = RedisCluster::start(1);
    cluster.nodes[0].kill();
    let store = settings().connect_lazy(Servers::cluster(cluster.urls())).unwrap();
    let (limiter, policy, key) = (Limiter::new(store), closed("lazy", 1_000), Key::new("a"));
    let error = limiter.check(&policy, &key, 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StoreUnreachable, "{error}");
    assert!(error.to_string().contains("no node can be reached"), "{error}");
    cluster.nodes[0].restart();
    // The script is not loaded yet.
    assert!(comes_back(&limiter, &policy, &key).await);
}

#[tokio::test]
async fn every_operation_works_under_the_acl_rule() {
    let cluster = RedisCluster::start(3);
    let admin = store(&cluster).await;
    let _hash = admin.hash("any");
    let rule = admin.acl_rule();
    let keys: Vec<Key> = (0..3).map(|node| key_of(&cluster, node)).collect();
    for node in &cluster.nodes {
        node.user("limiter", &rule);
        // So that the script has to be loaded too.
        let () = node.command(&["SCRIPT", "FLUSH"]);
        let () = node.command(&["ACL", "SETUSER", "default", "off"]);
    }
    let urls = cluster.urls().into_iter().map(|url| url.replace("redis://", "redis://limiter:secret@"));
    let urls: Vec<_> = urls.collect();
    let limiter = Limiter::new(settings().connect_lazy(Servers::cluster(&urls)).unwrap());
    let policy = closed("acl", 1);
    for key in &keys {
        assert!(limiter.check(&policy, key, 1).await.unwrap().is_admitted());
        assert!(!limiter.check(&policy, key, 1).await.unwrap().is_admitted());
        limiter.operator().refund_latest(&policy, key, 1).await.unwrap();
        assert!(limiter.check(&policy, key, 1).await.unwrap().is_admitted());
        limiter.operator().reset(&policy, key).await.unwrap();
        assert!(limiter.check(&policy, key, 1).await.unwrap().is_admitted());
    }
    // The rule covers loading the script too.
    let store = RedisStore::connect(Servers::cluster(&urls)).await.unwrap();
    let live = LivePolicies::redis(&store, [policy]).await.unwrap();
    assert!(live.last_error().is_none(), "{live:?}");
}

#[tokio::test]
async fn errors_about_urls_say_what_to_do() {
    let no_cluster = RedisServer::start();
    let cluster = RedisCluster::shared();

    let error = RedisStore::connect(Servers::cluster([no_cluster.url()])).await.unwrap_err();
    assert!(error.to_string().contains("not a node of a Redis Cluster: use RedisStore::connect"), "{error}");

    let none: [&str; 0] = [];
    let error = RedisStore::connect(Servers::cluster(none)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");

    let error = RedisStore::connect(Servers::cluster(["redis://:secret@host:port"])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");

    for other in ["redis://:secret@b:1", "redis://user:secret@b:1", "redis://b:1/1"] {
        for urls in [["redis://a:1", other], [other, "redis://a:1"]] {
            let error = RedisStore::builder().connect_lazy(Servers::cluster(urls)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{urls:?}");
            assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
        }
    }

    let error = RedisStore::connect(Servers::cluster(["redis://127.0.0.1:1"])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StoreUnreachable);
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");

    // A cluster node used as a single server does not have all keys.
    let error = settings().connect(&cluster.nodes[0].url()).await.unwrap_err();
    assert!(error.to_string().contains("Servers::cluster"), "{error}");
    let limiter = Limiter::new(settings().connect_lazy(cluster.nodes[0].url()).unwrap());
    let error = limiter.check(&closed("p", 1), &key_of(cluster, 1), 1).await.unwrap_err();
    assert!(error.to_string().contains("Servers::cluster"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_may_take_as_long_as_the_deadline_allows() {
    let cluster = RedisCluster::one_node(&[]);
    let limiter = Limiter::new(store(&cluster).await);
    let (policy, alice) = (closed("p", 10), Key::new("alice"));
    assert!(limiter.check(&policy, &alice, 1).await.unwrap().is_admitted());
    // No command of a client is answered.
    let () = cluster.nodes[0].command(&["CLIENT", "PAUSE", "1200", "ALL"]);
    let decision = limiter.check(&policy, &alice, 1).await.unwrap();
    assert_eq!(decision.outcomes()[0].remaining(), 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_announce_themselves_under_one_key_of_a_cluster() {
    let cluster = RedisCluster::start(3);
    let stores = [store(&cluster).await, store(&cluster).await];
    let limiters = stores.clone().map(Limiter::new);
    let traffic = Policy::new("traffic", Quota::per_day(1_000_000));
    let both_are_seen = async || {
        for limiter in &limiters {
            limiter.check(&traffic, &Key::new("all"), 1).await.unwrap();
        }
        stores.iter().all(|store| store.instances() == Some(2))
    };
    assert!(
        within(Duration::from_secs(30), both_are_seen).await,
        "{:?}",
        stores.map(|store| store.instances())
    );
    let names = |node: &RedisServer| node.command::<Vec<String>>(&["KEYS", "*instances*"]);
    assert_eq!(cluster.nodes.iter().flat_map(names).count(), 1);
}
