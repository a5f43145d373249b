//! [`PolicyConfig`]: a policy that serde reads from an application's configuration.

use serde::{Deserialize, Deserializer, de::Error as _};
use tower_ratelimit::{Error, ErrorKind, Policy, PolicySource};

use super::{entries::PolicyChanges, table::TextOrTable};

/// A [`Policy`] that a configuration has as a table: see [the module](super).
///
/// Converts into a [`PolicySource`], so a layer or a rule takes it as it is. Field 0 is the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyConfig(pub Policy);

impl<'de> Deserialize<'de> for PolicyConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let TextOrTable(table) = TextOrTable::<PolicyChanges>::deserialize(deserializer)?;
        let name = table.name().ok_or_else(|| D::Error::missing_field("name"))?.to_owned();
        let quota = table.quota().ok_or_else(|| D::Error::missing_field("quota"))?;
        let policy = Policy::try_new(&name, quota).and_then(|policy| table.apply(&policy));
        policy.map(Self).map_err(|error| {
            D::Error::custom(Error::new(ErrorKind::InvalidConfig, format!("policy `{name}`: {error}")))
        })
    }
}

impl From<PolicyConfig> for PolicySource {
    fn from(config: PolicyConfig) -> Self {
        config.0.into()
    }
}
