//! Counts what is under way, and waits until it has ended.

use tokio::sync::watch;

/// Counts its guards, one for each call or task under way. Clones count the same ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnderWay(watch::Sender<()>);

/// Counts as under way until it and its clones are dropped.
#[derive(Clone, Debug)]
pub(crate) struct Guard(#[expect(dead_code, reason = "only dropped")] watch::Receiver<()>);

impl UnderWay {
    pub(crate) fn begin(&self) -> Guard {
        Guard(self.0.subscribe())
    }

    pub(crate) fn count(&self) -> usize {
        self.0.receiver_count()
    }

    /// Ends when nothing is under way.
    pub(crate) async fn ended(&self) {
        self.0.closed().await;
    }
}
