//! What the router moves at `/enforcement`.

use tower_ratelimit::{
    Error,
    policy::{Enforcement, EnforcementSwitch},
};

use crate::answer::AppliesTo;
#[cfg(feature = "live")]
use crate::live::LivePolicies;

/// What turns enforcement on and off, for [`Admin::enforcement`](super::Admin::enforcement): a switch of this
/// process, or `LivePolicies`, whose switch may be the one of all instances.
#[derive(Clone, Debug)]
pub struct Switch(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Here(EnforcementSwitch),
    #[cfg(feature = "live")]
    Live(LivePolicies),
}

impl Switch {
    pub(super) fn get(&self) -> Enforcement {
        self.here().get()
    }

    /// The most instances that it can move.
    pub(super) fn reach(&self) -> AppliesTo {
        match &self.0 {
            #[cfg(feature = "live")]
            Kind::Live(live) if live.moves_all_instances() => AppliesTo::AllInstances,
            _ => AppliesTo::ThisInstance,
        }
    }

    pub(super) async fn set(&self, enforcement: Enforcement, reach: AppliesTo) -> Result<(), Error> {
        match &self.0 {
            #[cfg(feature = "live")]
            Kind::Live(live) if reach == AppliesTo::AllInstances => live.set_enforcement(enforcement).await,
            _ => {
                // Without live policies, there is only one reach.
                let _ = reach;
                self.here().set(enforcement);
                Ok(())
            }
        }
    }

    /// The live policies whose switch it is.
    #[cfg(feature = "live")]
    pub(super) const fn live(&self) -> Option<&LivePolicies> {
        match &self.0 {
            Kind::Here(_) => None,
            Kind::Live(live) => Some(live),
        }
    }

    fn here(&self) -> &EnforcementSwitch {
        match &self.0 {
            Kind::Here(switch) => switch,
            #[cfg(feature = "live")]
            Kind::Live(live) => live.enforcement(),
        }
    }
}

impl From<&EnforcementSwitch> for Switch {
    fn from(switch: &EnforcementSwitch) -> Self {
        Self(Kind::Here(switch.clone()))
    }
}

#[cfg(feature = "live")]
#[cfg_attr(docsrs, doc(cfg(feature = "live")))]
impl From<&LivePolicies> for Switch {
    fn from(live: &LivePolicies) -> Self {
        Self(Kind::Live(live.clone()))
    }
}
