//! [`Criticality`]: which requests yield to which, and [`Headroom`]: how much they leave.

use std::{fmt, str::FromStr};

use crate::base::Error;

/// How critical a request is: under a policy with [headroom](crate::Policy::headroom), the less critical ones leave units
/// for the more critical ones.
///
/// The four levels, and what belongs to each, come from the chapter "Handling Overload" of *Site Reliability Engineering*
/// (Beyer et al., O'Reilly 2016). They are ordered from the least critical to the most critical one.
///
/// A [`Rule`](crate::Rule::criticality) says how critical its requests are. Take it from the route or from an authenticated
/// identity: every client would send a header that makes its requests critical.
///
/// `Display` and `FromStr` write and read `sheddable`, `sheddable-plus`, `critical` and `critical-plus`.
///
/// # Example
///
/// ```
/// use tower_ratelimit::Criticality;
///
/// assert!(Criticality::Sheddable < Criticality::CriticalPlus);
/// assert_eq!(Criticality::default(), Criticality::CriticalPlus);
/// let batch: Criticality = "sheddable-plus".parse()?;
/// assert_eq!(batch, Criticality::SheddablePlus);
/// # Ok::<(), tower_ratelimit::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Criticality {
    /// Often denied, and at times always: crawlers, prefetching, recommendations that a page does without.
    Sheddable,
    /// Denied for a while in the worst case: batch jobs, which try again later.
    SheddablePlus,
    /// Users notice a denial, but less than one of [`CriticalPlus`](Self::CriticalPlus): a search beside a checkout.
    Critical,
    /// The most critical requests, which leave nothing to others. The default.
    #[default]
    CriticalPlus,
}

/// The levels that may leave something to others, from the most critical one.
pub(super) const YIELDING: [Criticality; 3] =
    [Criticality::Critical, Criticality::SheddablePlus, Criticality::Sheddable];

const NAMES: [(&str, Criticality); 4] = [
    ("sheddable", Criticality::Sheddable),
    ("sheddable-plus", Criticality::SheddablePlus),
    ("critical", Criticality::Critical),
    ("critical-plus", Criticality::CriticalPlus),
];

impl Criticality {
    /// The name, such as `sheddable-plus`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        NAMES[self as usize].0
    }
}

impl fmt::Display for Criticality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Criticality {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let known = NAMES.iter().find(|(name, _)| *name == text.trim());
        known.map(|(_, criticality)| *criticality).ok_or_else(|| {
            invalid!(
                "invalid criticality `{text}`: write `sheddable`, `sheddable-plus`, `critical` or `critical-plus`"
            )
        })
    }
}

/// The units of a policy that requests of a [`Criticality`] leave unused. See
/// [`Policy::headroom`](crate::Policy::headroom).
///
/// `Display` and `FromStr` write and read `60` and `20%`.
///
/// # Example
///
/// ```
/// use tower_ratelimit::policy::Headroom;
///
/// let fifth: Headroom = "20%".parse()?;
/// assert_eq!(fifth, Headroom::Percent(20));
/// assert_eq!(Headroom::Units(60).to_string(), "60");
/// # Ok::<(), tower_ratelimit::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Headroom {
    /// This number of units, regardless of the quota: if the quota is lowered, the less critical requests lose first.
    Units(u64),
    /// A part of the policy's [capacity](crate::Policy::capacity), from 0 to 100 percent, rounded up: if the quota is lowered,
    /// all lose in proportion.
    Percent(u8),
}

impl Headroom {
    /// The units under a policy with this capacity, which is at most 2^50.
    pub(super) fn of(self, capacity: u64) -> u64 {
        match self {
            Self::Units(units) => units,
            Self::Percent(percent) => (capacity * u64::from(percent)).div_ceil(100),
        }
    }

    /// What one of `instances` keeps if each has a share of the quota.
    pub(super) fn share_of(self, instances: u32) -> Self {
        match self {
            Self::Units(units) => Self::Units(units.div_ceil(instances.into())),
            percent @ Self::Percent(_) => percent,
        }
    }
}

impl fmt::Display for Headroom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Units(units) => write!(f, "{units}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl FromStr for Headroom {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let number = text.trim();
        let percent = number.strip_suffix('%').map(|percent| percent.trim_end().parse().map(Self::Percent));
        let headroom = percent.unwrap_or_else(|| number.parse().map(Self::Units));
        headroom.map_err(|_| {
            invalid!("invalid headroom `{text}`: write units such as `60`, or a part such as `20%`")
        })
    }
}

#[cfg(feature = "serde")]
crate::base::from_text! {
    Criticality => "\"sheddable\", \"sheddable-plus\", \"critical\" or \"critical-plus\""
}
#[cfg(feature = "serde")]
crate::base::to_text!(Criticality);
#[cfg(feature = "serde")]
crate::base::from_text_or_number! { Headroom => "units such as 60, or a part such as \"20%\"" }
#[cfg(feature = "serde")]
crate::base::to_text!(Headroom);
