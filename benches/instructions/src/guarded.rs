//! Programs that end with this one, even if it is killed.

use std::{
    io::{self, BufRead, BufReader, Read},
    process::{Child, ChildStdout, Command, Stdio},
};

use crate::Failure;

/// Prints the id of the program's process, then what the program writes. When standard input ends, it kills the program.
/// Standard input is a pipe from this process, so it ends when this process does.
const GUARD: &str = r#"
trap '' HUP INT TERM
exec 3<&0
sh -c 'echo $$; exec "$0" "$@"' "$@" </dev/null 3<&- &
program=$!
(read -r _ <&3; kill -KILL "$program") >/dev/null 2>&1 &
watcher=$!
wait "$program"
status=$?
kill -KILL "$watcher"
exit "$status"
"#;

pub(crate) struct Guarded {
    guard: Child,
    output: BufReader<ChildStdout>,
    process: String,
}

impl Guarded {
    /// Starts `command`, a program and its arguments, with the environment variables `variables` as well.
    pub(crate) fn start(command: &[String], variables: &[(&str, String)]) -> Result<Self, Failure> {
        let mut guard = Command::new("sh")
            .args(["-c", GUARD, "guard"])
            .args(command)
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = guard.stdout.take().ok_or_else(|| io::Error::other("no standard output"))?;
        let mut guarded = Self { guard, output: BufReader::new(output), process: String::new() };
        guarded.output.read_line(&mut guarded.process)?;
        guarded.process.truncate(guarded.process.trim_end().len());
        Ok(guarded)
    }

    /// The id of the program's process.
    pub(crate) fn process(&self) -> &str {
        &self.process
    }

    /// Whether the program still runs.
    pub(crate) fn runs(&mut self) -> io::Result<bool> {
        Ok(self.guard.try_wait()?.is_none())
    }

    /// Waits until the program ends. Returns what it wrote to standard output.
    pub(crate) fn wait(mut self) -> Result<String, Failure> {
        let mut text = Vec::new();
        self.output.read_to_end(&mut text)?;
        // This closes standard input. The guard does not read it any more: its output has ended.
        let status = self.guard.wait()?;
        if !status.success() {
            return Err(format!("a program under the guard failed: {status}").into());
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}
