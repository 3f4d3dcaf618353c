//! Requests about a running process. Every service handles these requests on connections to the
//! node itself.

use crate::logging;
use skep_rpc::{Incoming, Outbox};
use skep_types::codec::Codec;
use skep_types::{Error, ErrorCode, Result};
use skep_wire::Request;
use skep_wire::node::{LogLevel, SetLogLevel};
use std::rc::Rc;

/// Handles a request to the node itself. Refuses messages that must be addressed to a target.
pub fn answer(incoming: &Incoming, outbox: &Rc<Outbox>) {
    let result = match incoming.header.message {
        SetLogLevel::ID => {
            let request = SetLogLevel::from_bytes(&incoming.body);
            request.and_then(|request| set_log_level(request.level.as_deref()))
        }
        other => {
            let problem = format!(
                "a metadata or storage service answers here, not management (the service refused \
                 message {other}); give the address of management, whose usual port is 7400"
            );
            Err(Error::new(ErrorCode::Unsupported, problem))
        }
    };
    match result {
        Ok(reply) => outbox.reply(&incoming.header, &reply),
        Err(error) => outbox.refuse(&incoming.header, &error),
    }
}

/// Changes the log level of this process for a [`SetLogLevel`] request, and returns the level. If
/// `level` is `None`, only returns the level.
///
/// # Errors
/// - `InvalidArgument` if `level` is not a log level.
/// - `NotReady` if logging has not been started.
pub fn set_log_level(level: Option<&str>) -> Result<LogLevel> {
    let level = match level {
        Some(level) => logging::change(level)?,
        None => logging::level().ok_or_else(|| {
            Error::new(ErrorCode::NotReady, "cannot read the log level: this process writes no log")
        })?,
    };
    Ok(LogLevel { current: level.current, configured: level.configured })
}
