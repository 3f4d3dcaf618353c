//! The state of the live view, and the effect of each key on this state. The view reads no terminal
//! and asks no service, so tests can check each behaviour.
//!
//! The view is a stack of levels, from the cluster to a service and to a target. Enter adds a level
//! for the selected row, and Backspace or Escape removes this level.

use super::super::Division;
use super::super::selection::{Filter, MAX_FILTER_CHARS};
use super::super::show::{Columns, Line};
use super::columns::Column;
use super::keys::Key;
use skep_stats::LoadScope;
use std::time::Duration;

/// The kinds of objects into which a level can be divided. The key `b` selects the next kind in
/// this order.
const DIVISIONS: [Division; 7] = [
    Division::Node,
    Division::Target,
    Division::Operation,
    Division::Client,
    Division::User,
    Division::Group,
    Division::Job,
];
/// The intervals in milliseconds that the keys `+` and `-` choose.
const INTERVALS_MS: [u64; 10] =
    [100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000];
/// Number of lines of the screen that are not rows of the table.
const OTHER_LINES: usize = 5;

/// The size of the terminal in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) columns: usize,
    pub(super) rows: usize,
}

/// A level of the view: a part of the cluster, divided into rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Level {
    pub(super) by: Division,
    pub(super) scope: LoadScope,
    /// Name of the part of the cluster.
    pub(super) name: String,
    pub(super) filter: Filter,
    cursor: Cursor,
}

impl Level {
    pub(super) fn new(by: Division, scope: LoadScope, name: String, filter: Filter) -> Self {
        Self { by, scope, name, filter, cursor: Cursor::default() }
    }
}

/// The selected row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Cursor {
    /// The object of the row, by id and service. `None` means that the user has not moved the
    /// cursor, and selects the first row, even if the first row then shows another object.
    object: Option<(String, String)>,
    /// Position of the selected row at the moment of its selection. If the object has no row any
    /// more, the row at this position is selected.
    position: usize,
}

/// The order of the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Order {
    /// The column that sorts the rows. `None` means that the load sorts the rows, as in other
    /// outputs.
    pub(super) column: Option<Column>,
    /// Whether the usual order is reversed. The usual order is alphabetical for names, and
    /// descending for numbers.
    pub(super) is_reversed: bool,
}

/// The reaction of the program to a key, besides a new drawing of the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// Only the screen has changed.
    Draw,
    /// The terminal may show other text than the last drawing, so the screen is drawn anew.
    DrawAnew,
    /// The interval has changed, or the user has ended a pause.
    Measure,
    Quit,
}

/// The state of the live view.
#[derive(Debug)]
pub(super) struct View {
    /// The levels, from the cluster to the level that is shown. Never empty.
    levels: Vec<Level>,
    order: Order,
    /// The columns that `--columns` selects. Empty without this option.
    selected_columns: Vec<Column>,
    /// The text of a filter that the user is typing.
    typed: Option<String>,
    /// Whether the statistics come from a mount, and not from services.
    is_own: bool,
    pub(super) is_paused: bool,
    pub(super) has_help: bool,
    pub(super) interval: Duration,
    pub(super) size: Size,
    /// A message about the last key.
    pub(super) note: Option<String>,
}

impl View {
    /// Creates a view whose last level is shown. `levels` must not be empty.
    pub(super) fn new(levels: Vec<Level>, interval: Duration, size: Size, is_own: bool) -> Self {
        assert!(!levels.is_empty(), "the view has a level");
        Self {
            levels,
            order: Order { column: None, is_reversed: false },
            selected_columns: Vec::new(),
            typed: None,
            is_own,
            is_paused: false,
            has_help: false,
            interval,
            size,
            note: None,
        }
    }

    /// Sets the columns and the order that the user has requested with `--columns` and `--sort`.
    pub(super) fn set_layout(&mut self, columns: Vec<Column>, order: Order) {
        (self.selected_columns, self.order) = (columns, order);
    }

    /// Returns the level that is shown.
    pub(super) fn level(&self) -> &Level {
        self.levels.last().expect("there is always a level")
    }

    fn level_mut(&mut self) -> &mut Level {
        self.levels.last_mut().expect("there is always a level")
    }

    /// Returns the names of all levels, from the cluster to the level that is shown.
    pub(super) fn path(&self) -> impl Iterator<Item = &str> {
        self.levels.iter().map(|level| level.name.as_str())
    }

    pub(super) fn by(&self) -> Division {
        self.level().by
    }

    /// Returns the text that the user is typing.
    pub(super) fn typed(&self) -> Option<&str> {
        self.typed.as_deref()
    }

    /// Returns the order of the rows. If the user sorts by a column that the table does not show,
    /// the rows are sorted by load.
    pub(super) fn order(&self) -> Order {
        let column = self.order.column.filter(|column| self.columns().contains(column));
        Order { column, ..self.order }
    }

    /// Returns the columns of the table, before columns are removed for a narrow terminal. If no
    /// column that the user has requested exists for this kind of rows, all columns are shown.
    pub(super) fn columns(&self) -> Vec<Column> {
        let all = Column::all(Columns::of(self.by(), self.is_own));
        let selected: Vec<_> =
            self.selected_columns.iter().copied().filter(|it| all.contains(it)).collect();
        if selected.is_empty() { all } else { selected }
    }

    /// Returns the rows that match the filter, in the order that the user has chosen. `lines` are
    /// sorted by load.
    pub(super) fn arranged<'a>(&self, lines: &'a [Line]) -> Vec<&'a Line> {
        let by = self.by();
        let typed = self.typed.as_deref().map(Filter::new);
        let filter = typed.as_ref().unwrap_or(&self.level().filter);
        let mut rows: Vec<_> = lines.iter().filter(|line| filter.matches(line, by)).collect();
        let Order { column, is_reversed } = self.order();
        if let Some(column) = column {
            rows.sort_by(|one, other| column.compare(one, other, by));
        }
        if is_reversed {
            rows.reverse();
        }
        rows
    }

    /// Returns the position of the selected row in `rows`. Zero if there are no rows.
    pub(super) fn selected(&self, rows: &[&Line]) -> usize {
        let Cursor { object, position } = &self.level().cursor;
        let is_it = |line: &&Line| {
            object.as_ref().is_some_and(|(id, service)| line.id == *id && line.service == *service)
        };
        let last = rows.len().saturating_sub(1);
        rows.iter().position(is_it).unwrap_or((*position).min(last))
    }

    /// Number of rows of the table that the terminal shows at the same time.
    pub(super) fn page(&self) -> usize {
        self.size.rows.saturating_sub(OTHER_LINES).max(1)
    }

    /// Changes the view by a key. `lines` are the rows of the level that is shown, sorted by load.
    pub(super) fn press(&mut self, key: Key, lines: &[Line]) -> Effect {
        self.note = None;
        if key == Key::Interrupt {
            return Effect::Quit;
        }
        if self.typed.is_some() {
            return self.type_filter(key);
        }
        if self.has_help {
            self.has_help = false;
            return if key == Key::Char('q') { Effect::Quit } else { Effect::Draw };
        }
        match key {
            Key::Char('q') => return Effect::Quit,
            Key::Char('?' | 'h') => self.has_help = true,
            Key::Char('/' | 'f') => self.typed = Some(self.level().filter.text().to_owned()),
            Key::Char(' ' | 'p') => return self.pause(),
            Key::Char('+') => return self.change_interval(true),
            Key::Char('-') => return self.change_interval(false),
            Key::Char('b') => self.change_division(true),
            Key::Char('B') => self.change_division(false),
            Key::Char(digit @ '1'..='7') => {
                self.choose_division(DIVISIONS[usize::from(digit as u8 - b'1')]);
            }
            Key::Right | Key::Char('>') => self.change_column(true),
            Key::Left | Key::Char('<') => self.change_column(false),
            Key::Char('r') => self.order.is_reversed = !self.order.is_reversed,
            Key::Enter => self.enter(lines),
            Key::Backspace | Key::Escape => self.leave(),
            Key::Redraw => return Effect::DrawAnew,
            Key::Up | Key::Char('k') => self.select(lines, |at| at.saturating_sub(1)),
            Key::Down | Key::Char('j') => self.select(lines, |at| at + 1),
            Key::PageUp => self.select_by_page(lines, false),
            Key::PageDown => self.select_by_page(lines, true),
            Key::Home | Key::Char('g') => self.select(lines, |_| 0),
            Key::End | Key::Char('G') => self.select(lines, |_| usize::MAX),
            Key::Char(_) | Key::ClearText | Key::Interrupt => {}
        }
        Effect::Draw
    }

    /// Changes the text of the filter that the user is typing.
    fn type_filter(&mut self, key: Key) -> Effect {
        let Some(text) = &mut self.typed else { return Effect::Draw };
        match key {
            Key::Char(character) if text.chars().count() < MAX_FILTER_CHARS => text.push(character),
            Key::Backspace => {
                text.pop();
            }
            Key::ClearText => text.clear(),
            Key::Enter => {
                let filter = Filter::new(text);
                self.typed = None;
                self.level_mut().filter = filter;
            }
            Key::Escape => self.typed = None,
            Key::Redraw => return Effect::DrawAnew,
            _ => {}
        }
        Effect::Draw
    }

    fn pause(&mut self) -> Effect {
        self.is_paused = !self.is_paused;
        if self.is_paused { Effect::Draw } else { Effect::Measure }
    }

    /// Chooses the next longer or shorter interval.
    fn change_interval(&mut self, is_longer: bool) -> Effect {
        let now = self.interval;
        let mut all = INTERVALS_MS.iter().copied().map(Duration::from_millis);
        let next = match is_longer {
            true => all.find(|it| *it > now),
            false => all.rfind(|it| *it < now),
        };
        match next {
            Some(interval) => {
                self.interval = interval;
                Effect::Measure
            }
            None => {
                let what = if is_longer { "longest" } else { "shortest" };
                self.note = Some(format!("this is the {what} interval"));
                Effect::Draw
            }
        }
    }

    fn change_division(&mut self, is_next: bool) {
        let allowed: Vec<_> = DIVISIONS.iter().filter(|by| self.has_division(**by)).collect();
        let now = allowed.iter().position(|by| **by == self.by()).unwrap_or(0);
        let step = if is_next { 1 } else { allowed.len().saturating_sub(1) };
        if let Some(by) = allowed.get((now + step) % allowed.len().max(1)) {
            self.choose_division(**by);
        }
    }

    fn choose_division(&mut self, by: Division) {
        if by == self.by() {
            return;
        }
        if !self.has_division(by) {
            let by = by.word();
            self.note = Some(format!(
                "through a mount, the load of a single service is counted only by service or \
                 target, not by {by}"
            ));
            return;
        }
        let level = self.level_mut();
        *level = Level::new(by, level.scope, level.name.clone(), Filter::default());
    }

    /// Whether the source of the statistics can divide the load of this level by objects of the
    /// kind `by`.
    fn has_division(&self, by: Division) -> bool {
        let is_whole = self.level().scope == LoadScope::default();
        !self.is_own || is_whole || matches!(by, Division::Node | Division::Target)
    }

    /// Sorts the rows by the next column to the right or to the left. The order by load, which has
    /// no column, precedes the first column.
    fn change_column(&mut self, is_right: bool) {
        let columns = self.columns();
        let column = self.order().column;
        let at = column.and_then(|it| columns.iter().position(|other| *other == it));
        let at = at.map_or(0, |at| at + 1);
        let count = columns.len() + 1;
        let step = if is_right { 1 } else { count - 1 };
        let next = (at + step) % count;
        let column = next.checked_sub(1).map(|at| columns[at]);
        self.order = Order { column, is_reversed: false };
    }

    /// Adds a level for the selected row: from a service to its targets, or from a target to its
    /// kinds of requests.
    fn enter(&mut self, lines: &[Line]) {
        let rows = self.arranged(lines);
        let Some(line) = rows.get(self.selected(&rows)) else { return };
        let Level { by, scope, .. } = *self.level();
        let refuse = |what: &str| Some(what.to_owned());
        let next = match (by, line.id.parse::<u32>()) {
            (Division::Node, Ok(node)) => {
                let scope = LoadScope { node: Some(node), ..scope };
                let name = if line.name.is_empty() { &line.id } else { &line.name };
                Level::new(Division::Target, scope, name.clone(), Filter::default())
            }
            (Division::Target, Ok(_)) if self.is_own => {
                self.note = refuse(
                    "through a mount, the requests to a single target are not counted by their \
                     kind",
                );
                return;
            }
            (Division::Target, Ok(target)) => {
                let scope = LoadScope { target: Some(target), ..scope };
                Level::new(Division::Operation, scope, format!("t{target}"), Filter::default())
            }
            _ => {
                self.note = refuse("Enter works on services (key 1) and targets (key 2)");
                return;
            }
        };
        let cursor = self.cursor_at(&rows, self.selected(&rows));
        self.level_mut().cursor = cursor;
        self.levels.push(next);
    }

    /// Removes the filter. If there is no filter, returns to the level above.
    fn leave(&mut self) {
        if !self.level().filter.text().is_empty() {
            self.level_mut().filter = Filter::default();
        } else if self.levels.len() > 1 {
            self.levels.pop();
        } else {
            self.note = Some("this is the highest level; q quits".into());
        }
    }

    fn select_by_page(&mut self, lines: &[Line], is_down: bool) {
        let page = self.page();
        match is_down {
            true => self.select(lines, |at| at.saturating_add(page)),
            false => self.select(lines, |at| at.saturating_sub(page)),
        }
    }

    /// Selects another row. `next` computes its position from the position of the selected row.
    fn select(&mut self, lines: &[Line], next: impl Fn(usize) -> usize) {
        let rows = self.arranged(lines);
        let position = next(self.selected(&rows)).min(rows.len().saturating_sub(1));
        self.level_mut().cursor = self.cursor_at(&rows, position);
    }

    fn cursor_at(&self, rows: &[&Line], position: usize) -> Cursor {
        let object = rows.get(position).map(|line| (line.id.clone(), line.service.clone()));
        Cursor { object, position }
    }
}

#[cfg(test)]
mod tests;
