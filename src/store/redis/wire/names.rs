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

    /// The pattern that all names match, as Redis' globs are written.
    pub(crate) fn pattern(&self) -> String {
        let mut pattern = String::new();
        for character in self.prefix.chars() {
            if matches!(character, '*' | '?' | '[' | ']' | '\\' | '^') {
                pattern.push('\\');
            }
            pattern.push(character);
        }
        pattern + ":*"
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

    /// The key whose count under `policy` has this name. `None` if it is the name of something else.
    pub(crate) fn read(&self, name: &str, policy: &Policy) -> Option<Key> {
        let rest = name.strip_prefix(&*self.prefix)?.strip_prefix(':')?.strip_prefix(policy.label())?;
        let rest = rest.strip_prefix(":{")?;
        // An identity has no braces.
        let identity = match rest.split_once("}:") {
            Some((_, identity)) => identity,
            None => rest.strip_suffix('}')?,
        };
        let key = Key::from_stored(identity).ok()?;
        // Without shards, or with another number of them, this store does not use the name.
        let mut written = String::new();
        self.write(&mut written, policy, &key);
        (written == name).then_some(key)
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

    #[test]
    fn a_name_is_read_again_and_any_other_is_none() {
        let (names, policy) = (KeyNames::new("rl"), Policy::new("a:{b}", Quota::per_second(5)));
        let mut every = vec![names.clone()];
        #[cfg(feature = "cluster")]
        every.push(names.clone().in_shards(Some(Arc::new(Shards::new(8)))));
        for names in &every {
            for key in ["", "alice", "a}:{b", "%>x", "José", &"x".repeat(200)].map(Key::new) {
                let mut name = String::new();
                names.write(&mut name, &policy, &key);
                assert_eq!(names.read(&name, &policy), Some(key), "{name}");
                assert_eq!(names.read(&name, &Policy::new("a", Quota::per_second(5))), None, "{name}");
            }
            let label = policy.label();
            let others = [
                "",
                "rl",
                "rl:policies",
                &format!("rl:{label}"),
                &format!("rl:{label}:"),
                &format!("rl:{label}:{{"),
                &format!("rl:{label}:{{x"),
                &format!("rl:{label}:x"),
                &format!("rl:{label}:{{a b}}"),
                &format!("rl:{label}:{{%}}}}"),
                &format!("rl:{label}:{{99999}}:x"),
                &format!("rx:{label}:{{x}}"),
            ];
            for other in others {
                assert_eq!(names.read(other, &policy), None, "{other}");
            }
        }
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
