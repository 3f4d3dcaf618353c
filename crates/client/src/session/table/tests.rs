//! Tests of the table of sessions.

use super::*;
use crate::wake_ups::check_wake_ups;
use std::sync::Arc;

const GROUP: GroupId = GroupId::new(3);
const NODE: NodeId = NodeId::new(12);
const LEASE: Duration = Duration::from_secs(30);

fn unopened(table: &GroupSessions) -> SessionId {
    match table.find_or_add(GROUP, NODE) {
        SessionState::Unopened { id } => id,
        state => panic!("{state:?}"),
    }
}

fn opened(table: &GroupSessions, at: Duration) -> SessionId {
    let id = unopened(table);
    table.opened(GROUP, id, Granted { slots: 8, lease: LEASE, start: 1 }, at);
    id
}

#[test]
fn threads_get_the_same_new_session_for_a_group() {
    let table = GroupSessions::default();
    let id = unopened(&table);
    assert_eq!(client_of(id), NODE);
    assert_eq!(unopened(&table), id, "a second thread gets the same session");
    assert_eq!((table.open_sessions(), table.lease(GROUP, id)), (vec![], USUAL_LEASE));
}

#[test]
fn opened_session_has_the_granted_slots_and_lease() {
    let table = GroupSessions::default();
    let id = opened(&table, LEASE);
    assert_eq!(table.find_or_add(GROUP, NODE), SessionState::Open { id, slots: 8 });
    assert_eq!(table.open_sessions(), [(GROUP, id)]);
    assert_eq!((table.lease(GROUP, id), table.shortest_lease()), (LEASE, LEASE));
}

#[test]
fn session_is_trusted_until_its_lease_may_have_expired() {
    let table = GroupSessions::default();
    let id = opened(&table, LEASE);
    let second = Duration::from_secs(1);
    assert_eq!(table.doubtful(GROUP, LEASE * 2 - second), None);
    assert_eq!(table.doubtful(GROUP, LEASE * 2), Some(id));
    table.confirmed(GROUP, id, LEASE + second, LEASE);
    assert_eq!(table.doubtful(GROUP, LEASE * 2), None);
    table.confirmed(GROUP, id, LEASE, LEASE);
    assert_eq!(table.doubtful(GROUP, LEASE * 2), None, "an older reply changes nothing");
}

#[test]
fn target_restart_requires_a_check_for_lost_opens() {
    let table = GroupSessions::default();
    let id = opened(&table, LEASE);
    assert!(![0, 1].iter().any(|start| table.may_have_lost_opens(GROUP, id, *start)));
    assert!(table.may_have_lost_opens(GROUP, id, 2));
    table.has_opens(GROUP, id, 2);
    assert!(!table.may_have_lost_opens(GROUP, id, 2));
}

/// Hole H49 in `docs/tests/holes.md`.
#[test]
fn second_open_of_a_session_hides_no_restart_of_the_target() {
    let table = GroupSessions::default();
    let id = opened(&table, Duration::ZERO);
    table.opened(GROUP, id, Granted { slots: 8, lease: LEASE, start: 2 }, LEASE);
    assert!(table.may_have_lost_opens(GROUP, id, 2));
}

#[test]
fn only_one_task_restores_the_opens_of_a_session() {
    let table = GroupSessions::default();
    let id = opened(&table, LEASE);
    let restoring = table.begin_restoring(GROUP, id);
    assert!(restoring.is_some() && table.begin_restoring(GROUP, id).is_none());
    drop(restoring);
    let restoring = table.begin_restoring(GROUP, id);
    assert!(restoring.is_some(), "the previous task has ended");
    let next = table.replace(GROUP, id, NODE).unwrap();
    assert!(table.begin_restoring(GROUP, id).is_none(), "the session was replaced");
    assert!(table.begin_restoring(GROUP, next).is_some());
}

#[test]
fn only_one_thread_replaces_a_lost_session() {
    let table = GroupSessions::default();
    let lost = opened(&table, LEASE);
    let next = table.replace(GROUP, lost, NODE).unwrap();
    assert_ne!(next, lost);
    assert_eq!(table.replace(GROUP, lost, NODE), None);
    assert!(table.is_renewing(GROUP) && table.is_current(GROUP, next));
    assert_eq!(table.find_or_add(GROUP, NODE), SessionState::Renewing);
    assert_eq!((table.open_sessions(), table.doubtful(GROUP, LEASE)), (vec![], Some(next)));
    table.opened(GROUP, next, Granted { slots: 4, lease: LEASE, start: 1 }, LEASE);
    table.renewed(GROUP, next, true);
    assert_eq!(table.find_or_add(GROUP, NODE), SessionState::Open { id: next, slots: 4 });
}

#[test]
fn session_is_not_used_until_lost_files_are_open_again() {
    let table = GroupSessions::default();
    let lost = opened(&table, LEASE);
    let first = table.replace(GROUP, lost, NodeId::new(13)).unwrap();
    assert!(!table.begin_renewal(GROUP, first), "the first renewal is still running");
    table.renewed(GROUP, first, false);
    assert_eq!(table.find_or_add(GROUP, NODE), SessionState::Unrestored { id: first });
    assert_eq!(table.to_keep(), [(GROUP, first)]);
    let next = table.replace(GROUP, first, NodeId::new(14)).unwrap();
    assert_eq!(table.unrestored(GROUP, next), Some(NODE), "the client of the first session");
    table.renewed(GROUP, next, false);
    table.opened(GROUP, next, Granted { slots: 4, lease: LEASE, start: 1 }, LEASE);
    assert_eq!(table.doubtful(GROUP, LEASE), Some(next), "files of the session are not open");
    assert!(table.begin_renewal(GROUP, next) && !table.begin_renewal(GROUP, next));
    assert_eq!((table.find_or_add(GROUP, NODE), table.to_keep()), (SessionState::Renewing, vec![]));
    table.renewed(GROUP, next, true);
    assert_eq!(table.find_or_add(GROUP, NODE), SessionState::Open { id: next, slots: 4 });
    assert!(!table.begin_renewal(GROUP, next) && table.doubtful(GROUP, LEASE).is_none());
}

#[test]
fn reply_for_a_replaced_session_does_not_change_the_new_one() {
    let table = GroupSessions::default();
    let lost = opened(&table, LEASE);
    let next = table.replace(GROUP, lost, NodeId::new(13)).unwrap();
    assert_eq!(client_of(next), NodeId::new(13));
    table.opened(GROUP, lost, Granted { slots: 64, lease: LEASE * 9, start: 1 }, LEASE);
    table.confirmed(GROUP, lost, LEASE * 9, LEASE * 9);
    table.renewed(GROUP, lost, true);
    assert_eq!(table.find_or_add(GROUP, NODE), SessionState::Renewing);
    assert_eq!(table.unrestored(GROUP, next), Some(NODE));
    assert_eq!(table.lease(GROUP, next), LEASE);
}

#[test]
fn refusal_or_eviction_marks_the_session_as_lost() {
    assert!(is_lost(&ErrorCode::StaleSession.into()) && is_lost(&ErrorCode::Evicted.into()));
    assert!(!is_lost(&ErrorCode::Stale.into()));
}

#[test]
fn end_of_a_renewal_wakes_tasks_of_other_threads() {
    let table = Arc::new(GroupSessions::default());
    opened(&table, LEASE);
    let begin = |table: &Arc<GroupSessions>| {
        let lost = match table.find_or_add(GROUP, NODE) {
            SessionState::Open { id, .. } | SessionState::Unopened { id } => id,
            state => panic!("the last renewal has ended: {state:?}"),
        };
        (Arc::clone(table), table.replace(GROUP, lost, NODE).unwrap())
    };
    let end = |(table, id): (Arc<GroupSessions>, _)| table.renewed(GROUP, id, true);
    let wait = async |table: &Arc<GroupSessions>| table.await_renewal(GROUP).await;
    check_wake_ups(&table, begin, end, wait);
}

#[test]
fn end_of_a_restoration_wakes_tasks_of_other_threads() {
    // A guard has the lifetime of its table, so the table lives until the end of the process.
    let table: &'static GroupSessions = Box::leak(Box::<GroupSessions>::default());
    let id = opened(table, LEASE);
    let begin = |table: &&'static GroupSessions| -> Restoring<'static> {
        let table: &'static GroupSessions = table;
        table.begin_restoring(GROUP, id).unwrap()
    };
    let wait = async move |table: &&'static GroupSessions| {
        table.await_restoring(GROUP, id).await;
    };
    check_wake_ups(&table, begin, drop, wait);
}
