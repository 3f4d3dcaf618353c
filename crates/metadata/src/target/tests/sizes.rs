//! Sizes of files whose writer died.

use super::*;

/// Before the fix, the target logged a recovered size although the file had been truncated
/// meanwhile. So the file grew again, filled with zeros.
#[test]
fn a_size_recovery_restarts_after_a_truncation() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    story.ask(1, 1, (0, 0), &md::CloseSession {}).unwrap();
    let asked = story.calls.remove(0);
    assert_eq!(asked.1.message, st::StatChunk::ID);
    story.send(1, 2, (0, 1), &truncate(inode));
    story.answer::<st::TruncateChunk>(&skep_wire::management::EmptyReply {});
    story.replies.clear();
    let result = Ok(stat(100).to_bytes());
    story.happens(Event::Answer { call: asked.0, result });
    assert_eq!(story.size(inode), 0);
    story.answer::<st::StatChunk>(&stat(0));
    story.happens(Event::Tick);
    assert_eq!(story.size(inode), 0);
    assert!(story.calls.is_empty(), "it is found out");
}

/// Before the fix, if the second of two writers died during a size recovery, the bytes that it had
/// written were lost.
#[test]
fn a_size_recovery_restarts_after_another_death() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    let open =
        md::Open { inode, open: md::OpenMode::Write, truncate: false, must_have_name: false };
    story.ask_sharing(2, (0, 1), &open, (1, inode));
    story.ask(1, 1, (0, 0), &md::CloseSession {}).unwrap();
    let asked = story.calls.remove(0);
    story.ask(1, 2, (0, 0), &md::CloseSession {}).unwrap();
    story.happens(Event::Answer { call: asked.0, result: Ok(stat(10).to_bytes()) });
    story.answer::<st::StatChunk>(&stat(50));
    assert_eq!(story.size(inode), 50);
}
