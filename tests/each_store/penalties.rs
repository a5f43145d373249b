//! Penalties, on each store.

use std::time::Duration;
use support::day;

use tower_ratelimit::{
    Charge, Decision, Key, Limiter, MemoryStore, Policy, Quota,
    algorithm::{Concurrency, FixedWindow, Gcra, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket},
    decision::DecisionSource,
    policy::Penalty,
    store::BanList,
};

use crate::stores::stores;

pub(crate) const MINUTE: Duration = Duration::from_secs(60);
pub(crate) const HOUR: Duration = Duration::from_secs(3_600);

/// Bans for an hour after three denials.
pub(crate) fn three() -> Penalty {
    Penalty::after(3, HOUR)
}

pub(crate) async fn ask(limiter: &Limiter, policy: &Policy, key: &Key) -> Decision {
    limiter.check(policy, key, 1).await.unwrap()
}

/// Asks until the key is banned. Returns how many requests were admitted, and how many denied before the one that banned it.
pub(crate) async fn provoke(limiter: &Limiter, policy: &Policy, key: &Key) -> (usize, usize) {
    let (mut admitted, mut denied) = (0, 0);
    loop {
        match ask(limiter, policy, key).await {
            decision if decision.banned_for().is_some() => return (admitted, denied),
            decision if decision.is_admitted() => admitted += 1,
            _ => denied += 1,
        }
        assert!(admitted + denied < 1_000, "never banned");
    }
}

/// The keys of the list, which is complete.
pub(crate) fn texts(list: &BanList) -> Vec<&str> {
    assert!(list.is_complete);
    list.bans.iter().map(|(key, _)| key.as_str()).collect()
}

#[tokio::test]
async fn fewer_denials_do_not_ban_and_the_last_one_does() {
    let (alice, bob) = (Key::new("alice"), Key::new("bob"));
    for (name, limiter) in stores("penalty-counting").await {
        let policy = day("login", 2).penalty(three());
        let mut seen = Vec::new();
        for _ in 0..6 {
            let decision = ask(&limiter, &policy, &alice).await;
            seen.push((decision.is_admitted(), decision.banned_for().is_some()));
        }
        let (admitted, denied, banned) = ((true, false), (false, false), (false, true));
        assert_eq!(seen, [admitted, admitted, denied, denied, banned, banned], "{name}");
        assert!(ask(&limiter, &policy, &bob).await.is_admitted(), "{name}");
        // The same policy without its penalty, and again with it.
        assert!(ask(&limiter, &day("login", 2), &alice).await.banned_for().is_none(), "{name}");
        let again = ask(&limiter, &day("login", 9).penalty(three()), &alice).await;
        assert!(again.banned_for().is_some(), "{name}");
    }
}

#[tokio::test]
async fn every_algorithm_can_have_a_penalty() {
    for (name, limiter) in stores("penalty-algorithms").await {
        let quota = Quota::per_day(2);
        let policies = [
            Policy::new("gcra", quota).algorithm(Gcra::new()),
            Policy::new("tokens", quota).algorithm(TokenBucket::new()),
            Policy::new("meter", quota).algorithm(LeakyBucket::meter()),
            Policy::new("log", quota).algorithm(SlidingLog::new()),
            Policy::new("cells", quota).algorithm(SlidingWindow::new()),
            Policy::new("debt", quota).max_debt(3),
        ];
        for policy in policies.map(|policy| policy.penalty(three())) {
            let (kind, alice) = (policy.name().to_owned(), Key::new("alice"));
            assert_eq!(provoke(&limiter, &policy, &alice).await, (2, 2), "{name}, {kind}");
        }
        let permits = Policy::new("permits", quota).algorithm(Concurrency::new()).penalty(three());
        let _held = limiter.check(&permits, &Key::new("alice"), 2).await.unwrap();
        assert_eq!(provoke(&limiter, &permits, &Key::new("alice")).await, (0, 2), "{name}");
    }
}

#[tokio::test]
async fn only_denials_of_requests_that_cost_something_count() {
    let alice = Key::new("alice");
    for (name, limiter) in stores("penalty-which").await {
        let policy = day("p", 2).penalty(three());
        let first = limiter.check(&policy, &alice, 2).await.unwrap();
        for _ in 0..5 {
            assert!(limiter.peek(&policy, &alice, 1).await.unwrap().banned_for().is_none(), "{name}");
            assert!(limiter.check(&policy, &alice, 0).await.unwrap().is_admitted(), "{name}");
            assert!(limiter.debit(&first, 1).await.unwrap().is_admitted(), "{name}");
            limiter.refund(&first, 0).await.unwrap();
        }
        // Each of these is one denial, even if the cost could never be admitted.
        assert!(limiter.check_up_to(&policy, &alice, 9).await.unwrap().banned_for().is_none(), "{name}");
        assert!(limiter.check(&policy, &alice, 9).await.unwrap().banned_for().is_none(), "{name}");
        let banned = limiter.charge_more(&first, 9).await.unwrap();
        assert!(banned.banned_for().is_some(), "{name}");
        // Waiting helps against the ban, and not against the cost.
        assert_eq!((banned.banned_for(), banned.retry_after()), (Some(HOUR), None), "{name}");
        // A request that costs nothing is admitted, and a refund is made.
        assert!(limiter.check(&policy, &alice, 0).await.unwrap().is_admitted(), "{name}");
        assert_eq!(limiter.refund(&first, 2).await.unwrap().remaining(), Some(2), "{name}");
        let peeked = limiter.peek(&policy, &alice, 1).await.unwrap();
        assert!(peeked.banned_for().is_some() && peeked.remaining() == Some(0), "{name}: {peeked:?}");
    }
}

#[tokio::test]
async fn a_shadow_neither_counts_denials_nor_bans() {
    let alice = Key::new("alice");
    for (name, limiter) in stores("penalty-shadow").await {
        let policy = day("p", 1).penalty(three());
        for _ in 0..9 {
            assert!(ask(&limiter, &policy.clone().shadow(), &alice).await.is_admitted(), "{name}");
        }
        assert_eq!(provoke(&limiter, &policy, &alice).await, (0, 2), "{name}");
        let shadow = ask(&limiter, &policy.clone().shadow(), &alice).await;
        assert!(shadow.is_admitted() && shadow.shadows()[0].banned_for().is_none(), "{name}: {shadow:?}");
        // The denials of a shadow do not count for other policies either.
        let both = [
            Charge::new(&day("q", 9).penalty(three()), &alice, 1),
            Charge::new(&day("s", 1).shadow(), &alice, 1),
        ];
        for _ in 0..6 {
            assert!(limiter.check_all(&both).await.unwrap().is_admitted(), "{name}");
        }
    }
}

#[tokio::test]
async fn a_banned_request_charges_no_policy_and_counts_for_nothing() {
    for (name, limiter) in stores("penalty-partners").await {
        let login = day("login", 1).penalty(three());
        let (alice, all) = (Key::new("alice"), Key::new("all"));
        provoke(&limiter, &login, &alice).await;
        let partner = day("partner", 2).penalty(Penalty::after(1, HOUR));
        // The banned key first and last: in a Cluster, they are decided in this order.
        let charge = |policy: &Policy, key: &Key| Charge::new(policy, key, 1);
        for charges in [
            [charge(&login, &alice), charge(&partner, &all), charge(&partner, &alice)],
            [charge(&partner, &all), charge(&partner, &alice), charge(&login, &alice)],
        ] {
            for _ in 0..4 {
                let decision = limiter.check_all(&charges).await.unwrap();
                assert!(decision.banned_for().is_some(), "{name}");
                assert_eq!(decision.binding().unwrap().policy().name(), "login", "{name}");
                let banned = decision.outcomes().iter().filter(|one| one.banned_for().is_some());
                assert_eq!(banned.map(|one| one.policy().name()).collect::<Vec<_>>(), ["login"], "{name}");
            }
        }
        for key in [&alice, &all] {
            assert_eq!(limiter.peek(&partner, key, 1).await.unwrap().remaining(), Some(2), "{name}");
        }
        // A denial of the partner would ban immediately, but not while another key of the request is banned.
        limiter.check(&partner, &alice, 2).await.unwrap();
        let both = [charge(&login, &alice), charge(&partner, &alice)];
        let decision = limiter.check_all(&both).await.unwrap();
        assert!(decision.banned_for().is_some() && decision.outcomes()[1].verdict().is_denied(), "{name}");
        assert!(limiter.peek(&partner, &alice, 1).await.unwrap().banned_for().is_none(), "{name}");
        assert!(ask(&limiter, &partner, &alice).await.banned_for().is_some(), "{name}");
    }
}

#[tokio::test]
async fn all_policies_that_deny_count_the_denial() {
    for (name, limiter) in stores("penalty-several").await {
        let alice = Key::new("alice");
        let policies = [day("a", 1).penalty(three()), day("b", 9).penalty(three()), day("c", 1)];
        let charges = policies.clone().map(|policy| Charge::new(&policy, &alice, 1));
        for _ in 0..4 {
            limiter.check_all(&charges).await.unwrap();
        }
        let banned = limiter.check_all(&charges).await.unwrap();
        let seen: Vec<_> = banned
            .outcomes()
            .iter()
            .map(|one| (!one.verdict().is_denied(), one.banned_for().is_some()))
            .collect();
        assert_eq!(seen, [(false, true), (true, false), (false, false)], "{name}");
        // "b" admits, so it counted nothing, and was charged once.
        assert_eq!(limiter.peek(&policies[1], &alice, 1).await.unwrap().remaining(), Some(8), "{name}");
    }
}

#[tokio::test]
async fn a_denial_counts_for_each_key_that_denies_it() {
    for (name, limiter) in stores("penalty-keys").await {
        let policy = day("p", 1).penalty(three());
        let keys = ["alice", "bob", "carol", "dave"].map(Key::new);
        let charges = keys.each_ref().map(|key| Charge::new(&policy, key, 1));
        for _ in 0..3 {
            assert!(limiter.check_all(&charges).await.unwrap().banned_for().is_none(), "{name}");
        }
        let banned = limiter.check_all(&charges).await.unwrap();
        assert!(banned.outcomes().iter().all(|one| one.banned_for() == Some(HOUR)), "{name}: {banned:?}");
    }
}

/// Keys of one request may be in several slots of a Cluster.
#[tokio::test]
async fn every_store_counts_the_denials_of_random_requests_alike() {
    let seed = fastrand::u64(..);
    for (name, limiter) in stores("penalty-random").await {
        let (mut random, memory) = (fastrand::Rng::with_seed(seed), Limiter::new(MemoryStore::new()));
        let ban = |after| Penalty::after(after, HOUR);
        let policies = [
            day("a", 3).penalty(ban(2)),
            day("b", 5).penalty(ban(4)),
            day("c", 4),
            day("d", 3).penalty(ban(3)),
            day("e", 2).penalty(ban(2)).shadow(),
        ];
        let identities = ["alice", "bob", "carol", "dave", "erin"].map(Key::new);
        for step in 0..250 {
            let (policy, key) =
                (&policies[random.usize(..policies.len())], &identities[random.usize(..identities.len())]);
            let what = format!("seed {seed}, {name}, step {step}");
            match random.u8(..20) {
                0 if policy.settings().penalty.is_some() => {
                    limiter.operator().unban(policy, key).await.unwrap();
                    memory.operator().unban(policy, key).await.unwrap();
                }
                1 => {
                    limiter.operator().reset(policy, key).await.unwrap();
                    memory.operator().reset(policy, key).await.unwrap();
                }
                _ => {
                    let mut charges = Vec::new();
                    for policy in &policies {
                        let key = &identities[random.usize(..identities.len())];
                        if random.bool() {
                            charges.push(Charge::new(policy, key, random.u64(..3)));
                        }
                    }
                    random.shuffle(&mut charges);
                    if charges.is_empty() {
                        continue;
                    }
                    let [real, model] = [&limiter, &memory].map(|limiter| limiter.check_all(&charges));
                    let [real, model] = [real.await.unwrap(), model.await.unwrap()];
                    let (said_by_cache, mut real, mut model) =
                        (real.source() == DecisionSource::DenyCache, said(&real), said(&model));
                    if said_by_cache {
                        // It knows the others as they were when it learned of a ban. They may be banned since.
                        real.retain(|one| one.2);
                        model.retain(|one| real.iter().any(|known| known.0 == one.0));
                    }
                    assert_eq!(real, model, "{what}: {charges:?}");
                }
            }
        }
    }
}

/// By outcome: the policy, whether it admits, whether it bans, and what remains.
fn said(decision: &Decision) -> Vec<(&str, bool, bool, u64)> {
    let outcomes = decision.outcomes().iter().chain(decision.shadows());
    outcomes
        .map(|one| {
            (one.policy().name(), !one.verdict().is_denied(), one.banned_for().is_some(), one.remaining())
        })
        .collect()
}

#[tokio::test]
async fn the_most_charges_of_a_decision_can_all_have_penalties() {
    for (name, limiter) in stores("penalty-most").await {
        let alice = Key::new("alice");
        // As many numbers for each as any algorithm takes.
        let bucket = || TokenBucket::new().refill_every(HOUR).starting_at(1);
        let policy = |number: u32| {
            let quota = Quota::per_hour(9);
            Policy::new(&format!("p{number}"), quota).algorithm(bucket()).max_debt(3).penalty(three())
        };
        let charges: Vec<Charge> = (0..256).map(|number| Charge::new(&policy(number), &alice, 1)).collect();
        let decision = limiter.check_all(&charges).await.unwrap();
        assert!(decision.is_admitted() && decision.failure().is_none(), "{name}: {:?}", decision.failure());
        for denials in 1..=3 {
            let decision = limiter.check_all(&charges).await.unwrap();
            assert!(decision.failure().is_none(), "{name}: {:?}", decision.failure());
            let banned = decision.outcomes().iter().filter(|one| one.banned_for().is_some()).count();
            assert_eq!(banned, if denials == 3 { 256 } else { 0 }, "{name}");
        }
    }
}

#[tokio::test]
async fn an_operator_bans_and_unbans() {
    let alice = Key::new("alice");
    for (name, limiter) in stores("penalty-by-hand").await {
        let policy = day("p", 9).penalty(Penalty::manual());
        limiter.operator().ban(&policy, &alice, HOUR).await.unwrap();
        let banned = ask(&limiter, &policy, &alice).await;
        assert!(banned.banned_for() > Some(HOUR - MINUTE) && banned.banned_for() <= Some(HOUR), "{name}");
        // In place of the ban that it has, longer or shorter.
        for time in [2 * HOUR, MINUTE] {
            limiter.operator().ban(&policy, &alice, time).await.unwrap();
            let rest = limiter.peek(&policy, &alice, 1).await.unwrap().banned_for().unwrap();
            assert!(rest <= time && rest > time - MINUTE / 2, "{name}: {rest:?}");
        }
        // A reset removes what was charged, and no ban.
        limiter.operator().reset(&policy, &alice).await.unwrap();
        assert!(ask(&limiter, &policy, &alice).await.banned_for().is_some(), "{name}");
        limiter.operator().unban(&policy, &alice).await.unwrap();
        assert!(ask(&limiter, &policy, &alice).await.is_admitted(), "{name}");
        // No number of denials bans.
        for _ in 0..30 {
            assert!(ask(&limiter, &policy, &alice).await.banned_for().is_none(), "{name}");
        }
        // A key without a ban, and one that does not exist.
        for key in [&alice, &Key::new("bob")] {
            limiter.operator().unban(&policy, key).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_key_banned_under_a_shadow_is_listed_and_banned_once_the_policy_is_enforced() {
    for (name, limiter) in stores("penalty-of-shadow").await {
        let (policy, bob) = (day("p", 1).penalty(Penalty::manual()), Key::new("bob"));
        let (shadow, half) = (policy.clone().shadow(), policy.clone().rollout(0.5));
        limiter.operator().ban(&shadow, &bob, HOUR).await.unwrap();
        assert!(ask(&limiter, &shadow, &bob).await.is_admitted(), "{name}");
        for policy in [&shadow, &half, &policy] {
            assert_eq!(texts(&limiter.operator().bans(policy).await.unwrap()), ["bob"], "{name}");
        }
        assert!(ask(&limiter, &policy, &bob).await.banned_for().is_some(), "{name}");
        limiter.operator().unban(&shadow, &bob).await.unwrap();
        assert_eq!(texts(&limiter.operator().bans(&policy).await.unwrap()), [""; 0], "{name}");
    }
}

#[tokio::test]
async fn bans_are_listed_the_longest_first() {
    for (name, limiter) in stores("penalty-list").await {
        // Names and identities with characters of globs and of hash tags.
        let policy = day("p*[a]", 1).penalty(three());
        let other = day("p*[a]b", 1).penalty(three());
        let identities = ["alice", "b{o}b", "2001:db8::1", "*", &"long".repeat(99)];
        for (hours, identity) in (1..).zip(identities) {
            limiter.operator().ban(&policy, &Key::new(identity), hours * HOUR).await.unwrap();
        }
        limiter.operator().ban(&other, &Key::new("mallory"), HOUR).await.unwrap();
        provoke(&limiter, &policy, &Key::new("automatic")).await;
        // Denied, and not banned.
        for _ in 0..3 {
            ask(&limiter, &policy, &Key::new("denied")).await;
        }
        let list = limiter.operator().bans(&policy).await.unwrap();
        let (bans, shown) = (&list.bans, texts(&list));
        let mut expected: Vec<Key> = identities.iter().rev().map(Key::new).collect();
        expected.push(Key::new("automatic"));
        let keys: Vec<Key> = bans.iter().map(|(key, _)| key.clone()).collect();
        // Two of them have an hour left.
        assert_eq!(keys[..4], expected[..4], "{name}: {shown:?}");
        assert_eq!(keys.len(), 6, "{name}: {shown:?}");
        assert!(expected[4..].iter().all(|key| keys[4..].contains(key)), "{name}: {shown:?}");
        assert!(bans[0].1 > 5 * HOUR - MINUTE && bans[0].1 <= 5 * HOUR, "{name}");
        assert_eq!(texts(&limiter.operator().bans(&other).await.unwrap()), ["mallory"], "{name}");
        // The listed keys can be unbanned, hashes too.
        for (key, _) in bans {
            limiter.operator().unban(&policy, key).await.unwrap();
        }
        assert_eq!(texts(&limiter.operator().bans(&policy).await.unwrap()), [""; 0], "{name}");
    }
}

#[tokio::test]
async fn more_bans_are_listed_than_redis_reads_in_a_step() {
    for (name, limiter) in stores("penalty-many").await {
        let policy = day("p", 1).penalty(Penalty::manual());
        let keys: Vec<Key> = (0..3_000).map(|number| Key::new(format!("user-{number:04}"))).collect();
        let operator = limiter.operator();
        for keys in keys.chunks(100) {
            let bans = keys.iter().map(|key| operator.ban(&policy, key, HOUR));
            for banned in futures_util::future::join_all(bans).await {
                banned.unwrap();
            }
        }
        let mut listed: Vec<Key> =
            limiter.operator().bans(&policy).await.unwrap().bans.into_iter().map(|(key, _)| key).collect();
        listed.sort();
        assert_eq!(listed.len(), keys.len(), "{name}");
        assert_eq!(listed, keys, "{name}");
    }
}

/// A reset alone leaves the ban, and after an unban alone the next request is banned again.
#[tokio::test]
async fn an_unlock_gives_a_banned_key_its_whole_quota() {
    let quota = Quota::per_day(2);
    let policies = [
        Policy::new("gcra", quota).max_debt(9),
        Policy::new("log", quota).algorithm(SlidingLog::new()),
        Policy::new("window", quota).algorithm(FixedWindow::anchored()),
        Policy::new("cells", quota).algorithm(SlidingWindow::new()),
    ];
    for (name, limiter) in stores("penalty-unlock").await {
        let alice = Key::new("alice");
        for policy in policies.clone().map(|policy| policy.penalty(Penalty::after(1, HOUR))) {
            let context = format!("{name}, {}", policy.name());
            assert_eq!(provoke(&limiter, &policy, &alice).await, (2, 0), "{context}");
            limiter.operator().unlock(&policy, &alice).await.unwrap();
            assert_eq!(provoke(&limiter, &policy, &alice).await, (2, 0), "{context}");
            // Not banned, and the same.
            limiter.operator().unlock(&policy, &alice).await.unwrap();
            limiter.operator().unlock(&policy, &alice).await.unwrap();
            assert_eq!(ask(&limiter, &policy, &alice).await.remaining(), Some(1), "{context}");
        }
        // Without a penalty, it is a reset.
        let plain = day("plain", 1);
        ask(&limiter, &plain, &alice).await;
        limiter.operator().unlock(&plain, &alice).await.unwrap();
        assert!(ask(&limiter, &plain, &alice).await.is_admitted(), "{name}");
    }
}

/// The key of a preflight has a separate budget, and its client's bans.
#[tokio::test]
async fn a_ban_holds_for_preflights_and_their_denials_count_for_it() {
    for (name, limiter) in stores("penalty-preflight").await {
        for identity in ["203.0.113.7", "2001:db8::%2F64", "%(acme%|203.0.113.7%)"] {
            let (client, preflight) =
                (Key::from_stored(identity).unwrap(), Key::from_stored(&format!("%^{identity}")).unwrap());
            let policy = day("api", 3).penalty(three());
            limiter.operator().ban(&policy, &client, HOUR).await.unwrap();
            for _ in 0..2 {
                let decision = ask(&limiter, &policy, &preflight).await;
                assert!(decision.banned_for().is_some() && !decision.is_admitted(), "{name}, {identity}");
            }
            let bans = limiter.operator().bans(&policy).await;
            assert!(bans.is_err() || texts(&bans.unwrap()).contains(&client.as_str()), "{name}, {identity}");
            limiter.operator().unban(&policy, &client).await.unwrap();
            // A banned request was charged nothing. The budget is for preflights alone.
            assert_eq!(provoke(&limiter, &policy, &preflight).await, (3, 2), "{name}, {identity}");
            assert!(ask(&limiter, &policy, &client).await.banned_for().is_some(), "{name}, {identity}");
            limiter.operator().unban(&policy, &client).await.unwrap();
            assert!(ask(&limiter, &policy, &client).await.is_admitted(), "{name}, {identity}");
            assert!(ask(&limiter, &policy, &preflight).await.banned_for().is_none(), "{name}, {identity}");
            // Both in one decision.
            let charges = [Charge::new(&policy, &client, 1), Charge::new(&policy, &preflight, 1)];
            assert!(!limiter.check_all(&charges).await.unwrap().is_admitted(), "{name}, {identity}");
            limiter.operator().reset(&policy, &preflight).await.unwrap();
            limiter.operator().unban(&policy, &client).await.unwrap();
            assert!(limiter.check_all(&charges).await.unwrap().is_admitted(), "{name}, {identity}");
        }
    }
}
