//! [`Rule`]: a policy, and where its keys and costs are in a line.

use std::str::FromStr;

use tower_ratelimit::Policy;

use crate::{
    formats::{Format, Line},
    keys::KeySpec,
    request::RuleCharge,
};

/// A policy, and where its keys and costs are in a line.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    pub(crate) policy: Policy,
    key: KeySpec,
    /// The key as it was given, for reports.
    pub(crate) key_text: String,
    cost: Cost,
}

/// What a request costs.
#[derive(Clone, Debug)]
pub(crate) enum Cost {
    /// One unit, or the cost of the JSON line.
    Default,
    Units(u64),
    /// The number in this field.
    Field(String),
    /// One unit, and at the end the bytes of the response.
    Bytes,
}

/// Why a line charges nothing.
pub(crate) enum Uncharged {
    /// The policy at this place has no key.
    Unidentified(usize),
    Invalid(String),
}

impl Rule {
    /// Whether the bytes of the response are charged at the end.
    pub(crate) const fn charges_bytes(&self) -> bool {
        matches!(self.cost, Cost::Bytes)
    }

    /// The charge of `line` under the rule at `place`. `cost` is the cost that the line states.
    pub(crate) fn charge(
        &self,
        place: usize,
        line: &Line<'_>,
        cost: Option<u64>,
    ) -> Result<RuleCharge, Uncharged> {
        let key = self.key.key(line).ok_or(Uncharged::Unidentified(place))?;
        let cost = match &self.cost {
            Cost::Default => cost.unwrap_or(1),
            Cost::Units(units) => *units,
            Cost::Bytes => 1,
            Cost::Field(name) => {
                let number = line.field(name).and_then(|value| value.parse().ok());
                let invalid = || Uncharged::Invalid(format!("the field `{name}` has no whole number"));
                number.ok_or_else(invalid)?
            }
        };
        Ok(RuleCharge { rule: place, key, cost })
    }
}

/// The rules of `policies`, with the keys and costs that the options give.
pub(crate) fn rules(
    policies: &[Policy],
    keys: &[String],
    costs: &[String],
    format: Format,
) -> Result<Vec<Rule>, String> {
    let default =
        if format == Format::Jsonl { ("key", KeySpec::of_line()) } else { ("address", KeySpec::address()) };
    let rule = |policy: &Policy| Rule {
        policy: policy.clone(),
        key: default.1.clone(),
        key_text: default.0.to_owned(),
        cost: Cost::Default,
    };
    let mut rules: Vec<Rule> = policies.iter().map(rule).collect();
    if rules.is_empty() {
        return Err("the file has no policies".to_owned());
    }
    for option in keys {
        let (meant, text) = meant(&mut rules, option)?;
        let key: KeySpec = text.parse()?;
        if key.needs_fields() && !matches!(format, Format::Alb | Format::Caddy | Format::Jsonl) {
            return Err(format!("the format {} has no named fields for the key `{text}`", format.name()));
        }
        for rule in meant {
            (rule.key, rule.key_text) = (key.clone(), text.to_owned());
        }
    }
    for option in costs {
        let (meant, text) = meant(&mut rules, option)?;
        let cost: Cost = text.parse()?;
        meant.for_each(|rule| rule.cost = cost.clone());
    }
    Ok(rules)
}

/// The rules that an option such as `plan=field:user` is meant for, and its value.
fn meant<'a, 'b>(
    rules: &'a mut [Rule],
    option: &'b str,
) -> Result<(impl Iterator<Item = &'a mut Rule>, &'b str), String> {
    let (name, value) = match option.split_once('=') {
        Some((name, value)) => (Some(name), value),
        None => (None, option),
    };
    if let Some(name) = name.filter(|name| rules.iter().all(|rule| rule.policy.name() != *name)) {
        let known: Vec<String> = rules.iter().map(|rule| format!("`{}`", rule.policy.name())).collect();
        return Err(format!("no policy `{name}`: the policies are {}", known.join(", ")));
    }
    let is_meant = move |rule: &&mut Rule| name.is_none_or(|name| rule.policy.name() == name);
    Ok((rules.iter_mut().filter(is_meant), value))
}

impl FromStr for Cost {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("field:") {
            Some(name) if !name.is_empty() => Ok(Self::Field(name.to_owned())),
            _ if text == "bytes" => Ok(Self::Bytes),
            _ => text
                .parse()
                .map(Self::Units)
                .map_err(|_| format!("invalid cost `{text}`: write a number, `field:NAME` or `bytes`")),
        }
    }
}
