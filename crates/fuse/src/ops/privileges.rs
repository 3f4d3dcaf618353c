//! Clears the set-user-id and set-group-id bits when a process without CAP_FSETID changes a file.
//!
//! The kernel sets a flag in each write of a process without this capability
//! (`FUSE_HANDLE_KILLPRIV_V2`). Almost no file has the bits. So the mount caches for a short time
//! which files have neither bit (`CheckedFiles`). The attribute `security.capability` must be
//! removed too. Before a write the kernel removes it. At a truncation or a change of owner the
//! metadata target removes it.

use crate::checked_files::CheckStart;
use crate::context::Context;
use crate::file_system::FileSystem;
use crate::waits::Caller;
use skep_client::SetAttributes;
use skep_types::{Attributes, FileKind, InodeId, Result};

const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;

/// Returns which of the set-user-id and set-group-id bits must be cleared. As in the kernel, a file
/// that its group cannot execute keeps set-group-id if the caller is in that group or has
/// CAP_FSETID. Directories keep both bits.
///
/// Metadata clears these bits and no other bits. If the mount sent all permissions without the
/// bits, it would undo a `chmod` that another mount makes at the same time.
fn bits_to_clear(attributes: &Attributes, caller: Caller) -> u32 {
    let permissions = attributes.permissions;
    if attributes.kind == FileKind::Directory {
        return 0;
    }
    let mut bits = permissions & SET_USER_ID;
    if permissions & SET_GROUP_ID != 0
        && (permissions & GROUP_EXECUTE != 0 || !keeps_group_bit(caller.pid, attributes.gid))
    {
        bits |= SET_GROUP_ID;
    }
    bits
}

/// Returns the bits that metadata must clear when a program changes the owner or the size of a
/// file. Requests the attributes of the file only if the mount has no recent attributes, or if the
/// recent attributes show one of the bits.
pub(super) async fn bits_of_change<F: FileSystem>(
    context: &Context<F>,
    inode: InodeId,
    caller: Caller,
) -> Result<u32> {
    let fs = &context.file_system;
    let known = fs.known_attributes(inode, context.options.validity);
    match known.filter(|(attributes, _)| needs_no_request(attributes)) {
        Some((attributes, _)) => Ok(bits_at_change(&attributes, caller)),
        None => Ok(bits_at_change(&fs.attributes(inode).await?, caller)),
    }
}

/// Whether [`bits_at_change`] may use these attributes, which may be as old as attributes in the
/// kernel's cache.
fn needs_no_request(known: &Attributes) -> bool {
    known.kind == FileKind::Regular && known.permissions & (SET_USER_ID | SET_GROUP_ID) == 0
}

/// Returns the bits that metadata must clear in the same step as it changes the owner or the size
/// of a file. `attributes` are the attributes of the file a moment before.
///
/// # Hazard: another host sets a bit at the same time
/// Another host may have set the set-user-id bit since. If metadata kept this bit, a program with
/// this bit could get another owner. So metadata clears the bits of a regular file even if
/// `attributes` do not show them. If the file has neither bit, this changes nothing.
///
/// Another host may also have set the set-group-id bit, and then the group may be able to execute
/// the file or not. If the caller may keep this bit of a file without group execute, metadata
/// decides by the present permissions.
fn bits_at_change(attributes: &Attributes, caller: Caller) -> u32 {
    let both = SET_USER_ID | SET_GROUP_ID;
    if attributes.kind != FileKind::Regular {
        return bits_to_clear(attributes, caller);
    }
    match keeps_group_bit(caller.pid, attributes.gid) {
        true => both | SetAttributes::KEEP_SET_GROUP_ID_WITHOUT_EXECUTE,
        false => both,
    }
}

/// Clears the set-user-id and set-group-id bits of a file, if it has any.
pub(super) async fn clear<F: FileSystem>(
    context: &Context<F>,
    inode: InodeId,
    caller: Caller,
) -> Result<()> {
    if context.checked.contains(inode) {
        return Ok(());
    }
    let start = context.checked.begin_check();
    let present = context.file_system.attributes(inode).await?;
    let bits = bits_to_clear(&present, caller);
    if bits != 0 {
        let change = SetAttributes {
            inode,
            permissions: None,
            cleared_permissions: bits,
            uid: None,
            gid: None,
            project: None,
            hands_down_project: None,
            size: None,
            accessed: None,
            modified: None,
        };
        let fs = context.file_system.clone();
        // This change of permissions must run to completion, even if the worker drops the future of
        // the write that needs the change.
        let (sender, done) = skep_env::local::oneshot();
        skep_env::spawn(async move { sender.send(fs.set_attributes(change).await) }).detach();
        done.await.transpose()?;
        // The kernel expects a write to change size and times, but not permissions. So make the
        // kernel request the permissions again.
        context.waits.drop_attributes(inode);
    }
    if present.permissions & !bits & (SET_USER_ID | SET_GROUP_ID) == 0 {
        context.checked.insert(inode, context.options.validity, start);
    }
    Ok(())
}

/// Caches that a created file has neither a set-user-id nor a set-group-id bit, according to its
/// attributes in the reply. So the first write of the program needs no request for the attributes.
/// `start` is the moment before the worker sent the request to create the file. The kernel rarely
/// asks for a clearing in writes of root, so files of root are not cached.
pub(super) fn note_created<F>(context: &Context<F>, attributes: &Attributes, start: CheckStart) {
    if attributes.uid != 0 && attributes.permissions & (SET_USER_ID | SET_GROUP_ID) == 0 {
        context.checked.insert(attributes.inode, context.options.validity, start);
    }
}

/// Clears the set-user-id and set-group-id bits of a file, unless the caller has CAP_FSETID. The
/// mount calls this function for allocations and copies, for which the kernel sends no flag about
/// these bits.
pub(super) async fn clear_unless_kept<F: FileSystem>(
    context: &Context<F>,
    inode: InodeId,
    uid: u32,
    caller: Caller,
) -> Result<()> {
    if context.checked.contains(inode) {
        return Ok(());
    }
    let present = context.file_system.attributes(inode).await?;
    if bits_to_clear(&present, caller) != 0 && keeps_privileges(uid, caller.pid) {
        return Ok(());
    }
    clear(context, inode, caller).await
}

/// Whether a process has CAP_FSETID. `pid` 0 means a process of another container. The mount has
/// only the user id of that process, so a process of root counts as having CAP_FSETID.
fn keeps_privileges(uid: u32, pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    status.map_or(pid == 0 && uid == 0, |status| shows_capability(&status))
}

/// Whether a caller is in a group or has CAP_FSETID. If the caller has ended or is in another
/// container, the result is true. A wrong `true` is harmless, since set-group-id on a file without
/// group execution only marks mandatory locks.
fn keeps_group_bit(pid: u32, gid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    status.map_or(true, |status| shows_capability(&status) || shows_group(&status, gid))
}

fn shows_group(status: &str, gid: u32) -> bool {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let numbers = |text: Option<&str>| -> Vec<u32> {
        text.unwrap_or_default().split_whitespace().flat_map(str::parse).collect()
    };
    // The last of the four numbers of `Gid:` is the group for file access.
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

    /// A caller of another container.
    const FOREIGN: Caller = Caller { unique: 2, pid: 0 };

    fn file(kind: FileKind, permissions: u32) -> Attributes {
        Attributes::new(InodeId::new(5), kind, permissions, Timestamp::default())
    }

    #[test]
    fn writes_clear_setuid_and_setgid_like_the_kernel() {
        let check = |permissions, expected| {
            let bits = bits_to_clear(&file(FileKind::Regular, permissions), FOREIGN);
            assert_eq!(permissions & !bits, expected);
        };
        check(0o644, 0o644);
        check(0o4755, 0o755);
        check(0o6755, 0o755);
        check(0o2755, 0o755);
        check(0o2745, 0o2745);
        check(0o1777, 0o1777);
        assert_eq!(bits_to_clear(&file(FileKind::Directory, 0o6777), FOREIGN), 0);
    }

    #[test]
    fn only_files_without_setuid_or_setgid_need_no_request() {
        let check = |kind, permissions, expected| {
            assert_eq!(needs_no_request(&file(kind, permissions)), expected, "{permissions:o}");
        };
        check(FileKind::Regular, 0o1777, true);
        check(FileKind::Regular, 0o4755, false);
        check(FileKind::Regular, 0o2745, false);
        check(FileKind::Directory, 0o755, false);
    }

    /// Another host may set a bit between the request for the attributes and the change.
    #[test]
    fn change_clears_bits_that_the_attributes_do_not_show() {
        let keeping = SetAttributes::KEEP_SET_GROUP_ID_WITHOUT_EXECUTE;
        for permissions in [0o644, 0o4755, 0o2745] {
            let bits = bits_at_change(&file(FileKind::Regular, permissions), FOREIGN);
            assert_eq!(bits, 0o6000 | keeping, "{permissions:o}");
        }
        assert_eq!(bits_at_change(&file(FileKind::Directory, 0o6777), FOREIGN), 0);
    }

    #[test]
    fn caller_with_cap_fsetid_keeps_setuid_and_setgid_bits() {
        assert!(shows_capability("Name:\tx\nCapEff:\t000001ffffffffff\n"));
        assert!(!shows_capability("CapPrm:\t000001ffffffffff\nCapEff:\t0000000000000000\n"));
        assert!(!shows_capability(""));
        assert!(keeps_privileges(0, 0) && !keeps_privileges(1, 0));
    }

    #[test]
    fn process_is_in_its_fsgid_and_supplementary_groups() {
        let status = "Gid:\t1\t2\t3\t4\nGroups:\t7 88 \n";
        assert!([4, 7, 88].iter().all(|gid| shows_group(status, *gid)));
        assert!(![1, 2, 3, 8].iter().any(|gid| shows_group(status, *gid)));
        assert!(!shows_group("", 0));
    }
}
