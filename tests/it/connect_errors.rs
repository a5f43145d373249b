//! A wrong address, password or permission is an error that names the remedy and shows no part of a password.

use std::sync::{Mutex, atomic::Ordering::Relaxed};

use futures_util::future::join_all;
use support::{Directory, Lines, RedisServer, eventually, fake_server, settings, table::rows};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};
use tower_ratelimit::{Key, Limiter, Policy, Quota, RedisStore};

/// A server that answers each connection with `reply` once it is sent something, or only reads.
async fn answering(reply: Option<&'static str>) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut bytes = [0; 1024];
                while client.read(&mut bytes).await.is_ok_and(|read| read > 0) {
                    if let Some(reply) = reply {
                        let _ = client.write_all(reply.as_bytes()).await;
                    }
                }
            });
        }
    });
    port
}

/// Fails if `text` has a part of the password. All passwords of this file consist of these parts.
fn assert_no_secret(name: &str, text: &str) {
    for part in ["hunter", "tiger", "h%75nter"] {
        assert!(!text.contains(part), "{name}: {text}");
    }
}

#[tokio::test]
async fn each_wrong_configuration_is_an_error_with_its_remedy_and_without_the_password() {
    let (lines, _listening) = Lines::listen();

    let open = RedisServer::start();
    let locked = RedisServer::with(&["--requirepass", "right"]);
    let http = answering(Some("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")).await;
    let echo =
        answering(Some("-ERR unknown command 'HELLO', with args beginning with: 'AUTH' 'hunter2tiger' \r\n"));
    let address = |port: u16| format!("127.0.0.1:{port}");
    let places = [
        ("{open}", address(open.port())),
        ("{locked}", address(locked.port())),
        ("{http}", address(http)),
        ("{echo}", address(echo.await)),
        ("{silent}", address(answering(None).await)),
    ];
    let rows = rows(include_str!("tables/wrong-addresses.txt"));
    // All at the same time, because some wait for a timeout.
    join_all(rows.iter().map(async |[name, url, kind, remedy]| {
        let url = places.iter().fold(url.clone(), |url, (place, address)| url.replace(place, address));
        let error = RedisStore::connect(&url).await.unwrap_err();
        assert_eq!(format!("{:?}", error.kind()), *kind, "{name}: {error}");
        assert!(error.to_string().contains(remedy), "{name}: {error}");
        assert_no_secret(name, &format!("{error} {error:?}"));
        match settings().deadline(std::time::Duration::from_millis(500)).connect_lazy(&url) {
            Err(lazy) => assert_eq!(lazy.to_string(), error.to_string(), "{name}"),
            Ok(store) => {
                assert_no_secret(name, &format!("{store:?}"));
                let limiter = Limiter::new(store);
                let mut seen = String::new();
                let says_the_same = eventually(async || {
                    let policy = Policy::new("p", Quota::per_hour(1));
                    let decision = limiter.check(&policy, &Key::new("alice"), 1).await.unwrap();
                    seen = format!("{} {:?}", decision.failure().unwrap(), decision.failure().unwrap());
                    seen.contains(remedy)
                });
                let says_the_same = says_the_same.await;
                assert!(says_the_same, "{name}, lazy: {seen}");
                assert_no_secret(name, &seen);
            }
        }
    }))
    .await;
    let lines = lines.text();
    assert!(lines.contains("outage"), "{lines}");
    assert_no_secret("the log", &lines);
}

/// Servers state this before they read anything, and close the connection.
#[tokio::test]
async fn a_server_that_accepts_no_connection_states_why() {
    let rows = [
        ("-ERR max number of clients reached\r\n", "has reached its limit of connections: raise maxclients"),
        ("-ERR max number of clients + cluster connections reached\r\n", "raise maxclients"),
        (
            "-DENIED Redis is running in protected mode because protected mode is enabled and no password is set for the \
             default user. In this mode connections are only accepted from the loopback interface.\r\n",
            "is in protected mode and accepts only clients on its host: set a password, or turn protected-mode off",
        ),
    ];
    for (reply, expected) in rows {
        let address = fake_server::closing(reply).await;
        for login in ["", ":hunter2@"] {
            let url = format!("redis://{login}{address}");
            for _ in 0..10 {
                let error = settings().connect(&url).await.unwrap_err().to_string();
                assert!(error.contains(expected) && error.contains(&address), "{reply}: {error}");
                assert!(!error.contains("TLS") && !error.contains("check the URL"), "{error}");
            }
        }
        let (lines, _listening) = Lines::listen();
        let store = RedisStore::builder().connect_lazy(format!("redis://{address}")).unwrap();
        let limiter = Limiter::new(store);
        let text = Mutex::new(String::new());
        let is_stated = async || {
            let decision =
                limiter.check(&Policy::new("p", Quota::per_hour(5)), &Key::new("k"), 1).await.unwrap();
            *text.lock().unwrap() = decision.failure().map(ToString::to_string).unwrap_or_default();
            let log = lines.text();
            text.lock().unwrap().contains(expected) && log.contains(expected)
        };
        assert!(eventually(is_stated).await, "{}", text.lock().unwrap());
    }
}

#[tokio::test]
async fn a_redis_that_has_reached_maxclients_says_so() {
    let server = RedisServer::start();
    let () = server.command(&["CONFIG", "SET", "maxclients", "4"]);
    let _all: Vec<_> = std::iter::from_fn(|| server.try_connection().ok()).take(8).collect();
    for _ in 0..10 {
        let error = settings().connect(&server.url()).await.unwrap_err().to_string();
        assert!(error.contains("raise maxclients"), "{error}");
    }
}

/// Another program at the address, or a broken server: redis-rs would keep as much as the reply announces.
#[tokio::test]
async fn a_server_that_sends_without_end_is_given_up_early() {
    let (address, most) = fake_server::flooding().await;
    let error = settings().connect(format!("redis://{address}")).await.unwrap_err().to_string();
    assert!(error.contains("it does not answer as Redis does: is it a Redis server?"), "{error}");
    // What the buffers of the sockets hold.
    assert!(most.load(Relaxed) < 32 << 20, "{} bytes", most.load(Relaxed));
}

#[tokio::test]
async fn a_percent_encoded_password_is_accepted() {
    let server = RedisServer::with(&["--requirepass", "a#b@c/d:e?f%"]);
    let url = server.url().replace("//", "//:a%23b%40c%2Fd%3Ae%3Ff%25@");
    RedisStore::connect(&url).await.unwrap();
}

#[tokio::test]
async fn a_unix_socket_takes_its_user_and_database_from_the_query() {
    let directory = Directory::new();
    let path = directory.file("redis.sock");
    let server = RedisServer::with(&["--unixsocket", path.to_str().unwrap()]);
    let () = server.command(&["ACL", "SETUSER", "limiter", "on", ">p@ss#1", "~*", "+@all"]);
    let url =
        |password: &str| format!("redis+unix://{}?user=limiter&pass={password}&db=3", path.to_str().unwrap());
    let limiter = Limiter::new(settings().connect(&url("p%40ss%231")).await.unwrap());
    let policy = Policy::new("p", Quota::per_hour(1));
    assert!(limiter.check(&policy, &Key::new("alice"), 1).await.unwrap().is_admitted());
    let keyspace: String = server.command(&["INFO", "keyspace"]);
    assert!(keyspace.contains("db3:keys=1"), "{keyspace}");
    let error = settings().connect(&url("hunter2")).await.unwrap_err();
    assert!(error.to_string().contains("does not accept this user and password"), "{error}");
    assert_no_secret("a wrong password", &format!("{error:?}"));
}

#[tokio::test]
async fn connections_have_a_name_where_the_user_may_set_one() {
    let server = RedisServer::start();
    let rule = RedisStore::builder().connect_lazy(server.url()).unwrap().acl_rule();
    let unnamed = server.user("unnamed", &rule);
    let named = server.user("named", &format!("{rule} +client|setname"));
    let rows = [
        ("the default", server.url(), ["name=tower-ratelimit ", "user=default "]),
        ("a user with the permission", named, ["name=tower-ratelimit ", "user=named "]),
        ("a user without it", unnamed, ["name= ", "user=unnamed "]),
    ];
    for (name, url, parts) in rows {
        let store = settings().connect(&url).await.unwrap();
        let clients: String = server.command(&["CLIENT", "LIST"]);
        let is_listed = clients.lines().any(|client| parts.iter().all(|part| client.contains(part)));
        assert!(is_listed, "{name}: {clients}");
        drop(store);
    }
}
