//! What a token contains, and its bytes before they are sealed.

use std::time::Duration;

use crate::{
    algorithm::{FixedWindow, Receipt},
    base::{Error, ErrorKind, Quota},
    decision::Charge,
    key::Key,
    limiter::units::Units,
    policy::Policy,
    store::Action,
};

/// The most rules of a token, which bounds its length.
const MOST_RULES: usize = 16;
/// The longest name of a unit in bytes.
const LONGEST_UNIT: usize = 64;

/// A reservation as another process gets it.
#[derive(Clone, Debug)]
pub(in crate::limiter) struct Token {
    /// The name of the store on which the estimates are charged.
    pub(in crate::limiter) store: String,
    /// Microseconds from the charge of each estimate until the token expires.
    pub(in crate::limiter) lifetime: u64,
    pub(in crate::limiter) rules: Vec<TokenRule>,
}

/// What one rule has reserved.
#[derive(Clone, Debug)]
pub(in crate::limiter) struct TokenRule {
    /// The policy's [label](Policy::label).
    pub(in crate::limiter) label: String,
    pub(in crate::limiter) key: Key,
    pub(in crate::limiter) unit: Option<String>,
    /// The units that are charged in total.
    pub(in crate::limiter) charged: u64,
    /// What can be refunded: the estimate, and then what was charged in addition.
    pub(in crate::limiter) refundable: Vec<Refundable>,
}

/// A charge that can be refunded.
#[derive(Clone, Copy, Debug)]
pub(in crate::limiter) struct Refundable {
    pub(in crate::limiter) units: u64,
    pub(in crate::limiter) receipt: Receipt,
}

impl Token {
    /// The bytes of the token.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](ErrorKind::InvalidConfig) if it has too many rules, or too long names.
    pub(super) fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        ensure!(self.rules.len() <= MOST_RULES, "a token has at most 16 rules: settle this reservation here");
        let mut bytes = Vec::new();
        push_text(&mut bytes, &self.store)?;
        bytes.extend(self.lifetime.to_le_bytes());
        bytes.push(self.rules.len() as u8);
        for TokenRule { label, key, unit, charged, refundable } in &self.rules {
            let unit = unit.as_deref();
            ensure!(
                unit.is_none_or(|unit| (1..=LONGEST_UNIT).contains(&unit.len())),
                "a unit in a token has 1 to 64 bytes: give it a shorter name"
            );
            for text in [label, key.as_str(), unit.unwrap_or_default()] {
                push_text(&mut bytes, text)?;
            }
            bytes.extend(charged.to_le_bytes());
            bytes.push(refundable.len() as u8);
            for Refundable { units, receipt } in refundable {
                [*units, receipt.made, receipt.mark]
                    .iter()
                    .for_each(|number| bytes.extend(number.to_le_bytes()));
            }
        }
        Ok(bytes)
    }

    /// The token with these bytes, which a secret has sealed. `None` if they are not a token's.
    pub(super) fn of_bytes(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let (store, lifetime) = (text(&mut rest)?, number(&mut rest)?);
        let [count] = take(&mut rest)?;
        let mut rules = Vec::new();
        for _ in 0..count {
            let (label, key, unit) = (text(&mut rest)?, text(&mut rest)?, text(&mut rest)?);
            let key = Key::from_stored(&key).ok()?;
            let unit = Some(unit).filter(|unit| !unit.is_empty());
            let charged = number(&mut rest)?;
            let [count] = take(&mut rest)?;
            let mut refundable = Vec::new();
            for _ in 0..count {
                let (units, made, mark) = (number(&mut rest)?, number(&mut rest)?, number(&mut rest)?);
                refundable.push(Refundable { units, receipt: Receipt { made, mark } });
            }
            rules.push(TokenRule { label, key, unit, charged, refundable });
        }
        rest.is_empty().then_some(Self { store, lifetime, rules })
    }

    /// The number of units for each rule.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](ErrorKind::InvalidConfig), as [`Units::of_rules`].
    pub(super) fn by_rule(&self, units: &Units<'_>) -> Result<Vec<Option<u64>>, Error> {
        let of_rules: Vec<_> = self.rules.iter().map(|rule| rule.unit.as_deref()).collect();
        units.of_rules(&of_rules, ["of the token"; 2])
    }
}

impl TokenRule {
    /// What settles the rule at `units` units under `policy`: a refund or a debit, and the stamp. That is a charge under a
    /// policy of this name, which fits once: see "Settlements of tokens" in lua/README.md. The token has this lifetime.
    ///
    /// # Errors
    ///
    /// [`InvalidToken`](ErrorKind::InvalidToken) if the token does not know when the estimate was charged.
    pub(super) fn settlement(
        &self,
        policy: &Policy,
        units: u64,
        name: &str,
        lifetime: u64,
    ) -> Result<(Action, Vec<Charge>), Error> {
        let Some(estimate) = self.refundable.first() else {
            return Err(Error::new(
                ErrorKind::InvalidToken,
                "the settlement token has a rule without a charge",
            ));
        };
        // The stamp matters as long as its token, and as long again for servers whose clocks differ.
        let window = Quota::try_new(1, Duration::from_micros(lifetime.saturating_mul(2)))?;
        let stamp = Policy::try_new(name, window)?.try_algorithm(FixedWindow::anchored())?;
        let stamp =
            Charge::new(&stamp, &self.key, 1).into_stamp(estimate.receipt.made.saturating_add(lifetime));
        let missing = units.saturating_sub(self.charged);
        if missing > 0 {
            return Ok((Action::Debit, vec![Charge::new(policy.debits(), &self.key, missing), stamp]));
        }
        let mut surplus = self.charged - units;
        let mut charges = Vec::new();
        // The latest units are refunded first, and the estimate last: it shows what remains.
        for (place, Refundable { units, receipt }) in self.refundable.iter().enumerate().rev() {
            let refunded = surplus.min(*units);
            surplus -= refunded;
            if refunded > 0 || place == 0 {
                charges.push(Charge::made(policy, &self.key, refunded, *receipt));
            }
        }
        charges.push(stamp);
        Ok((Action::Refund, charges))
    }
}

fn push_text(bytes: &mut Vec<u8>, text: &str) -> Result<(), Error> {
    let Ok(length) = u16::try_from(text.len()) else {
        return Err(Error::invalid("a name is too long for a token"));
    };
    bytes.extend(length.to_le_bytes());
    bytes.extend(text.as_bytes());
    Ok(())
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (first, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*first)
}

fn number(rest: &mut &[u8]) -> Option<u64> {
    take(rest).map(u64::from_le_bytes)
}

fn text(rest: &mut &[u8]) -> Option<String> {
    let length = u16::from_le_bytes(take(rest)?);
    let (text, after) = rest.split_at_checked(length.into())?;
    *rest = after;
    str::from_utf8(text).ok().map(str::to_owned)
}
