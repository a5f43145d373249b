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
    runtime::{Handle, Id},
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
    usage::CLIENTS,
};

pub(super) type Command = Vec<Vec<u8>>;
type Sender = oneshot::Sender<Vec<Value>>;

/// A call that takes longer may be late for a decision that has waited before.
const LATE: Duration = Duration::from_millis(5);

pub(super) struct Network {
    pub(super) log: Arc<Log>,
    pub(super) server: Mutex<Server>,
    wires: Mutex<Wires>,
    /// Notified when the server is not frozen any more.
    thawed: Notify,
    /// Whether the faults have ended.
    is_healed: AtomicBool,
    /// The runtime of the schedule, on which calls are carried. The caller's may end.
    runtime: Handle,
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
    /// Whether a call took so long that a decision may have failed although its call did not.
    had_late_reply: bool,
    /// Calls that were sent and have not arrived.
    under_way: BTreeMap<u64, UnderWay>,
    /// Runtimes that are opening a connection.
    connecting: Vec<Id>,
}

struct UnderWay {
    keys: Vec<Vec<u8>>,
    /// Whether the caller no longer waits for it.
    given_up: bool,
}

/// A connection as the network sees it.
pub(super) struct Wire {
    owner: Arc<Owner>,
    cut: AtomicBool,
    /// Whether the client does not notice immediately that it is cut.
    unnoticed: AtomicBool,
    /// Whether nothing arrives any more, in either direction.
    forgotten: AtomicBool,
    /// Whether a reply has not been read yet.
    busy: AtomicBool,
    /// The runtime that opened it.
    opened_in: Id,
    /// The runtime that used it last.
    used_in: Mutex<Option<Id>>,
    /// Replies that never come.
    held: Mutex<Vec<Sender>>,
}

/// An instance as the network sees it.
pub(super) struct Owner {
    pub(super) name: String,
    dead: AtomicBool,
}

impl Network {
    /// Call it in the runtime of the schedule.
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
                had_late_reply: false,
                under_way: BTreeMap::new(),
                connecting: Vec::new(),
            }),
            thawed: Notify::new(),
            is_healed: AtomicBool::new(false),
            runtime: Handle::current(),
        }
    }

    pub(super) fn set_weather(&self, weather: Weather) {
        self.wires.lock().unwrap().weather = weather;
    }

    /// Code of the program panics no more.
    pub(super) fn heal(&self) {
        self.is_healed.store(true, Relaxed);
    }

    pub(super) fn is_healed(&self) -> bool {
        self.is_healed.load(Relaxed)
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

    pub(super) fn forget_all(&self) {
        self.wires.lock().unwrap().open.values().for_each(|wire| wire.forgotten.store(true, Relaxed));
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

    /// Whether a call on this key may still arrive although its caller no longer waits for it.
    pub(super) fn has_late_call(&self, key: &str) -> bool {
        let wires = self.wires.lock().unwrap();
        let mut given_up = wires.under_way.values().filter(|call| call.given_up);
        given_up.any(|call| call.keys.iter().any(|other| other == key.as_bytes()))
    }

    pub(super) fn give_up(&self, call: u64) {
        if let Some(call) = self.wires.lock().unwrap().under_way.get_mut(&call) {
            call.given_up = true;
        }
    }

    /// Notes that the current runtime opens a connection, until this is dropped.
    pub(super) fn connects(&self) -> impl Drop + '_ {
        struct Connects<'a>(&'a Network, Id);
        impl Drop for Connects<'_> {
            fn drop(&mut self) {
                let connecting = &mut self.0.wires.lock().unwrap().connecting;
                if let Some(place) = connecting.iter().position(|id| *id == self.1) {
                    connecting.swap_remove(place);
                }
            }
        }
        let id = Handle::current().id();
        self.wires.lock().unwrap().connecting.push(id);
        Connects(self, id)
    }

    /// A reply arrived after `time`.
    pub(super) fn replied(&self, time: Duration) {
        self.wires.lock().unwrap().had_late_reply |= time > LATE;
    }

    pub(super) fn had_late_reply(&self) -> bool {
        self.wires.lock().unwrap().had_late_reply
    }

    /// Whether a runtime opens a connection.
    pub(super) fn is_connecting(&self, runtime: Id) -> bool {
        self.wires.lock().unwrap().connecting.contains(&runtime)
    }

    /// Whether a runtime waits for the reply to a call.
    pub(super) fn is_waiting(&self, runtime: Id) -> bool {
        let wires = self.wires.lock().unwrap();
        let is_its =
            |wire: &Arc<Wire>| wire.busy.load(Relaxed) && *wire.used_in.lock().unwrap() == Some(runtime);
        wires.open.values().any(is_its)
    }

    /// A runtime ends, and with it the connections that it opened. Others skip the replies that it waits for.
    pub(super) fn runtime_ends(&self, runtime: Id) {
        for wire in self.wires.lock().unwrap().open.values() {
            if wire.opened_in == runtime {
                wire.cut();
            }
            if *wire.used_in.lock().unwrap() == Some(runtime) {
                wire.was_read();
            }
        }
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

    /// A settlement under the policy of a unit is not answered as usual.
    pub(super) fn trouble_settled(&self, unit: &str) {
        let keys = (0..CLIENTS).map(|client| format!("rl:{unit}:fixed-window:{{{client}}}").into_bytes());
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
            forgotten: AtomicBool::default(),
            busy: AtomicBool::default(),
            opened_in: Handle::current().id(),
            used_in: Mutex::default(),
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
    ) -> RedisResult<(u64, oneshot::Receiver<Vec<Value>>)> {
        *wire.used_in.lock().unwrap() = Some(Handle::current().id());
        if wire.busy.swap(true, Relaxed) {
            self.log.violated(format_args!("connection {id} is used although a reply was not read"));
        }
        let (sender, receiver) = oneshot::channel();
        if wire.cut.load(Relaxed) {
            if !wire.unnoticed.swap(false, Relaxed) {
                return Err(broken());
            }
            self.runtime.spawn(async move {
                sleep(Duration::from_millis(1)).await;
                drop(sender);
            });
            return Ok((0, receiver));
        }
        let fate = {
            let wires = &mut *self.wires.lock().unwrap();
            let fate = match wires.weather.loses_all || wire.forgotten.load(Relaxed) {
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
        if let Fate::Nonsense(_) = fate {
            // The caller does not learn what the call did.
            self.trouble(commands);
        }
        if fate == Fate::ClosedButSent {
            let keys = commands.iter().flat_map(|command| keys_of(command).iter().cloned());
            self.wires.lock().unwrap().repeated.extend(keys);
            self.execute(commands);
            wire.cut();
            return Err(broken());
        }
        let call = {
            let wires = &mut *self.wires.lock().unwrap();
            wires.next += 1;
            let keys = commands.iter().flat_map(|command| keys_of(command).iter().cloned()).collect();
            wires.under_way.insert(wires.next, UnderWay { keys, given_up: false });
            wires.next
        };
        self.runtime.spawn(self.clone().carry(call, wire.clone(), commands.to_vec(), fate, sender));
        Ok((call, receiver))
    }

    /// Carries a call to the server and its reply back.
    async fn carry(
        self: Arc<Self>,
        call: u64,
        wire: Arc<Wire>,
        commands: Vec<Command>,
        fate: Fate,
        sender: Sender,
    ) {
        let arrived = self.arrive(&wire, &commands, fate).await;
        self.wires.lock().unwrap().under_way.remove(&call);
        let Some(mut replies) = arrived else {
            return if fate == Fate::LostCall {
                wire.hold(sender)
            };
        };
        if wire.forgotten.load(Relaxed) {
            return wire.hold(sender);
        }
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

    /// Carries a call to the server. Returns the replies, if it arrives.
    async fn arrive(&self, wire: &Wire, commands: &[Command], fate: Fate) -> Option<Vec<Value>> {
        pause(self.latency()).await;
        if let Fate::LateCall(delay) = fate {
            sleep(delay).await;
        }
        if fate == Fate::CutBefore {
            wire.cut();
        }
        if wire.cut.load(Relaxed) || fate == Fate::LostCall {
            return None;
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
            wire.cut();
            return None;
        }
        Some(self.execute(commands))
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
