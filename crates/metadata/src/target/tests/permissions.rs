//! Tests of changes of permissions.

use super::*;

/// Regression test: a client that cleared the set-user-id bit of a file sent all permissions that
/// it had read before. So the client undid a `chmod` of another client.
#[test]
fn cleared_bits_leave_other_permissions_unchanged() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    let nothing = md::SetAttributes { size: None, ..truncate(inode) };
    let chmod = |mode| md::SetAttributes { permissions: Some(mode), ..nothing.clone() };
    story.ask(1, 1, (0, 2), &chmod(0o4755)).unwrap();
    story.ask(1, 2, (0, 1), &chmod(0o4600)).unwrap();
    let clear = md::SetAttributes { cleared_permissions: 0o6000, ..nothing.clone() };
    let changed = story.ask(1, 1, (0, 3), &clear).unwrap().attributes;
    assert_eq!(changed.permissions, 0o600);
}

/// docs/semantics.md 1.10. A client that has seen neither the set-user-id bit nor the set-group-id
/// bit names both, because another client may have set one of these bits meanwhile.
#[test]
fn chown_keeps_setgid_if_asked_and_the_group_cannot_execute() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    let nothing = md::SetAttributes { size: None, ..truncate(inode) };
    let keeping = 0o6000 | md::SetAttributes::KEEP_SET_GROUP_ID_WITHOUT_EXECUTE;
    let cases = [(0o6640, keeping, 0o2640), (0o6750, keeping, 0o750), (0o2640, 0o6000, 0o640)];
    for (number, (mode, cleared_permissions, expected)) in (0..).zip(cases) {
        let chmod = md::SetAttributes { permissions: Some(mode), ..nothing.clone() };
        story.ask(1, 2, (0, 1 + number), &chmod).unwrap();
        let chown = md::SetAttributes { cleared_permissions, uid: Some(7), ..nothing.clone() };
        let changed = story.ask(1, 1, (0, 2 + number), &chown).unwrap().attributes;
        assert_eq!(changed.permissions, expected, "{mode:o}");
    }
}
