//! Tests of the comparison of slots after a start of the target.

use super::*;

/// Sends `CompareSlots` for session 1. Returns the start number and the slots in the reply.
fn compare(story: &mut Story) -> (u64, Vec<(u32, u64)>) {
    let reply = story.ask(1, 1, (0, 0), &md::CompareSlots {}).unwrap();
    (reply.start, reply.slots.iter().map(|it| (it.slot, it.sequence)).collect())
}

/// The scenario of hole H20 in `docs/tests/holes.md`: a power loss reverts an acknowledged `link`.
#[test]
fn changes_are_refused_until_the_client_has_compared_its_slots() {
    let mut story = Story::begin();
    let file = story.create(1, (0, 1));
    let durable = story.log.len();
    story.ask(1, 1, (2, 1), &link(file, "b")).unwrap();
    story.named_start = Some(story.start());
    story.log.truncate(durable);
    story.restart();
    let unlink = md::Unlink { directory: InodeId::ROOT, name: b"a"[..].into() };
    let refused = story.ask(1, 1, (3, 1), &unlink).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::StaleStart);
    let attributes = story.ask(1, 1, (0, 0), &md::GetAttributes { inode: file }).unwrap();
    assert_eq!(attributes.attributes.links, 1, "the target still serves reads");
    let (start, slots) = compare(&mut story);
    assert_eq!(slots, [(0, 1)], "the link in slot 2 is not there");
    assert!(story.ask(1, 1, (3, 1), &unlink).is_err(), "the request names the former start");
    story.named_start = Some(start);
    story.ask(1, 1, (3, 1), &unlink).unwrap();
    story.restart();
    let refused = story.ask(1, 1, (3, 1), &unlink).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::StaleStart, "a retry is refused too");
}

#[test]
fn killed_target_has_the_last_change_of_each_slot_after_restart() {
    let mut story = Story::begin();
    let file = story.create(1, (0, 1));
    for sequence in 1..=3 {
        story.ask(1, 1, (2, sequence), &link(file, &format!("b{sequence}"))).unwrap();
    }
    story.restart();
    let (start, slots) = compare(&mut story);
    assert_eq!(slots, [(0, 1), (2, 3)]);
    let open = md::OpenSession { client: NodeId::new(10), slots: 4 };
    let opened = story.ask(1, 3, (0, 0), &open).unwrap();
    assert_eq!(opened.start, start, "a session of this start needs no comparison");
}

#[test]
fn start_number_is_not_sent_before_its_record_is_safe() {
    let mut story = Story::begin();
    story.kill();
    story.run(vec![arrival(1, 1, (0, 0), &md::CompareSlots {})]);
    let (_, refused) = story.replies.pop().expect("an answer");
    assert_eq!(refused.unwrap_err().code(), ErrorCode::Busy);
}
