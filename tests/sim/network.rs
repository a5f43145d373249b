//! The way to the simulated server and back, without sockets, and what happens on it.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use redis::{RedisError, RedisResult, Value};
use tokio::{
    sync::{Notify, oneshot},
    task::yield_now,
    time::{Instant, sleep},
};

use super::{
    faults::{Connects, Fate, Weather},
    keyspace::Reply,
    log::Log,
    random::Random,
    server::{Power, Server, keys_of},
};

pub(super) type Command = Vec<Vec<u8>>;
type Sender = oneshot::Sender<Vec<Value>>;

pub(super) struct Network {
    pub(super) log: Arc<Log>,
    pub(super) server: Mutex<Server>,
    wires: Mutex<Wires>,
    /// Notified when the server is not frozen any more.
    thawed: Notify,
}

struct Wires {
    random: Random,
    weather: Weather,
    next: u64,
    open: BTreeMap<u64, Arc<Wire>>,
    counts: BTreeMap<&'static str, u64>,
    /// Keys of calls that were not answered as usual, and when that was known last.
    troubled: BTreeMap<Vec<u8>, Instant>,
    /// Keys of calls that may be carried out twice.
    repeated: BTreeSet<Vec<u8>>,
}

/// A connection as the network sees it.
pub(super) struct Wire {
    owner: Arc<Owner>,
    cut: AtomicBool,
    /// Whether the client does not notice immediately that it is cut.
    unnoticed: AtomicBool,
    /// Whether a reply has not been read yet.
    busy: AtomicBool,
    /// Replies that never come.
    held: Mutex<Vec<Sender>>,
}

/// An instance as the network sees it.
pub(super) struct Owner {
    pub(super) name: String,
    dead: AtomicBool,
}

impl Network {
    pub(super) fn new(log: Arc<Log>, random: Random) -> Self {
        Self {
            log,
            server: Mutex::new(Server::new()),
            wires: Mutex::new(Wires {
                random,
                weather: Weather::CALM,
                next: 0,
                open: BTreeMap::new(),
                counts: BTreeMap::new(),
                troubled: BTreeMap::new(),
                repeated: BTreeSet::new(),
            }),
            thawed: Notify::new(),
        }
    }

    pub(super) fn set_weather(&self, weather: Weather) {
        self.wires.lock().unwrap().weather = weather;
    }

    pub(super) fn thaw(&self) {
        self.server.lock().unwrap().power = Power::Up;
        self.thawed.notify_waiters();
    }

    pub(super) fn kill(&self) {
        self.server.lock().unwrap().power = Power::Down;
        self.cut(|_| true);
        self.thawed.notify_waiters();
    }

    pub(super) fn cut_all(&self) {
        self.cut(|_| true);
    }

    /// Cuts the first idle connection of each instance.
    pub(super) fn cut_one(&self) {
        let mut seen = BTreeSet::new();
        self.cut(|wire| !wire.busy.load(Relaxed) && seen.insert(wire.owner.name.clone()));
    }

    /// The instance ends: what it has sent may still arrive.
    pub(super) fn bury(&self, owner: &Owner) {
        owner.dead.store(true, Relaxed);
        self.cut(|wire| wire.owner.dead.load(Relaxed));
    }

    fn cut(&self, mut is_meant: impl FnMut(&Wire) -> bool) {
        let wires = &mut *self.wires.lock().unwrap();
        for wire in wires.open.values().filter(|wire| !wire.cut.load(Relaxed)) {
            if is_meant(wire) {
                wire.unnoticed.store(wires.random.chance(200), Relaxed);
                wire.cut();
            }
        }
    }

    pub(super) fn count(&self, what: &'static str) {
        *self.wires.lock().unwrap().counts.entry(what).or_default() += 1;
    }

    /// How often each fault happened.
    pub(super) fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.wires.lock().unwrap().counts.clone()
    }

    /// When a call on this key was not answered as usual, for the last time.
    pub(super) fn last_trouble(&self, key: &str) -> Option<Instant> {
        self.wires.lock().unwrap().troubled.get(key.as_bytes()).copied()
    }

    pub(super) fn is_repeated(&self, key: &str) -> bool {
        self.wires.lock().unwrap().repeated.contains(key.as_bytes())
    }

    /// The open connections of an instance.
    pub(super) fn open(&self, owner: &Owner) -> usize {
        let wires = self.wires.lock().unwrap();
        wires.open.values().filter(|wire| wire.owner.name == owner.name).count()
    }

    pub(super) fn all_open(&self) -> usize {
        self.wires.lock().unwrap().open.len()
    }

    pub(super) fn latency(&self) -> Duration {
        let wires = &mut *self.wires.lock().unwrap();
        Duration::from_millis(wires.random.between(0, wires.weather.latency))
    }

    pub(super) fn trouble(&self, commands: &[Command]) {
        let keys = commands.iter().flat_map(|command| keys_of(command).iter().cloned());
        self.wires.lock().unwrap().troubled.extend(keys.map(|key| (key, Instant::now())));
    }

    /// How an attempt to connect ends.
    pub(super) fn connecting(&self, owner: &Owner) -> Connects {
        let power = self.server.lock().unwrap().power;
        match power {
            // Its calls arrive nowhere.
            _ if owner.dead.load(Relaxed) => Connects::Succeed,
            Power::Down => Connects::Fail,
            // The crate's own connections wait for a reply too.
            Power::Frozen => Connects::Hang,
            Power::Up => self.wires.lock().unwrap().weather.connects,
        }
    }

    /// Opens a connection, which has this number.
    pub(super) fn open_wire(&self, owner: &Arc<Owner>) -> (u64, Arc<Wire>) {
        let wire = Arc::new(Wire {
            owner: owner.clone(),
            cut: AtomicBool::new(owner.dead.load(Relaxed)),
            unnoticed: AtomicBool::default(),
            busy: AtomicBool::default(),
            held: Mutex::default(),
        });
        let wires = &mut *self.wires.lock().unwrap();
        wires.next += 1;
        wires.open.insert(wires.next, wire.clone());
        (wires.next, wire)
    }

    /// The client closes a connection. What it has sent may still arrive.
    pub(super) fn close_wire(&self, id: u64, wire: &Wire) {
        wire.held.lock().unwrap().clear();
        self.wires.lock().unwrap().open.remove(&id);
    }

    /// Sends `commands`. Fails immediately if the client notices that the connection is cut.
    pub(super) fn send(
        self: &Arc<Self>,
        id: u64,
        wire: &Arc<Wire>,
        commands: &[Command],
    ) -> RedisResult<oneshot::Receiver<Vec<Value>>> {
        if wire.busy.swap(true, Relaxed) {
            self.log.violated(format_args!("connection {id} is used although a reply was not read"));
        }
        let (sender, receiver) = oneshot::channel();
        if wire.cut.load(Relaxed) {
            if !wire.unnoticed.swap(false, Relaxed) {
                return Err(broken());
            }
            tokio::spawn(async move {
                sleep(Duration::from_millis(1)).await;
                drop(sender);
            });
            return Ok(receiver);
        }
        let fate = {
            let wires = &mut *self.wires.lock().unwrap();
            let fate = match wires.weather.loses_all {
                true => Fate::LostCall,
                false => Fate::draw(&mut wires.random, wires.weather.per_mille),
            };
            if fate != Fate::Fine {
                *wires.counts.entry(fate.name()).or_default() += 1;
            }
            fate
        };
        let name = String::from_utf8_lossy(&commands[0][0]).into_owned();
        let keys = commands.iter().map(|command| keys_of(command).len()).sum::<usize>();
        self.log.note(format_args!("{} #{id} {name} of {keys} keys: {fate:?}", wire.owner.name));
        if fate == Fate::ClosedButSent {
            let keys = commands.iter().flat_map(|command| keys_of(command).iter().cloned());
            self.wires.lock().unwrap().repeated.extend(keys);
            self.execute(commands);
            wire.cut();
            return Err(broken());
        }
        tokio::spawn(self.clone().carry(wire.clone(), commands.to_vec(), fate, sender));
        Ok(receiver)
    }

    /// Carries a call to the server and its reply back.
    async fn carry(self: Arc<Self>, wire: Arc<Wire>, commands: Vec<Command>, fate: Fate, sender: Sender) {
        pause(self.latency()).await;
        if let Fate::LateCall(delay) = fate {
            sleep(delay).await;
        }
        if fate == Fate::CutBefore {
            wire.cut();
        }
        if wire.cut.load(Relaxed) {
            return;
        }
        if fate == Fate::LostCall {
            return wire.hold(sender);
        }
        let (starts, mut power) = {
            let server = self.server.lock().unwrap();
            (server.starts, server.power)
        };
        while power == Power::Frozen {
            self.thawed.notified().await;
            let server = self.server.lock().unwrap();
            power = if server.starts == starts { server.power } else { Power::Down };
        }
        if power == Power::Down {
            return wire.cut();
        }
        let mut replies = self.execute(&commands);
        match fate {
            Fate::CutAfter => return wire.cut(),
            Fate::LostReply => return wire.hold(sender),
            Fate::LateReply(delay) => sleep(delay).await,
            Fate::Nonsense(random) => replies.iter_mut().for_each(|reply| *reply = nonsense(random, reply)),
            _ => {}
        }
        pause(self.latency()).await;
        if !wire.cut.load(Relaxed) {
            // The client may have given up.
            let _ = sender.send(replies);
        }
    }

    fn execute(&self, commands: &[Command]) -> Vec<Value> {
        let server = &mut *self.server.lock().unwrap();
        commands.iter().map(|command| value(server.execute(command))).collect()
    }
}

/// A short pause. Without one, other tasks run first.
pub(super) async fn pause(time: Duration) {
    if time.is_zero() { yield_now().await } else { sleep(time).await }
}

impl Wire {
    fn cut(&self) {
        self.cut.store(true, Relaxed);
        self.held.lock().unwrap().clear();
    }

    fn hold(&self, sender: Sender) {
        self.held.lock().unwrap().push(sender);
    }

    /// The reply was read, so the connection can be used again.
    pub(super) fn was_read(&self) {
        self.busy.store(false, Relaxed);
    }
}

impl Owner {
    pub(super) fn new(name: String) -> Arc<Self> {
        Arc::new(Self { name, dead: AtomicBool::default() })
    }
}

pub(super) fn broken() -> RedisError {
    io::Error::from(io::ErrorKind::ConnectionReset).into()
}

pub(super) fn value(reply: Reply) -> Value {
    match reply {
        Reply::Nil => Value::Nil,
        Reply::Ok => Value::Okay,
        Reply::Int(number) => Value::Int(number),
        Reply::Bulk(bytes) => Value::BulkString(bytes),
        Reply::Array(all) => Value::Array(all.into_iter().map(value).collect()),
        Reply::Error(text) => redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).unwrap(),
    }
}

/// A reply that no script makes.
fn nonsense(random: u64, reply: &Value) -> Value {
    match (random % 6, reply) {
        (0, _) => Value::Nil,
        (1, _) => Value::Int(random as i64),
        (2, _) => Value::Okay,
        (3, Value::BulkString(bytes)) => Value::BulkString(bytes[..bytes.len() / 2].to_vec()),
        (4, Value::BulkString(bytes)) => Value::BulkString(vec![0xff; bytes.len()]),
        _ => Value::Array(vec![Value::Int(1), Value::BulkString(b"OOM".to_vec())]),
    }
}
