//! Users of Redis that replace each other, as tokens of managed servers do.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use futures_util::future::join_all;
use tokio::time::sleep;
use tower_ratelimit::{
    Answer, FailureMode, Key, Limiter,
    store::{Credentials, CredentialsProvider},
};

use crate::{RedisServer, day};

/// How long a user is valid.
const LIFETIME: Duration = Duration::from_secs(4);

/// Provides the user that was added last.
#[derive(Clone, Default)]
pub struct Users(Arc<Mutex<Vec<(String, SystemTime)>>>);

pub fn add_user(server: &RedisServer, name: &str, password: &str) {
    let password = format!(">{password}");
    let () = server.command(&["ACL", "SETUSER", name, "on", "~*", "&*", "+@all", &password]);
}

/// The number of connections of a user.
pub fn connections_of(server: &RedisServer, name: &str) -> usize {
    let clients: String = server.command(&["CLIENT", "LIST"]);
    clients.lines().filter(|line| line.contains(&format!("user={name} "))).count()
}

impl Users {
    /// Adds a user, and deletes those whose time is over, whose connections Redis then
    /// closes. Returns how many these were.
    pub fn rotate(&self, servers: &[RedisServer]) -> usize {
        let mut users = self.0.lock().unwrap();
        let name = format!("user-{}", users.len());
        for server in servers {
            add_user(server, &name, &format!("secret of {name}"));
        }
        let now = SystemTime::now();
        users.push((name, now + LIFETIME));
        let mut closed = 0;
        for (name, _) in users.iter().filter(|(_, end)| *end + Duration::from_millis(100) < now) {
            for server in servers {
                closed += connections_of(server, name);
                let () = server.command(&["ACL", "DELUSER", name]);
            }
        }
        closed
    }

    /// Rotates under load: every two seconds another user, of which two are valid at a time. Asserts that Redis has made each
    /// decision, and had to close no connection.
    pub async fn assert_no_decision_without_redis(&self, servers: &[RedisServer], limiter: &Limiter) {
        const LIMIT: u64 = 1_000_000_000;
        let policy = day("plan", LIMIT).failure_mode(FailureMode::Local { instances: 1 });
        let ends = AtomicBool::new(false);
        let keys = ["a", "b", "c", "d", "e", "f"].map(Key::new);
        let call = async |key: &Key| {
            let mut decided = 0;
            while !ends.load(Relaxed) {
                let decision = limiter.check(&policy, key, 1).await.unwrap();
                assert!(decision.failure().is_none(), "after {decided} decisions: {:?}", decision.failure());
                decided += 1;
                // Leaves the processors to other tests.
                sleep(Duration::from_millis(1)).await;
            }
            decided
        };
        let rotate = async {
            let mut closed = 0;
            for _ in 0..4 {
                sleep(LIFETIME / 2).await;
                closed += self.rotate(servers);
            }
            ends.store(true, Relaxed);
            closed
        };
        let (decided, closed) = tokio::join!(join_all(keys.iter().map(call)), rotate);
        for (key, decided) in keys.iter().zip(decided) {
            let left = limiter.peek(&policy, key, 0).await.unwrap().remaining().unwrap();
            assert!(
                decided > 0 && LIMIT - left == decided,
                "{key:?}: {decided} decisions, {left} units left"
            );
        }
        assert_eq!(closed, 0, "connections had the credentials of a deleted user");
    }
}

impl CredentialsProvider for Users {
    fn credentials(&self) -> Answer<Credentials> {
        let (name, end) = self.0.lock().unwrap().last().unwrap().clone();
        Answer::ready(Ok(Credentials::new(&name, format!("secret of {name}")).valid_until(end)))
    }
}
