//! The names of keys in Redis.

use std::sync::Arc;

#[cfg(feature = "cluster")]
use super::shards::Shards;
use crate::{key::Key, policy::Policy};

/// How the keys of a store are named.
#[derive(Clone, Debug)]
pub(crate) struct KeyNames {
    prefix: Arc<str>,
    /// The shards of a Cluster, `None` for a single server.
    #[cfg(feature = "cluster")]
    shards: Option<Arc<Shards>>,
}

impl KeyNames {
    /// Names in which the identity is the hash tag.
    pub(crate) fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.into(),
            #[cfg(feature = "cluster")]
            shards: None,
        }
    }

    /// Names in which the shard of the identity is the hash tag.
    #[cfg(feature = "cluster")]
    pub(crate) fn in_shards(self, shards: Arc<Shards>) -> Self {
        Self { shards: Some(shards), ..self }
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// A Redis key: `prefix:policy:algorithm:{identity}`, or `prefix:policy:algorithm:{shard}:identity`. An
    /// identity contains no braces, so these never collide. The mark of a preflight is behind the braces, so
    /// the key is in its client's slot, and the client's bans hold for it.
    pub(crate) fn name(&self, policy: &Policy, key: &Key) -> String {
        let name = [self.start(policy).concat().as_bytes(), &self.end(policy, key).concat()].concat();
        String::from_utf8(name).unwrap_or_default()
    }

    /// What all Redis keys under `policy` begin with, in parts.
    pub(crate) fn start<'a>(&'a self, policy: &'a Policy) -> [&'a str; 4] {
        [&self.prefix, ":", policy.label(), ":{"]
    }

    /// The rest of a Redis key, in parts.
    #[cfg_attr(not(feature = "cluster"), expect(unused_variables, reason = "only a Cluster has shards"))]
    pub(crate) fn end<'a>(&'a self, policy: &Policy, key: &'a Key) -> [&'a [u8]; 3] {
        #[cfg(feature = "cluster")]
        if let Some(shards) = &self.shards {
            return [shards.tag(shards.of(policy, key)).as_bytes(), b"}:", key.as_bytes()];
        }
        let (mark, identity) = key.split_preflight();
        [identity, b"}", mark.as_bytes()]
    }

    /// The glob pattern of all Redis keys under `policy`.
    pub(crate) fn pattern(&self, policy: &Policy) -> String {
        escaped(&self.start(policy).concat()) + "*"
    }

    /// The glob pattern of all Redis keys.
    pub(crate) fn pattern_of_all(&self) -> String {
        escaped(&self.prefix) + ":*"
    }

    /// The key whose Redis key under `policy` is `name`: the reverse of [`name`](Self::name). `None` if no
    /// key has this name.
    pub(crate) fn key(&self, name: &[u8], policy: &Policy) -> Option<Key> {
        let name = str::from_utf8(name).ok()?;
        let rest = name.strip_prefix(&*self.start(policy).concat())?;
        // An identity has no braces.
        let key = match (rest.split_once("}:"), rest.split_once('}')) {
            (Some((_, identity)), _) => Key::from_stored(identity),
            (None, split) => {
                let (identity, mark) = split?;
                Key::from_stored(&[mark, identity].concat())
            }
        };
        let key = key.ok()?;
        // Without shards, or with another number of them, this store does not use the name.
        (self.name(policy, &key) == name).then_some(key)
    }
}

/// `text` as a glob, which ACLs and SCAN take, that matches only it.
fn escaped(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for character in text.chars() {
        if matches!(character, '*' | '?' | '[' | ']' | '\\' | '^') {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Quota;

    fn name(names: &KeyNames, key: &str) -> String {
        names.name(&Policy::new("login", Quota::per_second(5)), &Key::new(key))
    }

    #[test]
    fn the_identity_is_the_hash_tag_without_shards() {
        assert_eq!(name(&KeyNames::new("rl"), "alice"), "rl:login:gcra:{alice}");
    }

    #[test]
    fn a_name_is_read_back_to_its_key() {
        let policy = Policy::new("a*[b]", Quota::per_second(5));
        #[cfg_attr(not(feature = "cluster"), expect(unused_mut, reason = "only a Cluster has another one"))]
        let mut all = vec![KeyNames::new("rl")];
        #[cfg(feature = "cluster")]
        all.push(KeyNames::new("rl").in_shards(Arc::new(Shards::new(4))));
        for names in all {
            assert_eq!(names.pattern(&policy), r"rl:a\*\[b\]:gcra:{*");
            assert_eq!(names.pattern_of_all(), "rl:*");
            let (long, hashed) = ("x".repeat(96), "x".repeat(200));
            for identity in ["alice", "a:b", "2001:db8::1", "a}:{b", "", "%>x", "José", &long, &hashed] {
                let key = Key::new(identity);
                let (name, preflights) =
                    (names.name(&policy, &key), names.name(&policy, &key.of_preflight()));
                assert_eq!(names.key(name.as_bytes(), &policy), Some(key.clone()), "{name}");
                // A preflight's, in the slot of its client.
                assert_ne!(preflights, name);
                let tag = |name: &str| name.split_once('{').unwrap().1.split_once('}').unwrap().0.to_owned();
                assert_eq!(tag(&preflights), tag(&name));
                assert_eq!(
                    names.key(preflights.as_bytes(), &policy),
                    Some(key.of_preflight()),
                    "{preflights}"
                );
            }
            let others = [
                "",
                "rl:policies",
                "rl:p:gcra:{alice}",
                "rx:a*[b]:gcra:{alice}",
                "rl:a*[b]:gcra:{alice",
                "rl:a*[b]:gcra:alice",
                "rl:a*[b]:gcra:{}",
                "rl:a*[b]:gcra:{a b}",
                "rl:a*[b]:gcra:{100%}",
                "rl:a*[b]:gcra:{99999}:alice",
            ];
            for other in others {
                assert_eq!(names.key(other.as_bytes(), &policy), None, "{other}");
            }
        }
    }

    #[cfg(feature = "cluster")]
    #[test]
    fn the_shard_is_the_hash_tag_otherwise() {
        let names = KeyNames::new("rl").in_shards(Arc::new(Shards::new(1)));
        let tag = Shards::new(1).tag(0).to_owned();
        assert_eq!(name(&names, "alice"), format!("rl:login:gcra:{{{tag}}}:alice"));
        // An identity cannot close the braces.
        assert_eq!(name(&names, "a}:{b"), format!("rl:login:gcra:{{{tag}}}:{}", Key::new("a}:{b").as_str()));
        assert!(!Key::new("a}:{b").as_str().contains(['{', '}']));
    }
}
