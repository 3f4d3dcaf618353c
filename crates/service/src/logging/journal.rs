//! Lines for systemd's journal (sd-daemon(3)). The lines contain no time, because the journal adds
//! it. They begin with a priority, so that `journalctl -p warning` finds them.

use std::os::unix::fs::MetadataExt;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{Compact, Format, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Environment variable with the device and the inode of the journal's socket. A process that a
/// service has started inherits the variable, even if the process's own output goes elsewhere.
const VARIABLE: &str = "JOURNAL_STREAM";

/// Whether standard error of this process is a connection to the journal.
pub(super) fn is_standard_error() -> bool {
    let Ok(stream) = std::env::var(VARIABLE) else { return false };
    let found = std::fs::metadata("/proc/self/fd/2");
    found.is_ok_and(|found| stream == format!("{}:{}", found.dev(), found.ino()))
}

/// Formats events as lines of the journal.
#[derive(Debug)]
pub(super) struct Lines(Format<Compact, ()>);

impl Lines {
    pub(super) fn new() -> Self {
        Self(tracing_subscriber::fmt::format().without_time().with_target(false).compact())
    }
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        write!(writer, "<{}>", priority(*event.metadata().level()))?;
        self.0.format_event(context, writer, event)
    }
}

/// Returns the syslog(3) priority for a level.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}
