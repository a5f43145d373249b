//! A custom algorithm with permits, on both stores.

use std::time::Duration;

use support::{RedisServer, eventually, settings};
use tower_ratelimit::{
    Error, Key, Limiter, MemoryStore, Policy, Quota,
    algorithm::{Algorithm, Evaluation, Input, KeyState, Receipt, Replenishment, Twin, Update},
};
use tower_ratelimit_extra::testing::TwinTest;

/// At most the limit of seats, each until its holder leaves: an algorithm with permits, in Lua and in Rust.
///
/// The count is the seats in use, and the text names who has how many.
#[derive(Debug)]
struct Seats;

impl Algorithm for Seats {
    fn name(&self) -> &str {
        "seats"
    }
    fn lua(&self) -> &str {
        r"
        local function decide(seats, cost, time, used, guests, holder)
          local limit, period = seats[1], seats[2]
          used, guests = time and used or 0, guests or ''
          local free = math.max(0, limit - used)
          if cost > free then
            return cost > limit and NEVER or period, free, used > 0 and period or 0
          elseif cost == 0 then
            return 0, free, used > 0 and period or 0
          end
          return 0, free - cost, period, nil, nil, period, now, used + cost, guests .. format('%d %s ', cost, holder)
        end

        local function find_guest(guests, units, holder)
          return string.find(guests or '', format('%d %s ', units, holder), 1, true)
        end

        local function refund(_, units, made, mark, time, used, guests, holder)
          local first, last = find_guest(guests, units, holder)
          if not first then
            return nil
          elseif used <= units then
            return REMOVE
          end
          return KEEP_TTL, time, used - units, string.sub(guests, 1, first - 1) .. string.sub(guests, last + 1)
        end

        local function renew(seats, units, time, used, guests, holder)
          if find_guest(guests, units, holder) then
            return seats[2], now, used, guests
          end
        end

        return { decide = decide, refund = refund, renew = renew }"
    }
    fn arguments(&self, quota: &Quota) -> Result<Vec<u64>, Error> {
        Ok(vec![quota.limit(), u64::try_from(quota.period().as_micros()).unwrap()])
    }
    fn replenishment(&self, _: &Quota) -> Replenishment {
        Replenishment::OnRelease
    }
    fn twin(&self) -> Option<&dyn Twin> {
        Some(self)
    }
}

/// The seats in use and the text.
fn guests(input: &Input<'_>) -> (u64, String) {
    let state = input.state.cloned().unwrap_or_default();
    (state.count, state.text.unwrap_or_default())
}

fn with_text(time: u64, count: u64, text: String) -> KeyState {
    let mut state = KeyState::new(time, count);
    state.text = Some(text);
    state
}

fn guest(input: &Input<'_>, units: u64) -> String {
    format!("{units} {} ", input.holder.unwrap())
}

impl Twin for Seats {
    fn decide(&self, input: &Input<'_>, cost: u64) -> Evaluation {
        let (limit, period) = (input.arguments[0], input.arguments[1]);
        let (used, text) = guests(input);
        let free = limit.saturating_sub(used);
        let reset = if used > 0 { period } else { 0 };
        if cost > free {
            return Evaluation::deny((cost <= limit).then_some(period), free, reset);
        }
        if cost == 0 {
            return Evaluation::admit(free, reset);
        }
        let state = with_text(input.now, used + cost, text + &guest(input, cost));
        Evaluation::admit(free - cost, period).write(state, period)
    }

    fn refund(&self, input: &Input<'_>, units: u64, receipt: Option<Receipt>) -> Option<Update> {
        assert_eq!(receipt, None);
        let (used, text) = guests(input);
        let place = text.find(&guest(input, units))?;
        if used <= units {
            return Some(Update::Remove);
        }
        let text = text[..place].to_owned() + &text[place + guest(input, units).len()..];
        Some(Update::Keep(with_text(input.state?.time, used - units, text)))
    }

    fn renew(&self, input: &Input<'_>, units: u64) -> Option<Update> {
        let (used, text) = guests(input);
        text.contains(&guest(input, units))
            .then(|| Update::Write { state: with_text(input.now, used, text), lifetime: input.arguments[1] })
    }
}

#[tokio::test]
async fn the_permits_of_a_custom_algorithm_are_held_renewed_and_released_on_both_stores() {
    let server = RedisServer::start();
    let seats = Policy::new("seats", Quota::new(3, Duration::from_secs(2))).algorithm(Seats);
    // Permits are released, not waited for.
    TwinTest::new(&seats).exact_retry(false).run(&server.url()).await.unwrap();

    let redis = settings().connect(&server.url()).await.unwrap();
    for limiter in [Limiter::new(redis), Limiter::new(MemoryStore::new())] {
        let key = Key::new("table");
        let two = limiter.check(&seats, &key, 2).await.unwrap();
        let one = limiter.check(&seats, &key, 1).await.unwrap();
        assert_eq!(one.remaining(), Some(0));
        assert!(!limiter.check(&seats, &key, 1).await.unwrap().is_admitted());
        drop(two);
        let free = async || limiter.peek(&seats, &key, 0).await.unwrap().remaining();
        assert!(eventually(async || free().await == Some(2)).await);
        drop(one);
        assert!(eventually(async || free().await == Some(3)).await);
    }
}
