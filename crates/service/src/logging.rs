//! Logging: compact lines on stderr, for systemd's journal or a file. The level can change while
//! the process runs.

use crate::ByteSize;
use crate::log_file::LogOutput;
use skep_types::{Error, ErrorCode, Result};
use std::io::IsTerminal;
use std::sync::{Mutex, OnceLock, PoisonError};
use tracing_subscriber::EnvFilter;

/// The running log's control; there is one log in a process.
static CONTROL: OnceLock<Control> = OnceLock::new();

type Apply = Box<dyn Fn(EnvFilter) -> std::result::Result<(), String> + Send + Sync>;

struct Control {
    /// Replaces the filter.
    apply: Apply,
    /// The level in the settings.
    configured: String,
    /// The present level. Protects the text only.
    current: Mutex<String>,
}

/// The log level of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Level {
    /// The present level.
    pub current: String,
    /// The level after the next start.
    pub configured: String,
}

/// Starts logging for the process. Call it once. If standard error is a file, logging starts a new
/// one when it has grown to `limit`; a limit of zero means never.
///
/// # Errors
/// `Configuration` if `filter` is invalid; `InvalidArgument` if logging was started before.
pub fn start(filter: &str, limit: ByteSize) -> Result<()> {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(parse(filter)?)
        .with_writer(Mutex::new(LogOutput::new(limit.0)))
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .compact();
    // systemd's journal adds the time itself. The two builders have different types.
    let (apply, started): (Apply, _) = match std::env::var_os("JOURNAL_STREAM") {
        None => {
            let builder = builder.with_filter_reloading();
            let handle = builder.reload_handle();
            (Box::new(move |filter| text(handle.reload(filter))), builder.try_init())
        }
        Some(_) => {
            let builder = builder.without_time().with_filter_reloading();
            let handle = builder.reload_handle();
            (Box::new(move |filter| text(handle.reload(filter))), builder.try_init())
        }
    };
    started.map_err(|error| Error::new(ErrorCode::InvalidArgument, format!("logging: {error}")))?;
    let current = Mutex::new(filter.to_owned());
    let control = Control { apply, configured: filter.to_owned(), current };
    // It was not set before: a second start fails above.
    let _ = CONTROL.set(control);
    Ok(())
}

/// The log level; `None` before the start.
pub fn level() -> Option<Level> {
    let control = CONTROL.get()?;
    let current = control.current.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Some(Level { current, configured: control.configured.clone() })
}

/// Changes the log level until the process ends; an empty text means the level in the settings.
///
/// # Errors
/// `InvalidArgument` if `filter` is invalid, `NotReady` before the start.
pub fn change(filter: &str) -> Result<Level> {
    let not_started = || Error::new(ErrorCode::NotReady, "this process has no log");
    let control = CONTROL.get().ok_or_else(not_started)?;
    let filter = if filter.is_empty() { &control.configured } else { filter };
    let wrong =
        |problem: String| Error::new(ErrorCode::InvalidArgument, format!("log level {problem}"));
    check(filter).map_err(wrong)?;
    let parsed = parse(filter)?;
    // A reader of the log must see why its detail changes. So the line goes out under the more
    // detailed of the two levels.
    let is_logged_before = tracing::enabled!(tracing::Level::INFO);
    let log_change = |before: &str| {
        if before != filter {
            tracing::info!("this process changes its log level from {before} to {filter}");
        }
    };
    if is_logged_before {
        log_change(&control.current.lock().unwrap_or_else(PoisonError::into_inner));
    }
    (control.apply)(parsed).map_err(wrong)?;
    let mut current = control.current.lock().unwrap_or_else(PoisonError::into_inner);
    let before = std::mem::replace(&mut *current, filter.to_owned());
    drop(current);
    if !is_logged_before {
        log_change(&before);
    }
    level().ok_or_else(not_started)
}

fn text(done: std::result::Result<(), impl std::fmt::Display>) -> std::result::Result<(), String> {
    done.map_err(|error| error.to_string())
}

fn parse(filter: &str) -> Result<EnvFilter> {
    EnvFilter::try_new(filter)
        .map_err(|error| Error::new(ErrorCode::Configuration, format!("log filter: {error}")))
}

/// Checks that a text is a valid filter.
pub(crate) fn check(filter: &str) -> std::result::Result<(), String> {
    if filter.is_empty() {
        return Err("is empty; write `error`, `warn`, `info`, `debug` or `trace`".into());
    }
    EnvFilter::try_new(filter).map(|_| ()).map_err(|error| format!("'{filter}': {error}"))
}
