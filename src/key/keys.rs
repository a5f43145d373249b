use super::Key;
use crate::base::Answer;

/// The keys of one request, in the order of their rules.
#[derive(Debug)]
pub(crate) enum Keys {
    /// Nearly every layer has one rule, which needs no list.
    One(Key),
    Several(Vec<Key>),
}

impl Keys {
    /// The keys of `answers`. The extractors after one that fails are not run. Those after one that is pending
    /// are run immediately, because the request is not there later, and awaited one after the other.
    pub(crate) fn of(mut answers: impl ExactSizeIterator<Item = Answer<Key>>) -> Answer<Self> {
        if answers.len() == 1
            && let Some(answer) = answers.next()
        {
            return answer.then(|key| Ok(Self::One(key?)));
        }
        Answer::all(answers.map(|key| key.map(Some))).map(Self::Several)
    }

    pub(crate) fn into_vec(self) -> Vec<Key> {
        match self {
            Self::One(key) => vec![key],
            Self::Several(keys) => keys,
        }
    }
}
