//! Panics as lines of the log, so that `grep ERROR` and `journalctl -p warning` find them. Without
//! this module, the message of a panic would have no time and no level.
//!
//! # Hazard: the panic hook
//! The panicking thread may hold the lock of the log. So the hook does not use the logger, and
//! writes its line directly to standard error.

use super::journal;
use skep_types::text::escape_controls;
use std::io::Write;
use std::panic::PanicHookInfo;
use std::sync::Once;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

static HOOK: Once = Once::new();

/// Writes a line for each later panic of this process, before the output of the former panic hook.
pub(super) fn log_panics() {
    let is_journal = journal::is_standard_error();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let line = line(&begin(is_journal), &thread_name(), &place(info), message(info));
            // A panic inside the hook would abort the process without a message, so ignore errors.
            let _ = std::io::stderr().write_all(line.as_bytes());
            before(info);
        }));
    });
}

/// Returns the beginning of the line, as the logger writes it: the priority for the journal, or the
/// time.
fn begin(is_journal: bool) -> String {
    if is_journal {
        return journal::begin(tracing::Level::ERROR);
    }
    let mut text = String::new();
    // Without the time, the line is still useful.
    let _ = SystemTime.format_time(&mut Writer::new(&mut text));
    text.push(' ');
    text
}

fn thread_name() -> String {
    std::thread::current().name().unwrap_or("without a name").to_owned()
}

fn place(info: &PanicHookInfo<'_>) -> String {
    info.location().map_or_else(|| "an unknown place".to_owned(), ToString::to_string)
}

fn message<'a>(info: &'a PanicHookInfo<'_>) -> &'a str {
    let payload = info.payload();
    let owned = payload.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

/// Returns the line about a panic, with its final newline.
fn line(begin: &str, thread: &str, place: &str, message: &str) -> String {
    format!(
        "{begin}ERROR this process panicked in its thread '{}' at {place}: {}; report this line as \
         a bug of Skep\n",
        escape_controls(thread),
        escape_controls(message)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_is_one_error_line_of_the_log() {
        let line = line(&begin(false), "target-t1", "path.rs:10:5", "no such\ndirectory");
        let expected = "ERROR this process panicked in its thread 'target-t1' at path.rs:10:5: no \
                        such\\ndirectory; ";
        let (time, rest) = line.split_once(' ').unwrap();
        assert!(time.ends_with('Z') && time.contains('T'), "{time}");
        assert!(rest.starts_with(expected), "{rest}");
        assert_eq!(line.matches('\n').count(), 1, "{line}");
        assert_eq!(begin(true), "<3>");
    }

    #[test]
    fn message_of_a_panic_is_found_with_and_without_arguments() {
        use std::sync::{Arc, Mutex};
        let found = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&found);
        log_panics();
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if thread_name() == "panics" {
                all.lock().unwrap().push(format!("{} {}", place(info), message(info)));
            }
            before(info);
        }));
        for number in [None, Some(7)] {
            let thread = std::thread::Builder::new().name("panics".into());
            let panics = move || match number {
                Some(number) => assert!(number == 0, "a test with the number {number}"),
                None => assert!(number.is_some(), "a test without a number"),
            };
            assert!(thread.spawn(panics).unwrap().join().is_err());
        }
        let found = found.lock().unwrap();
        assert!(found[0].ends_with(" a test without a number"), "{found:?}");
        assert!(found[1].ends_with(" a test with the number 7"), "{found:?}");
        assert!(found.iter().all(|text| text.contains("panics.rs:")), "{found:?}");
    }
}
