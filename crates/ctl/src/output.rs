//! Prints results: as tables for people, or as JSON, CSV or XML for programs.

use crate::table_layout;
use clap::ValueEnum;
use comfy_table::{CellAlignment, Table, presets};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Serialize, Serializer};
use skep_stats::{csv, xml};
use skep_types::text::escape_controls;
pub(crate) use skep_types::utc;
use skep_types::{Error, ErrorCode, Result};
use std::borrow::Cow;
use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

/// Time after which a command that waits detects that its output has no reader any more.
const READER_CHECK: Duration = Duration::from_millis(500);

/// The output format of commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// Tables, for people
    Table,
    /// One JSON value, for programs; errors are JSON too
    Json,
    /// One line of JSON per list entry, for programs; errors are JSON too
    Ndjson,
    /// Comma-separated values (RFC 4180) with a line of titles, for spreadsheets; errors are JSON
    Csv,
    /// One XML document, for programs; errors are JSON
    Xml,
}

/// Creates a table without ruled lines. Titles are in capital letters, except for units. Columns
/// whose title begins with `>` are aligned to the right.
pub(crate) fn table(titles: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(titles.iter().map(|title| in_capitals(title.trim_start_matches('>'))));
    let columns = titles.iter().zip(table.column_iter_mut()).enumerate();
    for (index, (title, column)) in columns {
        column.set_padding((if index == 0 { 0 } else { 1 }, 1));
        if title.starts_with('>') {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Returns a title in capital letters. Units, such as `GB/s` and `us`, keep their letters.
fn in_capitals(title: &str) -> String {
    let words = title.split(' ').map(|word| match word.contains('/') || word == "us" {
        true => word.to_owned(),
        false => word.to_uppercase(),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// The output format of this process, set once before the command runs. The format is a static
/// variable, because the functions that print are many calls away from the command line.
static FORMAT: OnceLock<OutputFormat> = OnceLock::new();

/// The words of this process's command, joined by dashes, such as `skep-node-list`. This name is
/// the name of the root element of XML documents.
static COMMAND: OnceLock<String> = OnceLock::new();

/// Sets the output format and the command of this process.
pub(crate) fn choose(format: OutputFormat, command: String) {
    // `set` fails only at a second call, which would set the same value, because there is only one
    // command line.
    let _ = FORMAT.set(format);
    let _ = COMMAND.set(command);
}

/// Returns the output format of this process.
pub(crate) fn format() -> OutputFormat {
    FORMAT.get().copied().unwrap_or(OutputFormat::Table)
}

/// Whether the output format is the table for people.
pub(crate) fn is_for_people() -> bool {
    FORMAT.get().is_none_or(|format| *format == OutputFormat::Table)
}

/// Whether the output is one value for programs: one JSON value, one CSV table or one XML document.
/// In this case, a command must print all its results together.
pub(crate) fn is_one_value() -> bool {
    matches!(format(), OutputFormat::Json | OutputFormat::Csv | OutputFormat::Xml)
}

/// Serializes a path for `serialize_with`. Replaces invalid UTF-8 by U+FFFD, because JSON cannot
/// represent invalid UTF-8. Serde's own serializer would fail, although the command has done its
/// work.
pub(crate) fn path<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

/// Prints a value in the chosen format.
pub(crate) fn print<T: Serialize>(value: &T, as_text: impl FnOnce(&T) -> String) -> Result<()> {
    let text = in_chosen_form(value, as_text)?;
    table_layout::check()?;
    match FORMAT.get() {
        // In these formats, an empty list has no lines of output.
        Some(OutputFormat::Ndjson | OutputFormat::Csv) if text.is_empty() => Ok(()),
        _ => say(&text),
    }
}

/// Returns a value in the chosen format, without a final newline. The result is empty for an empty
/// list in the formats NDJSON and CSV.
pub(crate) fn in_chosen_form<T: Serialize>(
    value: &T,
    as_text: impl FnOnce(&T) -> String,
) -> Result<String> {
    in_form(format(), value, as_text)
}

fn in_form<T: Serialize>(
    format: OutputFormat,
    value: &T,
    as_text: impl FnOnce(&T) -> String,
) -> Result<String> {
    let unwritable = |error: serde_json::Error| Error::new(ErrorCode::Io, error.to_string());
    let text = match format {
        OutputFormat::Table => as_text(value),
        OutputFormat::Json => serde_json::to_string_pretty(value).map_err(unwritable)?,
        OutputFormat::Ndjson => match serde_json::to_value(value).map_err(unwritable)? {
            serde_json::Value::Array(things) => {
                things.iter().map(|thing| thing.to_string() + "\n").collect()
            }
            one => one.to_string(),
        },
        OutputFormat::Csv => match serde_json::to_value(value).map_err(unwritable)? {
            serde_json::Value::Array(things) => csv::table(&things),
            one => csv::table(&[one]),
        },
        OutputFormat::Xml => {
            let root = COMMAND.get().map_or("skep", String::as_str);
            xml::document(root, &serde_json::to_value(value).map_err(unwritable)?)
        }
    };
    Ok(text.trim_end().to_owned())
}

/// Prints a warning to standard error, so that the warning does not mix with the result on standard
/// output.
pub(crate) fn warn(text: &str) {
    say_aside(&format!("skep: {text}"));
}

/// Prints one or more lines to standard error. Ignores errors of this output: a closed pipe or a
/// full disk must not end the command or change its exit code. `eprintln!` would panic.
pub(crate) fn say_aside(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Replaces the current line of the terminal at standard error by `text`. Ignores errors like
/// [`say_aside`].
pub(crate) fn replace_line(text: &str) {
    // Writes all bytes at once, so that Ctrl-C cannot end the process between the control
    // sequences.
    let _ = std::io::stderr().lock().write_all(replaced_line(text).as_bytes());
}

/// Returns the bytes that replace the current line of a terminal by `text`. The bytes switch off
/// the wrapping of lines for the text, because the next call could not replace a text that a narrow
/// terminal has wrapped.
fn replaced_line(text: &str) -> String {
    format!("\r\x1b[K\x1b[?7l{text}\x1b[?7h")
}

/// Prints one or more lines to standard output. A closed pipe is not an error.
pub(crate) fn say(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Whether standard output is a pipe, a socket or a terminal whose reader has ended. A command that
/// prints until an interrupt must call this function after each output, or wait with
/// [`sleep_while_read`]. Without this check, `skep stats | head -1` would never end.
pub(crate) fn has_no_reader() -> bool {
    is_without_reader(&std::io::stdout())
}

/// Waits for `time`. If standard output has no reader any more, the wait ends early, and the
/// function returns `false`. The reader of `skep stats | head -1` ends a moment after the output. A
/// single check immediately after the output would not detect this end.
pub(crate) async fn sleep_while_read(time: Duration) -> bool {
    let end = skep_env::now().saturating_add(time);
    while !has_no_reader() {
        let rest = end.saturating_sub(skep_env::now());
        if rest.is_zero() {
            return true;
        }
        skep_env::sleep(rest.min(READER_CHECK)).await;
    }
    false
}

/// Whether standard output is a terminal that follows control sequences.
pub(crate) fn is_on_screen() -> bool {
    is_screen(&std::io::stdout())
}

/// Whether `output` is a terminal that follows control sequences.
pub(crate) fn is_screen(output: &impl IsTerminal) -> bool {
    let is_dumb = std::env::var_os("TERM").is_none_or(|it| it.is_empty() || it == "dumb");
    output.is_terminal() && !is_dumb
}

fn is_without_reader(output: &impl AsFd) -> bool {
    let mut polled = [PollFd::new(output, PollFlags::empty())];
    // A pipe without a reader has an error, and a socket without a reader is hung up. An error of
    // `poll` does not show that the reader has ended.
    poll(&mut polled, Some(&Timespec::default())).is_ok()
        && polled[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

/// Writes bytes to standard output without a change. A closed pipe is not an error.
pub(crate) fn write_bytes(bytes: &[u8]) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Returns the text of a table, without trailing spaces. Escapes control characters in the cells,
/// because names come from other hosts and users, and a control character could break a row.
pub(crate) fn render(table: &Table) -> String {
    let mut table = table.clone();
    table_layout::apply(&mut table);
    for row in table.row_iter_mut() {
        let cells: Vec<_> = row.cell_iter().map(|cell| cell.content()).collect();
        if cells.iter().any(|cell| matches!(escape_controls(cell), Cow::Owned(_))) {
            *row = cells
                .iter()
                .map(|cell| escape_controls(cell).into_owned())
                .collect::<Vec<_>>()
                .into();
        }
    }
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// Formats a number of bytes like `df -h`: 1.5GiB.
pub(crate) fn size(bytes: u64) -> String {
    scaled(bytes, 1024, &["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"])
}

/// Formats a count like `df -hi`: 1.5M.
pub(crate) fn count(number: u64) -> String {
    scaled(number, 1000, &["", "k", "M", "G", "T", "P", "E"])
}

/// Formats a count with its noun: `1 file`, `1.5k files`.
pub(crate) fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { many })
}

fn scaled(number: u64, step: u64, units: &[&str]) -> String {
    let mut scale = 0;
    let mut factor = 1_u64;
    while scale + 1 < units.len() && number / step >= factor {
        factor *= step;
        scale += 1;
    }
    if scale == 0 {
        return format!("{number}{}", units[0]);
    }
    format!("{:.1}{}", number as f64 / factor as f64, units[scale])
}

/// Formats a duration in milliseconds with a unit that suits its length: 50 us, 1.2 ms, 123 ms, 3.3
/// s, 24 s.
pub(crate) fn milliseconds(ms: f64) -> String {
    match ms {
        _ if ms < 0.1 => format!("{:.0} us", ms * 1e3),
        _ if ms < 10.0 => format!("{ms:.1} ms"),
        _ if ms < 1_000.0 => format!("{ms:.0} ms"),
        _ if ms < 10_000.0 => format!("{:.1} s", ms / 1e3),
        _ => format!("{:.0} s", ms / 1e3),
    }
}

/// Formats a duration in the largest unit that is not longer than the duration: 850ms, 4.2s,
/// 3.0min, 5.0h, 2.0d.
pub(crate) fn span(milliseconds: u64) -> String {
    let units = [("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)];
    match units.iter().find(|(_, factor)| milliseconds >= *factor) {
        Some((unit, factor)) => format!("{:.1}{unit}", milliseconds as f64 / *factor as f64),
        None => format!("{milliseconds}ms"),
    }
}

/// Formats the share of `part` in `whole` as a percentage.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    match whole {
        0 => "-".into(),
        _ => format!("{:.1}%", part as f64 * 100.0 / whole as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn pipe_and_socket_without_a_reader_are_recognized() {
        let (reader, pipe) = std::io::pipe().unwrap();
        let (peer, socket) = UnixStream::pair().unwrap();
        assert!(!is_without_reader(&pipe) && !is_without_reader(&socket));
        drop((reader, peer));
        assert!(is_without_reader(&pipe) && is_without_reader(&socket));
    }

    #[test]
    fn replaced_line_is_not_wrapped_by_a_narrow_terminal() {
        assert_eq!(replaced_line("a: 5%"), "\r\x1b[K\x1b[?7la: 5%\x1b[?7h");
    }

    #[test]
    fn count_of_one_has_the_singular_noun() {
        let files = |number| counted(number, "file", "files");
        assert_eq!([files(0), files(1), files(2)], ["0 files", "1 file", "2 files"]);
        assert_eq!(files(1_500), "1.5k files");
    }

    #[test]
    fn column_titles_are_upper_case_except_units() {
        assert_eq!(in_capitals("Read GB/s"), "READ GB/s");
        assert_eq!(in_capitals("round trip us"), "ROUND TRIP us");
    }

    #[test]
    fn sizes_and_counts_are_printed_with_a_unit() {
        let check = |bytes, expected: &str| assert_eq!(size(bytes), expected);
        check(0, "0B");
        check(1023, "1023B");
        check(1024, "1.0KiB");
        check(1_610_612_736, "1.5GiB");
        check(u64::MAX, "16.0EiB");
        assert_eq!(count(1_500_000), "1.5M");
        assert_eq!((percent(1, 8), percent(1, 0)), ("12.5%".into(), "-".into()));
    }

    #[test]
    fn durations_are_printed_in_the_largest_unit() {
        assert_eq!(
            (span(999), span(1_500), span(90_000)),
            ("999ms".into(), "1.5s".into(), "1.5min".into())
        );
    }

    #[test]
    fn ndjson_has_one_line_per_list_element() {
        #[derive(Serialize)]
        struct Thing {
            name: &'static str,
            parts: Vec<u32>,
        }
        let thing = |name| Thing { name, parts: vec![1, 2] };
        let lines = |value: &dyn Fn(OutputFormat) -> Result<String>| {
            let [json, by_line] = [OutputFormat::Json, OutputFormat::Ndjson].map(value);
            let json: serde_json::Value = serde_json::from_str(&json.unwrap()).unwrap();
            let by_line: Vec<serde_json::Value> =
                by_line.unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            (json, by_line)
        };
        for list in [vec![thing("a\nb"), thing("c")], vec![thing("a")], Vec::new()] {
            let (json, by_line) = lines(&|format| in_form(format, &list, |_| "for people".into()));
            assert_eq!(json, serde_json::Value::Array(by_line));
        }
        let one = thing("a\nb");
        let (json, by_line) = lines(&|format| in_form(format, &one, |_| "for people".into()));
        assert_eq!([json], by_line[..]);
        assert_eq!(
            in_form(OutputFormat::Ndjson, &Vec::<u32>::new(), |_| "none".into()),
            Ok("".into())
        );
        assert_eq!(
            in_form(OutputFormat::Table, &one, |_| "for people \n".into()),
            Ok("for people".into())
        );
    }

    #[test]
    fn control_characters_in_names_are_escaped() {
        let mut shown = table(&["HOST", ">Free"]);
        shown.add_row(["a\nforged  9\u{1b}[2J", "5"]);
        assert_eq!(render(&shown), "HOST                   FREE\na\\nforged  9\\u{1b}[2J     5\n");
    }

    #[test]
    fn csv_quotes_separators_and_formulas() {
        #[derive(Serialize)]
        struct Thing {
            name: &'static str,
            size: Option<i64>,
            parts: Vec<u32>,
        }
        let things = [
            Thing { name: "a,\"b\"\nc", size: Some(-5), parts: vec![1, 2] },
            Thing { name: "=1+1", size: None, parts: Vec::new() },
        ];
        let text = in_form(OutputFormat::Csv, &things, |_| String::new()).unwrap();
        let expected = "name,parts,size\n\"a,\"\"b\"\"\nc\",\"[1,2]\",-5\n'=1+1,[],";
        assert_eq!(text, expected);
        assert_eq!(in_form(OutputFormat::Csv, &Vec::<u32>::new(), |_| "x".into()), Ok("".into()));
    }

    #[test]
    fn xml_of_an_empty_list_has_a_root_element() {
        let text = in_form(OutputFormat::Xml, &Vec::<u32>::new(), |_| "none".into()).unwrap();
        assert_eq!(text, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<skep>\n</skep>");
    }

    #[test]
    fn table_lines_have_no_trailing_spaces() {
        let mut shown = table(&["ID", ">Free"]);
        shown.add_row(["t1", "5"]);
        assert_eq!(render(&shown), "ID  FREE\nt1     5\n");
    }
}
