//! Logging: compact lines on stderr, where the journal or a file takes them. What is logged can be
//! changed while the process runs.

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
    /// Puts a filter in the place of the one before.
    apply: Apply,
    /// As the settings have it.
    configured: String,
    /// As it is now. Protects the text alone.
    current: Mutex<String>,
}

/// What is logged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Level {
    /// Now.
    pub current: String,
    /// At the next start.
    pub configured: String,
}

/// Starts logging for the process. Call it once. If standard error is a file, a new one is begun
/// when it has grown to `limit`; with a limit of zero it is left alone.
///
/// # Errors
/// `Configuration` if `filter` is none; `InvalidArgument` if logging was started before.
pub fn start(filter: &str, limit: ByteSize) -> Result<()> {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(parse(filter)?)
        .with_writer(Mutex::new(LogOutput::new(limit.0)))
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .compact();
    // The journal adds the time itself. The two builders have different types.
    let (apply, started): (Apply, _) = match std::env::var_os("JOURNAL_STREAM").is_none() {
        true => {
            let builder = builder.with_filter_reloading();
            let handle = builder.reload_handle();
            (Box::new(move |filter| text(handle.reload(filter))), builder.try_init())
        }
        false => {
            let builder = builder.without_time().with_filter_reloading();
            let handle = builder.reload_handle();
            (Box::new(move |filter| text(handle.reload(filter))), builder.try_init())
        }
    };
    started.map_err(|error| Error::new(ErrorCode::InvalidArgument, format!("logging: {error}")))?;
    let current = Mutex::new(filter.to_owned());
    let control = Control { apply, configured: filter.to_owned(), current };
    // Nobody else has started one: that would have been refused above.
    let _ = CONTROL.set(control);
    Ok(())
}

/// What is logged; `None` before the start.
pub fn level() -> Option<Level> {
    let control = CONTROL.get()?;
    let current = control.current.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Some(Level { current, configured: control.configured.clone() })
}

/// Changes what is logged until the process ends; an empty text means as the settings have it.
///
/// # Errors
/// `InvalidArgument` if `filter` is none, `NotReady` before the start.
pub fn change(filter: &str) -> Result<Level> {
    let not_started = || Error::new(ErrorCode::NotReady, "this process has no log");
    let control = CONTROL.get().ok_or_else(not_started)?;
    let filter = if filter.is_empty() { &control.configured } else { filter };
    let wrong = |what: String| Error::new(ErrorCode::InvalidArgument, format!("log level {what}"));
    check(filter).map_err(wrong)?;
    (control.apply)(parse(filter)?).map_err(wrong)?;
    let mut current = control.current.lock().unwrap_or_else(PoisonError::into_inner);
    let before = std::mem::replace(&mut *current, filter.to_owned());
    drop(current);
    if before != filter {
        // Whatever the level is: who reads the log has to know why it changes its detail.
        tracing::error!("the log level is {filter} now; it was {before}");
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

/// Whether a text is a filter.
pub(crate) fn check(filter: &str) -> std::result::Result<(), String> {
    if filter.is_empty() {
        return Err("is empty; write `error`, `warn`, `info`, `debug` or `trace`".into());
    }
    EnvFilter::try_new(filter).map(|_| ()).map_err(|error| format!("'{filter}': {error}"))
}
