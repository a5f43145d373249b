//! Loads scripts that the server has lost.

use redis::{Cmd, RedisResult, ServerErrorKind, Value, aio::ConnectionLike};

use crate::store::redis::script::Script;

/// Sends `SCRIPT LOAD` and `command` in one write.
pub(super) async fn load_and(
    connection: &mut impl ConnectionLike,
    command: &Cmd,
    script: &Script,
) -> RedisResult<Value> {
    let mut both = redis::pipe();
    both.cmd("SCRIPT").arg("LOAD").arg(script.text()).ignore();
    both.add_command(command.clone());
    match both.query_async(connection).await {
        Ok((reply,)) => Ok(reply),
        // The first error of the pipeline is the cause: a script that does not compile cannot be called either.
        Err(error) => match error.clone().into_server_errors().as_deref() {
            Some([(_, first), ..]) => Err(first.clone().into()),
            _ => Err(error),
        },
    }
}

/// Turns `command`, an `EVALSHA`, into an `EVAL`.
pub(crate) fn with_text(command: &Cmd, script: &Script) -> Cmd {
    let mut evaluation = redis::cmd("EVAL");
    evaluation.arg(script.text());
    for argument in command.args_iter().skip(2) {
        match argument {
            redis::Arg::Simple(bytes) => evaluation.arg(bytes),
            // The command has no cursor, and the library may add more kinds.
            _ => &mut evaluation,
        };
    }
    evaluation
}

pub(crate) fn is_no_script(reply: &RedisResult<Value>) -> bool {
    let no_script = redis::ErrorKind::Server(ServerErrorKind::NoScript);
    reply.as_ref().is_err_and(|error| error.kind() == no_script)
}
