//! Replays the input through the policies, and reports.

use std::{
    error::Error,
    fs,
    io::{self, Write as _},
    time::Duration,
};

use tower_ratelimit::{ErrorKind, Policy, RedisStore, policy::Enforcement, store::ManualClock};

use crate::{
    commands::carry_out,
    engine::Engine,
    formats::{Format, Op},
    input::Input,
    notes::{End, notes},
    options::Options,
    policies, report,
    request::{Reason, Skipped, Step},
    rules::{Rule, rules},
    source::Source,
    summary::summary,
    tally::Tally,
    verdicts,
};

/// The policies that are replayed, before their keys are known.
pub(crate) struct Setup {
    pub(crate) policies: Vec<Policy>,
    pub(crate) enforcement: Enforcement,
}

/// The policies of the options. For a suggestion, the limit does not matter.
pub(crate) fn policies(options: &Options) -> Result<Setup, Box<dyn Error>> {
    let (policies, enforcement) = match &options.policies {
        Some(path) => policies::read(path)?,
        None => (vec![options.shape.policy(options.shape.limit.unwrap_or(1))?], Enforcement::On),
    };
    Ok(Setup { policies, enforcement })
}

pub(crate) async fn run(
    options: &Options,
    setup: &Setup,
    input: Input,
    format: Format,
) -> Result<(), Box<dyn Error>> {
    let rules = rules(&setup.policies, &options.key, &options.cost, format)?;
    // A penalty has a key too.
    let keys_of = |rule: &Rule| 1 + usize::from(rule.policy.settings().penalty.is_some());
    let capacity = options.max_keys.saturating_mul(rules.iter().map(keys_of).sum());
    let (mut engine, redis) = if options.store == "memory" {
        (Engine::in_memory(&rules, capacity), None)
    } else {
        let clock = ManualClock::new();
        let prefix = format!("replay-{}", std::process::id());
        let settings = RedisStore::builder().deadline(Duration::from_millis(500)).prefix(prefix);
        let store = settings.manual_clock(clock.clone()).connect(&options.store).await?;
        (Engine::new(&rules, store.clone(), clock), Some(store))
    };
    let mut source = Source::new(input, format, &rules, options.reorder);
    let mut tally = Tally::new(&rules);
    let mut output = io::BufWriter::new(io::stdout().lock());
    let is_listed = options.policies.is_some();
    while let Some(step) = source.next()? {
        let verdict = match step {
            Step::Request(request) => {
                engine.advance(request.time).await?;
                let decision = engine.charge(&request).await?;
                engine.begin(&request, &decision, None).await?;
                tally.count(&rules, &request, &decision, options.max_keys);
                options.verdicts.then(|| verdicts::of_request(&request, &decision, is_listed))
            }
            Step::Command(command) => match carry_out(&mut engine, &command).await {
                Ok(decisions) => {
                    if let (Op::Charge | Op::ChargeUpTo, [decision]) = (command.op, &decisions[..]) {
                        tally.count(&rules, &command.request, decision, options.max_keys);
                    }
                    options.verdicts.then(|| verdicts::of_command(&command, &decisions, is_listed))
                }
                Err(error) if error.kind() == ErrorKind::InvalidConfig => {
                    let reason = Reason::Malformed(error.to_string(), String::new());
                    let skipped = Skipped { line: command.request.line, reason };
                    let verdict = options.verdicts.then(|| verdicts::of_skipped(&skipped, &rules));
                    tally.skip(skipped);
                    verdict
                }
                Err(error) => return Err(error.into()),
            },
            Step::Skipped(skipped) => {
                let verdict = options.verdicts.then(|| verdicts::of_skipped(&skipped, &rules));
                tally.skip(skipped);
                verdict
            }
        };
        if let Some(verdict) = verdict {
            serde_json::to_writer(&mut output, &verdict)?;
            output.write_all(b"\n")?;
        }
    }
    output.flush()?;
    if let Some(redis) = redis {
        clear(&engine, &redis, &tally).await?;
    }
    let end = End {
        enforcement: setup.enforcement,
        late: source.late(),
        has_fractions: source.has_fractions,
        without_duration: engine.without_duration,
        keys: engine.key_count(),
        capacity,
    };
    drop(source);
    let notes = notes(&rules, &tally, &end);
    eprint!("{}", summary(&rules, &tally, &notes));
    if let Some(path) = &options.report {
        let name =
            options.file.as_ref().map_or_else(|| "stdin".to_owned(), |file| file.display().to_string());
        let html = report::html(&report::Report {
            name: &name,
            format,
            rules: &rules,
            tally: &tally,
            notes: &notes,
            shows_keys: options.show_keys,
        });
        fs::write(path, html).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(())
}

/// Removes what the replay has written to Redis.
async fn clear(engine: &Engine, redis: &RedisStore, tally: &Tally) -> Result<(), tower_ratelimit::Error> {
    let operator = engine.limiter.operator();
    for (policy, tally) in engine.policies.iter().zip(&tally.policies) {
        for key in tally.clients.keys() {
            redis.erase(policy, key).await?;
            if policy.settings().penalty.is_some() {
                operator.unban(policy, key).await?;
            }
        }
    }
    Ok(())
}
