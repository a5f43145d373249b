//! A real Redis Cluster on free ports, for as long as the value lives.

use std::{
    sync::LazyLock,
    thread::sleep,
    time::{Duration, Instant},
};

use super::redis_server::RedisServer;

pub const SLOTS: u16 = 16_384;

/// The slots are shared out evenly among the primaries.
pub struct RedisCluster {
    pub nodes: Vec<RedisServer>,
    primaries: usize,
}

impl RedisCluster {
    pub fn start(primaries: usize) -> Self {
        Self::with_replicas(primaries, 0)
    }

    /// A shared cluster of three primaries, for tests that do not stop a node, move a slot or count commands of a node.
    /// A new cluster needs two seconds to start. Each test uses its own prefix.
    pub fn shared() -> &'static Self {
        static SHARED: LazyLock<RedisCluster> = LazyLock::new(|| RedisCluster::start(3));
        &SHARED
    }

    /// Starts a cluster whose primaries have `replicas` replicas each. In `nodes`, replicas come after all primaries.
    pub fn with_replicas(primaries: usize, replicas: usize) -> Self {
        // A replica soon takes the place of a primary that is lost.
        let arguments = if replicas > 0 { &["--cluster-node-timeout", "1000"][..] } else { &[] };
        Self::of((0..primaries * (1 + replicas)).map(|_| RedisServer::node(arguments)).collect(), primaries)
    }

    /// A cluster of one node that announces this port.
    pub fn behind(port: u16) -> Self {
        Self::one_node(&["--cluster-announce-port", &port.to_string()])
    }

    /// A cluster of one node with further arguments.
    pub fn one_node(arguments: &[&str]) -> Self {
        Self::of(vec![RedisServer::node(arguments)], 1)
    }

    fn of(nodes: Vec<RedisServer>, primaries: usize) -> Self {
        let cluster = Self { nodes, primaries };
        for (place, node) in cluster.nodes.iter().enumerate() {
            // Otherwise all nodes start with the same epoch and resolve the conflict later.
            let () = node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(place + 1).to_string()]);
        }
        for (place, node) in cluster.nodes[..primaries].iter().enumerate() {
            let slots = (0..SLOTS).filter(|&slot| cluster.first_owner(slot) == place);
            let mut words = vec!["CLUSTER".to_owned(), "ADDSLOTS".to_owned()];
            words.extend(slots.map(|slot| slot.to_string()));
            let () = node.command(&words.iter().map(String::as_str).collect::<Vec<_>>());
        }
        for node in &cluster.nodes[1..] {
            cluster.meet(node);
        }
        cluster.wait_until("all nodes know each other", |cluster| cluster.knows_all());
        for (place, replica) in cluster.nodes[primaries..].iter().enumerate() {
            let primary = cluster.nodes[place % primaries].id();
            let () = replica.command(&["CLUSTER", "REPLICATE", &primary]);
        }
        cluster.wait_until("the cluster is up", |cluster| {
            cluster.nodes.iter().all(RedisServer::is_up)
                && cluster.nodes[primaries..].iter().all(|replica| {
                    let info: String = replica.command(&["INFO", "replication"]);
                    info.contains("master_link_status:up")
                })
        });
        cluster
    }

    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(RedisServer::url).collect()
    }

    /// Adds a primary without slots. Clients do not discover it, because the topology omits such nodes.
    pub fn add_node(&mut self) -> usize {
        self.nodes.push(RedisServer::node(&[]));
        let place = self.nodes.len() - 1;
        self.meet(&self.nodes[place]);
        self.wait_until("the new node is known", |cluster| {
            cluster.knows_all() && cluster.nodes[place].is_up()
        });
        place
    }

    /// The slot of a key.
    pub fn slot(&self, key: &str) -> u16 {
        self.nodes[0].command(&["CLUSTER", "KEYSLOT", key])
    }

    /// Moves a slot and its keys, as `redis-cli --cluster reshard` does. Calls `halfway` before each key moves.
    pub fn move_slot(&self, slot: u16, from: usize, to: usize, mut halfway: impl FnMut()) {
        let (source, target) = (&self.nodes[from], &self.nodes[to]);
        let (source_id, target_id, slot) = (source.id(), target.id(), slot.to_string());
        // It may not have heard yet that the slot is the source's, if that has just received it.
        let () = target.command(&["CLUSTER", "SETSLOT", &slot, "NODE", &source_id]);
        let () = target.command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source_id]);
        let () = source.command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target_id]);
        loop {
            halfway();
            let keys: Vec<String> = source.command(&["CLUSTER", "GETKEYSINSLOT", &slot, "1"]);
            let Some(key) = keys.first() else { break };
            let port = target.port().to_string();
            let _: String = source.command(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
        }
        // The target first, so that the slot always has an owner.
        for node in [target, source] {
            let () = node.command(&["CLUSTER", "SETSLOT", &slot, "NODE", &target_id]);
        }
    }

    /// Gives slots without keys to the node `to`, which does not know it before [`take_slots`](Self::take_slots): until
    /// then each of the two nodes redirects to the other one.
    pub fn give_slots(&self, slots: &[u16], from: usize, to: usize) {
        let id = self.nodes[to].id();
        for slot in slots {
            let () = self.nodes[from].command(&["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &id]);
        }
    }

    /// Completes [`give_slots`](Self::give_slots).
    pub fn take_slots(&self, slots: &[u16], to: usize) {
        self.give_slots(slots, to, to);
    }

    /// Waits until the nodes have reached a state.
    pub fn wait_until(&self, what: &str, mut is_so: impl FnMut(&Self) -> bool) {
        let started = Instant::now();
        while !is_so(self) {
            assert!(started.elapsed() < Duration::from_secs(30), "timed out: {what}");
            sleep(Duration::from_millis(20));
        }
    }

    /// The index in `nodes` of the primary that initially has the slot.
    pub fn first_owner(&self, slot: u16) -> usize {
        usize::from(slot) * self.primaries / usize::from(SLOTS)
    }

    fn meet(&self, node: &RedisServer) {
        let () = self.nodes[0].command(&["CLUSTER", "MEET", "127.0.0.1", &node.port().to_string()]);
    }

    fn knows_all(&self) -> bool {
        self.nodes.iter().all(|node| {
            let nodes: String = node.command(&["CLUSTER", "NODES"]);
            let known = nodes.lines().filter(|line| !line.contains("handshake") && !line.contains(":0@"));
            known.count() == self.nodes.len()
        })
    }
}

impl RedisServer {
    fn id(&self) -> String {
        self.command(&["CLUSTER", "MYID"])
    }

    fn is_up(&self) -> bool {
        let info: String = self.command(&["CLUSTER", "INFO"]);
        info.contains("cluster_state:ok")
    }
}
