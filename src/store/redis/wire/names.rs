use std::sync::Arc;

#[cfg(feature = "cluster")]
use super::shards::Shards;
use crate::{key::Key, policy::Policy};

/// How the keys of a store are named.
#[derive(Clone, Debug)]
pub(crate) struct KeyNames {
    prefix: Arc<str>,
    /// `None` if each identity has a slot of its own.
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

    /// Names in which the shard of the identity is the hash tag, if there are `shards`.
    #[cfg(feature = "cluster")]
    pub(crate) fn in_shards(self, shards: Option<Arc<Shards>>) -> Self {
        Self { shards, ..self }
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Writes a Redis key: `prefix:policy:algorithm:{identity}`, or `prefix:policy:algorithm:{shard}:identity`. An
    /// identity contains no braces, so these never collide.
    pub(crate) fn write(&self, out: &mut String, policy: &Policy, key: &Key) {
        let (prefix, policy, identity) = (&*self.prefix, policy.label(), key.as_str());
        #[cfg(feature = "cluster")]
        if let Some(shards) = &self.shards {
            let tag = shards.tag(shards.of(key));
            return [prefix, ":", policy, ":{", tag, "}:", identity]
                .iter()
                .for_each(|part| out.push_str(part));
        }
        [prefix, ":", policy, ":{", identity, "}"].iter().for_each(|part| out.push_str(part));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::Quota;

    fn name(names: &KeyNames, key: &str) -> String {
        let mut name = String::new();
        names.write(&mut name, &Policy::new("login", Quota::per_second(5)), &Key::new(key));
        name
    }

    #[test]
    fn the_identity_is_the_hash_tag_without_shards() {
        assert_eq!(name(&KeyNames::new("rl"), "alice"), "rl:login:gcra:{alice}");
    }

    #[cfg(feature = "cluster")]
    #[test]
    fn the_shard_is_the_hash_tag_otherwise() {
        let names = KeyNames::new("rl").in_shards(Some(Arc::new(Shards::new(1))));
        let tag = Shards::new(1).tag(0).to_owned();
        assert_eq!(name(&names, "alice"), format!("rl:login:gcra:{{{tag}}}:alice"));
        // An identity cannot close the braces.
        assert_eq!(name(&names, "a}:{b"), format!("rl:login:gcra:{{{tag}}}:{}", Key::new("a}:{b").as_str()));
        assert!(!Key::new("a}:{b").as_str().contains(['{', '}']));
    }
}
