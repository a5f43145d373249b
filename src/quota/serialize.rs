use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Quota;
use crate::util::text::deserialize;

/// From text such as `"100/min"` or `"10/s burst 20"`.
impl<'de> Deserialize<'de> for Quota {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize(deserializer, "a quota such as \"100/min\" or \"10/s burst 20\"")
    }
}

/// As its text.
impl Serialize for Quota {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
