//! A result that is ready now or comes later.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};
#[cfg(feature = "redis")]
use std::{mem, sync::Arc};

use futures_util::future::{FutureExt as _, join_all};

use super::error::Error;

/// A future of a `Result` that may be ready already. Stores, limiters and key extractors return it.
///
/// A ready answer needs no allocation and no task switch.
///
/// # Example
///
/// ```
/// use tower_ratelimit::{Answer, Error, ErrorKind};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// assert_eq!(Answer::ready(Ok(7)).await.unwrap(), 7);
/// let late: Answer<u8> = Answer::pending(async { Err(Error::new(ErrorKind::StoreTimeout, "too late")) });
/// assert!(late.await.is_err());
/// # }
/// ```
#[must_use = "an answer does nothing until it is awaited"]
pub struct Answer<T>(AnswerState<T>);

enum AnswerState<T> {
    /// `None` after the answer was polled.
    Ready(Option<Result<T, Error>>),
    Pending(Later<T>),
    /// The shared result, and whether it was begun.
    #[cfg(feature = "redis")]
    Shared(Arc<dyn SharedResult<T>>, bool),
}

/// A value, or what it comes from later.
pub(crate) enum Now<T, P> {
    Ready(T),
    Later(P),
}

type Later<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

/// A result that an answer shares with its producer, so that the answer needs no allocation.
#[cfg(feature = "redis")]
pub(crate) trait SharedResult<T>: Send + Sync {
    /// Called when the answer is first polled. Returns a future that the answer polls instead, if it must do
    /// more than wait.
    fn begin(self: Arc<Self>) -> Option<Later<T>>;

    /// Called after that, until it is ready.
    fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<T, Error>>;
}

impl<T> Answer<T> {
    /// An answer that is ready with `result`.
    pub const fn ready(result: Result<T, Error>) -> Self {
        Self(AnswerState::Ready(Some(result)))
    }

    /// An answer with the result of `future`.
    pub fn pending(future: impl Future<Output = Result<T, Error>> + Send + 'static) -> Self {
        Self(AnswerState::Pending(Box::pin(future)))
    }

    /// An answer with a shared result.
    #[cfg(feature = "redis")]
    pub(crate) const fn shared(result: Arc<dyn SharedResult<T>>) -> Self {
        Self(AnswerState::Shared(result, false))
    }

    pub(crate) const fn is_ready(&self) -> bool {
        matches!(self.0, AnswerState::Ready(_))
    }

    /// The result if it is ready; otherwise the answer itself.
    #[inline]
    pub(crate) fn now(self) -> Now<Result<T, Error>, Self> {
        match self.0 {
            AnswerState::Ready(Some(result)) => Now::Ready(result),
            state => Now::Later(Self(state)),
        }
    }

    /// The result, if it is ready. This polls nothing.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Answer, Key, KeyExtractor, PeerIp};
    ///
    /// assert!(PeerIp::new().keys_of(&Key::new("192.0.2.1")).if_ready().is_some_and(Result::is_ok));
    /// assert!(Answer::pending(async { Ok(7) }).if_ready().is_none());
    /// ```
    #[must_use]
    pub const fn if_ready(&self) -> Option<&Result<T, Error>> {
        match &self.0 {
            AnswerState::Ready(Some(result)) => Some(result),
            _ => None,
        }
    }

    /// Changes the value with `change`, now or when it is ready. An answer that is ready stays ready.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::Answer;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let doubled = Answer::ready(Ok(7)).map(|n| n * 2);
    /// assert_eq!(doubled.await.unwrap(), 14);
    /// # }
    /// ```
    pub fn map<U>(self, change: impl FnOnce(T) -> U + Send + 'static) -> Answer<U>
    where
        T: Send + 'static,
    {
        self.then(|result| result.map(change))
    }

    /// Changes the value with `change`, which may fail, now or when it is ready. An answer that is ready
    /// stays ready.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Answer, Error, ErrorKind};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let account: Answer<Option<&str>> = Answer::ready(Ok(None));
    /// let known = account
    ///     .and_then(|found| found.ok_or_else(|| Error::new(ErrorKind::UnknownIdentity, "no account has this API key")));
    /// assert_eq!(known.await.unwrap_err().kind(), ErrorKind::UnknownIdentity);
    /// # }
    /// ```
    pub fn and_then<U>(self, change: impl FnOnce(T) -> Result<U, Error> + Send + 'static) -> Answer<U>
    where
        T: Send + 'static,
    {
        self.then(|result| result.and_then(change))
    }

    /// The values of all `answers`, or the first error. All are polled until the end.
    pub(crate) fn all(answers: Vec<Self>) -> Answer<Vec<T>>
    where
        T: Send + 'static,
    {
        if answers.iter().all(Self::is_ready) {
            let ready =
                |answer: Self| if let Now::Ready(result) = answer.now() { Some(result) } else { None };
            return Answer::ready(answers.into_iter().filter_map(ready).collect());
        }
        Answer::pending(join_all(answers).map(|results| results.into_iter().collect()))
    }

    /// Applies `change` to the result, now or when it is ready.
    #[inline]
    pub(crate) fn then<U>(
        self,
        change: impl FnOnce(Result<T, Error>) -> Result<U, Error> + Send + 'static,
    ) -> Answer<U>
    where
        T: Send + 'static,
    {
        match self.now() {
            Now::Ready(result) => Answer::ready(change(result)),
            Now::Later(pending) => Answer::pending(async move { change(pending.await) }),
        }
    }
}

impl<T> From<Result<T, Error>> for Answer<T> {
    fn from(result: Result<T, Error>) -> Self {
        Self::ready(result)
    }
}

/// For closures that match requests.
impl From<bool> for Answer<bool> {
    fn from(value: bool) -> Self {
        Self::ready(Ok(value))
    }
}

// An answer may move, because only the content of the box is pinned.
impl<T> Unpin for Answer<T> {}

impl<T> Future for Answer<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            AnswerState::Ready(result) => match result.take() {
                Some(result) => Poll::Ready(result),
                None => panic!("Answer polled after completion"),
            },
            AnswerState::Pending(future) => future.as_mut().poll(cx),
            #[cfg(feature = "redis")]
            AnswerState::Shared(result, begun) => {
                if !mem::replace(begun, true)
                    && let Some(mut future) = result.clone().begin()
                {
                    let polled = future.as_mut().poll(cx);
                    self.0 = AnswerState::Pending(future);
                    return polled;
                }
                let polled = result.poll(cx);
                if polled.is_ready() {
                    // An answer that is kept keeps nothing of the store.
                    self.0 = AnswerState::Ready(None);
                }
                polled
            }
        }
    }
}

opaque_debug!(Answer<T>);

#[cfg(all(test, feature = "redis"))]
mod tests {
    use std::{
        sync::atomic::{AtomicU8, Ordering},
        task::Waker,
    };

    use super::*;

    /// Is ready when it has been polled twice, or has another future.
    struct Counted {
        begun: AtomicU8,
        polled: AtomicU8,
        later: Option<u8>,
    }

    impl SharedResult<u8> for Counted {
        fn begin(self: Arc<Self>) -> Option<Later<u8>> {
            self.begun.fetch_add(1, Ordering::Relaxed);
            self.later.map(|later| -> Later<u8> { Box::pin(async move { Ok(later) }) })
        }

        fn poll(&self, _: &mut Context<'_>) -> Poll<Result<u8, Error>> {
            if self.polled.fetch_add(1, Ordering::Relaxed) == 0 { Poll::Pending } else { Poll::Ready(Ok(7)) }
        }
    }

    fn polled(later: Option<u8>) -> (Arc<Counted>, Vec<Option<u8>>, Answer<u8>) {
        let counted = Arc::new(Counted { begun: AtomicU8::new(0), polled: AtomicU8::new(0), later });
        let mut answer = Answer::shared(counted.clone());
        let mut results = Vec::new();
        while results.last().is_none_or(Option::is_none) {
            match Pin::new(&mut answer).poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(result) => results.push(result.ok()),
                Poll::Pending => results.push(None),
            }
        }
        (counted, results, answer)
    }

    #[test]
    fn a_shared_answer_begins_once_and_waits_for_its_result_or_for_another_future() {
        let (counted, results, _answer) = polled(None);
        assert_eq!(results, [None, Some(7)]);
        assert_eq!(counted.begun.load(Ordering::Relaxed), 1);
        let (counted, results, _answer) = polled(Some(9));
        assert_eq!(results, [Some(9)]);
        assert_eq!([&counted.begun, &counted.polled].map(|times| times.load(Ordering::Relaxed)), [1, 0]);
    }

    #[test]
    #[should_panic(expected = "Answer polled after completion")]
    fn a_shared_answer_that_is_polled_after_completion_panics() {
        let (_, _, mut answer) = polled(None);
        let _ = Pin::new(&mut answer).poll(&mut Context::from_waker(Waker::noop()));
    }
}
