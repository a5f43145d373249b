//! A result that is ready now or comes later.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

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
pub struct Answer<T>(State<T>);

enum State<T> {
    /// `None` after the answer was polled.
    Ready(Option<Result<T, Error>>),
    Pending(Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>),
}

impl<T> Answer<T> {
    /// An answer that is ready with `result`.
    pub const fn ready(result: Result<T, Error>) -> Self {
        Self(State::Ready(Some(result)))
    }

    /// An answer with the result of `future`.
    pub fn pending(future: impl Future<Output = Result<T, Error>> + Send + 'static) -> Self {
        Self(State::Pending(Box::pin(future)))
    }

    pub(crate) const fn is_ready(&self) -> bool {
        matches!(self.0, State::Ready(_))
    }

    /// The result if it is ready; otherwise the answer itself.
    ///
    /// # Errors
    ///
    /// The answer, if it is not ready.
    #[doc(hidden)]
    #[inline]
    pub fn now(self) -> Result<Result<T, Error>, Self> {
        match self.0 {
            State::Ready(Some(result)) => Ok(result),
            state => Err(Self(state)),
        }
    }

    /// The result if it is ready.
    pub(crate) const fn peek(&self) -> Option<&Result<T, Error>> {
        match &self.0 {
            State::Ready(Some(result)) => Some(result),
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

    /// Changes the value with `change`, which may fail, now or when it is ready. An answer that is ready stays ready.
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
            Ok(result) => Answer::ready(change(result)),
            Err(pending) => Answer::pending(async move { change(pending.await) }),
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

// Only the content of the box is pinned.
impl<T> Unpin for Answer<T> {}

impl<T> Future for Answer<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            State::Ready(result) => match result.take() {
                Some(result) => Poll::Ready(result),
                None => panic!("Answer polled after completion"),
            },
            State::Pending(future) => future.as_mut().poll(cx),
        }
    }
}

impl<T> fmt::Debug for Answer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").finish_non_exhaustive()
    }
}
