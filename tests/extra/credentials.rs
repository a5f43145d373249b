//! Credentials that a provider of redis-rs sends.

use std::{pin::Pin, sync::Mutex, time::Duration};

use futures_util::{Stream, stream};
use redis::{
    RedisResult,
    auth::{BasicAuth, StreamingCredentialsProvider},
};
use support::{
    PATIENT, RedisServer, day, eventually, settings,
    users::{add_user, connections_of},
};
use tokio::{sync::mpsc, task::yield_now, time::timeout};
use tower_ratelimit::{
    Decision, FailureMode, Key, Limiter, Policy,
    store::{Credentials, CredentialsProvider as _},
};
use tower_ratelimit_extra::credentials::StreamedCredentials;

async fn decide(limiter: &Limiter, policy: &Policy) -> Decision {
    limiter.check(policy, &Key::new("all"), 1).await.unwrap()
}

fn plan() -> Policy {
    day("plan", 1_000_000_000).failure_mode(FailureMode::Local { instances: 1 })
}

/// The provider does not pause after an error, or sends the same token again and again.
#[tokio::test]
async fn a_stream_of_credentials_that_is_always_ready_keeps_no_thread() {
    struct Always(bool);
    impl StreamingCredentialsProvider for Always {
        fn subscribe(&self) -> Pin<Box<dyn Stream<Item = RedisResult<BasicAuth>> + Send>> {
            let works = self.0;
            Box::pin(stream::repeat_with(move || match works {
                true => Ok(BasicAuth::new("app".to_owned(), "secret".to_owned())),
                false => Err(std::io::Error::other("the identity service is down").into()),
            }))
        }
    }
    let provider = StreamedCredentials::new(Always(true));
    assert!(timeout(PATIENT, provider.credentials()).await.unwrap().is_ok());
    let provider = StreamedCredentials::new(Always(false));
    let error = timeout(PATIENT, provider.credentials()).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("the identity service is down"), "{error}");
}

/// A provider of redis-rs, to which a test sends credentials.
struct Sent(Mutex<Option<mpsc::UnboundedReceiver<BasicAuth>>>);

impl StreamingCredentialsProvider for Sent {
    fn subscribe(&self) -> Pin<Box<dyn Stream<Item = RedisResult<BasicAuth>> + Send>> {
        let receiver = self.0.lock().unwrap().take().unwrap();
        Box::pin(stream::unfold(receiver, async |mut receiver| Some((Ok(receiver.recv().await?), receiver))))
    }
}

#[tokio::test]
async fn a_provider_of_redis_rs_authenticates_open_connections_again() {
    let server = RedisServer::start();
    let (sender, receiver) = mpsc::unbounded_channel();
    let send = |name: &str| {
        add_user(&server, name, "secret");
        sender.send(BasicAuth::new(name.to_owned(), "secret".to_owned())).unwrap();
    };
    send("one");
    let provider = StreamedCredentials::new(Sent(Mutex::new(Some(receiver))));
    let limiter = Limiter::new(settings().credentials(provider).connect(&server.url()).await.unwrap());
    let policy = plan();
    decide(&limiter, &policy).await;
    send("two");
    assert!(
        eventually(async || connections_of(&server, "one") == 0 && connections_of(&server, "two") > 0).await
    );
    let () = server.command(&["ACL", "DELUSER", "one"]);
    assert!(decide(&limiter, &policy).await.failure().is_none());
}

/// A stream wakes only the one that has polled it last.
#[tokio::test]
async fn several_stores_that_wait_for_the_first_credentials_get_them() {
    let (sender, receiver) = mpsc::unbounded_channel();
    let provider = StreamedCredentials::new(Sent(Mutex::new(Some(receiver))));
    let wait = || {
        let provider = provider.clone();
        tokio::spawn(async move { provider.credentials().await.is_ok() })
    };
    let (one, other, dropped) = (wait(), wait(), wait());
    // Each task has polled the stream.
    for _ in 0..10 {
        yield_now().await;
    }
    dropped.abort();
    assert!(dropped.await.is_err());
    sender.send(BasicAuth::new("one".to_owned(), "secret".to_owned())).unwrap();
    assert!(timeout(PATIENT, one).await.unwrap().unwrap());
    assert!(timeout(PATIENT, other).await.unwrap().unwrap());
}

/// A stream may panic if it is polled after its end, and this one does.
#[tokio::test]
async fn the_credentials_of_a_provider_of_redis_rs_remain_after_the_end_of_its_stream() {
    for name in [Some("one"), None] {
        let (sender, receiver) = mpsc::unbounded_channel();
        if let Some(name) = name {
            sender.send(BasicAuth::new(name.to_owned(), "secret".to_owned())).unwrap();
        }
        drop(sender);
        let provider = StreamedCredentials::new(Sent(Mutex::new(Some(receiver))));
        let sent = name.map(|name| Credentials::new(name, "secret").refresh_after(Duration::from_secs(1)));
        for _ in 0..3 {
            assert_eq!(provider.credentials().await.ok(), sent);
        }
    }
}
