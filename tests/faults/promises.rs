//! The promises of docs/reliability.md.

#[derive(Default)]
pub(crate) struct Promises {
    kept: usize,
    broken: Vec<String>,
}

impl Promises {
    /// Records whether a promise holds. Returns the mark for its cell.
    pub(crate) fn check(&mut self, holds: bool, what: impl FnOnce() -> String) -> &'static str {
        if holds {
            self.kept += 1;
            ""
        } else {
            self.broken.push(what());
            " (**broken**)"
        }
    }

    /// Prints the result, and ends the program with an error if a promise was broken.
    pub(crate) fn report(self) {
        println!("{} promises kept, {} broken.", self.kept, self.broken.len());
        for broken in &self.broken {
            println!("* {broken}");
        }
        if !self.broken.is_empty() {
            std::process::exit(1);
        }
    }
}
