//! What is known about the denials and bans of one identity under one rule.

use std::time::Duration;

use tokio::time::Instant;

/// A penalty of a rule.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strikes {
    pub(super) after: u64,
    pub(super) within: Duration,
    pub(super) first: Duration,
    pub(super) longest: Duration,
}

/// The denials and bans of one identity under one rule.
#[derive(Default)]
pub(super) struct Bans {
    /// The most denials that the store can have counted, ever.
    possible: u64,
    /// Those that it certainly counted, and after which the key was not banned.
    counted: u64,
    /// How often callers tried to ban the key or to end its ban, and the longest of these bans.
    by_hand: u64,
    longest_by_hand: Duration,
    /// The ones that may still arrive.
    under_way: u64,
    /// Until when the key is certainly banned.
    until: Option<Instant>,
    /// How often something happened after which it may no longer be.
    changes: u64,
}

/// What was known when a decision was made.
#[derive(Clone, Copy)]
pub(super) struct Known {
    until: Option<Instant>,
    changes: u64,
}

/// How a decision ended for one of its charges.
pub(super) struct Ended {
    /// Made by the store, or from its deny cache.
    pub(super) by_store: bool,
    /// The policy denied. Not every such denial counts.
    pub(super) denied: bool,
    /// Another key of the decision is banned, so no denial counts.
    pub(super) others_banned: bool,
    pub(super) banned_for: Option<Duration>,
    /// Whether a banned key is denied: the decision has a cost.
    pub(super) obeys: bool,
    /// Whether a denial counts.
    pub(super) counts: bool,
    /// Whether the store may have been too full to count it.
    pub(super) may_be_uncounted: bool,
}

impl Bans {
    pub(super) fn asked(&mut self, counts: bool) -> Known {
        self.possible += u64::from(counts);
        Known { until: self.until, changes: self.changes }
    }

    /// The denial that was asked for was certainly not counted.
    pub(super) fn not_counted(&mut self) {
        self.possible -= 1;
    }

    /// The bans may be lost or over.
    pub(super) fn forget(&mut self) {
        self.until = None;
        self.changes += 1;
    }

    /// Notes how a decision ended that was started at `started`. Returns what is wrong with it. `elapsed` is the time of
    /// the server since the schedule began, during which its data was lost so often.
    pub(super) fn ended(
        &mut self,
        strikes: Strikes,
        known: Known,
        ended: &Ended,
        started: Instant,
        elapsed: Duration,
        losses: u64,
    ) -> Option<String> {
        let Ended { by_store, denied, others_banned, banned_for, obeys, counts, may_be_uncounted } = *ended;
        if counts && !(by_store && denied) {
            self.not_counted();
        }
        let is_certain = known.changes == self.changes && self.under_way == 0;
        if let Some(rest) = banned_for {
            if rest > strikes.longest.max(self.longest_by_hand) {
                return Some(format!("banned for {rest:?}"));
            }
            if self.possible < strikes.after && self.by_hand == 0 {
                return Some(format!("banned after {} possible denials", self.possible));
            }
            if by_store && is_certain {
                // Redis decided after that.
                self.until = self.until.max(Some(started + rest));
            }
        } else if let Some(until) = known.until.filter(|until| is_certain && *until > Instant::now())
            && by_store
            && obeys
        {
            return Some(format!("not banned, although it is for another {:?}", until - Instant::now()));
        }
        if counts && by_store && denied && banned_for.is_none() && !others_banned && !may_be_uncounted {
            self.counted += 1;
            // Each group of this many denials ends with a ban or with its window.
            let groups = 1 + elapsed.as_micros() / strikes.within.min(strikes.first).as_micros();
            let most = (strikes.after - 1) * (groups as u64 + self.by_hand + losses);
            if self.counted > most {
                return Some(format!("{} denials without a ban, {most} may be", self.counted));
            }
        }
        None
    }

    /// Call it before a caller bans the key for `time`, or ends its ban if that is 0.
    pub(super) fn setting(&mut self, time: Duration) {
        self.forget();
        self.by_hand += 1;
        self.under_way += 1;
        self.longest_by_hand = self.longest_by_hand.max(time);
    }

    /// The key was banned for `time`, or its ban was ended, by a call that was started at `started`.
    pub(super) fn set(&mut self, time: Duration, started: Instant, known: Known) {
        self.under_way -= 1;
        let is_latest = known.changes == self.changes && self.under_way == 0;
        // Decisions under way may have been made before it.
        self.forget();
        self.until = (is_latest && !time.is_zero()).then_some(started + time);
    }
}
