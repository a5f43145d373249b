//! Runs a script on the node that has its keys.

use std::time::Duration;

use redis::{Cmd, RedisError, RedisResult, RetryMethod, Value, aio::ConnectionLike};
use tokio::time::sleep;

use crate::store::redis::{transport::connections::reply_to, wire::Call};

/// The pause before a retry on a migrating slot.
const MIGRATION_PAUSE: Duration = Duration::from_millis(1);

/// Runs the script, and retries until the reply is not a redirect.
pub(super) async fn evaluate(connection: &mut impl ConnectionLike, call: &Call) -> RedisResult<Value> {
    loop {
        let reply = reply_to(connection, call).await;
        // redis-rs follows redirects only a few times. It sends `ASKING` apart from the command, so another command may
        // come between, and the node redirects again. Nothing was carried out.
        let redirect = reply.as_ref().err().map(RedisError::retry_method);
        if !matches!(redirect, Some(RetryMethod::AskRedirect | RetryMethod::MovedRedirect)) {
            return reply;
        }
        sleep(MIGRATION_PAUSE).await;
    }
}

/// Runs the script in a transaction. A client that retries waits while a slot migrates and its keys are on two nodes. But
/// it returns an aborted transaction immediately.
pub(super) async fn in_transaction(connection: &mut impl ConnectionLike, call: &Call) -> RedisResult<Value> {
    let reply = transaction(connection, call.command.clone()).await;
    match call.evaluation_after(&reply) {
        Some(evaluation) => transaction(connection, evaluation).await,
        None => reply,
    }
}

async fn transaction(connection: &mut impl ConnectionLike, command: Cmd) -> RedisResult<Value> {
    let mut transaction = redis::pipe();
    transaction.atomic().add_command(command);
    match transaction.query_async(connection).await {
        Ok((reply,)) => Ok(reply),
        // The first error is the cause of the others.
        Err(error) => match error.clone().into_server_errors().as_deref() {
            Some([(_, cause), ..]) => Err(cause.clone().into()),
            _ => Err(error),
        },
    }
}

/// Whether nothing was carried out, and another node or a later attempt may succeed.
pub(super) fn may_succeed_elsewhere(error: &RedisError) -> bool {
    matches!(
        error.retry_method(),
        RetryMethod::AskRedirect
            | RetryMethod::MovedRedirect
            | RetryMethod::WaitAndRetry
            | RetryMethod::RefreshSlotsAndRetry
            | RetryMethod::ReconnectFromInitialConnections
    )
}
