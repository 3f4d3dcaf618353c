//! Lines for systemd's journal (sd-daemon(3)). The lines contain no time, because the journal adds
//! the time. Each line begins with a priority, so that `journalctl -p warning` finds the lines of
//! this priority.

use std::os::unix::fs::MetadataExt;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{Compact, Format, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Environment variable with the device and the inode of the journal's socket. A process that a
/// service has started inherits the variable, even if the standard error of this process is not the
/// journal.
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
        writer.write_str(&begin(*event.metadata().level()))?;
        self.0.format_event(context, writer, event)
    }
}

/// Returns the beginning of a line with this level.
pub(super) fn begin(level: Level) -> String {
    format!("<{}>", priority(level))
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek};
    use std::sync::Arc;

    #[test]
    fn journal_lines_begin_with_their_syslog_priority() {
        let mut file = tempfile::tempfile().unwrap();
        let subscriber = tracing_subscriber::fmt()
            .event_format(Lines::new())
            .with_max_level(Level::TRACE)
            .with_writer(Arc::new(file.try_clone().unwrap()))
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::error!("a disk fails");
            tracing::warn!("a target is slow");
            tracing::info!("the service serves");
            tracing::debug!("a request arrived");
            tracing::trace!("a byte arrived");
        });
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        let begins = ["<3>ERROR", "<4> WARN", "<6> INFO", "<7>DEBUG", "<7>TRACE"];
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), begins.len(), "{text}");
        for (line, begin) in lines.iter().zip(begins) {
            assert!(line.starts_with(begin), "{line} does not begin with {begin}");
        }
        assert!(lines[0].contains("a disk fails"), "{text}");
    }
}
