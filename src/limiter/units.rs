//! [`Units`]: how many units are charged, of one unit or of several.

use crate::base::Error;

/// How many units are charged: a number, or one for each [unit](crate::Rule::unit) of several rules.
/// [`Reservation`](crate::Reservation) and `Limiter::settle_token` take what converts into it: a number, an array or a `Vec`
/// of pairs, or pairs that are collected.
///
/// A number is for rules that all have the same unit, or none. Units without a number stay as they are.
///
/// # Example
///
/// ```
/// use tower_ratelimit::Units;
///
/// let tokens = Units::from(150);
/// let both = Units::from([("tokens", 150), ("micro-dollars", 2_250)]);
/// let known: Units<'_> = [("tokens", Some(150)), ("micro-dollars", None)]
///     .into_iter()
///     .filter_map(|(unit, number)| Some((unit, number?)))
///     .collect();
/// assert_eq!(known, Units::from([("tokens", 150)]));
/// # drop((tokens, both));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Units<'a>(Numbers<'a>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Numbers<'a> {
    One(u64),
    Each(Vec<(&'a str, u64)>),
}

impl From<u64> for Units<'_> {
    fn from(units: u64) -> Self {
        Self(Numbers::One(units))
    }
}

impl<'a, const N: usize> From<[(&'a str, u64); N]> for Units<'a> {
    fn from(units: [(&'a str, u64); N]) -> Self {
        Self(Numbers::Each(units.into()))
    }
}

impl<'a> From<Vec<(&'a str, u64)>> for Units<'a> {
    fn from(units: Vec<(&'a str, u64)>) -> Self {
        Self(Numbers::Each(units))
    }
}

impl<'a> FromIterator<(&'a str, u64)> for Units<'a> {
    fn from_iter<I: IntoIterator<Item = (&'a str, u64)>>(units: I) -> Self {
        Self(Numbers::Each(units.into_iter().collect()))
    }
}

impl Units<'_> {
    /// The number for each of `rules`, which are these units. `whose` completes "the rules ... have" and "no rule ... has".
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig): it is one number and the rules have several units, or no rule
    /// has one of the units.
    pub(super) fn of_rules(
        &self,
        rules: &[Option<&str>],
        [whose, whose_one]: [&str; 2],
    ) -> Result<Vec<Option<u64>>, Error> {
        let each = match &self.0 {
            Numbers::One(units) if rules.iter().all(|unit| *unit == rules[0]) => {
                return Ok(vec![Some(*units); rules.len()]);
            }
            Numbers::One(_) => {
                return Err(invalid!(
                    "the rules {whose} have several units ({}): give each its number, such as `[(\"tokens\", 5)]`, and its \
                     name with `Rule::unit`",
                    names(rules)
                ));
            }
            Numbers::Each(each) => each,
        };
        let mut numbers = vec![None; rules.len()];
        for (unit, number) in each {
            let mut is_known = rules.is_empty();
            for (rule, of_rule) in rules.iter().zip(&mut numbers) {
                if *rule == Some(*unit) {
                    (*of_rule, is_known) = (Some(*number), true);
                }
            }
            if !is_known {
                let names = names(rules);
                return Err(invalid!(
                    "no rule {whose_one} has the unit `{unit}`, only {names}: set it with `Rule::unit`"
                ));
            }
        }
        Ok(numbers)
    }
}

/// The units, for an error.
fn names(rules: &[Option<&str>]) -> String {
    let names = rules.iter().map(|unit| unit.map_or_else(|| "none".into(), |unit| format!("`{unit}`")));
    names.collect::<Vec<_>>().join(", ")
}
