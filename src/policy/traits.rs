/// What is special about a policy. Nearly every one is plain: it has [none](Self::NONE) of these, and its charges take the
/// [short way](crate::decision::Charge::is_plain).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Traits(u8);

impl Traits {
    pub(super) const NONE: Self = Self(0);
    /// Units of hot keys are leased.
    pub(crate) const LEASE: Self = Self(1);
    /// Units are in use until they are released.
    pub(crate) const PERMITS: Self = Self(1 << 1);
    /// Debits may charge more than remains.
    pub(crate) const DEBT: Self = Self(1 << 2);
    /// Keys can be banned.
    pub(crate) const PENALTY: Self = Self(1 << 3);
    /// The policy is a shadow for some keys or for all.
    pub(crate) const ROLLOUT: Self = Self(1 << 4);
    pub(crate) const ALL: Self = Self((1 << 5) - 1);

    /// The `traits` that apply.
    pub(super) fn of(traits: impl IntoIterator<Item = (bool, Self)>) -> Self {
        traits.into_iter().filter(|(is_so, _)| *is_so).fold(Self::NONE, |all, (_, one)| all.or(one))
    }

    /// Both sets.
    pub(crate) const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether the sets have a trait in common.
    pub(crate) const fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}
