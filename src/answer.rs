use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use crate::error::Error;

/// What a store or a key extractor says: there already, or on its way. A future of a `Result`.
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
#[must_use = "an answer says nothing until it is awaited"]
pub struct Answer<T>(Inner<T>);

enum Inner<T> {
    /// Taken when polled.
    Ready(Option<Result<T, Error>>),
    Pending(Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>),
}

impl<T> Answer<T> {
    /// An answer that is there already.
    pub const fn ready(result: Result<T, Error>) -> Self {
        Self(Inner::Ready(Some(result)))
    }

    pub(crate) const fn is_ready(&self) -> bool {
        matches!(self.0, Inner::Ready(_))
    }

    /// The result, where it is there already.
    pub(crate) fn now(self) -> Result<Result<T, Error>, Self> {
        match self.0 {
            Inner::Ready(Some(result)) => Ok(result),
            other => Err(Self(other)),
        }
    }

    /// What `change` makes of the result, now or when it is there.
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

    /// The answer that `future` gives.
    pub fn pending(future: impl Future<Output = Result<T, Error>> + Send + 'static) -> Self {
        Self::from_boxed(Box::pin(future))
    }

    pub(crate) fn from_boxed(future: Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>) -> Self {
        Self(Inner::Pending(future))
    }
}

impl<T> From<Result<T, Error>> for Answer<T> {
    fn from(result: Result<T, Error>) -> Self {
        Self::ready(result)
    }
}

// Nothing in it is pinned but the box's content.
impl<T> Unpin for Answer<T> {}

impl<T> Future for Answer<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Inner::Ready(result) => match result.take() {
                Some(result) => Poll::Ready(result),
                None => panic!("Answer polled after completion"),
            },
            Inner::Pending(future) => future.as_mut().poll(cx),
        }
    }
}

impl<T> fmt::Debug for Answer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").finish_non_exhaustive()
    }
}
