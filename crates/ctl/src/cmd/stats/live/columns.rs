//! The columns of the live table: their titles, cells and order, and the selection of columns that
//! fit the width of the terminal.
//!
//! Unlike the tables of other commands, the table never grows beyond the terminal: names become
//! shorter, and then columns of lower importance are left out. Widths have a minimum, so that
//! columns do not move each time a value changes.

use super::super::Division;
use super::super::show::{self, Line, full_name};
use crate::output::{count, size};
use skep_types::text::escape_controls;
use std::cmp::Ordering;
use unicode_width::UnicodeWidthChar;

/// Number of spaces between two columns.
const GAP: usize = 2;
/// Columns are left out if names would have less space than this.
const SHORTEST_NAME: usize = 12;

/// A column of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Column {
    Name,
    Operations,
    Read,
    Written,
    Mean,
    P99,
    Errors,
    Queued,
    Busy,
}

/// The columns in the order in which a narrow terminal loses columns. The name is never left out.
const LEAST_IMPORTANT_FIRST: [Column; 8] = [
    Column::Busy,
    Column::Errors,
    Column::Queued,
    Column::P99,
    Column::Mean,
    Column::Written,
    Column::Read,
    Column::Operations,
];

impl Column {
    /// Returns the columns of a table, from left to right.
    pub(super) fn all(kinds: show::Columns) -> Vec<Self> {
        let mut all = vec![Self::Name, Self::Operations, Self::Read, Self::Written, Self::Mean];
        if kinds.has_durations {
            all.extend([Self::P99, Self::Errors]);
        }
        if kinds.has_queues {
            all.extend([Self::Queued, Self::Busy]);
        }
        all
    }

    /// Returns the title of the column in the table of `--once`.
    pub(super) fn title(self, by: Division) -> &'static str {
        match self {
            Self::Name => show::title(by),
            Self::Operations => "OPS/s",
            Self::Read => "READ/s",
            Self::Written => "WRITTEN/s",
            Self::Mean => "MEAN",
            Self::P99 => "P99",
            Self::Errors => "ERR",
            Self::Queued => "QUEUED",
            Self::Busy => "BUSY",
        }
    }

    /// Returns the minimum width of the column. Usual values are not wider.
    fn usual_width(self) -> usize {
        match self {
            Self::Read => "100.0MiB".len(),
            Self::Operations => "100.0k".len(),
            Self::Mean | Self::P99 => "99.9ms".len(),
            Self::Name | Self::Written | Self::Errors | Self::Queued | Self::Busy => 0,
        }
    }

    fn cell(self, line: &Line, by: Division) -> String {
        match self {
            Self::Name => plain(&full_name(line, by)),
            Self::Operations => count(line.operations_per_second.round() as u64),
            Self::Read => size(line.read_bytes_per_second.round() as u64),
            Self::Written => size(line.written_bytes_per_second.round() as u64),
            Self::Mean => show::time(line.mean_us),
            Self::P99 => line.p99_us.map_or_else(|| "-".into(), show::time),
            Self::Errors => count(line.errors),
            Self::Queued => line.queued.to_string(),
            Self::Busy => line.busy.to_string(),
        }
    }

    /// Compares two lines by this column: names in alphabetical order, numbers with the largest
    /// first.
    pub(super) fn compare(self, one: &Line, other: &Line, by: Division) -> Ordering {
        match self {
            // Compare targets by their numbers, so that t10 comes after t9.
            Self::Name if by == Division::Target => {
                let number = |line: &Line| line.id.parse::<u32>().unwrap_or(u32::MAX);
                number(one).cmp(&number(other))
            }
            Self::Name => full_name(one, by).cmp(&full_name(other, by)),
            Self::Operations => larger_first(one, other, |it| it.operations_per_second),
            Self::Read => larger_first(one, other, |it| it.read_bytes_per_second),
            Self::Written => larger_first(one, other, |it| it.written_bytes_per_second),
            Self::Mean => larger_first(one, other, |it| it.mean_us),
            Self::P99 => larger_first(one, other, |it| it.p99_us.unwrap_or(-1.0)),
            Self::Errors => other.errors.cmp(&one.errors),
            Self::Queued => other.queued.cmp(&one.queued),
            Self::Busy => other.busy.cmp(&one.busy),
        }
    }
}

fn larger_first(one: &Line, other: &Line, figure: fn(&Line) -> f64) -> Ordering {
    figure(other).total_cmp(&figure(one))
}

/// The text of a table: the titles, one text for each line, and the sum. The texts of a table all
/// have the same columns.
#[derive(Debug)]
pub(super) struct TableText {
    pub(super) titles: String,
    pub(super) rows: Vec<String>,
    pub(super) sum: String,
}

/// Formats a table of at most `width` terminal columns. `kept` is the column that sorts the rows.
/// This column is left out last.
pub(super) fn table(
    (lines, sum): (&[&Line], &Line),
    columns: &[Column],
    by: Division,
    kept: Option<Column>,
    width: usize,
) -> TableText {
    let mut columns = columns.to_vec();
    let widest = |column: Column| {
        let cells = lines.iter().copied().chain([sum]).map(|line| column.cell(line, by));
        let cells = cells.map(|cell| width_of(&cell)).max().unwrap_or(0);
        let title = if column == Column::Name { 0 } else { column.title(by).len() };
        cells.max(title).max(column.usual_width())
    };
    let name_width = widest(Column::Name).max(show::title(by).len());
    let figures_width = |columns: &[Column]| -> usize {
        let figures = columns.iter().filter(|it| **it != Column::Name);
        figures.map(|column| GAP + widest(*column)).sum()
    };
    let shortest_name = name_width.min(SHORTEST_NAME);
    let has_name = columns.contains(&Column::Name);
    let need =
        |columns: &[Column]| figures_width(columns) + if has_name { shortest_name } else { 0 };
    let least_first = LEAST_IMPORTANT_FIRST.iter().filter(|it| Some(**it) != kept);
    for column in least_first.copied().chain(kept.filter(|it| *it != Column::Name)) {
        if need(&columns) > width {
            columns.retain(|it| *it != column);
        }
    }
    let name_width = name_width.min(width.saturating_sub(figures_width(&columns)));
    let widths: Vec<_> = columns
        .iter()
        .map(|column| if *column == Column::Name { name_width } else { widest(*column) })
        .collect();
    let row = |cell: &dyn Fn(Column) -> String| {
        let mut text = String::new();
        for (index, (column, width)) in columns.iter().zip(&widths).enumerate() {
            let gap = if index == 0 { 0 } else { GAP };
            text += &" ".repeat(gap);
            text += &aligned(&cell(*column), *width, *column != Column::Name);
        }
        shortened(text.trim_end(), width)
    };
    TableText {
        titles: row(&|column: Column| column.title(by).to_owned()),
        rows: lines.iter().map(|line| row(&|column: Column| column.cell(line, by))).collect(),
        sum: row(&|column: Column| match column {
            Column::Name => "sum".into(),
            column => column.cell(sum, by),
        }),
    }
}

/// Returns a text with exactly `width` columns: longer texts are shortened, shorter texts are
/// padded.
pub(super) fn aligned(text: &str, width: usize, is_right: bool) -> String {
    let text = shortened(text, width);
    let space = " ".repeat(width - width_of(&text));
    if is_right { space + &text } else { text + &space }
}

/// Shortens a text to at most `width` columns. If characters are left out, the last character of
/// the result is `~`.
pub(super) fn shortened(text: &str, width: usize) -> String {
    if width_of(text) <= width {
        return text.to_owned();
    }
    let mut short = String::new();
    for character in text.chars() {
        if width_of(&short) + columns_of(character) + 1 > width {
            break;
        }
        short.push(character);
    }
    if width > 0 { short + "~" } else { short }
}

/// Escapes control characters, and removes characters without a width, because terminals combine
/// such characters with other characters in different ways. So every terminal shows the result in
/// the width that [`width_of`] returns.
pub(super) fn plain(text: &str) -> String {
    escape_controls(text).chars().filter(|it| columns_of(*it) > 0).collect()
}

/// Returns the number of columns of a text.
pub(super) fn width_of(text: &str) -> usize {
    text.chars().map(columns_of).sum()
}

fn columns_of(character: char) -> usize {
    character.width().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::super::show::{Columns, Names, line};
    use super::*;
    use proptest::{prop_assert, proptest};
    use skep_stats::Row;
    use skep_types::{ClusterId, ClusterMap};

    fn lines(rows: &[Row], by: Division) -> Vec<Line> {
        let names = Names::of(&ClusterMap::empty(ClusterId::default()));
        rows.iter().map(|row| line(row, by, &names)).collect()
    }

    fn busy(id: &str) -> Row {
        Row {
            id: id.into(),
            operations: 123_456,
            errors: 12,
            busy_ns: 123_456 * 43_000_000,
            queued: 1_234,
            busy: 64,
            operations_per_second: 123_456.0,
            read_bytes_per_second: 104_857_600.0,
            written_bytes_per_second: 1_073_000_000.0,
            ..Row::default()
        }
    }

    fn shown(id: &str, kept: Option<Column>, width: usize) -> TableText {
        let by = Division::Operation;
        let lines = lines(&[busy(id), Row { id: "lookup".into(), ..Row::default() }], by);
        let columns = Column::all(Columns::of(by, false));
        table((&[&lines[0], &lines[1]], &lines[0]), &columns, by, kept, width)
    }

    #[test]
    fn terminal_of_80_columns_has_all_columns_of_a_busy_cluster() {
        let text = shown("write_chunk", None, 80);
        let titles: Vec<_> = text.titles.split_whitespace().collect();
        let expected =
            ["OPERATION", "OPS/s", "READ/s", "WRITTEN/s", "MEAN", "P99", "ERR", "QUEUED", "BUSY"];
        assert_eq!(titles, expected);
        assert!(text.rows[0].starts_with("write_chunk "), "{text:?}");
        assert!(text.rows[0].ends_with(" 64") && text.sum.starts_with("sum "), "{text:?}");
        assert!(text.rows.iter().all(|row| width_of(row) <= 80), "{text:?}");
    }

    #[test]
    fn narrow_terminal_loses_less_important_columns_first() {
        let titles = |kept, width| shown("write_chunk", kept, width).titles;
        let plain =
            |kept, width| titles(kept, width).split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(plain(None, 40), "OPERATION OPS/s READ/s WRITTEN/s");
        assert_eq!(plain(Some(Column::Busy), 40), "OPERATION OPS/s READ/s BUSY");
        assert_eq!(plain(None, 20), "OPERATION OPS/s");
        assert_eq!(plain(None, 12), "OPERATION");
        assert_eq!(plain(None, 5), "OPER~");
        assert_eq!(shown("write_chunk", None, 0).rows, ["", ""]);
    }

    #[test]
    fn long_names_are_shortened_before_columns_are_lost() {
        let text = shown("a_very_long_name_of_an_operation", None, 80);
        assert!(text.titles.ends_with("BUSY"), "{text:?}");
        assert!(text.rows[0].starts_with("a_very_lon"), "{text:?}");
        assert!(text.rows[0].contains("~ "), "{text:?}");
        // Each of these characters has two columns.
        assert_eq!(shortened("\u{4e2d}\u{6587}\u{5b57}", 5), "\u{4e2d}\u{6587}~");
        assert_eq!(shortened("\u{4e2d}\u{6587}\u{5b57}", 4), "\u{4e2d}~");
        assert_eq!(aligned("ab", 4, true), "  ab");
        assert_eq!(plain("a\x1b[2J\u{301}b\u{200b}"), "a\\u{1b}[2Jb");
    }

    #[test]
    fn targets_are_sorted_by_the_numbers_of_their_ids() {
        let row = |id: &str| Row { id: id.into(), ..Row::default() };
        let targets = lines(&["10", "9", "other"].map(row), Division::Target);
        let compare =
            |one: usize, other: usize, by| Column::Name.compare(&targets[one], &targets[other], by);
        assert_eq!(compare(0, 1, Division::Target), Ordering::Greater);
        assert_eq!(compare(0, 2, Division::Target), Ordering::Less);
        assert_eq!(compare(0, 1, Division::Operation), Ordering::Less);
    }

    proptest! {
        #[test]
        fn names_fit_their_line_and_cannot_control_the_terminal(
            name in "(?s).{0,60}",
            width in 0..120_usize,
        ) {
            let text = shown(&name, None, width);
            for row in text.rows.iter().chain([&text.titles, &text.sum]) {
                prop_assert!(width_of(row) <= width, "{row:?}");
                prop_assert!(!row.chars().any(char::is_control), "{row:?}");
            }
        }
    }
}
