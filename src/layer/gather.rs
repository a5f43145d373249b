//! What the rules of a request answer, each of which may fail or be known later.

use std::{
    future::{Future as _, poll_fn},
    iter,
    pin::Pin,
    task::Poll,
};

use crate::base::{Answer, Error};

/// The values of the rules that have one.
pub(super) struct Gathered<T> {
    /// In the order of their rules.
    pub(super) values: Vec<T>,
    /// Why another rule cannot identify the client, which is the client's fault. The first one.
    pub(super) unidentified: Option<Box<Error>>,
}

/// Answers of which at least one is pending.
pub(super) struct Pending<T> {
    /// The values before the first pending answer.
    first: Gathered<T>,
    /// The first pending answer and all after it.
    rest: Vec<Answer<Option<T>>>,
}

/// The values of `answers`, or the first error of the server. Answers after that are not started.
pub(super) fn gather<T>(
    mut answers: impl Iterator<Item = Answer<Option<T>>>,
) -> Result<Result<Gathered<T>, Error>, Pending<T>> {
    // Nearly all answers are values.
    let most = answers.size_hint().1.unwrap_or_default();
    let mut gathered = Gathered { values: Vec::with_capacity(most), unidentified: None };
    while let Some(answer) = answers.next() {
        match answer.now() {
            Ok(result) => {
                if let Err(error) = gathered.add(result) {
                    return Ok(Err(error));
                }
            }
            Err(pending) => {
                // All now, because the request is not there later.
                let rest = iter::once(pending).chain(answers).collect();
                return Err(Pending { first: gathered, rest });
            }
        }
    }
    Ok(Ok(gathered))
}

impl<T> Gathered<T> {
    /// With `earlier` in place of its own error, if there is one.
    pub(super) fn or(self, earlier: Option<Box<Error>>) -> Self {
        Self { unidentified: earlier.or(self.unidentified), ..self }
    }

    fn add(&mut self, result: Result<Option<T>, Error>) -> Result<(), Error> {
        match result {
            Ok(Some(value)) => self.values.push(value),
            Ok(None) => {}
            Err(error) if error.kind().is_clients() => {
                self.unidentified.get_or_insert_with(|| Box::new(error));
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

impl<T: Send + 'static> Pending<T> {
    /// The values that are known.
    pub(super) fn known(&self) -> impl Iterator<Item = &T> {
        let rest = self.rest.iter().filter_map(|answer| answer.peek()?.as_ref().ok()?.as_ref());
        self.first.values.iter().chain(rest)
    }

    /// All values, once they are known. The answers are awaited together.
    pub(super) fn finish(self) -> Answer<Gathered<T>> {
        let Self { first: mut gathered, mut rest } = self;
        Answer::pending(async move {
            let mut results: Vec<_> = rest.iter().map(|_| None).collect();
            poll_fn(|cx| {
                for (answer, result) in rest.iter_mut().zip(&mut results) {
                    if result.is_none()
                        && let Poll::Ready(ready) = Pin::new(answer).poll(cx)
                    {
                        *result = Some(ready);
                    }
                }
                if results.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            results.into_iter().flatten().try_for_each(|result| gathered.add(result))?;
            Ok(gathered)
        })
    }
}
