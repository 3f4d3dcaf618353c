//! Tests of the end of an inline component without bytes. The target ends the component when a
//! client reports that it has written the first bytes to storage, and after the death of this
//! client.

use super::*;
use skep_types::StripePattern;

/// Returns a report of a client that has written 5,000 bytes to storage, including the first bytes
/// of the file.
fn ending(inode: InodeId) -> md::ReportWritten {
    report(inode, extent(Some(1)))
}

fn extent(ends_inline: Option<u32>) -> md::WrittenExtent {
    md::WrittenExtent {
        end: 5000,
        truncate_generation: 0,
        may_leave_holes: false,
        reach: 0,
        ends_inline,
    }
}

impl Story {
    fn pattern_now(&mut self, inode: InodeId) -> StripePattern {
        let request = md::GetEntryInfo { inode };
        self.ask(1, 2, (0, 0), &request).unwrap().pattern.unwrap()
    }

    /// Whether the inline component of a file has ended.
    fn has_ended(&mut self, inode: InodeId) -> bool {
        self.pattern_now(inode).has_moved_inline()
    }
}

#[test]
fn report_ends_an_unused_inline_component() {
    let mut story = Story::begin();
    let inode = story.inline_file();
    let before = story.pattern_now(inode);
    story.ask(1, 1, (0, 2), &ending(inode)).unwrap();
    story.restart();
    let after = story.pattern_now(inode);
    assert_eq!(Some(&after), skep_cluster::striping::without_inline(&before).as_ref());
    assert_eq!(story.size(inode), 5000);
    assert_eq!(story.refused(1, &write(inode, 0, b"x")), ErrorCode::Stale);
    // The client repeats the end in its reports, until metadata has confirmed that the end is
    // durable.
    story.ask(1, 1, (0, 3), &ending(inode)).unwrap();
    assert_eq!(story.pattern_now(inode), after);
}

#[test]
fn refused_end_of_an_inline_component_changes_nothing() {
    let mut story = Story::begin();
    let inode = story.inline_file();
    let other = report(inode, extent(Some(2)));
    assert_eq!(story.ask(1, 1, (1, 1), &other).unwrap_err().code(), ErrorCode::Stale);
    // Write the part of a longer write that lies within the inline component.
    story.written(1, &il::WriteInline { extends: false, ..write(inode, 0, b"x") });
    assert_eq!(story.ask(1, 1, (1, 2), &ending(inode)).unwrap_err().code(), ErrorCode::Stale);
    assert_eq!((story.size(inode), story.has_ended(inode)), (0, false));
    story.written(2, &write(inode, 0, b"x"));
    assert_eq!(story.ask(1, 1, (1, 3), &ending(inode)).unwrap_err().code(), ErrorCode::Stale);
    assert_eq!((story.size(inode), story.has_ended(inode)), (1, false));
    assert_eq!(story.read(inode, 0, 10).unwrap(), b"x");
}

#[test]
fn client_cannot_end_the_inline_component_of_a_shared_file() {
    let mut story = Story::begin();
    let inode = story.inline_file();
    let open = open_of(inode, md::OpenMode::Read);
    story.ask_sharing(2, (0, 1), &open, (1, inode));
    assert_eq!(story.ask(1, 1, (0, 2), &ending(inode)).unwrap_err().code(), ErrorCode::Stale);
    assert!(!story.has_ended(inode));
    let close = close_with(inode, extent(Some(1)));
    story.ask(1, 1, (0, 3), &close).unwrap();
    assert_eq!(
        (story.size(inode), story.has_ended(inode)),
        (0, false),
        "a refused close changes as little as a refused report"
    );
    let again = open_of(inode, md::OpenMode::Write);
    let opened = story.ask(1, 2, (0, 2), &again).unwrap();
    assert!(!opened.is_shared, "the refused end has not kept the file open");
}

#[test]
fn truncated_file_keeps_its_inline_component() {
    let mut story = Story::begin();
    let inode = story.inline_file();
    story.written(1, &write(inode, 0, b"x"));
    story.truncate_to(inode, 2, 0);
    let after = md::WrittenExtent { truncate_generation: 1, ..extent(Some(1)) };
    let refused = story.ask(1, 1, (1, 1), &report(inode, after)).unwrap_err();
    assert_eq!((refused.code(), story.has_ended(inode)), (ErrorCode::Stale, false));
}

#[test]
fn close_ends_an_unused_inline_component() {
    let mut story = Story::begin();
    let inode = story.inline_file();
    let close = close_with(inode, extent(Some(1)));
    story.ask(1, 1, (0, 2), &close).unwrap();
    assert_eq!((story.size(inode), story.has_ended(inode)), (5000, true));
}

/// docs/semantics.md 3.7: the size of a file of a dead mount is computed from the bytes on the
/// storage target.
#[test]
fn death_of_the_only_writer_ends_an_unused_inline_component() {
    let mut story = Story::begin();
    let inode = story.inline_file();
    story.ask(1, 1, (0, 0), &md::CloseSession {}).unwrap();
    assert!(story.has_ended(inode), "the end does not wait for the recovery of the size");
    let open = open_of(inode, md::OpenMode::Write);
    let opened = story.ask(1, 2, (0, 1), &open).unwrap();
    assert!(opened.pattern.is_some_and(|it| it.has_moved_inline()));
    // With its inline component, which covers the first 4 KiB, the file would have no byte in a
    // chunk file of 3,000 bytes.
    story.answer::<st::StatChunk>(&stat(3000));
    assert_eq!(story.size(inode), 3000);
}

#[test]
fn death_of_a_writer_keeps_a_used_inline_component() {
    let mut story = Story::begin();
    let used = story.inline_file();
    story.written(1, &il::WriteInline { extends: false, ..write(used, 0, b"x") });
    let shared = story.create_inline("b", (0, 2));
    story.ask_sharing(2, (0, 1), &open_of(shared, md::OpenMode::Write), (1, shared));
    let read = story.create_inline("c", (0, 3));
    story.ask(1, 1, (0, 4), &open_of(read, md::OpenMode::Read)).unwrap();
    let close = md::Close { inode: read, open: md::OpenMode::Write, written: None };
    story.ask(1, 1, (0, 5), &close).unwrap();
    story.send(1, 1, (0, 0), &md::CloseSession {});
    for inode in [used, shared, read] {
        assert!(!story.has_ended(inode), "file {inode}");
    }
}

/// Returns the close after a report of the end. The close repeats the end, but no other report.
fn close_again(inode: InodeId) -> md::CloseMany {
    let (open, ends_inline) = (md::OpenMode::Write, Some(1));
    md::CloseMany { files: vec![md::ClosedFile { inode, open, ends_inline }] }
}

/// If the target did not end the inline component again, another client could open the file and
/// write inline bytes, without a notification to the client that created the file.
#[test]
fn close_after_a_power_loss_reports_a_lost_inline_end_again() {
    let mut story = Story::begin();
    let inode = story.inline_file();
    let log_bytes = story.log.len();
    story.ask(1, 1, (0, 2), &ending(inode)).unwrap();
    story.lose_power(log_bytes);
    assert!(!story.has_ended(inode));
    let attributes = |story: &mut Story| {
        story.ask(1, 2, (0, 0), &md::GetAttributes { inode }).unwrap().attributes
    };
    let before = attributes(&mut story);
    story.wall.seconds += 50;
    story.ask(1, 1, (0, 2), &close_again(inode)).unwrap();
    assert!(story.has_ended(inode) && !is_open(&story, inode));
    assert_eq!(attributes(&mut story).modified, before.modified, "the client has set this time");
}

#[test]
fn close_of_many_files_keeps_a_used_inline_component() {
    let mut story = Story::begin();
    let inode = story.inline_file();
    story.written(1, &write(inode, 0, b"x"));
    story.ask(1, 1, (0, 2), &close_again(inode)).unwrap();
    assert_eq!((story.has_ended(inode), is_open(&story, inode)), (false, false));
}

fn is_open(story: &Story, inode: InodeId) -> bool {
    story.target.table.get(&Key::Opens(inode).to_bytes()).unwrap().is_some()
}

/// Runs a request of session 1 that ends an inline component, together with an open. Returns `true`
/// if the open waits until the end is safe, and the reply to the open has the pattern without the
/// component.
fn is_awaited_by_an_open<R: Request>(story: &mut Story, end: &R, inode: InodeId) -> bool {
    story.now += Duration::from_millis(11);
    let open = open_of(inode, md::OpenMode::Write);
    let next = story.run(vec![arrival(1, 1, (0, 2), end), arrival(1, 1, (1, 1), &open)]);
    let (_, ended) = story.replies.pop().expect("the reply to the request that ends the component");
    ended.unwrap();
    if !story.replies.is_empty() {
        return false;
    }
    story.happen_together(next);
    let (_, opened) = story.replies.pop().expect("the reply to the open");
    let opened = md::OpenReply::from_bytes(&opened.unwrap()).unwrap();
    opened.pattern.unwrap().has_moved_inline()
}

/// Without this wait, a power loss could revert the end and the open. The client that opened
/// the file would then write its first bytes to storage, while readers look for inline bytes.
#[test]
fn open_waits_until_the_end_of_an_inline_component_is_safe() {
    let begin = || {
        let mut story = Story::begin();
        let inode = story.inline_file();
        (story, inode)
    };
    let (mut story, inode) = begin();
    assert!(is_awaited_by_an_open(&mut story, &ending(inode), inode));
    let (mut story, inode) = begin();
    let close = close_with(inode, extent(Some(1)));
    assert!(is_awaited_by_an_open(&mut story, &close, inode));
    let (mut story, inode) = begin();
    assert!(is_awaited_by_an_open(&mut story, &close_again(inode), inode));
}

/// Without this wait, a power loss could revert the end and the open, as in the previous test. In
/// this test, the end follows the death of the only writer.
#[test]
fn open_waits_until_an_inline_end_after_a_death_is_safe() {
    let mut story = Story::begin();
    let inode = story.inline_file();
    let mut next = vec![arrival(1, 1, (0, 0), &md::CloseSession {})];
    let mut was_unsafe = false;
    for _ in 0..10 {
        story.now += Duration::from_millis(11);
        if next.is_empty() {
            next.push(Event::Tick);
        }
        next = story.run(next);
        was_unsafe |= !story.target.shared.starts.patterns.is_safe(inode);
    }
    assert!(was_unsafe && story.target.shared.starts.patterns.is_safe(inode));
    assert!(story.has_ended(inode));
}
