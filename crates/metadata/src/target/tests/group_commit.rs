//! Tests of the time at which a target that syncs before each reply sends its replies.

use super::*;

/// Returns the connections of the replies among the actions of a batch.
fn answered(actions: &[Action]) -> Vec<ConnectionId> {
    let replied = |action: &Action| match action {
        Action::Reply { connection, .. } => Some(*connection),
        _ => None,
    };
    actions.iter().filter_map(replied).collect()
}

/// Regression test: the end of a sync released replies. If the batch that handled the end of this
/// sync also logged a change, the replies waited for the next sync too. So a busy target never sent
/// them.
#[test]
fn durable_reply_waits_for_only_one_sync() {
    let start = Start {
        group: GroupId::new(1),
        target: TargetId::new(1),
        epoch: Epoch::default(),
        counted: Vec::new(),
        synced: None,
        policy: SyncPolicy::Always,
        limits: Limits::default(),
        map: Arc::new(map()),
        now: Duration::ZERO,
        wall: Timestamp::default(),
    };
    let target = MetadataTarget::open(MemoryEngine::default(), Vec::new(), start).unwrap();
    let mut story = Story { target, ..Story::begin() };
    story.happens(Event::Tick);
    let open = md::OpenSession { client: NodeId::new(9), slots: 9 };
    story.ask(1, 1, (0, 0), &open).unwrap();
    let set = |slot: u32| {
        let set =
            md::SetAttributes { size: None, permissions: Some(0o700), ..truncate(InodeId::ROOT) };
        arrival(100 + u64::from(slot), 1, (slot, 1), &set)
    };
    let (now, wall) = (story.now, story.wall);
    let mut run = |events: Vec<Event>| story.target.handle(events, now, wall).unwrap();
    let first = run(vec![set(0)]);
    let synced = first.iter().find_map(|action| match action {
        Action::Sync { lsn } => Some(*lsn),
        _ => None,
    });
    let synced = synced.expect("a sync begins immediately");
    assert_eq!(answered(&run(vec![set(1)])), [0; 0]);
    let read = arrival(200, 1, (0, 0), &md::GetAttributes { inode: InodeId::ROOT });
    // The read request sees the change of slot 1, which is not synced, so only the request of slot
    // 0 gets its reply.
    assert_eq!(answered(&run(vec![Event::Synced { lsn: synced }, set(2), read])), [100]);
}
