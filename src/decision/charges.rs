use std::{ops::Deref, slice};

use super::Charge;

/// The charges of a decision. A single one, which most decisions have, needs no allocation.
#[derive(Clone, Debug)]
pub(crate) enum Charges {
    One(Charge),
    Many(Vec<Charge>),
}

impl From<&[Charge]> for Charges {
    fn from(charges: &[Charge]) -> Self {
        match charges {
            [charge] => Self::One(charge.clone()),
            charges => Self::Many(charges.to_vec()),
        }
    }
}

impl Deref for Charges {
    type Target = [Charge];

    fn deref(&self) -> &[Charge] {
        match self {
            Self::One(charge) => slice::from_ref(charge),
            Self::Many(charges) => charges,
        }
    }
}
