//! Clearing set-user-id and set-group-id when a file is changed by somebody who may not keep them.
//!
//! The kernel says so with each write of such a caller (`FUSE_HANDLE_KILLPRIV_V2`). Since almost no
//! file has the bits, a worker remembers for a moment which don't. `security.capability` the kernel
//! takes away itself before a write; with a truncation or a new owner, metadata does.

use crate::context::Context;
use crate::file_system::FileSystem;
use crate::waits::Caller;
use skep_client::SetAttributes;
use skep_types::{Attributes, FileKind, InodeId, Result};

const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;

/// The permissions that are left when privileges are taken away; `None` if there are none to take.
/// As in the kernel: set-group-id on a file that its group can't execute goes too, unless the
/// caller is in that group or may keep it; directories keep all.
pub(crate) fn without(attributes: &Attributes, caller: Caller) -> Option<u32> {
    if attributes.kind == FileKind::Directory {
        return None;
    }
    let mut left = attributes.permissions & !SET_USER_ID;
    if left & SET_GROUP_ID != 0
        && (left & GROUP_EXECUTE != 0 || !keeps_group_bit(caller.pid, attributes.gid))
    {
        left &= !SET_GROUP_ID;
    }
    (left != attributes.permissions).then_some(left)
}

/// Takes the privileges of a file away, if it has any.
pub(crate) async fn take_away<F: FileSystem>(
    context: &Context<F>,
    inode: InodeId,
    caller: Caller,
) -> Result<()> {
    if context.checked.contains(inode) {
        return Ok(());
    }
    let found = context.file_system.attributes(inode).await?;
    let left = without(&found, caller);
    if let Some(left) = left {
        let change = SetAttributes {
            inode,
            permissions: Some(left),
            uid: None,
            gid: None,
            project: None,
            hands_down_project: None,
            size: None,
            accessed: None,
            modified: None,
        };
        let fs = context.file_system.clone();
        // A change must run to its end, even if the write that it goes before is dropped.
        let (sender, done) = skep_env::local::oneshot();
        skep_env::spawn(async move { sender.send(fs.set_attributes(change).await) }).detach();
        done.await.transpose()?;
        // The kernel expects other sizes and times after a write, no other permissions.
        context.waits.drop_attributes(inode);
    }
    if left.unwrap_or(found.permissions) & (SET_USER_ID | SET_GROUP_ID) == 0 {
        context.checked.insert(inode, context.validity);
    }
    Ok(())
}

/// Takes the privileges of a file away, unless whoever changes it may keep them (`CAP_FSETID`).
/// With an allocation or a copy the kernel says nothing of that.
pub(crate) async fn take_away_from<F: FileSystem>(
    context: &Context<F>,
    inode: InodeId,
    uid: u32,
    caller: Caller,
) -> Result<()> {
    if context.checked.contains(inode) {
        return Ok(());
    }
    let found = context.file_system.attributes(inode).await?;
    if without(&found, caller).is_some() && keeps_privileges(uid, caller.pid) {
        return Ok(());
    }
    take_away(context, inode, caller).await
}

/// Process 0 is one of another container, of which only the user is known.
fn keeps_privileges(uid: u32, pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    status.map_or(pid == 0 && uid == 0, |status| shows_capability(&status))
}

/// Whether a caller is in a group, or may set the bit for any. Of one who has gone, or is in
/// another container, that isn't known: the bit, which only marks mandatory locks there, stays.
fn keeps_group_bit(pid: u32, gid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    status.map_or(true, |status| shows_capability(&status) || shows_group(&status, gid))
}

fn shows_group(status: &str, gid: u32) -> bool {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let numbers = |text: Option<&str>| -> Vec<u32> {
        text.unwrap_or_default().split_whitespace().flat_map(str::parse).collect()
    };
    // The last of the four is the one that counts for files.
    numbers(field("Gid:")).last() == Some(&gid) || numbers(field("Groups:")).contains(&gid)
}

fn shows_capability(status: &str) -> bool {
    const CAP_FSETID: u64 = 1 << 4;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = effective.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & CAP_FSETID != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::Timestamp;

    /// Of whom nothing is known.
    const NOBODY: Caller = Caller { unique: 2, pid: 0 };

    fn file(kind: FileKind, permissions: u32) -> Attributes {
        Attributes::new(InodeId::new(5), kind, permissions, Timestamp::default())
    }

    #[test]
    fn what_is_left_follows_the_kernel() {
        let check = |permissions, expected| {
            assert_eq!(without(&file(FileKind::Regular, permissions), NOBODY), expected);
        };
        check(0o644, None);
        check(0o4755, Some(0o755));
        check(0o6755, Some(0o755));
        check(0o2755, Some(0o755));
        check(0o2745, None);
        check(0o1777, None);
        assert_eq!(without(&file(FileKind::Directory, 0o6777), NOBODY), None);
    }

    #[test]
    fn who_has_the_capability_keeps_the_bits() {
        assert!(shows_capability("Name:\tx\nCapEff:\t000001ffffffffff\n"));
        assert!(!shows_capability("CapPrm:\t000001ffffffffff\nCapEff:\t0000000000000000\n"));
        assert!(!shows_capability(""));
        assert!(keeps_privileges(0, 0) && !keeps_privileges(1, 0));
    }

    #[test]
    fn groups_are_the_one_for_files_and_the_others() {
        let status = "Gid:\t1\t2\t3\t4\nGroups:\t7 88 \n";
        assert!([4, 7, 88].iter().all(|gid| shows_group(status, *gid)));
        assert!(![1, 2, 3, 8].iter().any(|gid| shows_group(status, *gid)));
        assert!(!shows_group("", 0));
    }
}
