//! The answers of several instances, which become one.

use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

use crate::{
    printed::{Printed, push_line, text},
    routers::Answered,
};

/// The answers of instances with their names, and the instances that have not answered.
pub(crate) struct Merged<T> {
    pub(crate) answers: Vec<(String, T)>,
    unanswered: Vec<(String, String)>,
}

/// An entry that all of `instances` have.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Shared<T> {
    #[serde(flatten)]
    pub(crate) entry: T,
    pub(crate) instances: Vec<String>,
}

/// An entry of one instance.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Own<T> {
    #[serde(flatten)]
    pub(crate) entry: T,
    pub(crate) instance: String,
}

impl<T: DeserializeOwned> Merged<T> {
    pub(crate) fn new(answered: Vec<Answered>) -> Self {
        let (mut answers, mut unanswered) = (Vec::new(), Vec::new());
        for (instance, answer) in answered {
            let read = |answer| {
                serde_json::from_value(answer).map_err(|error| {
                    format!(
                        "the answer is of another version of the router for operators, or not of one: {error}"
                    )
                })
            };
            match answer.and_then(read) {
                Ok(answer) => answers.push((instance, answer)),
                Err(error) => unanswered.push((instance, error)),
            }
        }
        Self { answers, unanswered }
    }
}

impl<T> Merged<T> {
    pub(crate) fn map<U>(self, map: impl Fn(T) -> U) -> Merged<U> {
        let answers = self.answers.into_iter().map(|(instance, answer)| (instance, map(answer)));
        Merged { answers: answers.collect(), unanswered: self.unanswered }
    }

    /// Prints `json` or `text`, and which instances have not answered.
    pub(crate) fn printed(self, as_json: bool, json: Value, text_of: String) -> Printed {
        let mut json = match json {
            Value::Object(members) => members,
            _ => Map::new(),
        };
        let unanswered: Vec<Value> = self
            .unanswered
            .iter()
            .map(|(instance, error)| json!({"instance": instance, "error": error}))
            .collect();
        json.insert("unanswered".to_owned(), json!(unanswered));
        let mut complaints = String::new();
        for (instance, error) in &self.unanswered {
            push_line(&mut complaints, &format!("error: {instance}: {error}"));
        }
        let shown = match (as_json, self.answers.is_empty()) {
            (true, _) => text(&json),
            // Nothing is known.
            (false, true) => String::new(),
            (false, false) => text_of,
        };
        Printed { text: shown, complaints, is_failed: !self.unanswered.is_empty() }
    }

    /// The instances, or "all" if several have answered, and each of them is there.
    pub(crate) fn names(&self, instances: &[String]) -> String {
        if instances.len() == self.answers.len() && instances.len() > 1 {
            "all".to_owned()
        } else {
            instances.join(", ")
        }
    }

    /// The entries of the lists of all answers, each with its instance.
    pub(crate) fn own<E: Clone>(&self, list: impl Fn(&T) -> &[E]) -> Vec<Own<E>> {
        let of = |(instance, answer): &(String, T)| {
            let with = |entry: &E| Own { entry: entry.clone(), instance: instance.clone() };
            list(answer).iter().map(with).collect::<Vec<_>>()
        };
        self.answers.iter().flat_map(of).collect()
    }

    /// The entries of the lists of all answers, each with the instances whose entries `agree`.
    pub(crate) fn shared<E: Clone>(
        &self,
        list: impl Fn(&T) -> &[E],
        agree: impl Fn(&E, &E) -> bool,
    ) -> Vec<Shared<E>> {
        let mut all: Vec<Shared<E>> = Vec::new();
        for (instance, answer) in &self.answers {
            for entry in list(answer) {
                match all.iter_mut().find(|other| agree(&other.entry, entry)) {
                    Some(other) => other.instances.push(instance.clone()),
                    None => all.push(Shared { entry: entry.clone(), instances: vec![instance.clone()] }),
                }
            }
        }
        all
    }

    /// The answers by the names of the instances.
    pub(crate) fn by_instance(&self) -> Map<String, Value>
    where
        T: Serialize,
    {
        self.answers.iter().map(|(instance, answer)| (instance.clone(), json!(answer))).collect()
    }
}
