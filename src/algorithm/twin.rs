//! The Rust twin of a custom algorithm's Lua file, for [`MemoryStore`](crate::MemoryStore).

/// A custom algorithm in Rust: the twin of its Lua file, with the same arguments, state and arithmetic.
///
/// [`MemoryStore`](crate::MemoryStore) needs it. Implement it for the type of your [`Algorithm`](super::Algorithm), and
/// return `Some(self)` from [`Algorithm::twin`](super::Algorithm::twin), where there is an example. Then compare the
/// twins with `TwinTest` of the crate `tower-ratelimit-extra`.
///
/// The functions are pure: they return what would happen and the new state, and change nothing. They may be called more
/// than once for one decision.
///
/// All times are microseconds, and all numbers must be below 2^53, as in the Lua file.
///
/// # Errors
///
/// The store checks what the functions return, as it does for the Lua file. A mistake, such as an admitted cost without
/// a new state, is a [`StoreFailed`](crate::ErrorKind::StoreFailed) error of the decision, which then changes nothing.
/// A layer is not built if the twin makes a mistake on a new key.
pub trait Twin: Send + Sync {
    /// Evaluates `cost`, which is at most one above the [capacity](super::Algorithm::capacity). Must admit a cost of 0.
    fn decide(&self, input: &Input<'_>, cost: u64) -> Evaluation;

    /// Refunds up to `units` units of the charge that `receipt` identifies: as many as still count, and none that
    /// another charge owns. Without a receipt, an operator refunds the latest units of any charge. Returns `None`
    /// if nothing changes. Defaults to that.
    fn refund(&self, input: &Input<'_>, units: u64, receipt: Option<Receipt>) -> Option<Update> {
        let _ = (input, units, receipt);
        None
    }

    /// Renews the `units` units of the holder, and adds them again if the key was lost, for an algorithm with
    /// [`OnRelease`](super::Replenishment::OnRelease). Returns `None` if nothing changes. Defaults to that.
    fn renew(&self, input: &Input<'_>, units: u64) -> Option<Update> {
        let _ = (input, units);
        None
    }
}

/// What every function of a [`Twin`] reads.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// The result of [`Algorithm::arguments`](super::Algorithm::arguments).
    pub arguments: &'a [u64],
    /// The time in microseconds since 1970; the only clock.
    pub now: u64,
    /// The state of the key; `None` for a key that does not exist.
    pub state: Option<&'a KeyState>,
    /// The holder of the units as 32 hexadecimal digits, if they are in use until they are
    /// [released](super::Replenishment::OnRelease).
    pub holder: Option<&'a str>,
}

/// The state of a key: a time, a count, and more if the algorithm needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyState {
    /// A time in microseconds since 1970.
    pub time: u64,
    /// A count.
    pub count: u64,
    /// More state, in a format of the algorithm. An empty text is stored as `None`.
    pub text: Option<String>,
}

impl KeyState {
    /// A state without a text.
    #[must_use]
    pub const fn new(time: u64, count: u64) -> Self {
        Self { time, count, text: None }
    }
}

/// What [`Twin::decide`] returns: the verdict on a cost, and the new state.
///
/// Times are microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "an evaluation does nothing until it is returned"]
pub struct Evaluation {
    pub(super) admission: Admission,
    pub(super) gauge: Gauge,
    pub(super) mark: u64,
    pub(super) written: Option<(KeyState, u64)>,
}

/// Whether a charge is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Admitted. The request must wait this many microseconds; 0 for none.
    After(u64),
    /// Denied. The charge would be admitted in this many microseconds.
    Retry(u64),
    /// Denied, because the cost is above the capacity.
    Never,
}

/// How much of a key's quota is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gauge {
    /// Units that can be charged now.
    pub remaining: u64,
    /// Microseconds until the quota is fully replenished.
    pub reset: u64,
}

impl Admission {
    pub const fn is_admitted(self) -> bool {
        matches!(self, Self::After(_))
    }
}

impl Evaluation {
    /// Admits the cost. After the charge, `remaining` units can be charged, and the quota is fully replenished in
    /// `reset`. A cost above 0 also needs [`write`](Self::write).
    pub const fn admit(remaining: u64, reset: u64) -> Self {
        Self::new(Admission::After(0), remaining, reset)
    }

    /// Denies the cost. It can be admitted after `retry`, at least 1, at the earliest; `None` for never. `remaining`
    /// units can be charged now, and the quota is fully replenished in `reset`.
    pub const fn deny(retry: Option<u64>, remaining: u64, reset: u64) -> Self {
        let admission = match retry {
            Some(retry) => Admission::Retry(retry),
            None => Admission::Never,
        };
        Self::new(admission, remaining, reset)
    }

    const fn new(admission: Admission, remaining: u64, reset: u64) -> Self {
        Self { admission, gauge: Gauge { remaining, reset }, mark: 0, written: None }
    }

    /// Sets how long the admitted request must wait. Defaults to 0.
    pub const fn delay(mut self, delay: u64) -> Self {
        if self.admission.is_admitted() {
            self.admission = Admission::After(delay);
        }
        self
    }

    /// Sets the number that identifies the charge for a refund, together with its time. Defaults to 0.
    pub const fn mark(mut self, mark: u64) -> Self {
        self.mark = mark;
        self
    }

    /// Sets the new state, which matters for `lifetime`, at least 1. Defaults to the state as it is. The state of a
    /// denial may only replace one that the clock or a changed quota made stale.
    pub fn write(mut self, state: KeyState, lifetime: u64) -> Self {
        self.written = Some((state, lifetime));
        self
    }
}

/// The new state of a key after a [refund](Twin::refund) or a [renewal](Twin::renew).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    /// The state matters for `lifetime` more microseconds, at least 1.
    Write {
        /// The new state.
        state: KeyState,
        /// The lifetime.
        lifetime: u64,
    },
    /// The lifetime of the key stays as it is: `KEEP_TTL` in Lua. For a key that exists.
    Keep(KeyState),
    /// The key is removed: `REMOVE` in Lua.
    Remove,
}

/// Identifies a charge for a refund.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// When it was made, in microseconds of the store's clock.
    pub made: u64,
    /// What else the algorithm needs to find the charge: its [mark](Evaluation::mark).
    pub mark: u64,
}
