//! Callgrind, the tool of valgrind that counts executed instructions and calls of functions.

use std::{collections::HashSet, ops::Sub};

use crate::Failure;

const ALLOCATING: &[&str] = &["malloc", "calloc", "realloc", "aligned_alloc", "memalign", "posix_memalign"];

/// `program` under callgrind. When it ends, its profile follows what it wrote to standard output.
pub(crate) fn command(program: Vec<String>) -> Vec<String> {
    let callgrind = ["valgrind", "-q", "--tool=callgrind", "--vgdb=no", "--callgrind-out-file=/dev/stdout"];
    callgrind.map(str::to_owned).into_iter().chain(program).collect()
}

/// What a whole run executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) instructions: u64,
    /// Calls of `malloc` and its relatives.
    pub(crate) allocations: u64,
    /// Calls of scripts, which only a server counts.
    pub(crate) script_calls: u64,
}

impl Counts {
    /// Reads a profile. A function has its name only where it is mentioned first, and its number, such as `(12)`,
    /// everywhere. A call is two lines: `cfn=(12)`, the function, and then `calls=3 0`, how often.
    pub(crate) fn of(profile: &str) -> Result<Self, Failure> {
        let (mut instructions, mut allocations) = (None, 0);
        let (mut allocating, mut called) = (HashSet::new(), "");
        for line in profile.lines() {
            if let Some(function) = line.strip_prefix("fn=").or_else(|| line.strip_prefix("cfn=")) {
                let (number, name) = function.split_once(' ').unwrap_or((function, ""));
                if ALLOCATING.contains(&name) {
                    allocating.insert(number);
                }
                called = number;
            } else if let Some(calls) = line.strip_prefix("calls=") {
                if allocating.contains(called) {
                    allocations += calls.split(' ').next().unwrap_or_default().parse::<u64>()?;
                }
            } else if let Some(total) = line.strip_prefix("totals: ") {
                instructions = Some(total.trim().parse()?);
            }
        }
        let instructions = instructions.ok_or("callgrind wrote no profile")?;
        Ok(Self { instructions, allocations, script_calls: 0 })
    }
}

impl Sub for Counts {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            instructions: self.instructions.saturating_sub(other.instructions),
            allocations: self.allocations.saturating_sub(other.allocations),
            script_calls: self.script_calls.saturating_sub(other.script_calls),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_the_number_of_the_function() {
        let profile = "what the program wrote\nfn=(1) main\n0 9\ncfn=(2) malloc\ncalls=3 0\n0 60\n\
                       cfn=(3) _int_malloc\ncalls=50 0\n0 7\ncfn=(2)\ncalls=4 0\n0 8\n\
                       fn=(2)\n0 5\ncfn=(3)\ncalls=7 0\n0 1\n\ntotals: 123\n";
        let expected = Counts { instructions: 123, allocations: 7, script_calls: 0 };
        assert_eq!(Counts::of(profile).unwrap(), expected);
    }

    #[test]
    fn a_profile_without_a_total_is_an_error() {
        assert!(Counts::of("fn=(1) main\n").is_err());
    }
}
