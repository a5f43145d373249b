//! Work that outlives its request: calls to the store after it, and permits in use.
//!
//! All of it is in one table, whose due work a task of each involved Tokio runtime does. If a runtime has
//! ended, or is not driven, its work becomes overdue, and a runtime in which a decision is made takes over.

use std::{
    collections::{BTreeSet, HashMap},
    future::{Future, poll_fn},
    mem,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use futures_util::{
    future::{FutureExt as _, Shared},
    stream::{FuturesUnordered, StreamExt as _},
};
use tokio::{
    runtime::{Handle, Id},
    sync::Notify,
    time::{Instant, sleep_until, timeout},
};

use crate::{
    base::{
        Answer, ErrorKind, Guard, Now, UnderWay,
        panics::{answer_of, caught, caught_in},
        sync::lock,
        time::micros,
    },
    decision::{Charge, Decision, Outcome, Permit},
    store::{Action, Store},
};

/// Longer than any connection waits for a reply.
const MAX_REPLY_TIME: Duration = Duration::from_secs(2);
/// The pause before a release that failed is sent again.
const PAUSE: Duration = Duration::from_millis(250);
/// How long work may be overdue before another runtime takes over.
const GRACE: Duration = Duration::from_millis(250);

/// The work of a limiter and its clones.
pub(super) struct Background {
    works: UnderWay,
    table: Mutex<TaskTable>,
    changed: Notify,
    created: Instant,
    /// When work is overdue, in microseconds since `created`. `u64::MAX` without work.
    overdue: AtomicU64,
    /// Whether releases are stranded.
    has_stranded: AtomicBool,
}

/// Exists as long as a clone of the limiter that can make a decision.
pub(super) struct User(pub(super) Arc<Background>);

impl Drop for User {
    fn drop(&mut self) {
        self.0.orphan();
    }
}

#[derive(Default)]
struct TaskTable {
    tasks: HashMap<u64, Task>,
    /// The tasks by the time when something is to be done for them.
    order: BTreeSet<(Instant, u64)>,
    last: u64,
    /// The releases of permits that were dropped outside of a runtime, until their first attempt has ended.
    stranded: Vec<u64>,
    /// The runtimes that do the work.
    runtimes: Vec<Id>,
    /// Whether the last clone of the limiter was dropped, so that no decision follows in which a runtime
    /// takes work over.
    is_orphaned: bool,
}

struct Task {
    due: Instant,
    /// The runtime that last began something for it.
    runtime: Option<Id>,
    job: Duty,
}

/// What is to be done when a task is due.
enum Duty {
    /// Renew a permit, until it becomes a release. A renewal may still reach the store until `late`.
    Renew { renewal: Arc<Renewal>, late: Instant },
    /// Release a permit. A release may be sent twice, because it names the permit.
    Release(Arc<Release>),
    /// Poll a call until it is done.
    Call(Shared<Call>),
}

type Call = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Renewal {
    request: PermitRequest,
    /// The time between two renewals.
    pause: Duration,
}

struct Release {
    request: PermitRequest,
    /// When the permit has expired.
    expires: Instant,
    _work: Work,
}

/// Work that [`drain`](super::Limiter::drain) waits for: it is done when this is dropped.
pub(crate) struct Work {
    background: Arc<Background>,
    _guard: Guard,
}

impl Work {
    /// Waits for `answer` in the background.
    pub(super) fn end_with(self, answer: Answer<Decision>) {
        if let Now::Later(pending) = answer.now() {
            let background = self.background.clone();
            let call = async move {
                // The result is not needed: the failure mode has decided what a failure means.
                drop(pending.await);
                drop(self);
            };
            background.call(Handle::try_current().ok().as_ref(), call.boxed().shared());
        }
    }
}

/// The runtime of the caller; outside a runtime, `otherwise`.
pub(super) fn runtime(otherwise: Option<&Handle>) -> Option<Handle> {
    Handle::try_current().ok().or_else(|| otherwise.cloned())
}

impl Background {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            works: UnderWay::default(),
            table: Mutex::default(),
            changed: Notify::new(),
            created: Instant::now(),
            overdue: AtomicU64::new(u64::MAX),
            has_stranded: AtomicBool::new(false),
        })
    }

    pub(super) fn begin_work(self: &Arc<Self>) -> Work {
        Work { background: self.clone(), _guard: self.works.begin() }
    }

    /// Waits until all [`Work`] is done, with the help of this runtime.
    pub(super) async fn finished(self: &Arc<Self>) {
        if let Ok(runtime) = Handle::try_current() {
            self.take_over(&runtime);
        }
        self.works.ended().await;
    }

    /// The number of [`Work`]s that are not done.
    pub(super) fn unfinished(&self) -> usize {
        self.works.count()
    }

    /// Takes over work that another runtime does not do in time. A decision calls it.
    #[inline]
    pub(super) fn check_overdue(self: &Arc<Self>) {
        if self.overdue.load(Ordering::Relaxed) != u64::MAX {
            self.attend();
        }
    }

    /// Whether permits were dropped outside of a runtime and their releases are not sent. A decision that needs a
    /// permit waits for them with [`stranded_ended`](Self::stranded_ended).
    #[inline]
    pub(super) fn has_stranded(&self) -> bool {
        self.has_stranded.load(Ordering::Relaxed)
    }

    /// Waits until the stranded releases are sent, with the help of this runtime.
    #[cold]
    pub(super) async fn stranded_ended(self: &Arc<Self>) {
        self.check_overdue();
        let ended = async {
            loop {
                let mut changed = pin!(self.changed.notified());
                changed.as_mut().enable();
                if lock(&self.table).stranded.is_empty() {
                    return;
                }
                changed.await;
            }
        };
        // Longer than a store takes to answer.
        let _ = timeout(MAX_REPLY_TIME, ended).await;
    }

    fn attend(self: &Arc<Self>) {
        if micros(self.created.elapsed()) >= self.overdue.load(Ordering::Relaxed)
            && let Ok(runtime) = Handle::try_current()
        {
            let table = &mut *lock(&self.table);
            self.run_on(&runtime, table);
            self.note_overdue(table);
        }
    }

    /// Does what other runtimes have begun, but renewals, on this runtime too.
    fn take_over(self: &Arc<Self>, runtime: &Handle) {
        {
            let table = &mut *lock(&self.table);
            let is_elsewhere = |task: &Task| {
                !matches!(task.job, Duty::Renew { .. })
                    && task.runtime.is_some_and(|other| other != runtime.id())
            };
            table.hurry(is_elsewhere);
            self.run_on(runtime, table);
            self.note_overdue(table);
        }
        self.changed.notify_waiters();
    }

    /// Called when the last clone of the limiter is dropped. The current runtime does the work that is left.
    pub(super) fn orphan(self: &Arc<Self>) {
        let lost = {
            let table = &mut *lock(&self.table);
            table.is_orphaned = true;
            if let Ok(runtime) = Handle::try_current()
                && !table.tasks.is_empty()
            {
                self.run_on(&runtime, table);
            }
            table.lose()
        };
        drop(lost);
    }

    /// Polls `call` on `runtime`, and on another one if this one does not. Without a runtime, the next one in
    /// which a decision is made, or that drains the limiter, polls it.
    pub(super) fn call(self: &Arc<Self>, runtime: Option<&Handle>, call: Shared<Call>) {
        self.add(runtime, Duty::Call(call), Duration::ZERO);
    }

    /// Adds a task that is due after `wait`. Returns its number.
    fn add(self: &Arc<Self>, runtime: Option<&Handle>, job: Duty, wait: Duration) -> u64 {
        let (number, lost) = {
            let table = &mut *lock(&self.table);
            table.last += 1;
            let (number, due) = (table.last, Instant::now() + wait);
            table.tasks.insert(number, Task { due, runtime: None, job });
            table.order.insert((due, number));
            if let Some(runtime) = runtime {
                self.run_on(runtime, table);
            }
            self.note_overdue(table);
            (number, table.lose())
        };
        self.changed.notify_waiters();
        drop(lost);
        number
    }

    fn remove(&self, number: u64) {
        let removed = {
            let table = &mut *lock(&self.table);
            let removed = table.remove(number);
            self.note_overdue(table);
            removed
        };
        self.changed.notify_waiters();
        // Dropped after the lock is released, because the task may be the last owner of a call.
        drop(removed);
    }

    fn postpone(&self, number: u64, wait: Duration) {
        {
            let table = &mut *lock(&self.table);
            table.postpone(number, Instant::now() + wait);
            table.stranded.retain(|stranded| *stranded != number);
            self.note_overdue(table);
        }
        self.changed.notify_waiters();
    }

    fn note_overdue(&self, table: &TaskTable) {
        let is_stranded = !table.stranded.is_empty();
        self.has_stranded.store(is_stranded, Ordering::Relaxed);
        let grace = if table.runtimes.is_empty() || is_stranded { Duration::ZERO } else { GRACE };
        let overdue = table.order.first().map(|(due, _)| micros((*due + grace).duration_since(self.created)));
        self.overdue.store(overdue.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Makes `runtime` do the work that becomes due.
    fn run_on(self: &Arc<Self>, runtime: &Handle, table: &mut TaskTable) {
        let id = runtime.id();
        if !table.runtimes.contains(&id) {
            let running = Worker { background: self.clone(), id };
            // A runtime that has ended drops the task immediately.
            if !runtime.spawn(running.run()).is_finished() {
                table.runtimes.push(id);
            }
        }
    }

    /// The calls that the runtime `id` makes now, and the time when the next task is due. `None` if there is
    /// no task: then the runtime is done.
    fn due(self: &Arc<Self>, id: Id) -> Option<(Vec<Call>, Instant)> {
        let table = &mut *lock(&self.table);
        let (now, mut calls) = (Instant::now(), Vec::new());
        while let Some((due, number)) = table.order.first().copied()
            && due <= now
        {
            let Some(task) = table.tasks.get_mut(&number) else { break };
            let is_first = task.runtime.replace(id) != Some(id);
            let wait = match &mut task.job {
                Duty::Renew { renewal, late } => {
                    *late = now + MAX_REPLY_TIME;
                    calls.push(self.clone().renew(number, renewal.clone()).boxed());
                    renewal.pause
                }
                Duty::Release(release) => {
                    calls.push(self.clone().release(number, release.clone()).boxed());
                    MAX_REPLY_TIME
                }
                Duty::Call(call) => {
                    if is_first {
                        let (background, call) = (self.clone(), call.clone());
                        let done = async move {
                            // A call that panics has ended, too.
                            let _ = caught_in(call).await;
                            background.remove(number);
                        };
                        calls.push(done.boxed());
                    }
                    MAX_REPLY_TIME
                }
            };
            // A task that is not done by then is done again, perhaps by another runtime.
            table.postpone(number, now + wait);
        }
        let next = table.order.first().map(|(due, _)| *due);
        if next.is_none() {
            table.runtimes.retain(|other| *other != id);
        }
        self.note_overdue(table);
        next.map(|next| (calls, next))
    }

    async fn renew(self: Arc<Self>, number: u64, renewal: Arc<Renewal>) {
        let PermitRequest { store, charges, .. } = &renewal.request;
        let renewed = answer_of(|| store.decide(Action::Renew, charges)).await;
        let is_known = {
            let table = &mut *lock(&self.table);
            let now = Instant::now();
            let due = table.tasks.get_mut(&number).map(|task| match (&mut task.job, &renewed) {
                (Duty::Renew { late, .. }, Ok(_)) => {
                    *late = now;
                    task.due
                }
                // The failed renewal may still reach the store. The next renewal is early, because the store
                // may have lost the permit.
                (Duty::Renew { late, .. }, Err(_)) => {
                    *late = now + MAX_REPLY_TIME;
                    now + MAX_REPLY_TIME.min(renewal.pause)
                }
                (_, Ok(_)) => now,
                (_, Err(_)) => now + MAX_REPLY_TIME,
            });
            due.into_iter().for_each(|due| table.postpone(number, due));
            self.note_overdue(table);
            due.is_some()
        };
        self.changed.notify_waiters();
        if !is_known {
            // The runtime was not driven for so long that the permit was released, and this renewal may have
            // added the permit again.
            renewal.request.clone().release_after(MAX_REPLY_TIME, runtime(None).as_ref());
        }
    }

    /// Releases a permit that the task `number` renews: after its renewals, because one that reached the
    /// store after the release would add the permit again.
    fn release_renewed(self: &Arc<Self>, number: u64, request: &PermitRequest, runtime: Option<&Handle>) {
        let wait = {
            let table = lock(&self.table);
            let late = table.tasks.get(&number).and_then(|task| match &task.job {
                Duty::Renew { late, .. } => Some(late.saturating_duration_since(Instant::now())),
                _ => None,
            });
            late.unwrap_or_default()
        };
        // A store in memory releases immediately. A store that panics may do so while a handler unwinds.
        if wait.is_zero()
            && let Some(release) = caught(|| request.release())
            && matches!(release.if_ready(), Some(Ok(_)))
        {
            return self.remove(number);
        }
        let job = request.clone().into_release(wait);
        let dropped = {
            let table = &mut *lock(&self.table);
            let job = table.tasks.get_mut(&number).map(|task| mem::replace(&mut task.job, job));
            table.postpone(number, Instant::now() + wait);
            if job.is_some() && wait.is_zero() && Handle::try_current().is_err() {
                table.stranded.push(number);
            }
            runtime.into_iter().for_each(|runtime| self.run_on(runtime, table));
            self.note_overdue(table);
            (job, table.lose())
        };
        self.changed.notify_waiters();
        // Dropped after the lock is released, because a task may be the last owner of a call.
        drop(dropped);
    }

    /// Sends a release, again while the store fails, until the permit has expired.
    async fn release(self: Arc<Self>, number: u64, release: Arc<Release>) {
        match answer_of(|| release.request.release()).await {
            Err(error) if error.kind() != ErrorKind::InvalidConfig && Instant::now() <= release.expires => {
                self.postpone(number, PAUSE);
            }
            _ => self.remove(number),
        }
    }
}

impl TaskTable {
    /// Makes the tasks for which `is_meant` holds due now.
    fn hurry(&mut self, is_meant: impl Fn(&Task) -> bool) {
        let meant = self.tasks.iter().filter(|(_, task)| is_meant(task)).map(|(number, _)| *number);
        for number in meant.collect::<Vec<_>>() {
            self.postpone(number, Instant::now());
            if let Some(task) = self.tasks.get_mut(&number) {
                // So that what was begun is polled again, even by the same runtime.
                task.runtime = None;
            }
        }
    }

    fn remove(&mut self, number: u64) -> Option<Task> {
        let task = self.tasks.remove(&number)?;
        self.order.remove(&(task.due, number));
        self.stranded.retain(|stranded| *stranded != number);
        Some(task)
    }

    /// Removes the tasks that no runtime will do: without a limiter, the work of runtimes that have ended.
    /// These tasks would keep the store and the store's connections. Permits in use are kept, because the
    /// runtime in which they are dropped releases them.
    fn lose(&mut self) -> Vec<Task> {
        if !self.is_orphaned || !self.runtimes.is_empty() {
            return Vec::new();
        }
        let is_lost = |(_, task): &(&u64, &Task)| !matches!(task.job, Duty::Renew { .. });
        let lost: Vec<u64> = self.tasks.iter().filter(is_lost).map(|(number, _)| *number).collect();
        lost.into_iter().filter_map(|number| self.remove(number)).collect()
    }

    fn postpone(&mut self, number: u64, due: Instant) {
        if let Some(task) = self.tasks.get_mut(&number) {
            self.order.remove(&(task.due, number));
            task.due = due;
            self.order.insert((due, number));
        }
    }
}

/// The work of one runtime, until there is no task. If the runtime ends before, this is dropped.
struct Worker {
    background: Arc<Background>,
    id: Id,
}

impl Worker {
    async fn run(self) {
        let mut calls = FuturesUnordered::new();
        loop {
            let mut changed = pin!(self.background.changed.notified());
            changed.as_mut().enable();
            let Some((due, next)) = self.background.due(self.id) else { return };
            calls.extend(due);
            let mut due = pin!(sleep_until(next));
            poll_fn(|cx| {
                // A panic, of a destructor for example, ends its call, and no other one.
                while let None | Some(Poll::Ready(Some(()))) = caught(|| calls.poll_next_unpin(cx)) {}
                match (changed.as_mut().poll(cx), due.as_mut().poll(cx)) {
                    (Poll::Pending, Poll::Pending) => Poll::Pending,
                    _ => Poll::Ready(()),
                }
            })
            .await;
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // A runtime that has ended drops this in `spawn`, under the lock; it is not in the table then.
        let lost = self.background.table.try_lock().map(|mut table| {
            table.runtimes.retain(|other| *other != self.id);
            // Another runtime begins again what this one has begun.
            table.hurry(|task| task.runtime == Some(self.id));
            self.background.note_overdue(&table);
            table.lose()
        });
        drop(lost);
    }
}

/// The charges of a decision that need permits, once admitted.
#[derive(Clone)]
pub(super) struct PermitRequest {
    store: Arc<dyn Store>,
    charges: Arc<[Charge]>,
    background: Arc<Background>,
}

impl PermitRequest {
    /// The charges that need permits; `None` if none does.
    pub(super) fn of(
        store: &Arc<dyn Store>,
        background: &Arc<Background>,
        charges: &[Charge],
    ) -> Option<Self> {
        let charges: Arc<[Charge]> =
            charges.iter().filter(|charge| charge.cost() > 0 && charge.needs_permit()).cloned().collect();
        let (store, background) = (store.clone(), background.clone());
        (!charges.is_empty()).then_some(Self { store, charges, background })
    }

    /// The permit for the charges that `decision` made, which is renewed until it is released. `None` if it
    /// made none.
    pub(super) fn grant(mut self, decision: &Decision) -> Option<Permit> {
        // A shadow that denies is not charged, and `check_up_to` may have charged fewer units than the cost.
        let made = |charge: &Charge| {
            let is_of = |outcome: &&Outcome| outcome.charge().holder() == charge.holder();
            let outcome = decision.all_outcomes().iter().find(is_of)?;
            (outcome.granted() > 0).then(|| charge.clone().with_cost(outcome.granted()))
        };
        self.charges = self.charges.iter().filter_map(made).collect();
        let pause = self.shortest_period()? / 3;
        let runtime = Handle::try_current().ok();
        let renewal = Arc::new(Renewal { request: self.clone(), pause });
        let job = Duty::Renew { renewal, late: Instant::now() };
        let renewal = self.background.add(runtime.as_ref(), job, pause);
        Some(Arc::new(Granted { request: self, runtime, renewal }))
    }

    /// Releases the permits of a decision that was dropped while it waited for `answer`, or that failed with
    /// it. This waits until the charge can no longer reach the store: it could reach it after an earlier
    /// release.
    pub(super) fn release_later(self, answer: Answer<Decision>) {
        let (background, runtime) = (self.background.clone(), Handle::try_current().ok());
        let number = self.release_after(MAX_REPLY_TIME, runtime.as_ref());
        if let (Some(runtime), Now::Later(answer)) = (runtime, answer.now()) {
            // If the runtime ends before the answer, the release is due by then.
            runtime.spawn(async move {
                match answer.await {
                    Ok(decision) if decision.is_denied() => background.remove(number),
                    Err(error) if !error.kind().may_have_charged() => background.remove(number),
                    Ok(_) => background.postpone(number, Duration::ZERO),
                    Err(_) => background.postpone(number, MAX_REPLY_TIME),
                }
            });
        }
    }

    /// Adds a task that releases the permits after `wait`.
    fn release_after(self, wait: Duration, runtime: Option<&Handle>) -> u64 {
        let background = self.background.clone();
        background.add(runtime, self.into_release(wait), wait)
    }

    fn into_release(self, wait: Duration) -> Duty {
        let expires = Instant::now() + self.shortest_period().unwrap_or_default() + wait;
        let _work = self.background.begin_work();
        Duty::Release(Arc::new(Release { request: self, expires, _work }))
    }

    fn shortest_period(&self) -> Option<Duration> {
        self.charges.iter().map(|charge| charge.policy().quota().period()).min()
    }

    fn release(&self) -> Answer<Decision> {
        self.store.decide(Action::Refund, &self.charges)
    }
}

/// Permits in use, until this is dropped.
struct Granted {
    request: PermitRequest,
    runtime: Option<Handle>,
    /// The number of the task that renews them.
    renewal: u64,
}

impl Drop for Granted {
    /// This may run on a thread outside the runtime.
    fn drop(&mut self) {
        let runtime = runtime(self.runtime.as_ref());
        self.request.background.release_renewed(self.renewal, &self.request, runtime.as_ref());
    }
}
