use std::ops::{Deref, DerefMut};

use super::Charge;

/// The charges of a decision. A single one, which most decisions have, needs no allocation.
#[derive(Clone, Debug)]
pub(crate) enum Charges {
    One([Charge; 1]),
    Many(Vec<Charge>),
}

impl From<Charge> for Charges {
    fn from(charge: Charge) -> Self {
        Self::One([charge])
    }
}

impl From<Vec<Charge>> for Charges {
    fn from(charges: Vec<Charge>) -> Self {
        Self::Many(charges)
    }
}

impl From<&[Charge]> for Charges {
    fn from(charges: &[Charge]) -> Self {
        match charges {
            [charge] => charge.clone().into(),
            charges => charges.to_vec().into(),
        }
    }
}

impl Deref for Charges {
    type Target = [Charge];

    fn deref(&self) -> &[Charge] {
        match self {
            Self::One(charge) => charge,
            Self::Many(charges) => charges,
        }
    }
}

impl DerefMut for Charges {
    fn deref_mut(&mut self) -> &mut [Charge] {
        match self {
            Self::One(charge) => charge,
            Self::Many(charges) => charges,
        }
    }
}
