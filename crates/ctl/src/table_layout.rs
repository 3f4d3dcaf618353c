//! The layout that the user requests for a table: the columns, the order of the rows, and whether
//! the table has a line of titles.
//!
//! The module `output` formats the cells, and prints output that is not a table.

use crate::near_misses::hint;
use clap::Args;
use comfy_table::{Cell, CellAlignment, Row, Table};
use skep_types::{Error, ErrorCode, Result};
use std::cmp::Ordering;
use std::sync::{Mutex, OnceLock, PoisonError};

/// The options of all commands that print tables.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct TableLayout {
    /// Columns of the table, in this order: titles separated by commas, in upper or lower case
    #[arg(long, global = true, value_name = "TITLES", value_delimiter = ',')]
    #[arg(help_heading = "Tables", hide_short_help = true)]
    columns: Vec<String>,
    /// Column that sorts the rows; with `-` before it, in descending order
    #[arg(long, global = true, value_name = "TITLE", allow_hyphen_values = true)]
    #[arg(help_heading = "Tables", hide_short_help = true)]
    sort: Option<String>,
    /// Print no line of titles
    #[arg(long = "no-header", global = true)]
    #[arg(help_heading = "Tables", hide_short_help = true)]
    is_bare: bool,
}

/// The layout of this process, set once before the command runs.
static LAYOUT: OnceLock<TableLayout> = OnceLock::new();

/// The first error in the requested layout. The functions that format a table cannot return errors,
/// so these functions store the error in this variable. The function that prints the table returns
/// the error.
static PROBLEM: Mutex<Option<Error>> = Mutex::new(None);

/// Sets the layout of this process.
pub(crate) fn choose(layout: TableLayout) {
    // `set` fails only at a second call, which would set the same value, because there is only one
    // command line.
    let _ = LAYOUT.set(layout);
}

/// Returns the layout of this process, for a command that draws its table itself.
pub(crate) fn requested() -> TableLayout {
    LAYOUT.get().cloned().unwrap_or_default()
}

/// Changes a table to the layout that the user requested. If a requested column does not exist,
/// does not change the table, and stores the error for [`check`].
pub(crate) fn apply(table: &mut Table) {
    let Some(layout) = LAYOUT.get().filter(|layout| **layout != TableLayout::default()) else {
        return;
    };
    if let Err(error) = layout.apply(table) {
        PROBLEM.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }
}

/// Returns and clears the error that [`apply`] has recorded.
///
/// # Errors
/// `InvalidArgument` if the user has named a column that a table does not have.
pub(crate) fn check() -> Result<()> {
    PROBLEM.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Err)
}

/// First cell of the row that has the sums of the other rows. This row is always the last row.
pub(crate) const TOTAL: &str = "total";

impl TableLayout {
    /// Returns the positions of the requested columns in `titles`, in the requested order. Empty if
    /// all columns are shown.
    ///
    /// # Errors
    /// `InvalidArgument` if `titles` lacks a column.
    pub(crate) fn columns_among(&self, titles: &[String]) -> Result<Vec<usize>> {
        self.columns.iter().map(|name| find(titles, name)).collect()
    }

    /// Returns the position in `titles` of the column that sorts the rows, and whether the order is
    /// descending. `None` means the order of the command.
    ///
    /// # Errors
    /// `InvalidArgument` if `titles` lacks the column.
    pub(crate) fn sort_among(&self, titles: &[String]) -> Result<Option<(usize, bool)>> {
        let Some(name) = &self.sort else { return Ok(None) };
        let (name, is_descending) = match name.strip_prefix('-') {
            Some(name) => (name, true),
            None => (name.as_str(), false),
        };
        Ok(Some((find(titles, name)?, is_descending)))
    }

    /// Whether the table has a line of titles.
    pub(crate) fn has_titles(&self) -> bool {
        !self.is_bare
    }

    fn apply(&self, table: &mut Table) -> Result<()> {
        let titles: Vec<String> = cells(table.header()).collect();
        let columns = self.columns_among(&titles)?;
        let mut rows: Vec<Vec<String>> =
            table.row_iter().map(|row| cells(Some(row)).collect()).collect();
        if let Some((by, is_descending)) = self.sort_among(&titles)? {
            let is_total = |row: &[String]| row.first().is_some_and(|it| it == TOTAL);
            rows.sort_by(|one, other| {
                let order = compare(&one[by], &other[by]);
                let order = if is_descending { order.reverse() } else { order };
                is_total(one).cmp(&is_total(other)).then(order)
            });
        }
        let kept: Vec<usize> = match columns.is_empty() {
            true => (0..titles.len()).collect(),
            false => columns,
        };
        let is_number = |column: &usize| {
            let mut cells = rows.iter().filter_map(|row| row.get(*column));
            cells.all(|cell| value(cell).is_some() || cell == "-")
        };
        let numbers: Vec<bool> = kept.iter().map(is_number).collect();
        let mut changed = Table::new();
        changed.load_preset(comfy_table::presets::NOTHING);
        if !self.is_bare {
            changed.set_header(kept.iter().map(|column| Cell::new(&titles[*column])));
        }
        for row in &rows {
            let cells = kept.iter().map(|column| row.get(*column).cloned().unwrap_or_default());
            changed.add_row(cells.collect::<Vec<_>>());
        }
        for (index, column) in changed.column_iter_mut().enumerate() {
            column.set_padding((if index == 0 { 0 } else { 1 }, 1));
            if numbers.get(index) == Some(&true) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        *table = changed;
        Ok(())
    }
}

/// Returns the position of the column that the user has named.
fn find(titles: &[String], name: &str) -> Result<usize> {
    let position = titles.iter().position(|title| is_same(title, name));
    position.ok_or_else(|| {
        let what = format!(
            "cannot show column '{name}'{}: the table has the columns {}",
            hint(name, titles.iter().map(String::as_str)),
            titles.join(", ")
        );
        Error::new(ErrorCode::InvalidArgument, what)
    })
}

fn cells(row: Option<&Row>) -> impl Iterator<Item = String> {
    row.into_iter().flat_map(Row::cell_iter).map(Cell::content)
}

/// Whether the text that the user typed means the title of a column. Ignores case. `-` and `_` in
/// the text mean a space.
fn is_same(title: &str, name: &str) -> bool {
    let plain = |text: &str| text.to_lowercase().replace([' ', '_'], "-");
    plain(title) == plain(name.trim())
}

/// Compares two cells for sorting. Numbers, with or without a unit, are compared by value and come
/// before texts. Texts are in alphabetical order.
fn compare(one: &str, other: &str) -> Ordering {
    match (value(one), value(other)) {
        (Some(one), Some(other)) => one.total_cmp(&other),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => one.cmp(other),
    }
}

/// Returns the value of a cell that contains a number in one of the forms of tables: `12`,
/// `1.5GiB`, `16.8M`, `4.2ms`, `15.1%`.
fn value(cell: &str) -> Option<f64> {
    let end = cell.find(|it: char| !it.is_ascii_digit() && !matches!(it, '.' | '-'));
    let (number, unit) = cell.split_at(end.unwrap_or(cell.len()));
    let number: f64 = number.parse().ok()?;
    let factor = match unit.trim() {
        "" | "B" | "%" => 1.0,
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "min" => 60.0,
        "h" => 3_600.0,
        "d" => 86_400.0,
        unit => {
            let (step, letter) = match unit.strip_suffix("iB") {
                Some(letter) => (1024_f64, letter),
                None => (1000.0, unit),
            };
            let index = ["K", "M", "G", "T", "P", "E"]
                .iter()
                .position(|it| it.eq_ignore_ascii_case(letter))?;
            step.powi(i32::try_from(index).ok()? + 1)
        }
    };
    Some(number * factor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::table as new_table;

    fn shown(layout: &TableLayout) -> Result<String> {
        let mut shown = Table::new();
        shown.load_preset(comfy_table::presets::NOTHING).set_header(["NAME", "FREE", "LAST SEEN"]);
        for row in [["b", "1.5GiB", "4.2s"], ["c", "900MiB", "3.0min"], ["a", "2.0TiB", "10ms"]] {
            shown.add_row(row);
        }
        layout.apply(&mut shown)?;
        Ok(shown.lines().map(|line| line.trim_end().to_owned() + "\n").collect())
    }

    #[test]
    fn table_has_the_requested_columns_order_and_header() {
        let columns = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect();
        let all = TableLayout::default();
        let layout = TableLayout { columns: columns(&["last-seen", "Name"]), ..all.clone() };
        assert!(shown(&layout).unwrap().starts_with("LAST SEEN  NAME\n"));
        let layout = TableLayout { sort: Some("-free".into()), is_bare: true, ..all.clone() };
        let names: Vec<String> =
            shown(&layout).unwrap().lines().map(|line| line[..1].to_owned()).collect();
        assert_eq!(names, ["a", "b", "c"]);
        let layout = TableLayout { sort: Some("last seen".into()), ..all.clone() };
        assert!(shown(&layout).unwrap().ends_with("3.0min\n"));
        let layout = TableLayout { columns: columns(&["size"]), ..all };
        let refused = shown(&layout).unwrap_err();
        assert!(refused.context().ends_with("the columns NAME, FREE, LAST SEEN"), "{refused}");
    }

    #[test]
    fn row_of_sums_stays_last_in_a_sorted_table() {
        let sort = |column: &str| {
            let mut table = new_table(&["TARGET", ">FREE"]);
            for row in [["t1", "1GiB"], ["t2", "2GiB"], [TOTAL, "3GiB"]] {
                table.add_row(row);
            }
            let layout = TableLayout { sort: Some(column.into()), ..TableLayout::default() };
            layout.apply(&mut table).unwrap();
            let first = |row: &Row| cells(Some(row)).next().unwrap();
            table.row_iter().map(first).collect::<Vec<_>>()
        };
        assert_eq!(sort("-free"), ["t2", "t1", TOTAL]);
        assert_eq!(sort("free"), ["t1", "t2", TOTAL]);
    }

    #[test]
    fn rows_are_sorted_by_the_value_of_numbers_and_sizes() {
        for (less, more) in
            [("9", "10"), ("900MiB", "1.5GiB"), ("850ms", "4.2s"), ("2", "x"), ("a", "b")]
        {
            assert_eq!(compare(less, more), Ordering::Less, "{less} {more}");
        }
    }
}
