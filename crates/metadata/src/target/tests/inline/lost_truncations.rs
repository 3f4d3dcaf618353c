//! Tests of inline writes and reports of sizes after a truncation that a power loss of metadata
//! reverted.

use super::*;

/// Hole H135 in `docs/tests/holes.md`. docs/semantics.md 3.2: a client has truncated the file by an
/// open, and another client has written to the file after it. A power loss reverts both changes,
/// and no client repeats a truncation. So the write must stay lost, like the truncation.
#[test]
fn inline_write_after_a_lost_truncation_is_not_replayed() {
    let mut story = Story::begin();
    let inode = story.inline_file();
    story.written(1, &write(inode, 0, b"old bytes"));
    let close = md::Close { inode, open: md::OpenMode::Write, written: None };
    story.ask(1, 1, (0, 2), &close).unwrap();
    let durable = story.log.len();
    let open = open_of(inode, md::OpenMode::Write);
    let truncating = md::Open { truncate: true, ..open.clone() };
    let truncated = story.ask(1, 1, (0, 3), &truncating).unwrap().attributes;
    story.ask_sharing(2, (0, 1), &open, (1, inode));
    let truncate_generation = truncated.truncate_generation;
    let after = il::WriteInline { truncate_generation, ..write(inode, 0, b"new") };
    story.ask(1, 2, (2, 1), &after).unwrap();
    assert_eq!(story.read(inode, 0, 4096).unwrap(), b"new");

    story.lose_power_and_await_replay(durable);
    story.ask(1, 1, (0, 0), &md::EndReplay {}).unwrap();
    let open_again = md::Replay { inode, ..replay_of(1, &open) };
    story.ask(1, 2, (REPLAY_SLOT, 1), &open_again).unwrap();
    let refused = story.ask(1, 2, (REPLAY_SLOT, 2), &replay_of(2, &after)).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::EndMoved);
    story.ask(1, 2, (0, 0), &md::EndReplay {}).unwrap();
    assert_eq!(story.read(inode, 0, 4096).unwrap(), b"old bytes");

    // A client that still has the generation of the lost truncation must ask for the present
    // generation.
    assert_eq!(story.refused(1, &after), ErrorCode::EndMoved);
    story.written(2, &write(inode, 0, b"new"));
    assert_eq!(story.read(inode, 0, 4096).unwrap(), b"new bytes");
}

/// Hole H180 in `docs/tests/holes.md`. docs/semantics.md 3.2: the truncated file was empty, so
/// nothing is lost. The later changes of all clients are replayed: an inline write and a close
/// with a size, which both name the generation of the truncation.
#[test]
fn changes_after_a_lost_truncation_of_no_bytes_are_replayed() {
    let mut story = Story::begin();
    let inode = story.inline_file();
    let close = md::Close { inode, open: md::OpenMode::Write, written: None };
    story.ask(1, 1, (0, 2), &close).unwrap();
    let durable = story.log.len();
    let open = open_of(inode, md::OpenMode::Write);
    let truncating = md::Open { truncate: true, ..open.clone() };
    let truncated = story.ask(1, 1, (0, 3), &truncating).unwrap().attributes;
    story.ask(1, 1, (0, 4), &close).unwrap();
    story.ask(1, 2, (0, 1), &open).unwrap();
    let truncate_generation = truncated.truncate_generation;
    let after = il::WriteInline { truncate_generation, ..write(inode, 0, b"new") };
    story.ask(1, 2, (2, 1), &after).unwrap();
    let report = close_with(inode, md::WrittenExtent { truncate_generation, ..written_up_to(10) });
    story.ask(1, 2, (0, 2), &report).unwrap();
    assert_eq!(story.size(inode), 10);

    story.lose_power_and_await_replay(durable);
    story.send(9, 2, (REPLAY_SLOT, 1), &md::Replay { inode, ..replay_of(3, &open) });
    assert!(story.replies.is_empty(), "the first client has earlier changes");
    let again = md::Replay { inode, truncate_generation, ..replay_of(1, &open) };
    let reply = story.ask(1, 1, (REPLAY_SLOT, 1), &again).unwrap().reply;
    let opened = md::OpenReply::from_bytes(&reply.0).unwrap().attributes;
    assert_eq!(opened.truncate_generation, truncate_generation);
    assert!(opened.change_counter > truncated.change_counter);
    story.ask(1, 1, (REPLAY_SLOT, 2), &replay_of(2, &close)).unwrap();
    story.send(1, 1, (0, 0), &md::EndReplay {});
    assert_eq!(story.replies.len(), 2, "the change of the second client is next");
    assert!(story.replies.drain(..).all(|(_, result)| result.is_ok()));
    story.ask(1, 2, (REPLAY_SLOT, 2), &replay_of(4, &after)).unwrap();
    story.ask(1, 2, (REPLAY_SLOT, 3), &replay_of(5, &report)).unwrap();
    story.ask(1, 2, (0, 0), &md::EndReplay {}).unwrap();
    assert_eq!(story.read(inode, 0, 4096).unwrap(), b"new");
    assert_eq!(story.size(inode), 10);
    let next = story.ask(1, 1, (0, 5), &truncating).unwrap().attributes;
    assert!(next.truncate_generation > truncate_generation);
}

/// Hole H180 in `docs/tests/holes.md`. A client names a generation that no lost truncation of the
/// file can have, or the file has bytes. In both cases, the target keeps the generation of the
/// file.
#[test]
fn replayed_open_sets_no_wrong_truncate_generation() {
    for (has_bytes, truncate_generation) in
        [(true, 1), (false, 1 << 40), (false, u64::MAX), (false, 0)]
    {
        let mut story = Story::begin();
        let inode = story.inline_file();
        if has_bytes {
            story.written(1, &write(inode, 0, b"old"));
        }
        let durable = story.log.len();
        story.lose_power_and_await_replay(durable);
        story.ask(1, 2, (0, 0), &md::EndReplay {}).unwrap();
        let open = open_of(inode, md::OpenMode::Write);
        let replay = md::Replay { inode, truncate_generation, ..replay_of(3, &open) };
        let reply = story.ask(1, 1, (REPLAY_SLOT, 1), &replay).unwrap().reply;
        let opened = md::OpenReply::from_bytes(&reply.0).unwrap().attributes;
        assert_eq!(opened.truncate_generation, 0, "{truncate_generation}");
    }
}
