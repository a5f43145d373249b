//! Each tenant has a guarantee in a pool that all share, and borrows what the others leave.

use std::time::Duration;

use support::size;
use tower_ratelimit::{
    Charge, Criticality, Decision, Key, Limiter, Policy, Quota, policy::Headroom, store::ManualClock,
};

use crate::stores::on_a_clock;
use Criticality::Sheddable;

/// A pool of which this is kept for guarantees.
pub(crate) fn pool(quota: Quota, headroom: u64) -> Policy {
    Policy::new("pool", quota).headroom(Sheddable, Headroom::Units(headroom))
}

/// The pool and the guarantee, and whether the decision is within it.
pub(crate) struct Call {
    pub(crate) decision: Decision,
    pub(crate) is_guaranteed: bool,
    /// What the guarantee has left.
    pub(crate) credit: u64,
}

pub(crate) async fn call(
    limiter: &Limiter,
    pool: &Policy,
    key: &Key,
    tenant: &Policy,
    name: u64,
    cost: u64,
) -> Call {
    let charge = Charge::new(pool, key, cost).with_criticality(Sheddable);
    let guarantee = charge.guarantee(tenant, &Key::new(name)).unwrap();
    let decision = limiter.check_all(&[charge, guarantee]).await.unwrap();
    assert!(decision.failure().is_none(), "{decision:?}");
    let [of_tenant] = decision.shadows() else { unreachable!("there is one guarantee") };
    let (is_guaranteed, credit) = (!of_tenant.verdict().is_denied(), of_tenant.remaining());
    Call { is_guaranteed, credit, decision }
}

/// The units in the pool, as fractions of a period, if what is refunded never was there.
struct Exact {
    level: u128,
    at: u64,
}

/// What the tenants may do beyond charges.
#[derive(Clone, Copy, Debug)]
struct Beyond {
    refunds: bool,
    debits: bool,
    resets: bool,
    steps_back: bool,
}

/// Charges of several tenants whose guarantees add up to all of the pool, at random times, by two instances. No charge within a
/// guarantee is denied, and the pool is never used above its quota.
async fn guarantees_hold(seed: u64, steps: u32, on: &dyn Fn(ManualClock) -> [Limiter; 2]) -> u64 {
    let mut random = fastrand::Rng::with_seed(seed);
    let clock = ManualClock::new();
    let limiters = on(clock.clone());
    let only = random.u8(0..6);
    let mut has = |this| only == this || only > 3 && random.bool();
    let beyond = Beyond { refunds: has(0), debits: has(1), resets: has(2), steps_back: has(3) };
    // One slow tenant and several fast ones, with all of the rate.
    let tenants = random.usize(2..6);
    let rates: Vec<u64> = (0..tenants).map(|at| if at == 0 { 1 } else { random.u64(1..40) }).collect();
    let bursts: Vec<u64> = rates.iter().map(|rate| random.u64(1..=rate + 5)).collect();
    let debts: Vec<u64> = rates.iter().map(|_| if beyond.debits { random.u64(0..20) } else { 0 }).collect();
    let rate: u64 = rates.iter().sum();
    let period = Duration::from_millis([1_000, 997, 60_000][random.usize(0..3)]);
    // The units of a period in lowest terms, by which a clock that steps back may leave the pool behind.
    let micros = u64::try_from(period.as_micros()).unwrap();
    let mut steps_back = if beyond.steps_back { 3 } else { 0 };
    let late = steps_back * rate / gcd(rate, micros);
    let headroom = bursts.iter().sum::<u64>() + debts.iter().sum::<u64>() + late;
    // Nearly nothing can be borrowed, or much.
    let burst = headroom + if random.bool() { 1 } else { random.u64(1..100) };
    let pool = pool(Quota::new(rate, period).burst(burst), headroom);
    let key = Key::new(seed);
    let policies: Vec<Policy> = (0..tenants)
        .map(|at| {
            let policy = Policy::new("tenant", Quota::new(rates[at], period).burst(bursts[at]));
            policy.max_debt(debts[at])
        })
        .collect();

    for (at, policy) in policies.iter().enumerate() {
        call(&limiters[0], &pool, &key, policy, at as u64, 1).await;
    }
    // All guarantees are full then, which leaves the least in the pool beside them.
    clock.advance(Duration::from_micros(30 * micros));

    let mut exact = Exact { level: 0, at: clock.now().as_micros() as u64 };
    let (busy, mut firsts) = (random.u8(2..9), 0..tenants);
    let (mut made, mut guaranteed): (Vec<Decision>, u64) = (Vec::new(), 0);
    for step in 0..steps {
        let now = clock.now().as_micros() as u64;
        exact.level = exact.level.saturating_sub(u128::from(now.saturating_sub(exact.at)) * u128::from(rate));
        exact.at = now;
        let limiter = &limiters[random.usize(0..2)];
        // The pool has the units of all.
        if step % 4 == 0 {
            let mut credits = 0;
            for (at, policy) in policies.iter().enumerate() {
                credits += call(limiter, &pool, &key, policy, at as u64, 0).await.credit;
            }
            let left = limiter.peek(&pool, &key, 0).await.unwrap().remaining().unwrap();
            assert!(left >= credits, "seed {seed}, step {step}, {beyond:?}: {left} units for {credits}");
        }
        // After a pause all are full. They use something first, and then as much time passes for each as for the pool.
        let first = firsts.next();
        let at = first.unwrap_or_else(|| random.usize(0..tenants));
        let cost = if random.bool() { bursts[at] } else { random.u64(1..=bursts[at]) };
        let one = call(limiter, &pool, &key, &policies[at], at as u64, cost).await;
        let name = || format!("seed {seed}, step {step}, {beyond:?}: {:?}", one.decision);
        if one.is_guaranteed {
            assert!(one.decision.is_admitted(), "{}", name());
            guaranteed += 1;
        }
        if one.decision.is_admitted() {
            exact.level += u128::from(cost) * u128::from(micros);
            let mut units = 0;
            if beyond.debits && one.is_guaranteed && random.u8(0..3) == 0 {
                units = random.u64(0..=one.credit + debts[at]);
                limiter.debit(&one.decision, units).await.unwrap();
            }
            exact.level += u128::from(units) * u128::from(micros);
            assert!(exact.level <= u128::from(burst) * u128::from(micros), "{}", name());
            made.push(one.decision);
        }
        if beyond.refunds && !made.is_empty() && random.u8(0..6) == 0 {
            // The latest one of the slow tenant: it has left the pool long before it leaves the guarantee.
            let of_slow =
                made.iter().rposition(|one| one.shadows()[0].charge().key() == &Key::from((seed, 0)));
            let place = of_slow.filter(|_| random.bool()).unwrap_or_else(|| random.usize(0..made.len()));
            let refunded = made.remove(place);
            let before = limiter.peek(&pool, &key, 0).await.unwrap().remaining().unwrap();
            let refunded = limiter.refund(&refunded, random.u64(1..=cost + 3)).await.unwrap();
            assert!(refunded.failure().is_none(), "{refunded:?}");
            let after = limiter.peek(&pool, &key, 0).await.unwrap().remaining().unwrap();
            exact.level = exact.level.saturating_sub(u128::from(after - before + 1) * u128::from(micros));
        }
        if beyond.resets && random.u8(0..50) == 0 {
            let outcome = made.last().and_then(|made| made.shadows().first());
            if let Some(outcome) = outcome {
                limiter.operator().reset(outcome.policy(), outcome.charge().key()).await.unwrap();
            }
        }
        let pause = match random.u8(0..10) {
            zero if zero < busy => 0,
            0..7 => random.u64(0..=micros / rate),
            7..9 => random.u64(0..=2 * micros / rate),
            _ => random.u64(0..=4 * micros),
        };
        let pause = match random.u8(0..30) {
            _ if !firsts.is_empty() => 0,
            0 => {
                firsts = 0..tenants;
                steps_back = if beyond.steps_back { 3 } else { 0 };
                30 * micros
            }
            _ => pause,
        };
        if steps_back > 0 && random.u8(0..10) == 0 {
            steps_back -= 1;
            let most = if random.bool() { micros } else { 20 * micros };
            let back = random.u64(0..=most);
            clock.set(clock.now().saturating_sub(Duration::from_micros(back)));
        } else {
            clock.advance(Duration::from_micros(pause));
        }
    }
    guaranteed
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[tokio::test]
async fn no_charge_within_its_guarantee_is_denied_and_the_pool_is_never_used_above_its_quota() {
    for (name, cases, on) in on_a_clock("guarantees") {
        let (cases, steps) = (size(cases / 2, cases * 20), size(100, 500));
        let instances = |clock: ManualClock| match name {
            "memory" => {
                let store = on(clock);
                [store.clone(), store]
            }
            _ => [on(clock.clone()), on(clock)],
        };
        let mut guaranteed = 0;
        for case in 0..u64::from(cases) {
            let seed = if size(true, false) { case } else { fastrand::u64(..) };
            guaranteed += guarantees_hold(seed, steps, &instances).await;
        }
        let all = u64::from(cases) * u64::from(steps);
        println!("{name}: {all} charges, {guaranteed} within guarantees, 0 denied");
        assert!(guaranteed > all / 10, "{name}: {guaranteed} of {all}");
    }
}
