//! Many invented identities: the memory of a process.

use std::{
    env,
    process::{Command, Stdio},
};

use tokio::task::JoinSet;
use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota};

use crate::{frozen::memory, promises::Promises};
use support::Down;

/// The store rounds its capacity up for each of its parts.
const ROUNDING: usize = 1_024;
/// What a key needs at most, with its share of the tables.
const BYTES_A_KEY: usize = 450;

/// The row that this process measures. Each has its own, because it would use again what another one has freed.
const ROW: &str = "IDENTITIES_ROW";

pub(crate) async fn print(promises: &mut Promises) {
    if let Ok(number) = env::var(ROW) {
        return measure(&number, promises).await;
    }
    println!("## {} identities\n", identities());
    println!("Each asks once, all for one policy of a thousand a day.\n");
    println!("| counted in | capacity, keys | keys at the end | memory grew by, MB |");
    println!("|---|---|---|---|");
    for number in ["1", "2", "3"] {
        let mut row = Command::new(env::current_exe().unwrap());
        let output = row.arg("identities").env(ROW, number).stderr(Stdio::inherit()).output().unwrap();
        let output_text = String::from_utf8(output.stdout).unwrap();
        println!("{}", output_text.lines().find(|line| line.starts_with("| ")).unwrap_or_default());
        let _ = promises
            .check(output.status.success(), || format!("row {number} of the identities: {output_text}"));
    }
}

fn identities() -> u64 {
    crate::number("IDENTITIES", 10_000_000)
}

async fn measure(number: &str, promises: &mut Promises) {
    let identities = identities();
    match number {
        "1" => row("`FailureMode::Local`", &Limiter::new(Down), 100_000, identities, || None, promises).await,
        "2" => {
            let store = MemoryStore::new();
            let len = || Some(store.key_count());
            row("`MemoryStore`", &Limiter::new(store.clone()), 200_000, identities, len, promises).await;
        }
        _ => {
            let small = MemoryStore::new().capacity(10_000);
            let name = "`MemoryStore` with a capacity of 10,000";
            let len = || Some(small.key_count());
            row(name, &Limiter::new(small.clone()), 10_000, identities, len, promises).await;
        }
    }
}

async fn row(
    name: &str,
    limiter: &Limiter,
    most: usize,
    identities: u64,
    len: impl Fn() -> Option<usize>,
    promises: &mut Promises,
) {
    let before = memory();
    let mut tasks = JoinSet::new();
    for task in 0..2 {
        let (limiter, policy) = (limiter.clone(), Policy::new("p", Quota::per_day(1_000)));
        tasks.spawn(async move {
            for number in (task..identities).step_by(2) {
                // Not one after the other, as invented identities are not.
                let key = Key::new((number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_string());
                assert!(limiter.check(&policy, &key, 1).await.unwrap().is_admitted());
            }
        });
    }
    tasks.join_all().await;
    let grown = memory().saturating_sub(before);
    let keys = len();
    let many =
        promises.check(keys.is_none_or(|keys| keys <= most + ROUNDING), || format!("{name}: {keys:?} keys"));
    let large = promises.check(grown < most * BYTES_A_KEY, || format!("{name}: grew by {grown} bytes"));
    let keys = keys.map_or_else(|| "not known".to_owned(), |keys| keys.to_string());
    println!("| {name} | {most} | {keys}{many} | {}{large} |", grown >> 20);
}
