//! Reservations that another process settles: their text, the secret that seals it, and the settlement.

mod form;
mod secret;
mod settle;

pub(super) use self::{
    form::{Refundable, Token, TokenRule},
    settle::settle,
};
pub use self::{
    secret::SettlementSecret,
    settle::{SettledRule, Settlement},
};
