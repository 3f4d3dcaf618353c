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

/// Returns the last record of the sync that begins with the actions of a batch.
fn sync_of(actions: &[Action]) -> Lsn {
    let synced = actions.iter().find_map(|action| match action {
        Action::Sync { lsn } => Some(*lsn),
        _ => None,
    });
    synced.expect("a sync begins immediately")
}

/// Regression test: if the batch that handled the end of a sync also logged a change, the replies
/// that had waited for this sync waited for the next sync too. So a busy target never sent these
/// replies.
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
    let synced = sync_of(&first);
    assert_eq!(answered(&run(vec![set(1)])), [0; 0]);
    let read = arrival(200, 1, (0, 0), &md::GetAttributes { inode: InodeId::ROOT });
    // The read request sees the change of slot 1, which is not synced, so only the request of slot
    // 0 gets its reply.
    assert_eq!(answered(&run(vec![Event::Synced { lsn: synced }, set(2), read])), [100]);
}

/// Regression test: each durable reply waited until the key-value store had taken all changes of
/// the sync.
#[test]
fn durable_reply_leaves_before_its_change_is_stored() {
    let mut story = Story::begin();
    let (now, wall) = (story.now, story.wall);
    let open = md::OpenSession { client: NodeId::new(9), slots: 4 };
    let mut event = arrival(7, 3, (0, 0), &open);
    if let Event::Request { header, .. } = &mut event {
        header.set_start(story.start());
    }
    let lsn = sync_of(&story.target.handle(vec![event], now, wall).unwrap());
    let actions = story.target.handle(vec![Event::Synced { lsn }], now, wall).unwrap();
    assert_eq!(answered(&actions), [7]);
    assert!(story.last_stored() < lsn, "the store does not delay the reply");
    assert!(!story.target.is_idle());
    assert_eq!(story.target.next_tick(), now, "the next batch begins immediately");
    story.target.handle(Vec::new(), now, wall).unwrap();
    assert_eq!(story.last_stored(), lsn);
}
