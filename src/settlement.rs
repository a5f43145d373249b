//! Reservations that another process settles.
//!
//! A request charges an estimate in one process, and a worker learns the actual cost in another one, later:
//! the tokens of a language model that a batch job calls, the minutes of a rendered video.
//! [`Reservation::into_token`](crate::Reservation::into_token) makes the reservation a text, the *token*. Pass
//! it on with the job, and call [`Limiter::settle_token`](crate::Limiter::settle_token) when the cost is known.
//!
//! * **Once.** The store settles each rule of a token once, and keeps a stamp of that, in the same step. Further calls
//!   change nothing and report [`is_repeated`](Settlement::is_repeated). So repeat a settlement that failed, or
//!   whose reply was lost. A job queue may run a job twice.
//! * **Sealed.** The token is encrypted and authenticated (XChaCha20-Poly1305) with a [`SettlementSecret`],
//!   which can be rotated. Without the secret, it discloses no identity, and cannot be changed.
//! * **Of one store.** A token settles what is charged on the store that made it: with Redis, under its
//!   [prefix](crate::store::RedisStoreBuilder::prefix). Services that share a secret cannot settle each other's
//!   tokens unless they share the prefix too, so give staging and production different secrets or prefixes.
//! * **Limited in time.** Its lifetime starts when the estimate is charged, by the store's clock: on Redis, the
//!   server's. For units from a [lease](crate::Policy::max_lease), it starts up to two seconds earlier. After
//!   the lifetime, the token cannot be settled, and the estimate stays charged. The stamp of a settlement counts
//!   for twice the lifetime. So after a failover to a server whose clock is slow by less than the lifetime, a
//!   token cannot be settled again. A failover that loses a settlement loses its stamp too.
//! * **Only on the store.** While the store fails, a settlement is an error, and nothing is settled in this
//!   process. In a Redis Cluster, the rules of different identities are in different slots: each is settled or
//!   not, the error lists those that are not, and the same call settles the rest.
//!
//! Permits are not settled elsewhere, because the process that holds them releases them. A stamp is a key of
//! the store, in Redis of about 120 bytes, for four times the lifetime. If it is evicted, the token can be
//! settled again.
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//! use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota, Reservation, settlement::SettlementSecret};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_ratelimit::Error> {
//! let limiter = Limiter::new(MemoryStore::new());
//! let tokens = Policy::new("tokens", Quota::per_hour(1_000)).max_debt(500);
//! // 32 random bytes from the configuration.
//! let secret = SettlementSecret::new([7; 32]);
//!
//! // The process that takes the request, and queues a job with the token.
//! let decision = limiter.check(&tokens, &Key::new("alice"), 400).await?;
//! let reservation = Reservation::new(&limiter, &decision);
//! let token = reservation.into_token(&secret, Duration::from_secs(3_600))?;
//! assert!(!token.contains("alice"));
//!
//! // The worker, with a limiter on the same store. The estimate was 250 units too high.
//! let settlement = limiter.settle_token(&secret, &token, &[tokens.clone()], 150).await?;
//! assert!(!settlement.is_repeated());
//! assert_eq!(settlement.decision().remaining(), Some(850));
//!
//! // The queue runs the job again.
//! let settlement = limiter.settle_token(&secret, &token, &[tokens], 150).await?;
//! assert!(settlement.is_repeated());
//! assert_eq!(settlement.decision().remaining(), Some(850));
//! # Ok(())
//! # }
//! ```

pub use crate::limiter::{SettledRule, Settlement, SettlementSecret};
