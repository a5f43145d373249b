//! What goes wrong, and how it is put right again.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{JoinHandle, sleep, spawn},
    time::Duration,
};

use support::{
    RedisServer,
    certificates::Authority,
    proxy::{Network, Proxy},
    redis_cluster::RedisCluster,
    redis_sentinel::SentinelGroup,
};

/// Something that goes wrong. Both functions may block.
pub(crate) trait Fault: Send {
    fn begin(&mut self);
    fn end(&mut self);
}

/// The server is killed, and started again without data and scripts.
pub(crate) struct Killed(pub(crate) RedisServer);

impl Fault for Killed {
    fn begin(&mut self) {
        self.0.kill();
    }
    fn end(&mut self) {
        self.0.restart();
    }
}

/// The server is stopped with SIGSTOP, and continues.
pub(crate) struct Frozen(pub(crate) RedisServer);

impl Fault for Frozen {
    fn begin(&mut self) {
        self.0.signal("STOP");
    }
    fn end(&mut self) {
        self.0.signal("CONT");
    }
}

/// Commands that are sent to the server at the beginning, and at the end.
pub(crate) struct Commands {
    pub(crate) server: RedisServer,
    pub(crate) begin: &'static [&'static [&'static str]],
    pub(crate) end: &'static [&'static [&'static str]],
}

impl Commands {
    fn run(&self, commands: &[&[&str]], connection: &mut redis::Connection) {
        for words in commands {
            let mut command = redis::cmd(words[0]);
            command.arg(&words[1..]);
            // The reply may be late, or the connection closed by its own command.
            let _ = command.query::<redis::Value>(connection);
        }
    }
}

impl Fault for Commands {
    fn begin(&mut self) {
        self.run(self.begin, &mut self.server.connection());
    }
    fn end(&mut self) {
        if self.end.is_empty() {
            return;
        }
        // The password of the fault that sets one.
        let url = self.server.url().replace("redis://", "redis://:changed@");
        let connection = redis::Client::open(url).and_then(|client| client.get_connection());
        self.run(self.end, &mut connection.unwrap_or_else(|_| self.server.connection()));
    }
}

/// A command that is sent again and again.
pub(crate) struct Repeated {
    pub(crate) server: RedisServer,
    pub(crate) command: &'static [&'static str],
    pub(crate) pause: Duration,
    running: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
}

impl Repeated {
    pub(crate) fn new(server: RedisServer, command: &'static [&'static str], pause: Duration) -> Self {
        Self { server, command, pause, running: None }
    }
}

impl Fault for Repeated {
    fn begin(&mut self) {
        let (stop, mut connection) = (Arc::new(AtomicBool::new(false)), self.server.connection());
        let (stopped, words, pause) = (stop.clone(), self.command, self.pause);
        let thread = spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let _: redis::Value = redis::cmd(words[0]).arg(&words[1..]).query(&mut connection).unwrap();
                sleep(pause);
            }
        });
        self.running = Some((stop, thread));
    }
    fn end(&mut self) {
        if let Some((stop, thread)) = self.running.take() {
            stop.store(true, Ordering::Relaxed);
            thread.join().unwrap();
        }
    }
}

/// A script of another client runs for three seconds, and nothing else does.
pub(crate) struct Blocked(pub(crate) RedisServer);

impl Fault for Blocked {
    fn begin(&mut self) {
        const SCRIPT: &str = "local started = redis.call('TIME')
            repeat local now = redis.call('TIME')
            until (now[1] - started[1]) * 1e6 + now[2] - started[2] >= 3e6";
        let mut connection = self.0.connection();
        spawn(move || redis::cmd("EVAL").arg(SCRIPT).arg(0).query::<redis::Value>(&mut connection));
    }
    fn end(&mut self) {}
}

/// The network between the service and the server.
pub(crate) struct Cut {
    pub(crate) _server: RedisServer,
    pub(crate) proxy: Proxy,
    pub(crate) during: Network,
}

impl Fault for Cut {
    fn begin(&mut self) {
        self.proxy.set(self.during);
    }
    fn end(&mut self) {
        self.proxy.set(Network::Works);
    }
}

/// A fault of a server with a certificate of this authority.
pub(crate) struct OverTls<F> {
    pub(crate) fault: F,
    /// The server reads its files when it starts again.
    pub(crate) _authority: Authority,
}

impl<F: Fault> Fault for OverTls<F> {
    fn begin(&mut self) {
        self.fault.begin();
    }
    fn end(&mut self) {
        self.fault.end();
    }
}

/// The primary is killed, and the sentinels promote its replica.
pub(crate) struct Promotion(pub(crate) SentinelGroup);

impl Fault for Promotion {
    fn begin(&mut self) {
        self.0.servers[0].kill();
    }
    fn end(&mut self) {}
}

/// What happens to the first node of a Cluster.
#[derive(PartialEq, Eq)]
pub(crate) enum NodeFault {
    Killed,
    Frozen,
    /// The slots that have keys move to the second node, one after the other.
    SlotsMove,
}

pub(crate) struct Node {
    pub(crate) cluster: RedisCluster,
    pub(crate) fault: NodeFault,
    /// The keys of the first node when the fault began.
    pub(crate) keys: Arc<Mutex<HashSet<u64>>>,
}

impl Fault for Node {
    fn begin(&mut self) {
        let keys: Vec<String> = self.cluster.nodes[0].command(&["KEYS", "*"]);
        let number = |key: &String| -> Option<u64> {
            key.rsplit(|end: char| !end.is_ascii_digit()).next()?.parse().ok()
        };
        self.keys.lock().unwrap().extend(keys.iter().filter_map(number));
        match self.fault {
            NodeFault::Killed => self.cluster.nodes[0].kill(),
            NodeFault::Frozen => self.cluster.nodes[0].signal("STOP"),
            NodeFault::SlotsMove => {
                let slots: HashSet<u16> = keys.iter().map(|key| self.cluster.slot(key)).collect();
                for slot in slots {
                    self.cluster.move_slot(slot, 0, 1, || {});
                }
            }
        }
    }

    fn end(&mut self) {
        match self.fault {
            NodeFault::Killed => self.cluster.nodes[0].restart(),
            NodeFault::Frozen => self.cluster.nodes[0].signal("CONT"),
            NodeFault::SlotsMove => {}
        }
    }
}
