//! Tests of the effect of keys on the live view.

use super::super::super::show::{Names, line};
use super::*;
use proptest::prelude::prop;
use proptest::{prop_assert, proptest};
use skep_stats::Row;
use skep_types::{ClusterId, ClusterMap};

fn lines(by: Division, figures: &[(&str, u32)]) -> Vec<Line> {
    let names = Names::of(&ClusterMap::empty(ClusterId::default()));
    let row = |(id, operations): &(&str, u32)| Row {
        id: (*id).into(),
        operations: u64::from(*operations),
        operations_per_second: f64::from(*operations),
        queued: -i64::from(*operations),
        ..Row::default()
    };
    figures.iter().map(|figures| line(&row(figures), by, &names)).collect()
}

fn nodes() -> Vec<Line> {
    lines(Division::Node, &[("4", 30), ("5", 20), ("6", 10)])
}

fn view_of(is_own: bool) -> View {
    let level =
        Level::new(Division::Node, LoadScope::default(), "cluster".into(), Filter::default());
    let size = Size { columns: 80, rows: 24 };
    View::new(vec![level], Duration::from_secs(1), size, is_own)
}

fn view() -> View {
    view_of(false)
}

fn type_text(view: &mut View, text: &str, lines: &[Line]) {
    for character in text.chars() {
        assert_eq!(view.press(Key::Char(character), lines), Effect::Draw);
    }
}

fn shown(view: &View, lines: &[Line]) -> Vec<String> {
    view.arranged(lines).iter().map(|line| line.id.clone()).collect()
}

fn selected(view: &View, lines: &[Line]) -> String {
    let rows = view.arranged(lines);
    rows[view.selected(&rows)].id.clone()
}

#[test]
fn enter_key_opens_a_node_and_then_a_target() {
    let mut view = view();
    view.press(Key::Down, &nodes());
    view.press(Key::Enter, &nodes());
    assert_eq!(view.by(), Division::Target);
    assert_eq!(view.level().scope, LoadScope { node: Some(5), target: None });
    let targets = lines(Division::Target, &[("7", 5), ("8", 1)]);
    view.press(Key::Enter, &targets);
    assert_eq!(view.by(), Division::Operation);
    assert_eq!(view.level().scope, LoadScope { node: Some(5), target: Some(7) });
    assert_eq!(view.path().collect::<Vec<_>>(), ["cluster", "5", "t7"]);
    let operations = lines(Division::Operation, &[("write_chunk", 5)]);
    view.press(Key::Enter, &operations);
    assert!(view.note.is_some() && view.path().count() == 3);
    view.press(Key::Backspace, &operations);
    view.press(Key::Escape, &targets);
    assert_eq!((view.by(), view.path().count()), (Division::Node, 1));
    assert_eq!(selected(&view, &nodes()), "5", "the row of the last Enter is still selected");
    view.press(Key::Backspace, &nodes());
    assert!(view.note.is_some() && view.path().count() == 1);
}

#[test]
fn selected_row_stays_on_its_object_when_the_order_changes() {
    let mut view = view();
    let other = lines(Division::Node, &[("6", 40), ("4", 30), ("5", 20)]);
    assert_eq!((selected(&view, &nodes()), selected(&view, &other)), ("4".into(), "6".into()));
    view.press(Key::Down, &nodes());
    assert_eq!((selected(&view, &nodes()), selected(&view, &other)), ("5".into(), "5".into()));
    view.press(Key::End, &nodes());
    assert_eq!(selected(&view, &nodes()), "6");
    view.press(Key::PageUp, &nodes());
    assert_eq!(selected(&view, &nodes()), "4");
    // If the object has no load any more, the row at its position is selected.
    view.press(Key::Down, &nodes());
    let without = lines(Division::Node, &[("4", 1), ("6", 1)]);
    assert_eq!(selected(&view, &without), "6");
    assert_eq!(view.selected(&[]), 0);
    view.press(Key::Down, &[]);
    view.press(Key::Enter, &[]);
}

#[test]
fn typed_filter_applies_immediately_and_escape_reverts_it() {
    let mut view = view();
    let operations =
        lines(Division::Operation, &[("write_chunk", 3), ("lookup", 2), ("read_chunk", 1)]);
    view.press(Key::Char('3'), &[]);
    assert_eq!(view.by(), Division::Operation);
    view.press(Key::Char('/'), &operations);
    type_text(&mut view, "CHUNKq", &operations);
    assert!(shown(&view, &operations).is_empty());
    view.press(Key::Backspace, &operations);
    assert_eq!(view.typed(), Some("CHUNK"));
    assert_eq!(shown(&view, &operations), ["write_chunk", "read_chunk"]);
    view.press(Key::Enter, &operations);
    assert_eq!((view.typed(), view.level().filter.text()), (None, "chunk"));
    view.press(Key::Char('/'), &operations);
    view.press(Key::ClearText, &operations);
    assert_eq!(shown(&view, &operations).len(), 3);
    view.press(Key::Escape, &operations);
    assert_eq!(shown(&view, &operations).len(), 2);
    // Escape at the highest level removes the filter.
    view.press(Key::Escape, &operations);
    assert_eq!(shown(&view, &operations).len(), 3);
    view.press(Key::Char('/'), &operations);
    assert_eq!(view.press(Key::Interrupt, &operations), Effect::Quit);
}

#[test]
fn arrows_choose_the_column_that_sorts_the_rows() {
    let mut view = view();
    let nodes = nodes();
    assert_eq!(view.order().column, None);
    view.press(Key::Right, &nodes);
    assert_eq!(view.order().column, Some(Column::Name));
    assert_eq!(shown(&view, &nodes), ["4", "5", "6"]);
    view.press(Key::Char('r'), &nodes);
    assert_eq!(shown(&view, &nodes), ["6", "5", "4"]);
    view.press(Key::Left, &nodes);
    view.press(Key::Left, &nodes);
    view.press(Key::Left, &nodes);
    assert_eq!(view.order(), Order { column: Some(Column::Queued), is_reversed: false });
    // The row with the most queued requests comes first. In this test, these numbers are negative.
    assert_eq!(shown(&view, &nodes), ["6", "5", "4"]);
    // Rows of users have no queues, so these rows are sorted by load.
    view.press(Key::Char('5'), &nodes);
    assert_eq!((view.by(), view.order().column), (Division::User, None));
    view.press(Key::Char('1'), &nodes);
    assert_eq!(view.order().column, Some(Column::Queued));
    let order = Order { column: Some(Column::Operations), is_reversed: true };
    view.set_layout(vec![Column::Name, Column::Operations], order);
    assert_eq!(shown(&view, &nodes), ["6", "5", "4"]);
    view.press(Key::Right, &nodes);
    assert_eq!(view.order().column, None, "after the last column comes the load");
}

#[test]
fn keys_change_row_kind_and_interval_and_pause_the_view() {
    let mut view = view();
    let mut seen = Vec::new();
    for _ in DIVISIONS {
        seen.push(view.by());
        view.press(Key::Char('b'), &[]);
    }
    assert_eq!(seen, DIVISIONS);
    assert_eq!(view.by(), Division::Node);
    view.press(Key::Char('B'), &[]);
    assert_eq!(view.by(), Division::Job);
    assert_eq!(view.press(Key::Char('+'), &[]), Effect::Measure);
    assert_eq!(view.interval, Duration::from_secs(2));
    while view.press(Key::Char('-'), &[]) == Effect::Measure {}
    assert_eq!(view.interval, Duration::from_millis(100));
    assert!(view.note.is_some());
    assert_eq!(view.press(Key::Char(' '), &[]), Effect::Draw);
    assert!(view.is_paused);
    assert_eq!(view.press(Key::Char('p'), &[]), Effect::Measure);
    view.press(Key::Char('?'), &[]);
    assert!(view.has_help);
    view.press(Key::Down, &[]);
    assert!(!view.has_help);
    assert_eq!(view.press(Key::Redraw, &[]), Effect::DrawAnew);
    assert_eq!(view.press(Key::Char('q'), &[]), Effect::Quit);
}

#[test]
fn enter_key_opens_no_level_below_a_target_of_a_mount() {
    let mut view = view_of(true);
    view.press(Key::Enter, &nodes());
    view.press(Key::Char('5'), &[]);
    assert_eq!(view.by(), Division::Target);
    assert!(view.note.as_ref().is_some_and(|note| note.contains("by user")), "{:?}", view.note);
    view.press(Key::Enter, &lines(Division::Target, &[("7", 1)]));
    assert!(view.note.is_some() && view.path().count() == 2);
    view.press(Key::Char('b'), &[]);
    assert_eq!(view.by(), Division::Node);
    view.press(Key::Enter, &lines(Division::Node, &[("other", 1)]));
    assert!(view.note.is_some() && view.path().count() == 2);
}

/// Returns the keys that change the view, and some keys that the view ignores.
fn some_keys() -> Vec<Key> {
    let special = [
        Key::Enter,
        Key::Escape,
        Key::Backspace,
        Key::Up,
        Key::Down,
        Key::Left,
        Key::Right,
        Key::PageUp,
        Key::PageDown,
        Key::Home,
        Key::End,
        Key::Redraw,
        Key::ClearText,
    ];
    special.into_iter().chain("?/ pbBr+-1234567jkgGx4\u{1F600}".chars().map(Key::Char)).collect()
}

proptest! {
    #[test]
    fn selected_row_is_on_the_screen_after_any_keys(
        keys in prop::collection::vec(prop::sample::select(some_keys()), 0..60),
        is_own in prop::bool::ANY,
        rows in 0..40_usize,
    ) {
        let mut view = view_of(is_own);
        let figures: Vec<_> = (0..rows).map(|id| (id.to_string(), 7_u32)).collect();
        let figures: Vec<_> = figures.iter().map(|(id, count)| (id.as_str(), *count)).collect();
        for key in keys {
            let before = lines(view.by(), &figures);
            view.press(key, &before);
            let after = lines(view.by(), &figures);
            let shown = view.arranged(&after);
            prop_assert!(view.selected(&shown) < shown.len().max(1));
            prop_assert!(view.columns().contains(&Column::Name));
            prop_assert!(view.path().count() >= 1);
        }
    }
}
