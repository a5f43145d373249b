//! What becomes of everything that was made under a policy when one of its settings changes.
//!
//! The table in `src/policy/counts.md` has a word for each setting and each thing that is made under a policy. These tests
//! do what the table says, on each store. A setting without a row fails.

use std::{
    collections::BTreeSet,
    future::Future,
    pin::Pin,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use futures_util::stream::{self, StreamExt as _};
use support::{Fake, RedisServer, eventually, settings};
use tower_ratelimit::policy::QuotaUnit;
use tower_ratelimit::{
    Criticality, Decision, ErrorKind, FailureMode, Key, Limiter, MemoryStore, Policy, Quota, RedisStore,
    Reservation,
    algorithm::{
        Algorithm, Concurrency, FixedWindow, Gcra, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket,
    },
    policy::{Headroom, Penalty, PolicySettings},
    store::ManualClock,
};

const HOUR: Duration = Duration::from_secs(3_600);
const LIMIT: u64 = 10;
const LOWERED: u64 = 4;
const TABLE: &str = include_str!("../../src/policy/counts.md");

/// What a policy is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Setting {
    Name,
    Algorithm,
    Options,
    Limit,
    Period,
    FailureMode,
    Lease,
    Debt,
    Penalty,
    Headroom,
    Unit,
    Enforced,
    Thresholds,
    MixedKeys,
}

/// The settings of a policy as texts, to compare them. Fails if a setting is not among them; a row of the table must change
/// each of them.
fn parts(policy: &Policy) -> Vec<(Setting, String)> {
    let PolicySettings {
        quota,
        algorithm,
        failure_mode,
        max_lease,
        max_debt,
        penalty,
        headroom,
        quota_unit,
        enforced,
        notify_at,
        allows_mixed_keys,
        ..
    } = policy.settings();
    let known = format!(
        "PolicySettings {{ quota: {quota:?}, algorithm: {algorithm:?}, failure_mode: {failure_mode:?}, max_lease: {max_lease:?}, \
         max_debt: {max_debt:?}, penalty: {penalty:?}, headroom: {headroom:?}, \
         quota_unit: {quota_unit:?}, enforced: {enforced:?}, notify_at: {notify_at:?}, allows_mixed_keys: {allows_mixed_keys:?} }}"
    );
    assert_eq!(format!("{:?}", policy.settings()), known);
    vec![
        (Setting::Name, policy.name().to_owned()),
        (Setting::Algorithm, algorithm.name().to_owned()),
        (Setting::Options, format!("{algorithm:?}")),
        (Setting::Limit, format!("{}, {}", quota.limit(), quota.capacity())),
        (Setting::Period, format!("{:?}", quota.period())),
        (Setting::FailureMode, format!("{failure_mode}")),
        (Setting::Lease, format!("{max_lease:?}")),
        (Setting::Debt, format!("{max_debt}")),
        (Setting::Penalty, format!("{penalty:?}")),
        (Setting::Headroom, format!("{headroom:?}")),
        (Setting::Unit, format!("{quota_unit}")),
        (Setting::Enforced, format!("{enforced}")),
        (Setting::Thresholds, format!("{notify_at:?}")),
        (Setting::MixedKeys, format!("{allows_mixed_keys}")),
    ]
}

/// The policy with other settings, if they fit together.
fn with(policy: &Policy, change: impl FnOnce(&mut PolicySettings)) -> Option<Policy> {
    let mut settings = policy.settings().clone();
    change(&mut settings);
    policy.with_settings(settings).ok()
}

fn counted_by(policy: &Policy, algorithm: impl Algorithm) -> Option<Policy> {
    policy.clone().try_algorithm(algorithm).ok()
}

/// A row of the table: the policies before and after the change. None if it does not concern a policy.
struct Change {
    name: &'static str,
    settings: &'static [Setting],
    pairs: fn(&Policy) -> Vec<(Option<Policy>, Option<Policy>)>,
}

const CHANGES: &[Change] = &[
    Change {
        name: "the limit or the burst, raised",
        settings: &[Setting::Limit],
        pairs: |policy| {
            let (quota, old) = (policy.quota(), Some(policy.clone()));
            let more = quota.limit() * 2;
            let raised = policy.with_quota(Quota::new(more, quota.period())).ok();
            let burst = quota.try_burst(more).and_then(|quota| policy.with_quota(quota)).ok();
            vec![(old.clone(), raised), (old, burst)]
        },
    },
    Change {
        name: "the limit or the burst, lowered",
        settings: &[Setting::Limit],
        pairs: |policy| {
            let (quota, old) = (policy.quota(), Some(policy.clone()));
            let less = if policy.has_permits() { 1 } else { LOWERED };
            let lowered = policy.with_quota(Quota::new(less, quota.period())).ok();
            let burst = quota.try_burst(less).and_then(|quota| policy.with_quota(quota)).ok();
            vec![(old.clone(), lowered), (old, burst)]
        },
    },
    Change {
        name: "the period",
        settings: &[Setting::Period],
        pairs: |policy| {
            let (limit, period) = (policy.quota().limit(), policy.quota().period());
            [period * 24, period / 30]
                .map(|other| (Some(policy.clone()), policy.with_quota(Quota::new(limit, other)).ok()))
                .to_vec()
        },
    },
    Change {
        name: "the options of the algorithm",
        settings: &[Setting::Options],
        pairs: |policy| {
            let changed = match policy.settings().algorithm.name() {
                "token-bucket" => counted_by(policy, TokenBucket::new().starting_at(5)),
                "leaky-bucket" => counted_by(policy, LeakyBucket::queue(HOUR / 2).delay_after(LIMIT)),
                "fixed-window" => counted_by(policy, FixedWindow::aligned()),
                "sliding-window" => counted_by(policy, SlidingWindow::new().segments(10)),
                _ => None,
            };
            vec![(Some(policy.clone()), changed)]
        },
    },
    Change {
        name: "the debt, raised",
        settings: &[Setting::Debt],
        pairs: |policy| {
            let more = policy.settings().max_debt + 5;
            vec![(Some(policy.clone()), with(policy, |settings| settings.max_debt = more))]
        },
    },
    Change {
        name: "the debt, lowered",
        settings: &[Setting::Debt],
        pairs: |policy| {
            let old = with(policy, |settings| settings.max_debt = 5);
            [2, 0].map(|less| (old.clone(), with(policy, |settings| settings.max_debt = less))).to_vec()
        },
    },
    Change {
        name: "the lease",
        settings: &[Setting::Lease],
        pairs: |policy| {
            let (leased, plain) = (
                with(policy, |settings| settings.max_lease = Some(50)),
                with(policy, |settings| settings.max_lease = None),
            );
            vec![(plain.clone(), leased.clone()), (leased, plain)]
        },
    },
    Change {
        name: "the [penalty](Policy::penalty)",
        settings: &[Setting::Penalty],
        pairs: |policy| {
            let changed = policy.clone().try_penalty(Penalty::after(3, HOUR).ban(3 * HOUR)).ok();
            vec![(Some(policy.clone()), changed)]
        },
    },
    Change {
        name: "the penalty, removed",
        settings: &[Setting::Penalty],
        pairs: |policy| {
            let old = if policy.settings().penalty.is_some() {
                Some(policy.clone())
            } else {
                policy.clone().try_penalty(Penalty::manual()).ok()
            };
            vec![(old, with(policy, |settings| settings.penalty = None))]
        },
    },
    Change {
        name: "the [headroom](Policy::headroom)",
        settings: &[Setting::Headroom],
        pairs: |policy| {
            let keeping = policy.clone().headroom(Criticality::Sheddable, Headroom::Percent(20));
            // It is not leased.
            let back = Some(keeping.clone()).filter(|_| policy.settings().max_lease.is_none());
            vec![(Some(policy.clone()), Some(keeping)), (back, Some(policy.clone()))]
        },
    },
    Change {
        name: "the failure mode",
        settings: &[Setting::FailureMode],
        pairs: |policy| {
            let mode = FailureMode::Local { instances: 2 };
            vec![(Some(policy.clone()), Some(policy.clone().failure_mode(mode)))]
        },
    },
    Change {
        name: "enforced for more keys",
        settings: &[Setting::Enforced],
        pairs: |policy| vec![(Some(policy.clone().shadow()), Some(policy.clone()))],
    },
    Change {
        name: "enforced for fewer keys",
        settings: &[Setting::Enforced],
        pairs: |policy| vec![(Some(policy.clone()), Some(policy.clone().shadow()))],
    },
    Change {
        name: "the [thresholds](Policy::notify_at)",
        settings: &[Setting::Thresholds],
        pairs: |policy| {
            vec![(Some(policy.clone()), with(policy, |settings| settings.notify_at = vec![80, 100]))]
        },
    },
    Change {
        name: "the unit",
        settings: &[Setting::Unit],
        pairs: |policy| {
            vec![(Some(policy.clone()), Some(policy.clone().quota_unit(QuotaUnit::ContentBytes)))]
        },
    },
    Change {
        name: "[mixed keys](Policy::allow_mixed_keys)",
        settings: &[Setting::MixedKeys],
        pairs: |policy| vec![(Some(policy.clone()), Some(policy.clone().allow_mixed_keys()))],
    },
    Change {
        name: "the algorithm",
        settings: &[Setting::Algorithm, Setting::Options],
        pairs: |policy| {
            let other = if policy.settings().algorithm.name() == "fixed-window" {
                counted_by(policy, Gcra::new())
            } else {
                counted_by(policy, FixedWindow::anchored())
            };
            vec![(Some(policy.clone()), other)]
        },
    },
    Change {
        name: "the name",
        settings: &[Setting::Name],
        pairs: |policy| {
            let other = Policy::new("other", policy.quota());
            let other = other.with_settings(policy.settings().clone());
            vec![(Some(policy.clone()), other.ok())]
        },
    },
];

/// A word of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// All of it still counts.
    Kept,
    /// As much of it counts as fits into the new policy. The rest counts again under the old one.
    Cut,
    /// It does not count under the new policy, and it still does under the old one.
    Paused,
    /// The new policy has its own.
    New,
}

/// The table: the columns, and the rows with their words. `None` if nothing is made under such a policy.
fn table() -> (Vec<&'static str>, Vec<(&'static str, Vec<Option<Effect>>)>) {
    let cells = |line: &'static str| -> Vec<&'static str> {
        line.trim_matches('|').split('|').map(str::trim).collect()
    };
    let effect = |cell: &&str| match *cell {
        "kept" => Some(Effect::Kept),
        "cut" => Some(Effect::Cut),
        "paused" => Some(Effect::Paused),
        "new" => Some(Effect::New),
        "–" => None,
        other => panic!("{other} is not a word of the table"),
    };
    let mut lines = TABLE.lines().filter(|line| line.starts_with('|')).map(cells);
    let header = lines.next().unwrap();
    let rows = lines.skip(1).map(|row| (row[0], row[1..].iter().map(effect).collect())).collect();
    (header[1..].to_vec(), rows)
}

#[test]
fn the_table_has_a_row_for_each_setting_and_each_row_changes_only_that() {
    let (columns, rows) = table();
    assert_eq!(columns, COLUMNS.iter().map(|column| column.name).collect::<Vec<_>>());
    let names: Vec<_> = rows.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, CHANGES.iter().map(|change| change.name).collect::<Vec<_>>());

    let all: BTreeSet<_> = parts(&counts()[0]).iter().map(|(setting, _)| *setting).collect();
    let changed: BTreeSet<_> = CHANGES.iter().flat_map(|change| change.settings).copied().collect();
    assert_eq!(changed, all, "a setting has no row");
    for change in CHANGES {
        for policy in COLUMNS.iter().flat_map(|column| (column.policies)()) {
            for (old, new) in (change.pairs)(&policy) {
                let (Some(old), Some(new)) = (old, new) else { continue };
                let differing = |((setting, one), (_, other)): ((Setting, String), (Setting, String))| {
                    (one != other).then_some(setting)
                };
                let differing: BTreeSet<_> =
                    parts(&old).into_iter().zip(parts(&new)).filter_map(differing).collect();
                let expected = change.settings.iter().copied().collect();
                assert_eq!(differing, expected, "{}: {old} {new}", change.name);
            }
        }
    }
}

/// A limiter over a store, and its store.
struct Instance {
    limiter: Limiter,
    redis: Option<RedisStore>,
    store: Fake,
    clock: ManualClock,
}

/// One case: a change of one policy, for its own key.
struct Case {
    instance: Instance,
    /// Another instance on the same store.
    other: Instance,
    key: Key,
    old: Policy,
    new: Policy,
    effect: Effect,
    what: String,
}

impl Case {
    /// The units that count under `policy`, enforced or not: at most its capacity.
    async fn used_by(&self, limiter: &Limiter, policy: &Policy) -> u64 {
        let policy = policy.clone().rollout(1.0);
        let peeked = limiter.peek(&policy, &self.key, 0).await.unwrap();
        policy.capacity() - peeked.remaining().unwrap()
    }

    async fn used(&self, policy: &Policy) -> u64 {
        self.used_by(&self.instance.limiter, policy).await
    }

    /// Charges units, which are admitted.
    async fn charge(&self, units: u64) -> Decision {
        let decision = self.instance.limiter.check(&self.old, &self.key, units).await.unwrap();
        assert!(decision.is_admitted(), "{}", self.what);
        decision
    }

    /// Asserts that the effect on `made` units is the right one, and what still counts under the old policy.
    async fn assert_counted(&self, made: u64) {
        let (what, capacity) = (&self.what, self.new.capacity());
        let expected = match self.effect {
            Effect::New | Effect::Paused => 0,
            Effect::Cut => {
                assert!(capacity < made, "{what}: nothing is cut");
                capacity
            }
            Effect::Kept => made.min(capacity),
        };
        assert_eq!(self.used(&self.new).await, expected, "{what}");
        // A denial may write what was cut.
        let denied = self.instance.limiter.check(&self.new, &self.key, 1_000_000).await.unwrap();
        assert!(denied.remaining().unwrap_or_default() <= capacity, "{what}");
        assert_eq!(self.used(&self.new).await, expected, "{what}, after a denial");
        assert_eq!(self.used(&self.old).await, made, "{what}, under the old policy");
    }
}

async fn charges(case: Case) {
    case.charge(6).await;
    case.assert_counted(6).await;
}

async fn permits(case: Case) {
    let held = case.charge(2).await;
    // Longer than the shortest period, and shorter than the one of the permit.
    case.instance.clock.advance(Duration::from_secs(2));
    case.assert_counted(2).await;
    drop(held);
    let is_free = async || case.used(&case.old).await == 0 && case.used(&case.new).await == 0;
    assert!(eventually(is_free).await, "{}: not released", case.what);
}

async fn leases(case: Case) {
    let Some(redis) = &case.instance.redis else { return };
    let mut charged = 0;
    while redis.lease_status().units == 0 {
        case.charge(1).await;
        charged += 1;
        while redis.lease_status().calls > 0 {
            tokio::time::sleep(Duration::from_micros(100)).await;
        }
    }
    // The instance gets no other request of the old policy, so it returns the lease as unused. By this clock, a lease does
    // not end on a busy machine.
    drop(case.instance.limiter.check(&case.new, &case.key, 0).await.unwrap());
    case.instance.clock.advance(Duration::from_millis(300));
    let is_returned = async || case.used_by(&case.other.limiter, &case.old).await == charged;
    assert!(eventually(is_returned).await, "{}: leased units are lost", case.what);
    let expected = if case.effect == Effect::Kept { charged.min(case.new.capacity()) } else { 0 };
    assert_eq!(case.used_by(&case.other.limiter, &case.new).await, expected, "{}", case.what);
}

async fn debts(case: Case) {
    let request = case.charge(LIMIT).await;
    let debited = case.instance.limiter.debit(&request, 3).await.unwrap();
    let outcome = debited.outcomes().iter().chain(debited.shadows()).next();
    assert_eq!(outcome.unwrap().granted(), 3, "{}", case.what);
    let policy = case.new.clone().rollout(1.0);
    let owed = case.instance.limiter.operator().owed(&policy, &case.key).await.unwrap();
    let used = case.used(&case.new).await;
    let (capacity, debt) = (case.new.capacity(), case.new.settings().max_debt);
    let forgets = matches!(case.old.settings().algorithm.name(), "sliding-log" | "sliding-window");
    let expected = match case.effect {
        Effect::New | Effect::Paused => (0, 0),
        Effect::Cut => (debt, capacity),
        // A larger quota has room for it.
        Effect::Kept if capacity > LIMIT => (0, LIMIT + 3),
        Effect::Kept if forgets => (debt.min(LIMIT + 3 - capacity), capacity),
        Effect::Kept => (3, capacity),
    };
    assert_eq!((owed, used), expected, "{}", case.what);
}

async fn reservations(case: Case) {
    let request = case.charge(5).await;
    let reservation = Reservation::new(&case.instance.limiter, &request);
    // A denial may write what was cut.
    drop(case.instance.limiter.check(&case.new, &case.key, 1_000_000).await.unwrap());
    for total in [8, 2] {
        reservation.settle(total).await.unwrap();
        let expected = if case.effect == Effect::Kept { total.min(case.new.capacity()) } else { 0 };
        assert_eq!(case.used(&case.new).await, expected, "{}", case.what);
        assert_eq!(case.used(&case.old).await, total, "{}, under the old policy", case.what);
    }
}

async fn is_banned(case: &Case, policy: &Policy) -> bool {
    let decision = case.instance.limiter.check(policy, &case.key, 1_000_000).await.unwrap();
    decision.banned_for().is_some()
}

async fn bans(case: Case) {
    case.instance.limiter.operator().ban(&case.old, &case.key, HOUR).await.unwrap();
    assert_eq!(is_banned(&case, &case.new).await, case.effect == Effect::Kept, "{}", case.what);
    let was_banned = is_banned(&case, &case.old).await;
    assert_eq!(was_banned, is_enforced(&case.old), "{}, under the old policy", case.what);
}

async fn denials(case: Case) {
    // The third one bans.
    for _ in 0..2 {
        assert!(!is_banned(&case, &case.old).await, "{}", case.what);
    }
    assert_eq!(is_banned(&case, &case.new).await, case.effect == Effect::Kept, "{}", case.what);
    assert!(is_banned(&case, &case.old).await, "{}, under the old policy", case.what);
}

async fn outages(case: Case) {
    case.instance.store.fail(ErrorKind::StoreUnreachable);
    case.charge(6).await;
    let share = |policy: &Policy| match policy.settings().failure_mode {
        FailureMode::Local { instances: 2 } => policy.capacity() / 2,
        _ => policy.capacity(),
    };
    // In process, the share of an instance counts.
    let policy = case.new.clone().rollout(1.0);
    let peeked = case.instance.limiter.peek(&policy, &case.key, 0).await.unwrap();
    let here = share(&policy) - peeked.remaining().unwrap();
    let expected = if case.effect == Effect::New { 0 } else { share(&policy).min(6) };
    assert_eq!(here, expected, "{}, in process", case.what);
    case.instance.store.fail(None);
    case.instance.limiter.drain(Duration::from_secs(60)).await.unwrap();
    case.assert_counted(6).await;
}

/// A column of the table: what was made under the old policy, and the policies under which it is made.
struct Column {
    name: &'static str,
    policies: fn() -> Vec<Policy>,
    /// Whether it is made under this policy.
    is_made: fn(&Policy) -> bool,
    check: fn(Case) -> Pin<Box<dyn Future<Output = ()>>>,
}

fn is_enforced(policy: &Policy) -> bool {
    policy.settings().enforced > 0.0
}

fn counts() -> Vec<Policy> {
    let policy = Policy::new("p", Quota::new(LIMIT, HOUR)).failure_mode(FailureMode::Local { instances: 1 });
    vec![
        policy.clone(),
        policy.clone().algorithm(TokenBucket::new()),
        policy.clone().algorithm(LeakyBucket::meter()),
        policy.clone().algorithm(FixedWindow::anchored()),
        policy.clone().algorithm(SlidingWindow::new()),
        policy.algorithm(SlidingLog::new()),
    ]
}

const COLUMNS: &[Column] = &[
    Column {
        name: "charged units",
        policies: counts,
        is_made: |_| true,
        check: |case| Box::pin(charges(case)),
    },
    Column {
        name: "permits",
        policies: || {
            vec![Policy::new("p", Quota::new(3, Duration::from_secs(30))).algorithm(Concurrency::new())]
        },
        is_made: |_| true,
        check: |case| Box::pin(permits(case)),
    },
    Column {
        name: "leased units",
        policies: || {
            // So slow that no unit is replenished until leased units are returned.
            let policy = Policy::new("p", Quota::new(1_000, 240 * HOUR)).max_lease(50);
            vec![
                policy.clone(),
                policy.clone().algorithm(FixedWindow::anchored()),
                policy.algorithm(SlidingWindow::new()),
            ]
        },
        is_made: |policy| policy.settings().max_lease.is_some() && is_enforced(policy),
        check: |case| Box::pin(leases(case)),
    },
    Column {
        name: "debts",
        policies: || counts().into_iter().map(|policy| policy.max_debt(5)).collect(),
        is_made: |policy| policy.settings().max_debt >= 3,
        check: |case| Box::pin(debts(case)),
    },
    Column {
        name: "reservations",
        policies: counts,
        is_made: |_| true,
        check: |case| Box::pin(reservations(case)),
    },
    Column {
        name: "bans",
        policies: || counts().into_iter().map(|policy| policy.penalty(Penalty::manual())).collect(),
        is_made: |policy| policy.settings().penalty.is_some(),
        check: |case| Box::pin(bans(case)),
    },
    Column {
        name: "counted denials",
        policies: || counts().into_iter().map(|policy| policy.penalty(Penalty::after(3, HOUR))).collect(),
        is_made: is_enforced,
        check: |case| Box::pin(denials(case)),
    },
    Column {
        name: "units of an outage",
        policies: counts,
        is_made: is_enforced,
        check: |case| Box::pin(outages(case)),
    },
];

/// An instance on a store in process, or on `server`.
async fn instance(server: Option<&RedisServer>, memory: &MemoryStore, clock: &ManualClock) -> Instance {
    let (store, redis) = match server {
        None => (Fake::over(memory.clone()), None),
        Some(server) => {
            let store = settings().deny_cache(Duration::ZERO).manual_clock(clock.clone());
            let redis = store.connect(&server.url()).await.unwrap();
            (Fake::over(redis.clone()), Some(redis))
        }
    };
    Instance { limiter: Limiter::new(store.clone()), redis, store, clock: clock.clone() }
}

/// Runs the cases of a column, each with its own key and its own two instances.
async fn does_what_the_table_says(name: &str) {
    static KEYS: AtomicU64 = AtomicU64::new(0);
    let (columns, rows) = table();
    let place = columns.iter().position(|column| *column == name).unwrap();
    let column = &COLUMNS[place];
    let server = RedisServer::start();
    for of_server in [None, Some(&server)] {
        let mut cases = Vec::new();
        for (change, (_, effects)) in CHANGES.iter().zip(&rows) {
            let mut pairs = Vec::new();
            for (old, new) in (column.policies)().iter().flat_map(|policy| (change.pairs)(policy)) {
                pairs.extend(old.filter(column.is_made).zip(new));
            }
            let Some(effect) = effects[place] else {
                assert!(pairs.is_empty(), "{} concerns {name}", change.name);
                continue;
            };
            assert!(!pairs.is_empty(), "{} does not concern {name}", change.name);
            for (old, new) in pairs {
                let clock = ManualClock::new();
                let memory = MemoryStore::with_clock(clock.clone());
                let instance = async || instance(of_server, &memory, &clock).await;
                let [instance, other] = [instance().await, instance().await];
                let store = if of_server.is_some() { "redis" } else { "memory" };
                let what = format!("{name}, {}, {store}: {old} -> {new}", change.name);
                let key = Key::new(KEYS.fetch_add(1, Relaxed).to_string());
                cases.push((column.check)(Case { instance, other, key, old, new, effect, what }));
            }
        }
        // A few at a time: all of them together would take longer to return a lease than a return may take.
        stream::iter(cases).for_each_concurrent(8, |case| case).await;
    }
}

macro_rules! columns {
    ($($test:ident: $name:literal;)*) => {
        $(
            #[tokio::test]
            async fn $test() {
                does_what_the_table_says($name).await;
            }
        )*

        #[test]
        fn each_column_has_a_test() {
            assert_eq!([$($name),*].to_vec(), COLUMNS.iter().map(|column| column.name).collect::<Vec<_>>());
        }
    };
}

columns! {
    a_change_does_to_charged_units_what_the_table_says: "charged units";
    a_change_does_to_permits_what_the_table_says: "permits";
    a_change_does_to_leased_units_what_the_table_says: "leased units";
    a_change_does_to_debts_what_the_table_says: "debts";
    a_change_does_to_reservations_what_the_table_says: "reservations";
    a_change_does_to_bans_what_the_table_says: "bans";
    a_change_does_to_counted_denials_what_the_table_says: "counted denials";
    a_change_does_to_units_of_an_outage_what_the_table_says: "units of an outage";
}
