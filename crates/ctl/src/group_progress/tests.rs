//! Tests of the lag and progress of members of metadata groups.

use super::*;
use skep_types::{ClusterId, Epoch, Error, ErrorCode, GroupMember, Lsn, Target};

const GROUP: GroupId = GroupId::new(3);
const BACKUP: TargetId = TargetId::new(2);

/// Returns a map with a group of two targets. The second target has the state `state`.
fn map(state: MemberState) -> ClusterMap {
    let mut map = ClusterMap::empty(ClusterId::default());
    for id in [TargetId::new(1), BACKUP] {
        map.targets.push(Target::new(id, TargetKind::Metadata, NodeId::new(id.raw()), "/d"));
    }
    map.groups.push(Group::of_one(GROUP, TargetKind::Metadata, TargetId::new(1)));
    map.groups[0].members.push(GroupMember { target: BACKUP, state });
    map
}

fn member(appended: u64, missing_bytes: Option<u64>) -> MemberProgress {
    MemberProgress {
        target: BACKUP,
        appended: Lsn::new(appended),
        synced: Lsn::new(appended),
        silent_ms: Some(3),
        is_counted: false,
        needs_copy: false,
        missing_bytes,
        copy: None,
    }
}

fn reply(member: MemberProgress) -> Result<GroupProgress> {
    let lsn = Lsn::new(5000);
    Ok(GroupProgress {
        epoch: Epoch::new(4),
        primary: TargetId::new(1),
        last: lsn,
        synced: lsn,
        held: lsn,
        safe: lsn,
        may_answer: true,
        kept_bytes: 0,
        members: vec![member],
    })
}

fn sample(milliseconds: u64, reply: Result<GroupProgress>) -> LagSample {
    LagSample {
        time: Duration::from_millis(milliseconds),
        replies: Replies::from([(GROUP, reply)]),
    }
}

/// Returns the text about the lag of the second target.
fn words(now: &LagSample, earlier: Option<&LagSample>) -> String {
    now.lags(&map(MemberState::Waiting), earlier)[&BACKUP].words()
}

#[test]
fn lag_of_a_member_has_records_bytes_rate_and_time_left() {
    let before = sample(1_000, reply(member(1_000, Some(6 << 20))));
    let now = sample(3_000, reply(member(3_000, Some(2 << 20))));
    assert_eq!(words(&now, None), "2.0k log records (2.0MiB)");
    assert_eq!(words(&now, Some(&before)), "2.0k log records (2.0MiB), 2.0MiB/s, 1.0s left");
    // The primary logs faster than the member catches up, so the text has no rate and no time left.
    assert_eq!(words(&before, Some(&now)), "4.0k log records (6.0MiB)");
    let equal = sample(3_000, reply(member(5_000, Some(0))));
    assert_eq!(words(&equal, None), "no log records any more, and will serve soon");
}

#[test]
fn catch_up_rate_is_unknown_after_a_change_of_the_group_epoch() {
    let mut before = reply(member(1_000, Some(6 << 20)));
    before.as_mut().expect("a reply").epoch = Epoch::new(3);
    let now = sample(3_000, reply(member(3_000, Some(2 << 20))));
    assert_eq!(words(&now, Some(&sample(1_000, before))), "2.0k log records (2.0MiB)");
}

#[test]
fn lag_of_a_member_that_gets_a_copy_is_the_missing_part() {
    let copying = |problem: &str| {
        let copy = CopyProgress {
            pair_count: 1_000,
            total_pairs: 4_000,
            pair_bytes: 1 << 20,
            bytes_per_second: Some(1 << 20),
            problem: problem.into(),
        };
        let of = MemberProgress { needs_copy: true, copy: Some(copy), ..member(0, None) };
        words(&sample(0, reply(of)), None)
    };
    let rest = "about 3.0MiB of a copy of the store, 1.0MiB/s, 3.0s left";
    assert_eq!(copying(""), rest);
    assert_eq!(copying("disk full"), format!("{rest}; the copy waits: disk full"));
    let waiting = MemberProgress { needs_copy: true, ..member(0, None) };
    let text = words(&sample(0, reply(waiting)), None);
    assert_eq!(text, "a copy of the store, which has not begun");
}

#[test]
fn unknown_lag_of_a_member_is_shown_with_the_reason() {
    let silent = MemberProgress { silent_ms: None, ..member(0, None) };
    let text = words(&sample(0, reply(silent)), None);
    let reason = "the target has not answered its primary since the group changed";
    assert_eq!(text, format!("an unknown number of log records: {reason}"));
    let dead = || Err(Error::new(ErrorCode::Disconnected, "refused"));
    let text = words(&sample(0, dead()), None);
    assert!(text.ends_with("the primary of its group does not answer: refused"), "{text}");
    // The second sample does not ask a primary that has not replied before.
    let later = LagSample { time: Duration::from_secs(2), replies: Replies::new() };
    let text = words(&later, Some(&sample(0, dead())));
    assert!(text.ends_with("refused"), "{text}");
}

#[test]
fn serving_and_lost_members_have_no_lag() {
    let now = sample(0, reply(member(3_000, Some(1))));
    assert!(now.lags(&map(MemberState::Serving), None).is_empty());
    let mut lost = map(MemberState::Offline);
    lost.targets[1].consistency = Consistency::Bad;
    assert!(now.lags(&lost, None).is_empty());
}
