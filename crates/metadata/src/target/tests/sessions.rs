//! Tests of the end of a session, and of its effects.

use super::*;
use std::collections::BTreeSet;

/// Regression test: an operation that waited for another group committed after the end of its
/// session. The operation left a slot record and an open that no job would ever remove.
#[test]
fn operation_is_refused_if_its_session_ends_during_a_wait() {
    let mut story = Story::begin();
    let inode = story.create(2, (0, 1));
    let open = md::Open { truncate: true, ..open_of(inode, md::OpenMode::Read) };
    story.send(6, 2, (0, 2), &truncate(inode));
    story.send(5, 1, (0, 1), &open);
    story.ask(1, 1, (0, 0), &md::CloseSession {}).unwrap();
    story.answer::<st::TruncateChunk>(&truncated(1));
    let at = story.replies.iter().position(|(connection, _)| *connection == 5);
    let (_, result) = story.replies.remove(at.expect("an answer"));
    assert_eq!(result.unwrap_err().code(), ErrorCode::StaleSession);
    let slots = story.target.table.scan(&Key::slots_of(SessionId::new(1)), &[], 9).unwrap();
    let opens = story.target.table.scan(&Key::opens_of(SessionId::new(1)), &[], 9).unwrap();
    assert!(slots.is_empty() && opens.is_empty());
}

/// Renews a session. Returns whether the target accepts the renewal.
fn is_alive(story: &mut Story, session: u64) -> bool {
    match story.ask(1, session, (0, 0), &md::KeepAlive { lease_ms: 0 }) {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.code(), ErrorCode::StaleSession);
            false
        }
    }
}

/// Whether the target accepts requests of a session.
fn is_open(story: &Story, session: u64) -> bool {
    story.target.sessions.refusal(SessionId::new(session)).is_none()
}

fn is_stored(story: &Story, session: u64) -> bool {
    let key = Key::Session(SessionId::new(session)).to_bytes();
    story.target.table.get(&key).unwrap().is_some()
}

fn limits_of_one() -> Limits {
    Limits { closes_per_batch: 1, ..Limits::default() }
}

/// The target dies while it cleans up an ended session. Regression test: after the next start, the
/// session was open again, but some of its files were closed. So the client used files that the
/// target had disposed of.
#[test]
fn session_stays_ended_if_a_restart_interrupts_its_cleanup() {
    let mut story = Story::begin_with(limits_of_one());
    for number in 0..4 {
        story.create_as(&format!("{number}"), 1, (0, 1 + number));
    }
    // Runs only the batch with the request, and no later batch.
    story.run(vec![arrival(1, 1, (0, 0), &md::CloseSession {})]);
    let opens = |story: &Story| {
        story.target.table.scan(&Key::opens_of(SessionId::new(1)), &[], 9).unwrap().len()
    };
    assert_eq!(opens(&story), 3, "the target dies during the clean-up");
    story.kill();
    assert_eq!(opens(&story), 3, "the restart loses no record");
    let open = md::OpenSession { client: NodeId::new(9), slots: 4 };
    let keep_alive = arrival(1, 1, (0, 0), &md::KeepAlive { lease_ms: 0 });
    let next = story.run(vec![keep_alive, arrival(1, 1, (0, 0), &open)]);
    let answers = story.replies.drain(..).map(|(_, result)| result.unwrap_err().code());
    assert_eq!(answers.collect::<Vec<_>>(), [ErrorCode::StaleSession; 2]);
    story.happen_together(next);
    assert_eq!(opens(&story), 0, "the clean-up continues after its last step");
    assert!(!is_stored(&story, 1), "the clean-up completes");
    assert!(is_alive(&mut story, 2));
}

/// Regression test: the target closed all files of an ended session in one batch, and ran no other
/// request meanwhile.
#[test]
fn other_requests_run_while_a_large_session_is_cleaned_up() {
    let mut story = Story::begin_with(limits_of_one());
    for number in 0..4 {
        story.create_as(&format!("{number}"), 1, (0, 1 + number));
    }
    story.run(vec![arrival(1, 1, (0, 0), &md::CloseSession {})]);
    for left in (0..3).rev() {
        assert!(story.target.next_tick() <= story.now, "the next step is due immediately");
        story.replies.clear();
        story.run(vec![arrival(7, 2, (0, 0), &md::KeepAlive { lease_ms: 0 })]);
        assert_eq!(story.replies.len(), 1);
        let opens = story.target.table.scan(&Key::opens_of(SessionId::new(1)), &[], 9).unwrap();
        assert_eq!(opens.len(), left);
    }
}

/// If the close of a file deletes many keys, one step of the clean-up closes fewer files.
#[test]
fn step_of_a_session_clean_up_is_limited_in_bytes() {
    let mut story = Story::begin();
    let count = 8;
    for number in 0..count {
        let name = format!("{number}");
        let inode = story.create_as(&name, 1, (0, 1 + number));
        let mut record: skep_format::metadata::InodeRecord = story
            .target
            .table
            .get(&Key::Inode(inode).to_bytes())
            .unwrap()
            .map(|value| Codec::from_bytes(&value).unwrap())
            .unwrap();
        record.has_xattrs = true;
        record.attributes.links = 0;
        story.target.table.write(Key::Inode(inode).to_bytes(), Some(record.to_bytes()));
        for attribute in 0..2_000 {
            let name = format!("user.{attribute:040}");
            let key = Key::Xattr(inode, name.as_bytes()).to_bytes();
            story.target.table.write(key, Some(Vec::new()));
        }
    }
    story.happens(Event::Tick);
    let most = 2 * crate::limits::CLOSE_BYTES;
    let before = story.target.last_logged();
    story.ask(1, 1, (0, 0), &md::CloseSession {}).unwrap();
    story.happens(Event::Tick);
    let mut records = skep_format::log::scan(LOG, Lsn::new(1), &story.log).unwrap().records;
    records.retain(|record| record.lsn > before);
    let longest = records.iter().map(|record| record.payload.len()).max();
    assert!(longest.is_some_and(|it| it < most), "{longest:?}");
    assert!(!is_stored(&story, 1));
}

/// Regression test: a late `OpenSession` opened an ended session again, without the stored replies
/// of its slots. So a retry of an earlier request ran a second time.
#[test]
fn a_session_that_has_ended_is_not_opened_again() {
    let limits = Limits { ends_per_batch: 1, ..Limits::default() };
    let mut story = Story::begin_with(limits);
    story.ask(1, 1, (0, 0), &md::CloseSession {}).unwrap();
    assert!(!is_stored(&story, 1));
    let open = md::OpenSession { client: NodeId::new(9), slots: 4 };
    for _ in 0..2 {
        let error = story.ask(1, 1, (0, 0), &open).unwrap_err();
        assert_eq!(error.code(), ErrorCode::StaleSession);
        story.restart();
    }
    story.ask(1, 3, (0, 0), &md::OpenSession { client: NodeId::new(9), slots: 4 }).unwrap();
    story.ask(1, 3, (0, 0), &md::CloseSession {}).unwrap();
    // The target keeps the record of an ended session while a late message may be in flight. With
    // the limits of this test, each batch examines one record.
    let ends = |story: &Story| {
        let key = |session| Key::SessionEnd(SessionId::new(session)).to_bytes();
        [1, 3].iter().filter(|it| story.target.table.get(&key(**it)).unwrap().is_some()).count()
    };
    // If only the time of day advances, the target deletes no record, even after a restart.
    story.wall.seconds += crate::limits::END_KEPT_SECONDS + 1;
    story.now += crate::limits::FORGET_EVERY;
    (0..20).for_each(|_| story.happens(Event::Tick));
    story.restart();
    story.now += crate::limits::FORGET_EVERY;
    (0..20).for_each(|_| story.happens(Event::Tick));
    assert_eq!(ends(&story), 2);
    story.now += Duration::from_secs(crate::limits::END_KEPT_SECONDS as u64);
    story.wall.seconds += crate::limits::END_KEPT_SECONDS;
    let mut next = Vec::new();
    for _ in 0..20 {
        let before = ends(&story);
        next.push(Event::Tick);
        next = story.run(next);
        assert!(before - ends(&story) <= 1, "a batch examines one record");
    }
    assert_eq!(ends(&story), 0);
}

/// Regression test: after a suspension of the target for longer than a lease, all sessions ended.
/// The target had not yet read the renewals that the clients had sent meanwhile.
#[test]
fn sessions_get_a_new_lease_after_a_suspension_of_the_target() {
    let mut story = Story::begin();
    let lease = Duration::from_millis(u64::from(map().policy.lease_ms));
    story.now += 3 * lease;
    story.happens(Event::Tick);
    // Session 1 renews its lease, session 2 does not.
    let end = story.now + lease + lease / 2;
    while story.now < end {
        story.now += crate::limits::LONGEST_WAIT;
        assert!(is_alive(&mut story, 1));
        if story.now + lease < end {
            assert!(
                is_open(&story, 2),
                "the lease of session 2 begins again when the target continues"
            );
        }
    }
    assert!(!is_open(&story, 2), "the session ends with its lease");
}

/// Regression test: after an administrator had made the lease shorter, the target ended sessions
/// too early. The clients of these sessions still used the longer lease that they had received
/// before.
#[test]
fn a_shorter_lease_applies_after_its_acknowledgement() {
    let mut story = Story::begin();
    let given_ms = map().policy.lease_ms;
    let mut version = 1;
    let mut set_lease = |story: &mut Story, lease_ms: u32| {
        version += 1;
        let mut newer = map();
        newer.version = MapVersion::new(version);
        newer.policy.lease_ms = lease_ms;
        story.happens(Event::Map(newer.into()));
    };
    // A second client renews its session all the time, so the target does not seem disconnected.
    let add_client = |story: &mut Story| {
        let open = md::OpenSession { client: NodeId::new(8), slots: 4 };
        story.ask(1, 5, (0, 0), &open).unwrap();
    };
    add_client(&mut story);
    let pass = |story: &mut Story, milliseconds: u32| {
        let end = story.now + Duration::from_millis(u64::from(milliseconds));
        while story.now < end {
            story.now += Duration::from_millis(50);
            assert!(is_alive(story, 5));
        }
    };
    let renew = |story: &mut Story, lease_ms: u32| {
        let reply = story.ask(1, 1, (0, 0), &md::KeepAlive { lease_ms }).unwrap();
        assert_eq!(reply.lease_ms, 500);
    };
    set_lease(&mut story, 500);
    pass(&mut story, given_ms / 2);
    assert!(
        is_open(&story, 1) && is_open(&story, 2),
        "no client has acknowledged the shorter lease"
    );
    renew(&mut story, given_ms);
    pass(&mut story, given_ms / 2);
    assert!(is_open(&story, 1), "the client may not have the reply");
    renew(&mut story, 500);
    pass(&mut story, 700);
    assert!(!is_open(&story, 1), "the client has acknowledged the shorter lease");
    assert!(!is_open(&story, 2), "the client was silent for its whole lease");

    let mut story = Story::begin();
    add_client(&mut story);
    set_lease(&mut story, 2 * given_ms);
    pass(&mut story, given_ms + given_ms / 2);
    assert!(is_open(&story, 1), "a longer lease needs no acknowledgement");
    pass(&mut story, given_ms);
    assert!(!is_open(&story, 1));
}

/// Returns a map without client 9, which has opened sessions 1 and 2.
fn map_without_clients(version: u64) -> ClusterMap {
    let mut map = map();
    map.newest_node = NodeId::new(9);
    map.version = MapVersion::new(version);
    map
}

/// Lets one and a half times the lease pass. Meanwhile, only the sessions in `renewing` are
/// renewed.
fn pass_a_lease(story: &mut Story, renewing: &[u64]) {
    let lease = Duration::from_millis(u64::from(map().policy.lease_ms));
    let end = story.now + lease + lease / 2;
    while story.now < end {
        story.now += crate::limits::LONGEST_WAIT;
        story.happens(Event::Tick);
        for session in renewing {
            assert!(is_alive(story, *session));
        }
    }
}

/// Regression test: the target released the locks of a silent client while storage still accepted
/// its writes.
#[test]
fn locks_of_a_silent_client_stay_until_its_removal_from_the_map() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    let other = md::OpenSession { client: NodeId::new(8), slots: 4 };
    story.ask(1, 5, (0, 0), &other).unwrap();
    pass_a_lease(&mut story, &[5]);
    assert_eq!(
        story.evicted[..2],
        [(NodeId::new(9), false); 2],
        "the target asks management again"
    );
    let refused = story.ask(1, 1, (0, 2), &truncate(inode)).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::Evicted);
    let opens = |story: &Story| {
        story.target.table.scan(&Key::opens_of(SessionId::new(1)), &[], 9).unwrap().len()
    };
    assert_eq!((opens(&story), story.target.fence()), (1, MapVersion::default()));
    story.happens(Event::Map(map_without_clients(7).into()));
    assert_eq!((opens(&story), story.target.fence()), (0, MapVersion::new(7)));
    assert_eq!(story.calls[0].1.message, st::StatChunk::ID);
    let open = md::OpenSession { client: NodeId::new(9), slots: 4 };
    let refused = story.ask(1, 3, (0, 0), &open).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::Evicted);
    story.restart();
    assert_eq!(story.target.fence(), MapVersion::new(7));
}

#[test]
fn client_newer_than_the_map_of_the_target_keeps_its_session() {
    let mut story = Story::begin();
    story.happens(Event::Map(map_without_clients(2).into()));
    let open = md::OpenSession { client: NodeId::new(10), slots: 4 };
    story.ask(1, 3, (0, 0), &open).unwrap();
    assert!(is_open(&story, 3));
}

fn unlink() -> md::Unlink {
    md::Unlink { directory: InodeId::ROOT, name: b"a"[..].into() }
}

fn outcome_of(story: &mut Story, session: u64, at: (u32, u64)) -> Result<md::Outcome> {
    let asked = md::AskOutcome { session: SessionId::new(session), slot: at.0, sequence: at.1 };
    story.ask(9, 0, (0, 0), &asked).map(|reply| reply.outcome)
}

/// A client that has lost its session asks whether a request without a reply was executed. The
/// answer must be final, so the target refuses to answer before the end of the session.
#[test]
fn outcome_of_a_request_is_final_after_the_end_of_its_session() {
    let mut story = Story::begin();
    story.create(1, (0, 1));
    story.ask(1, 1, (0, 2), &unlink()).unwrap();
    let refused = story.ask(1, 1, (1, 1), &unlink()).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::NotFound);
    let early = outcome_of(&mut story, 1, (0, 2)).unwrap_err();
    assert_eq!(early.code(), ErrorCode::Busy, "the session is open");
    story.happens(Event::Map(map_without_clients(7).into()));
    for _ in 0..2 {
        let reply = Codec::to_bytes(&md::NamesReply { directory: None });
        let executed = md::Outcome::Executed { reply: reply[..].into() };
        assert_eq!(outcome_of(&mut story, 1, (0, 2)).unwrap(), executed);
        for at in [(0, 3), (1, 1), (2, 1)] {
            let outcome = outcome_of(&mut story, 1, at).unwrap();
            assert_eq!(outcome, md::Outcome::NotExecuted, "{at:?}");
        }
        let replaced = outcome_of(&mut story, 1, (0, 1)).unwrap();
        assert_eq!(replaced, md::Outcome::Unknown, "a later request has used the slot");
        assert_eq!(outcome_of(&mut story, 77, (0, 1)).unwrap(), md::Outcome::Unknown);
        story.restart();
    }
    // The target deletes the stored replies of a session together with the record of its end.
    story.happens(Event::Tick);
    let kept = crate::limits::END_KEPT_SECONDS + 1;
    story.wall.seconds += kept;
    story.now += Duration::from_secs(kept.unsigned_abs()) + crate::limits::FORGET_EVERY;
    story.happens(Event::Tick);
    story.happens(Event::Tick);
    assert_eq!(outcome_of(&mut story, 1, (0, 2)).unwrap(), md::Outcome::Unknown);
    let slots = story.target.table.scan(&Key::slots_of(SessionId::new(1)), &[], 9).unwrap();
    assert!(slots.is_empty());
}

/// If a power loss reverted the session, its client could not find out which of its requests were
/// executed.
#[test]
fn reply_to_open_session_waits_for_a_sync() {
    let mut story = Story::begin();
    let open = md::OpenSession { client: NodeId::new(9), slots: 4 };
    story.run(vec![arrival(1, 3, (0, 0), &open)]);
    assert!(story.replies.is_empty(), "the record of the session is not synced");
    let lsn = story.target.last_logged();
    story.run(vec![Event::Synced { lsn }]);
    assert_eq!(story.replies.len(), 1);
}

/// Regression test: the network between a target and all its clients failed. Management then
/// removed these clients at the request of the target, although other services still received
/// requests of these clients.
#[test]
fn target_disconnected_from_all_clients_keeps_sessions() {
    let mut story = Story::begin();
    for client in 10..18 {
        let open = md::OpenSession { client: NodeId::new(client), slots: 4 };
        story.ask(1, u64::from(client), (0, 0), &open).unwrap();
    }
    story.create(1, (0, 1));
    pass_a_lease(&mut story, &[]);
    assert!(story.evicted.iter().all(|(_, unless_heard)| *unless_heard), "{:?}", story.evicted);
    assert_eq!(story.evicted.iter().map(|it| it.0).collect::<BTreeSet<_>>().len(), 9);
    // Management has not removed the clients, and the network works again.
    story.ask(1, 1, (0, 2), &unlink()).unwrap();
    for session in 10..18 {
        assert!(is_alive(&mut story, session));
    }
    // Now only one client is silent, so the target can assume that the fault is at this client.
    story.evicted.clear();
    pass_a_lease(&mut story, &[1, 10, 11, 12, 13, 14, 15, 16]);
    assert!(story.evicted.contains(&(NodeId::new(17), false)), "{:?}", story.evicted);
    assert!(!is_open(&story, 17) && is_open(&story, 1));
}

/// If all clients die together, management receives no heartbeats from them, and removes them.
#[test]
fn clients_that_died_together_lose_their_sessions() {
    let mut story = Story::begin();
    story.create(1, (0, 1));
    pass_a_lease(&mut story, &[]);
    assert!(story.evicted.contains(&(NodeId::new(9), true)));
    assert!(is_open(&story, 1), "the session is open until management has removed its client");
    story.happens(Event::Map(map_without_clients(7).into()));
    assert!(!is_open(&story, 1));
}

/// docs/semantics.md 4.9: after a power loss, a client can find out which opens the target has
/// lost.
#[test]
fn client_can_detect_opens_lost_in_a_power_loss() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    let open = md::Open { must_have_name: true, ..open_of(inode, md::OpenMode::Read) };
    story.ask(1, 1, (0, 2), &open).unwrap();
    let start = |story: &mut Story| {
        story.happens(Event::Tick);
        story.ask(1, 1, (0, 0), &md::KeepAlive { lease_ms: 0 }).unwrap().start
    };
    assert_eq!(start(&mut story), 1);
    let files = [md::OpenMode::Read, md::OpenMode::Write]
        .map(|open| md::OpenedFile { inode, open })
        .to_vec();
    let compare = md::CompareOpens { files };
    let counts = |story: &mut Story| story.ask(1, 1, (0, 0), &compare).unwrap().counts;
    assert_eq!(counts(&mut story), [1, 1]);
    let before = story.log.len();
    story.ask(1, 1, (0, 3), &open).unwrap();
    assert_eq!(counts(&mut story), [2, 1]);
    story.log.truncate(before);
    story.restart();
    assert_eq!(start(&mut story), 2);
    assert_eq!(counts(&mut story), [1, 1], "the second open is lost");
}
