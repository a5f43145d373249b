//! The Rust twin of a custom algorithm's Lua file, for [`MemoryStore`](crate::MemoryStore).

/// A custom algorithm in Rust: the twin of its Lua file, with the same arguments, state and arithmetic.
///
/// [`MemoryStore`](crate::MemoryStore) needs it. Implement it for the type of your
/// [`Algorithm`](super::Algorithm), and return `Some(self)` from [`Algorithm::twin`](super::Algorithm::twin),
/// where there is an example. Then compare the twins with `TwinTest` of the crate `tower-ratelimit-extra`.
///
/// The functions are pure: they return what would happen and the new state, and change nothing. They may be
/// called more than once for one decision.
///
/// All times are microseconds, and all numbers must be below 2^53, as in the Lua file.
///
/// # Errors
///
/// The store checks what the functions return, as it does for the Lua file. A mistake, such as an admitted
/// cost without a new state, is a [`StoreFailed`](crate::ErrorKind::StoreFailed) error of the decision, which
/// then changes nothing. A layer is not built if the twin makes a mistake on a new key.
///
/// A decision calls [`decide`](Self::decide) for all policies before it changes a state, and once more for each that it
/// charges. A panic in that second call, and a panic or a mistake in a refund, leaves the changes of the policies before.
///
/// # Example
///
/// ```
/// use tower_ratelimit::algorithm::{Evaluation, Input, KeyState, Receipt, Twin, Update};
///
/// /// Windows that start with a key's first charge. The arguments are the limit and the period.
/// struct PerWindow;
///
/// impl Twin for PerWindow {
///     fn decide(&self, input: &Input<'_>, cost: u64) -> Evaluation {
///         let &[limit, period] = input.arguments else { unreachable!("there are two arguments") };
///         let fresh = KeyState::new(input.now, 0);
///         let window = input.state.filter(|window| input.now < window.time + period).unwrap_or(&fresh);
///         let (remaining, reset) = (limit.saturating_sub(window.count), window.time + period - input.now);
///         if cost > remaining {
///             return Evaluation::deny((cost <= limit).then_some(reset), remaining, reset);
///         }
///         let charged = KeyState::new(window.time, window.count + cost);
///         // The mark identifies the window for a refund.
///         Evaluation::admit(remaining - cost, reset).mark(window.time).write(charged, reset)
///     }
///
///     fn refund(&self, input: &Input<'_>, units: u64, receipt: Option<Receipt>) -> Option<Update> {
///         let window = input.state.filter(|window| input.now < window.time + input.arguments[1])?;
///         let is_charged = receipt.is_none_or(|receipt| receipt.mark == window.time);
///         is_charged.then(|| Update::Keep(KeyState::new(window.time, window.count.saturating_sub(units))))
///     }
/// }
///
/// let two = KeyState::new(100, 2);
/// let at = |now, state| Input::new(&[3, 60], now, state);
/// assert_eq!(PerWindow.decide(&at(100, None), 2), Evaluation::admit(1, 60).mark(100).write(two.clone(), 60));
/// assert_eq!(PerWindow.decide(&at(110, Some(&two)), 2), Evaluation::deny(Some(50), 1, 50));
/// assert_eq!(PerWindow.decide(&at(110, Some(&two)), 4), Evaluation::deny(None, 1, 50));
///
/// let receipt = Receipt::new(100, 100);
/// let one = Update::Keep(KeyState::new(100, 1));
/// assert_eq!(PerWindow.refund(&at(110, Some(&two)), 1, Some(receipt)), Some(one));
/// assert_eq!(PerWindow.refund(&at(160, Some(&two)), 1, Some(receipt)), None);
/// ```
pub trait Twin: Send + Sync {
    /// Evaluates `cost`, which is at most one above the [capacity](super::Algorithm::capacity). Must admit a
    /// cost of 0.
    fn decide(&self, input: &Input<'_>, cost: u64) -> Evaluation;

    /// Refunds up to `units` units of the charge that `receipt` identifies: as many as still count, and none
    /// that another charge owns. Without a receipt, an operator refunds the latest units of any charge.
    /// Returns `None` if nothing changes. Defaults to that.
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
///
/// # Example
///
/// ```
/// use tower_ratelimit::algorithm::{Input, KeyState};
///
/// /// The units that count in a window of `period`.
/// fn used(input: &Input<'_>, period: u64) -> u64 {
///     input.state.filter(|window| input.now < window.time + period).map_or(0, |window| window.count)
/// }
///
/// let state = KeyState::new(100, 2);
/// let input = Input::new(&[], 130, Some(&state));
/// assert_eq!((used(&input, 60), used(&input, 30)), (2, 0));
/// assert_eq!(used(&Input::new(&[], 130, None), 60), 0);
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
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

impl<'a> Input<'a> {
    /// An input without a holder, as for a test of a twin.
    #[must_use]
    pub const fn new(arguments: &'a [u64], now: u64, state: Option<&'a KeyState>) -> Self {
        Self { arguments, now, state, holder: None }
    }
}

/// The state of a key: a time, a count, and more if the algorithm needs it.
///
/// # Example
///
/// ```
/// use tower_ratelimit::algorithm::KeyState;
///
/// // Two units since the start of 2026, and a text.
/// let mut state = KeyState::new(1_767_225_600_000_000, 2);
/// state.text = Some(String::from("b"));
/// assert_eq!((state.time, state.count), (1_767_225_600_000_000, 2));
/// assert_eq!(KeyState::new(0, 0), KeyState::default());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
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
///
/// # Example
///
/// ```
/// use tower_ratelimit::algorithm::{Evaluation, KeyState};
///
/// // Admitted after half a second. The new state matters for a minute.
/// let admitted = Evaluation::admit(4, 60_000_000).delay(500_000).mark(7).write(KeyState::new(7, 1), 60_000_000);
/// assert_ne!(admitted, Evaluation::admit(4, 60_000_000));
///
/// // Denied: one unit can be charged in a second, and the quota is full again in ten. Only an admission has a delay.
/// let denied = Evaluation::deny(Some(1_000_000), 0, 10_000_000);
/// assert_eq!(denied.clone().delay(500_000), denied);
/// ```
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
    /// Admits the cost. After the charge, `remaining` units can be charged, and the quota is fully
    /// replenished in `reset`. A cost above 0 also needs [`write`](Self::write).
    pub const fn admit(remaining: u64, reset: u64) -> Self {
        Self::new(Admission::After(0), remaining, reset)
    }

    /// Denies the cost. It can be admitted after `retry`, at least 1, at the earliest; `None` for never.
    /// `remaining` units can be charged now, and the quota is fully replenished in `reset`.
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

    /// Sets the new state, which matters for `lifetime`, at least 1. Defaults to the state as it is. The
    /// state of a denial may only replace one that the clock or a changed quota made stale.
    pub fn write(mut self, state: KeyState, lifetime: u64) -> Self {
        self.written = Some((state, lifetime));
        self
    }
}

/// The new state of a key after a [refund](Twin::refund) or a [renewal](Twin::renew).
///
/// # Example
///
/// ```
/// use tower_ratelimit::algorithm::{KeyState, Update};
///
/// /// A key without units needs no state.
/// fn refunded(state: &KeyState, units: u64) -> Update {
///     match state.count.saturating_sub(units) {
///         0 => Update::Remove,
///         count => Update::Keep(KeyState::new(state.time, count)),
///     }
/// }
///
/// assert_eq!(refunded(&KeyState::new(100, 3), 1), Update::Keep(KeyState::new(100, 2)));
/// assert_eq!(refunded(&KeyState::new(100, 3), 3), Update::Remove);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
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
///
/// # Example
///
/// ```
/// use tower_ratelimit::algorithm::{KeyState, Receipt};
///
/// /// Whether a charge, whose mark is the start of its window, is in the window that counts now.
/// fn still_counts(receipt: Receipt, window: &KeyState) -> bool {
///     receipt.mark == window.time
/// }
///
/// let charged = Receipt::new(130, 100);
/// assert!(still_counts(charged, &KeyState::new(100, 2)));
/// assert!(!still_counts(charged, &KeyState::new(160, 2)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Receipt {
    /// When it was made, in microseconds of the store's clock.
    pub made: u64,
    /// What else the algorithm needs to find the charge: its [mark](Evaluation::mark).
    pub mark: u64,
}

impl Receipt {
    /// The receipt of a charge with this time and mark, as for a test of a twin.
    #[must_use]
    pub const fn new(made: u64, mark: u64) -> Self {
        Self { made, mark }
    }
}
