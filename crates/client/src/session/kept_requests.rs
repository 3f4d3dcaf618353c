//! The requests for changes that a client keeps after their acknowledgement, and the requests that
//! replay them after a power loss of a metadata host. No I/O.
//!
//! The client keeps the request itself, and encodes it a second time only for a replay. An encoded
//! copy of each change would cost an inline write of 16 KiB one more copy of its bytes.
//!
//! # Requests that are not replayed
//! - Truncations: a second truncation would remove bytes that programs have written since the first
//!   truncation. An `open` with `O_TRUNC` is replayed without its truncation. If the file then has
//!   bytes, its truncation is lost. If the file has no bytes, the target sets its truncate
//!   generation to the generation of the lost truncation. Later requests of all clients for the
//!   file contain this generation.
//! - `SetPattern` and `RemoveInline`: the target would choose other places for the bytes.
//! - Locks, which `restore_locks` restores.

use skep_types::codec::{Bytes, Codec};
use skep_types::{InodeId, StripePattern};
use skep_wire::Request;
use skep_wire::inline::{InlineMark, RemoveInline, WriteInline, WriteInlineReply};
use skep_wire::metadata as md;
use std::any::Any;
use std::sync::Arc;

/// A request that the client can encode for a replay.
pub(crate) trait EncodeForReplay: std::fmt::Debug + Send + Sync {
    /// Returns the message number of the request.
    fn message(&self) -> u16;

    /// Returns the body of the request that the target executes again.
    fn body(&self) -> Vec<u8>;
}

impl<R: Request + 'static> EncodeForReplay for R {
    fn message(&self) -> u16 {
        R::ID
    }

    fn body(&self) -> Vec<u8> {
        let any: &dyn Any = self;
        let Some(it) = any.downcast_ref::<md::Open>() else { return self.to_bytes() };
        let (inode, open) = (it.inode, it.open);
        md::Open { inode, open, truncate: false, must_have_name: false, inline_limit: 0 }.to_bytes()
    }
}

/// The data to replay a change: its request, and the parts of the first reply that must stay the
/// same.
#[derive(Debug, Clone)]
pub(crate) struct KeptRequest {
    pub(crate) request: Arc<dyn EncodeForReplay>,
    /// Length of the encoded request, in bytes.
    pub(crate) body_bytes: usize,
    /// The inode in the reply. Zero if the reply has no inode.
    pub(crate) inode: InodeId,
    /// Whether the request has created the inode in its reply.
    pub(crate) created: bool,
    /// The stripe pattern of a created file.
    pub(crate) pattern: Option<StripePattern>,
    /// The truncate generation of the file in the reply, if the request is an open that has
    /// truncated the file. The replay does not truncate it. `None` also means that an earlier
    /// replay has shown that the truncation is lost.
    pub(crate) truncated: Option<u64>,
}

impl KeptRequest {
    /// Returns the parts of an acknowledged request that the client keeps. `body_bytes` is the
    /// length of the encoded request. `None` means that the change cannot be replayed.
    pub(crate) fn of<R: Request + 'static>(
        request: &Arc<R>,
        reply: &R::Reply,
        body_bytes: usize,
    ) -> Option<Self> {
        if !is_replayed(&**request) {
            return None;
        }
        let (inode, created, pattern) = facts_of(reply, request_creates(&**request));
        let truncated = is_truncating_open(&**request).then(|| generation_of(reply)).flatten();
        let request: Arc<R> = Arc::clone(request);
        Some(Self { request, body_bytes, inode, created, pattern, truncated })
    }

    /// Returns the approximate memory of the request's body and the pattern, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let components = self.pattern.iter().flat_map(|pattern| &pattern.components);
        let pattern = components.map(|it| size_of_val(it) + size_of_val(&it.groups[..]));
        self.body_bytes + pattern.sum::<usize>()
    }

    /// Returns the request that replays the change. `place` is the start of the target and the
    /// number of the change.
    pub(crate) fn replay(&self, place: (u64, u64)) -> Box<md::Replay> {
        let Self { inode, created, ref pattern, .. } = *self;
        let (start, change) = place;
        let (message, request) = (self.request.message(), Bytes(self.request.body()));
        let (pattern, truncate_generation) = (pattern.clone(), self.truncated.unwrap_or(0));
        Box::new(md::Replay {
            start,
            change,
            message,
            request,
            inode,
            created,
            pattern,
            truncate_generation,
        })
    }
}

/// Whether the client keeps a request after its acknowledgement.
pub(crate) fn is_kept(request: &dyn Any) -> bool {
    request.is::<md::Open>()
        || request.is::<md::Close>()
        || request.is::<md::CloseMany>()
        || request.is::<md::CreateUnnamed>()
        || request.is::<md::ReportWritten>()
        || request.is::<WriteInline>()
        || inodes_of(request).is_some()
}

/// Returns the mark of an inline write from the reply to it. `None` means that the reply is to a
/// request of another kind.
pub(crate) fn inline_mark_of(reply: &dyn Any) -> Option<InlineMark> {
    reply.downcast_ref::<WriteInlineReply>().map(|it| it.mark)
}

/// Whether a request has created the inode that its `NewEntryReply` names. A link, for example, has
/// not created this inode. An `OpenReply` itself states whether the inode is new.
fn request_creates(request: &dyn Any) -> bool {
    request.is::<md::MakeDirectory>() || request.is::<md::MakeSymlink>()
}

fn is_truncating_open(request: &dyn Any) -> bool {
    request.downcast_ref::<md::Open>().is_some_and(|it| it.truncate)
}

/// Returns the truncate generation of the file in the reply to an open.
fn generation_of(reply: &dyn Any) -> Option<u64> {
    reply.downcast_ref::<md::OpenReply>().map(|it| it.attributes.truncate_generation)
}

/// Returns the inode in a reply, whether the request has created the inode, and the stripe pattern
/// of a created file.
fn facts_of(reply: &dyn Any, creates: bool) -> (InodeId, bool, Option<StripePattern>) {
    if let Some(it) = reply.downcast_ref::<md::OpenReply>() {
        let pattern = it.pattern.as_ref().filter(|_| it.created).cloned();
        return (it.attributes.inode, it.created, pattern);
    }
    match reply.downcast_ref::<md::NewEntryReply>() {
        Some(it) => (it.entry.inode, creates, None),
        None => (InodeId::default(), false, None),
    }
}

/// Whether the target may execute a request a second time.
fn is_replayed(request: &dyn Any) -> bool {
    let attributes = request.downcast_ref::<md::SetAttributes>();
    let truncates = attributes.is_some_and(|it| it.size.is_some());
    let is_placed_again = request.is::<md::SetPattern>() || request.is::<RemoveInline>();
    !truncates && !is_placed_again
}

/// Returns the inodes in a request that changes names or attributes. `None` means that the request
/// is of another kind. Other modules find and report lost opens, locks, reports of sizes, and
/// inline bytes.
pub(crate) fn inodes_of(request: &dyn Any) -> Option<[InodeId; 2]> {
    if let Some(it) = request.downcast_ref::<md::Create>() {
        return Some([it.directory; 2]);
    }
    if let Some(it) = request.downcast_ref::<md::SetAttributes>() {
        return Some([it.inode; 2]);
    }
    if let Some(it) = request.downcast_ref::<md::Link>() {
        return Some([it.inode, it.directory]);
    }
    if let Some(it) = request.downcast_ref::<md::MakeDirectory>() {
        return Some([it.directory; 2]);
    }
    if let Some(it) = request.downcast_ref::<md::MakeSymlink>() {
        return Some([it.directory; 2]);
    }
    if let Some(it) = request.downcast_ref::<md::SetXattr>() {
        return Some([it.inode; 2]);
    }
    if let Some(it) = request.downcast_ref::<md::RemoveXattr>() {
        return Some([it.inode; 2]);
    }
    if let Some(it) = request.downcast_ref::<md::SetPattern>() {
        return Some([it.inode; 2]);
    }
    if let Some(it) = request.downcast_ref::<RemoveInline>() {
        return Some([it.inode; 2]);
    }
    let mut names = names_of(request).map(|(directory, _)| directory);
    let first = names.next()?;
    Some([first, names.next().unwrap_or(first)])
}

/// Returns the existing names that a request removes, moves or replaces.
pub(crate) fn names_of(request: &dyn Any) -> impl Iterator<Item = (InodeId, &Bytes)> {
    let names = if let Some(it) = request.downcast_ref::<md::Unlink>() {
        [Some((it.directory, &it.name)), None]
    } else if let Some(it) = request.downcast_ref::<md::RemoveDirectory>() {
        [Some((it.directory, &it.name)), None]
    } else if let Some(it) = request.downcast_ref::<md::Rename>() {
        [Some((it.from_directory, &it.from_name)), Some((it.to_directory, &it.to_name))]
    } else if let Some(it) = request.downcast_ref::<md::Exchange>() {
        [Some((it.from_directory, &it.from_name)), Some((it.to_directory, &it.to_name))]
    } else {
        [None, None]
    };
    names.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::{Attributes, FileKind, Timestamp};
    use skep_wire::file_locks::{LockKind, LockMode, LockRequest, SetLock, WaitLock};

    const FILE: InodeId = InodeId::new(9);

    fn attributes() -> Attributes {
        Attributes::new(FILE, FileKind::Regular, 0o644, Timestamp::default())
    }

    fn set_size(size: Option<u64>) -> md::SetAttributes {
        md::SetAttributes {
            inode: FILE,
            permissions: Some(0o600),
            cleared_permissions: 0,
            uid: None,
            gid: None,
            project: None,
            hands_down_project: None,
            size,
            accessed: None,
            modified: None,
        }
    }

    #[test]
    fn client_keeps_a_truncation_request_but_does_not_replay_it() {
        let reply = md::SetAttributesReply { attributes: attributes(), truncated: Vec::new() };
        assert!(is_kept(&set_size(Some(1))));
        assert!(KeptRequest::of(&Arc::new(set_size(Some(1))), &reply, 20).is_none());
        assert!(KeptRequest::of(&Arc::new(set_size(None)), &reply, 20).is_some());
        let open = md::Open {
            inode: FILE,
            open: md::OpenMode::Write,
            truncate: true,
            must_have_name: true,
            inline_limit: 100,
        };
        let opened = md::OpenReply {
            created: false,
            attributes: Attributes { truncate_generation: 4, ..attributes() },
            pattern: None,
            is_shared: false,
            truncated: Vec::new(),
            synced: skep_types::ChunkFileSet::default(),
            inline: None,
            directory: None,
        };
        let kept = KeptRequest::of(&Arc::new(open), &opened, 20).expect("the open is replayed");
        let replay = kept.replay((1, 2));
        assert_eq!((replay.start, replay.change, replay.message), (1, 2, md::Open::ID));
        let body = md::Open::from_bytes(&replay.request.0).unwrap();
        assert!(!body.truncate && !body.must_have_name && body.inline_limit == 0);
        assert_eq!(replay.truncate_generation, 4, "the truncation may be lost");
        assert_eq!((replay.inode, replay.created), (FILE, false));
    }

    #[test]
    fn replay_names_the_inode_that_the_request_created() {
        let entry = md::EntryReply { inode: FILE, kind: FileKind::Regular, attributes: None };
        let reply = md::NewEntryReply { entry, directory: None };
        let (directory, name) = (InodeId::ROOT, Bytes(b"b".to_vec()));
        let link = md::Link { inode: FILE, directory, name: name.clone() };
        let body = link.to_bytes();
        let replay = KeptRequest::of(&Arc::new(link), &reply, 20).unwrap().replay((3, 4));
        assert_eq!(replay.request.0, body);
        assert_eq!((replay.start, replay.change), (3, 4));
        assert_eq!((replay.inode, replay.created), (FILE, false));
        let new = md::NewInode { permissions: 0o755, umask: 0, uid: 0, gid: 0 };
        let make = md::MakeDirectory { directory, name, new };
        assert!(KeptRequest::of(&Arc::new(make), &reply, 20).unwrap().created);
    }

    /// `restore_locks` restores the locks of a mount. A replayed request could set a lock that the
    /// program has released since.
    #[test]
    fn locks_are_not_kept_for_a_replay() {
        for kind in LockKind::ALL {
            let mode = Some(LockMode::Exclusive);
            let lock = LockRequest { inode: FILE, kind, owner: 1, mode, start: 0, end: 9, pid: 2 };
            assert!(!is_kept(&SetLock { lock, wait: 0 }));
            assert!(!is_kept(&WaitLock { lock, wait: 1 }));
        }
    }

    #[test]
    fn reads_and_trims_are_not_kept_for_a_replay() {
        assert!(!is_kept(&md::GetAttributes { inode: FILE }));
        assert!(!is_kept(&md::TrimFile { inode: FILE }));
    }
}
