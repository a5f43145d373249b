//! Shards of a Redis Cluster: all keys of a shard are in one hash slot, so that they can share a call.
//!
//! The slot of the identity alone picks its shard. The slot is the CRC16 (XMODEM) of the identity, as in
//! Redis Cluster: the same in all processes and versions. Another hash would move every key.

use std::ops::Range;

use crate::{key::Key, policy::Policy};

/// The hash slots of a Cluster.
const SLOTS: usize = 16_384;

/// Where the slot of a shard lies in its part of the slots. The shards are thereby spread over the nodes as
/// evenly as the slots, and tags have at most five digits, mostly two.
const MIDDLE: Range<usize> = SLOTS / 16 * 7..SLOTS / 16 * 9;

/// Equal parts of the slots. The hash tag of a shard is the first number whose slot is in the middle of its
/// part.
#[derive(Debug)]
pub(crate) struct Shards {
    tags: Box<[Box<str>]>,
}

impl Shards {
    /// The most shards. A Cluster has at most about a thousand nodes, so more shards would be of no use.
    pub(crate) const MAX: u16 = 1_024;

    /// `count` shards: 1 to [`MAX`](Self::MAX).
    pub(crate) fn new(count: u16) -> Self {
        let count = usize::from(count);
        let mut tags: Vec<Option<Box<str>>> = vec![None; count];
        let mut missing = count;
        for number in 0_u32.. {
            if missing == 0 {
                break;
            }
            let tag = number.to_string();
            let slot = slot(tag.as_bytes());
            let (shard, place) = (slot * count / SLOTS, slot * count % SLOTS);
            if tags[shard].is_none() && MIDDLE.contains(&place) {
                tags[shard] = Some(tag.into());
                missing -= 1;
            }
        }
        Self { tags: tags.into_iter().flatten().collect() }
    }

    pub(crate) fn count(&self) -> usize {
        self.tags.len()
    }

    /// The shard of an identity; of a guarantee, that of its pool.
    pub(crate) fn of(&self, policy: &Policy, key: &Key) -> usize {
        let of_pool = if policy.pool().is_some() { key.of_pool() } else { None };
        slot(of_pool.unwrap_or_else(|| key.split_preflight().1)) * self.count() / SLOTS
    }

    /// The hash tag of a shard.
    pub(crate) fn tag(&self, shard: usize) -> &str {
        &self.tags[shard]
    }
}

/// The slot of a key with this hash tag.
fn slot(tag: &[u8]) -> usize {
    let crc = tag.iter().fold(0_u16, |crc, byte| {
        let [high, low] = crc.to_be_bytes();
        CRC16[usize::from(high ^ byte)] ^ (u16::from(low) << 8)
    });
    usize::from(crc) % SLOTS
}

/// The CRC16 of each byte.
const CRC16: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Quota;

    fn policy() -> Policy {
        Policy::new("p", Quota::per_second(1))
    }

    #[test]
    fn slots_match_redis_cluster() {
        // From the Redis Cluster specification, and from `CLUSTER KEYSLOT`.
        for (tag, expected) in [("123456789", 12_739), ("foo", 12_182), ("bar", 5_061), ("", 0)] {
            assert_eq!(slot(tag.as_bytes()), expected, "{tag}");
        }
    }

    #[test]
    fn the_tags_are_in_the_middle_of_equal_parts_of_the_slots() {
        for count in (1..=64).chain([100, 255, 256, 1_000, Shards::MAX]) {
            let shards = Shards::new(count);
            assert_eq!(shards.count(), usize::from(count));
            for shard in 0..shards.count() {
                let tag = shards.tag(shard);
                // In slots of a Cluster with as many times more slots.
                let middle = shard * SLOTS + SLOTS / 2;
                let distance = (slot(tag.as_bytes()) * shards.count()).abs_diff(middle);
                assert!(distance <= SLOTS / 16, "{tag}, {shard} of {count}");
                assert!(tag.len() <= 5, "{tag}, {shard} of {count}");
            }
        }
    }

    /// Primaries that share the slots evenly differ by at most one shard.
    #[test]
    fn the_tags_are_even_over_primaries() {
        for count in [8, 12, 16, 24, 64] {
            let shards = Shards::new(count);
            for primaries in 1..=8 {
                let mut owned = vec![0; primaries];
                (0..shards.count())
                    .for_each(|shard| owned[slot(shards.tag(shard).as_bytes()) * primaries / SLOTS] += 1);
                let (least, most) = (owned.iter().min().unwrap(), owned.iter().max().unwrap());
                assert!(most - least <= 1, "{count} shards on {primaries} primaries: {owned:?}");
            }
        }
    }

    /// If this fails, an update of the crate would reset every limit.
    #[test]
    fn tags_and_the_shards_of_identities_never_change() {
        let shards = Shards::new(16);
        let tags: Vec<_> = (0..16).map(|shard| shards.tag(shard)).collect();
        let expected = [
            "18", "3", "65", "223", "19", "2", "64", "222", "265", "23", "218", "49", "264", "22", "219",
            "48",
        ];
        assert_eq!(tags, expected);
        for (identity, expected) in [("alice", 0), ("user-1", 12), ("203.0.113.7", 8), ("2001:db8::1", 3)] {
            assert_eq!(shards.of(&policy(), &Key::new(identity)), expected, "{identity}");
        }
    }

    #[test]
    fn identities_are_even_over_shards() {
        let forms: [fn(usize) -> String; 4] = [
            |number| format!("user-{number}"),
            |number| format!("10.0.{}.{}", number / 256, number % 256),
            |number| number.to_string(),
            |number| format!("{:032x}", number as u128 * 0x9e37_79b9_7f4a_7c15),
        ];
        for (form, name) in forms.iter().enumerate() {
            let shards = Shards::new(16);
            let mut owned = [0; 16];
            (0..16_000).for_each(|number| owned[shards.of(&policy(), &Key::new(name(number)))] += 1);
            assert!(owned.iter().all(|owned| (800..1_200).contains(owned)), "form {form}: {owned:?}");
        }
    }
}
