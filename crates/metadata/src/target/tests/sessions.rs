//! Sessions: how they end, and what that does.

use super::*;

/// An operation that waited for others while its session ended committed afterwards, and left a
/// slot and opens that nobody would ever remove.
#[test]
fn an_operation_is_refused_when_its_session_ended_while_it_waited() {
    let mut story = Story::begin();
    let inode = story.create(2, (0, 1));
    let open = md::Open { inode, open: md::OpenMode::Read, truncate: true };
    story.send(5, 1, (0, 1), &open);
    story.ask(1, 1, (0, 0), &md::CloseSession {}).unwrap();
    story.answer::<st::TruncateChunk>(&skep_wire::management::Done {});
    let (_, result) = story.replies.pop().expect("an answer");
    assert_eq!(result.unwrap_err().code(), ErrorCode::StaleSession);
    let slots = story.target.table.scan(&Key::slots_of(SessionId::new(1)), &[], 9).unwrap();
    let opens = story.target.table.scan(&Key::opens_of(SessionId::new(1)), &[], 9).unwrap();
    assert!(slots.is_empty() && opens.is_empty());
}
