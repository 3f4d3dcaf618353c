//! Tests of the lines of the screen.

use super::super::super::selection::Filter;
use super::super::super::show::{Names, line};
use super::super::keys::Key;
use super::super::view::Level;
use super::*;
use proptest::{prop_assert, proptest};
use skep_stats::{LoadScope, Row};
use skep_types::{ClusterId, ClusterMap};
use std::time::Duration;

fn view(name: &str, columns: usize, rows: usize) -> View {
    let scope = LoadScope::default();
    let level = Level::new(Division::Operation, scope, name.into(), Filter::default());
    View::new(vec![level], Duration::from_secs(1), Size { columns, rows }, false)
}

fn lines(ids: &[String]) -> Vec<Line> {
    let names = Names::of(&ClusterMap::empty(ClusterId::default()));
    let row = |id: &String| Row { id: id.clone(), operations: 1, ..Row::default() };
    ids.iter().map(|id| line(&row(id), Division::Operation, &names)).collect()
}

fn ids(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("request_{number}")).collect()
}

fn drawn(view: &View, lines: Option<&[Line]>, problems: &[String]) -> Vec<ScreenLine> {
    let one = self::lines(&ids(1));
    screen(view, &Content { lines, sum: &one[0], problems, has_titles: true })
}

fn texts(screen: &[ScreenLine]) -> Vec<&str> {
    screen.iter().map(|line| line.text.trim_end()).collect()
}

#[test]
fn screen_shows_division_order_rows_and_the_sum_of_rows() {
    let view = view("cluster", 80, 24);
    let screen = drawn(&view, Some(&lines(&ids(2))), &[]);
    let texts = texts(&screen);
    assert_eq!(texts.len(), 7, "{texts:?}");
    assert_eq!(texts[0], "cluster  by operation  every 1s");
    assert_eq!(texts[1], "sorted by load  2 operations");
    assert!(texts[2].starts_with("OPERATION") && texts[2].ends_with("BUSY"), "{texts:?}");
    assert!(texts[3].starts_with("request_0") && texts[4].starts_with("request_1"), "{texts:?}");
    assert!(texts[5].starts_with("sum ") && texts[6].starts_with("? help"), "{texts:?}");
    let styles: Vec<_> = screen.iter().map(|line| line.style).collect();
    assert_eq!(styles[2..6], [Style::Bold, Style::Reverse, Style::Plain, Style::Bold]);
}

#[test]
fn long_list_shows_the_page_of_the_selected_row() {
    let mut view = view("cluster", 80, 15);
    let lines = lines(&ids(25));
    let screen = drawn(&view, Some(&lines), &[]);
    assert_eq!(screen.len(), 15);
    assert!(texts(&screen)[3].starts_with("request_0 "));
    view.press(Key::End, &lines);
    let screen = drawn(&view, Some(&lines), &[]);
    assert!(texts(&screen)[3].starts_with("request_20 "), "{:?}", texts(&screen));
    let selected = screen.iter().rposition(|line| line.text.starts_with("request_24 "));
    assert_eq!(selected.map(|at| screen[at].style), Some(Style::Reverse));
    // Lines about problems do not hide the selected row.
    let problems = ["cannot get statistics from storage-1".to_owned()];
    let screen = drawn(&view, Some(&lines), &problems);
    assert_eq!(screen.len(), 13, "{:?}", texts(&screen));
    assert!(texts(&screen).iter().any(|text| text.starts_with("request_24 ")));
}

#[test]
fn problems_filter_and_notes_are_shown_below_the_rows() {
    let mut view = view("cluster", 80, 24);
    let lines = lines(&ids(2));
    let problems: Vec<_> =
        (1..5).map(|id| format!("cannot get statistics from storage-{id}")).collect();
    let shown = drawn(&view, Some(&lines), &problems);
    assert!(texts(&shown).contains(&"cannot get statistics from storage-2"), "{shown:?}");
    assert!(texts(&shown).contains(&"further services without statistics: 2"), "{shown:?}");
    view.press(Key::Char('/'), &lines);
    view.press(Key::Char('x'), &lines);
    let shown = drawn(&view, Some(&lines), &[]);
    assert!(texts(&shown).contains(&"filter: x_"), "{shown:?}");
    assert!(texts(&shown).contains(&"sorted by load  filter 'x'  0 of 2 operations"), "{shown:?}");
    assert!(texts(&shown).contains(&"no operation matches the filter"), "{shown:?}");
    let none = drawn(&view, None, &[]);
    assert!(texts(&none).contains(&"measuring the load for 1s ..."), "{none:?}");
    assert_eq!(prompt("abcdefgh", 12), "filter: fgh_");
    assert_eq!(prompt("abc", 3), "filter: ");
}

#[test]
fn help_fits_a_terminal_of_80_columns_and_24_lines() {
    assert!(HELP.len() <= 24 && HELP.iter().all(|line| width_of(line) <= 80));
    let mut view = view("cluster", 80, 24);
    view.press(Key::Char('?'), &[]);
    let help = drawn(&view, Some(&lines(&ids(2))), &[]);
    assert_eq!(texts(&help), HELP);
}

#[test]
#[should_panic(expected = "contains no control character")]
fn line_that_controls_the_terminal_violates_an_invariant() {
    let line = ScreenLine { style: Style::Plain, text: "\x1b[2J".into() };
    check_invariants(&[line], Size { columns: 80, rows: 24 });
}

#[test]
fn screen_update_draws_each_line_and_clears_the_rest() {
    let line = |style, text: &str| ScreenLine { style, text: text.into() };
    let lines = [line(Style::Reverse, "a"), line(Style::Plain, "b"), line(Style::Bold, "c")];
    let expected = "\x1b[H\x1b[7ma\x1b[0m\x1b[K\r\nb\x1b[K\r\n\x1b[1mc\x1b[0m\x1b[K\x1b[J";
    assert_eq!(frame(&lines), expected);
}

proptest! {
    #[test]
    fn names_and_messages_cannot_exceed_or_control_the_screen(
        name in "(?s).{0,40}",
        id in "(?s).{0,40}",
        typed in "(?s).{0,40}",
        problem in "(?s).{0,200}",
        size in (0..100_usize, 0..30_usize),
        has_figures in proptest::bool::ANY,
    ) {
        let mut view = view(&name, size.0, size.1);
        let lines = lines(&[id.clone(), "lookup".into()]);
        view.press(Key::Char('/'), &lines);
        typed.chars().for_each(|it| { view.press(Key::Char(it), &lines); });
        for _ in 0..2 {
            let shown = has_figures.then_some(&lines[..]);
            let screen = drawn(&view, shown, &[problem.clone(), problem.clone(), id.clone()]);
            prop_assert!(screen.len() <= size.1);
            for line in &screen {
                prop_assert!(width_of(&line.text) <= size.0, "{line:?}");
                prop_assert!(!line.text.chars().any(char::is_control), "{line:?}");
            }
            // Check the screen a second time, with the typed text as the filter, and with a note.
            view.press(Key::Enter, &lines);
            view.note = Some(problem.clone());
        }
    }
}
