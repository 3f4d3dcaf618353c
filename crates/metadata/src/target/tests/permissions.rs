//! Tests of changes of permissions.

use super::*;

/// Regression test: a client that cleared the set-user-id bit of a file sent all permissions that
/// it had read before. So it undid a `chmod` of another client.
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
