//! Computes the lines of the screen from the state of the view and the statistics.
//!
//! # Invariants
//! The screen has at most as many lines as the terminal. No line is wider than the terminal, and no
//! line contains a control character ([`check_invariants`]). Names from other hosts and users may
//! contain any character.

use super::super::Division;
use super::super::show::Line;
use super::columns::{aligned, plain, shortened, table, width_of};
use super::view::{Order, Size, View};

/// Maximum number of lines about services that did not reply.
const MAX_PROBLEMS: usize = 2;

/// The keys, for the help.
const HELP: &[&str] = &[
    "Keys",
    "",
    "  Up Down PgUp PgDn Home End   select a row (also j, k, g, G)",
    "  Enter                        from a service to its targets, from a target to",
    "                               its kinds of requests",
    "  Backspace Esc                remove the filter, or go back",
    "  Left Right                   sort by another column (also < and >)",
    "  r                            reverse the order",
    "  / (or f)                     type a filter: a part of a name (upper or lower",
    "                               case) or of an id; Enter keeps it, Esc drops it",
    "  b B                          next or previous kind of rows (--by)",
    "  1 2 3 4 5 6 7                services, targets, operations, clients, users,",
    "                               groups, jobs",
    "  + -                          longer or shorter interval",
    "  Space (or p)                 pause",
    "  Ctrl-L                       draw the screen again",
    "  q Ctrl-C                     quit",
    "",
    "Any key closes this help.",
];

/// How a terminal shows a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    Plain,
    Bold,
    Reverse,
}

/// A line of the screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ScreenLine {
    pub(super) style: Style,
    pub(super) text: String,
}

/// The statistics and problems that the screen shows.
#[derive(Debug)]
pub(super) struct Content<'a> {
    /// The rows of the level that is shown, sorted by load. `None` until the first interval of this
    /// level has ended.
    pub(super) lines: Option<&'a [Line]>,
    /// The sum of the rows that match the filter.
    pub(super) sum: &'a Line,
    /// Services without statistics, and the error of the last request.
    pub(super) problems: &'a [String],
    /// Whether the line of titles is shown.
    pub(super) has_titles: bool,
}

/// Returns the lines of the screen.
pub(super) fn screen(view: &View, content: &Content<'_>) -> Vec<ScreenLine> {
    let Size { columns: width, rows: height } = view.size;
    let (head, body, tail) = match (view.has_help, content.lines) {
        (true, _) => (Vec::new(), help(), Vec::new()),
        (false, None) => {
            (vec![place(view)], vec![(Style::Plain, measuring(view))], tail(view, content))
        }
        (false, Some(lines)) => {
            let (titles, rows, sum) = rows(view, lines, content);
            let mut head = vec![place(view), (Style::Plain, order(view, lines))];
            head.extend(titles);
            let mut tail = tail(view, content);
            tail.insert(0, sum);
            (head, rows, tail)
        }
    };
    let all = fitted(head, body, tail, height);
    let line = |(style, text): (Style, String)| {
        let text = plain(&text);
        let text = match style {
            // Fill the whole line, so that the background colour reaches the right edge.
            Style::Reverse => aligned(&text, width, false),
            _ => shortened(&text, width),
        };
        ScreenLine { style, text }
    };
    let lines: Vec<_> = all.into_iter().map(line).collect();
    if cfg!(debug_assertions) {
        check_invariants(&lines, view.size);
    }
    lines
}

/// Panics if the lines do not fit a terminal of this size, or contain control characters.
fn check_invariants(lines: &[ScreenLine], size: Size) {
    assert!(lines.len() <= size.rows, "the screen has at most {} lines", size.rows);
    for ScreenLine { text, .. } in lines {
        assert!(width_of(text) <= size.columns, "'{text}' has at most {} columns", size.columns);
        assert!(!text.contains(char::is_control), "{text:?} contains no control character");
    }
}

type StyledText = (Style, String);

/// Joins the parts of a screen. If the terminal has too few lines, the screen loses lines of the
/// tail, then of the body.
fn fitted(
    head: Vec<StyledText>,
    mut body: Vec<StyledText>,
    mut tail: Vec<StyledText>,
    height: usize,
) -> Vec<StyledText> {
    let needed = head.len() + body.len().min(1);
    tail.truncate(height.saturating_sub(needed));
    body.truncate(height.saturating_sub(head.len() + tail.len()));
    let mut all = head;
    all.truncate(height);
    all.extend(body);
    all.extend(tail);
    all
}

fn help() -> Vec<StyledText> {
    let style = |index| if index == 0 { Style::Bold } else { Style::Plain };
    HELP.iter().enumerate().map(|(index, text)| (style(index), (*text).to_owned())).collect()
}

/// Returns the first line of the screen: the part of the cluster, the kind of the rows and the
/// interval.
fn place(view: &View) -> StyledText {
    let path: Vec<_> = view.path().map(plain).collect();
    let paused = if view.is_paused { "  paused" } else { "" };
    let text =
        format!("{}  by {}  every {:?}{paused}", path.join(" > "), view.by().word(), view.interval);
    (Style::Reverse, text)
}

fn measuring(view: &View) -> String {
    match view.is_paused {
        true => "paused before the first interval has ended; Space continues".into(),
        false => format!("measuring the load for {:?} ...", view.interval),
    }
}

/// Returns the second line of the screen: the order, the filter and the number of the rows.
fn order(view: &View, lines: &[Line]) -> String {
    let Order { column, is_reversed } = view.order();
    let by = column.map_or("load", |column| column.title(view.by()));
    let reversed = if is_reversed { ", reversed" } else { "" };
    let mut text = format!("sorted by {by}{reversed}");
    let filter = view.typed().unwrap_or(view.level().filter.text());
    if !filter.is_empty() {
        text += &format!("  filter '{filter}'");
    }
    let shown = view.arranged(lines).len();
    text += &match shown == lines.len() {
        true => format!("  {}", rows_word(shown, view.by())),
        false => format!("  {shown} of {}", rows_word(lines.len(), view.by())),
    };
    text
}

fn rows_word(count: usize, by: Division) -> String {
    let word = by.word();
    if count == 1 { format!("1 {word}") } else { format!("{count} {word}s") }
}

/// Returns the titles, the rows of the page with the selected row, and the sum.
fn rows(
    view: &View,
    lines: &[Line],
    content: &Content<'_>,
) -> (Option<StyledText>, Vec<StyledText>, StyledText) {
    let rows = view.arranged(lines);
    let selected = view.selected(&rows);
    // The lines about problems take the place of rows.
    let page = view.page().saturating_sub(problems(content).len()).max(1);
    let first = selected / page * page;
    let on_page = &rows[first.min(rows.len())..(first + page).min(rows.len())];
    let columns = view.columns();
    let kept = view.order().column;
    // The widths of the columns depend on the rows of the page only, so that a long name on
    // another page takes no space.
    let text = table((on_page, content.sum), &columns, view.by(), kept, view.size.columns);
    let style = |index| if first + index == selected { Style::Reverse } else { Style::Plain };
    let mut shown: Vec<_> =
        text.rows.into_iter().enumerate().map(|(index, row)| (style(index), row)).collect();
    if rows.is_empty() {
        let by = view.by().word();
        let what = match lines.is_empty() {
            true => format!("no {by} has load"),
            false => format!("no {by} matches the filter"),
        };
        shown.push((Style::Plain, what));
    }
    let titles = content.has_titles.then_some((Style::Bold, text.titles));
    (titles, shown, (Style::Bold, text.sum))
}

/// Returns the lines below the rows. These are the problems, and either a hint on the keys, the
/// filter that the user types, or a message.
fn tail(view: &View, content: &Content<'_>) -> Vec<StyledText> {
    let mut tail: Vec<_> =
        problems(content).into_iter().map(|problem| (Style::Plain, problem)).collect();
    let last = match (view.typed(), &view.note) {
        (Some(typed), _) => prompt(typed, view.size.columns),
        (None, Some(note)) => note.clone(),
        (None, None) => "? help  q quit  / filter  b kind of rows  Enter into  Esc back".into(),
    };
    tail.push((Style::Reverse, last));
    tail
}

/// Returns the lines about problems.
fn problems(content: &Content<'_>) -> Vec<String> {
    let mut lines: Vec<_> = content.problems.iter().take(MAX_PROBLEMS).cloned().collect();
    let left_out = content.problems.len() - lines.len();
    if left_out > 0 {
        lines.push(format!("further services without statistics: {left_out}"));
    }
    lines
}

/// Returns the line with the filter that the user types. If the text is longer than the line, the
/// line shows the end of the text, where the user types.
fn prompt(typed: &str, width: usize) -> String {
    let prompt = "filter: ";
    let typed = plain(typed) + "_";
    let space = width.saturating_sub(prompt.len());
    let mut shown: &str = &typed;
    while width_of(shown) > space {
        let mut rest = shown.chars();
        if rest.next().is_none() {
            break;
        }
        shown = rest.as_str();
    }
    format!("{prompt}{shown}")
}

/// Returns the bytes that draw the lines on a terminal. Each line overwrites the previous line at
/// the same position, so the screen does not flicker.
pub(super) fn frame(lines: &[ScreenLine]) -> String {
    let mut frame = String::from("\x1b[H");
    for (index, line) in lines.iter().enumerate() {
        if index > 0 {
            frame += "\r\n";
        }
        let style = match line.style {
            Style::Plain => "",
            Style::Bold => "\x1b[1m",
            Style::Reverse => "\x1b[7m",
        };
        frame += style;
        frame += &line.text;
        if !style.is_empty() {
            frame += "\x1b[0m";
        }
        // Clear the old characters after the end of the line.
        frame += "\x1b[K";
    }
    // Clear the old lines below the last line.
    frame + "\x1b[J"
}

#[cfg(test)]
mod tests;
