//! Tests of operations on names whose directories or inodes other groups serve, and of names that
//! undecided transactions of other groups change.

use super::*;
use crate::limits::{DECISION_PATIENCE, LONGEST_PAUSE, MAX_REVALIDATIONS, TRANSACTION_WAIT};
use skep_types::Attributes;

/// A directory that group 3 serves.
const ELSEWHERE: InodeId = InodeId::new(0x9000_0000_0000_0042);
/// A file that group 3 serves.
const FILE: InodeId = InodeId::new(0x9000_0000_0000_0043);
const NEW: md::NewInode = md::NewInode { permissions: 0o700, umask: 0, uid: 0, gid: 0 };
const PREPARED: md::PrepareReply = md::PrepareReply { busy: false, attributes: Vec::new() };
const TRANSACTION: md::TransactionId =
    md::TransactionId { coordinator: GroupId::new(3), number: 7 };

/// Begins a story with two metadata groups, in which the target has no calls in progress.
fn begin_with_two_groups() -> Story {
    let mut story = Story::begin();
    story.add_group();
    story.calls.clear();
    story
}

/// Returns a rename from the directory of the other group to the root.
fn rename_here(whiteout: Option<md::NewInode>) -> md::Rename {
    md::Rename {
        from_directory: ELSEWHERE,
        from_name: b"old"[..].into(),
        to_directory: InodeId::ROOT,
        to_name: b"new"[..].into(),
        no_replace: false,
        whiteout,
    }
}

/// Returns the reply of the other group to the lookup of a name.
fn found(inode: InodeId, kind: FileKind) -> Result<md::EntryReply> {
    Ok(md::EntryReply { inode, kind, attributes: None })
}

/// Returns the removal of a name of a local directory, as a step of another group's transaction.
fn removal(directory: InodeId, entry: &md::DirectoryEntry) -> md::Step {
    let (name, inode, kind) = (entry.name.clone(), entry.entry.inode, entry.entry.kind);
    md::Step::RemoveEntry { directory, name, inode, kind }
}

fn prepare(steps: Vec<md::Step>) -> md::Prepare {
    md::Prepare { transaction: TRANSACTION, steps }
}

impl Story {
    /// Replies to the oldest call that is an `R`, and returns its request. Drops the calls before
    /// it.
    fn reply_to<R: Request>(&mut self, result: Result<R::Reply>) -> R {
        let position = self.calls.iter().position(|it| it.1.message == R::ID);
        let (call, request) = self.calls.drain(..=position.expect("a call")).next_back().unwrap();
        self.happens(Event::Answer { call, result: result.map(|reply| reply.to_bytes()) });
        R::from_bytes(&request.body).unwrap()
    }

    /// Waits until no operation pauses any more before it starts over.
    fn end_pauses(&mut self) {
        self.now += LONGEST_PAUSE * 2;
        self.happens(Event::Tick);
    }

    fn list_names(&mut self, directory: InodeId) -> md::DirectoryEntries {
        self.ask(1, 2, (0, 0), &list_after(directory, 0)).unwrap()
    }
}

fn list_after(directory: InodeId, cursor: u64) -> md::ReadDirectory {
    md::ReadDirectory { directory, cursor, max_bytes: 1 << 16, with_attributes: false }
}

/// Regression test: each run of the rename created another whiteout, so its request differed from
/// the one that the other group had prepared. The rename started over for ever.
#[test]
fn rename_prepares_its_whiteout_at_another_group_only_once() {
    let mut story = begin_with_two_groups();
    story.send(1, 1, (0, 1), &rename_here(Some(NEW)));
    story.reply_to::<md::Lookup>(found(FILE, FileKind::Regular));
    let prepare = story.reply_to::<md::Prepare>(Ok(PREPARED));
    assert!(story.replies.pop().is_some_and(|(_, reply)| reply.is_ok()));
    let [md::Step::ReplaceEntry { new_inode, .. }] = prepare.steps[..] else {
        panic!("{prepare:?}")
    };
    let whiteout = story.ask(1, 2, (0, 0), &md::GetAttributes { inode: new_inode }).unwrap();
    assert_eq!(whiteout.attributes.kind, FileKind::CharDevice);
    assert!(story.reply_to::<md::Decide>(Ok(skep_wire::management::EmptyReply {})).commit);
}

/// Regression test: restarts because of a busy participant counted as attempts to find the inode of
/// a name. After sixteen of them, a program got `NotFound` for a name that always referred to a
/// file.
#[test]
fn rename_reads_a_replaced_name_again_after_many_busy_replies() {
    let mut story = begin_with_two_groups();
    story.send(1, 1, (0, 1), &rename_here(None));
    for _ in 0..MAX_REVALIDATIONS {
        story.reply_to::<md::Lookup>(found(FILE, FileKind::Regular));
        story.reply_to::<md::Prepare>(Ok(md::PrepareReply { busy: true, ..PREPARED }));
        story.end_pauses();
    }
    story.reply_to::<md::Lookup>(found(FILE, FileKind::Regular));
    // Meanwhile, another client has given the name to another file.
    story.reply_to::<md::Prepare>(Err(ErrorCode::NotFound.into()));
    assert!(story.replies.is_empty());
    story.end_pauses();
    let next = InodeId::new(FILE.raw() + 1);
    story.reply_to::<md::Lookup>(found(next, FileKind::Regular));
    let prepare = story.reply_to::<md::Prepare>(Ok(PREPARED));
    assert!(matches!(prepare.steps[..], [md::Step::RemoveEntry { inode, .. }] if inode == next));
    assert!(story.replies.pop().is_some_and(|(_, reply)| reply.is_ok()));
}

/// Regression test: another rename moved the directory of the first name above the second name, and
/// gave the first name to a file. The exchange used the directory that it had found before, and
/// failed with `InvalidArgument`.
#[test]
fn exchange_reads_its_first_name_again_before_it_fails() {
    let mut story = Story::begin();
    let make = md::MakeDirectory { directory: InodeId::ROOT, name: b"above"[..].into(), new: NEW };
    let above = story.ask(1, 1, (0, 1), &make).unwrap().entry.inode;
    story.ask(1, 1, (0, 2), &create_in(above, "file")).unwrap();
    story.add_group();
    story.calls.clear();
    let exchange = md::Exchange {
        from_directory: ELSEWHERE,
        from_name: b"old"[..].into(),
        to_directory: above,
        to_name: b"file"[..].into(),
    };
    let directory = || md::EntryInfo {
        attributes: Attributes::new(ELSEWHERE, FileKind::Directory, 0o755, Timestamp::default()),
        parent: InodeId::ROOT,
        pattern: None,
        open_sessions: 0,
    };
    story.send(1, 1, (0, 3), &exchange);
    story.reply_to::<md::Lookup>(found(above, FileKind::Directory));
    story.reply_to::<md::GetEntryInfo>(Ok(directory()));
    assert!(story.replies.is_empty(), "the exchange first reads the name again");
    story.reply_to::<md::Lookup>(found(FILE, FileKind::Regular));
    story.end_pauses();
    story.reply_to::<md::Lookup>(found(FILE, FileKind::Regular));
    story.reply_to::<md::GetEntryInfo>(Ok(directory()));
    story.reply_to::<md::Prepare>(Ok(PREPARED));
    assert!(story.replies.pop().is_some_and(|(_, reply)| reply.is_ok()));
}

/// Regression test: a listing waited until no name of the directory was locked. While programs
/// moved names to directories of other groups, there was always a locked name.
#[test]
fn listing_ends_before_a_name_that_a_transaction_removes() {
    let mut story = Story::begin();
    for (index, name) in ["a", "b", "c", "d"].into_iter().enumerate() {
        story.create_as(name, 1, (0, 1 + index as u64));
    }
    let root = InodeId::ROOT;
    let all = story.list_names(root).entries;
    story.ask(1, 0, (0, 0), &prepare(vec![removal(root, &all[2])])).unwrap();
    let first = story.list_names(root);
    assert_eq!((&first.entries[..], first.end), (&all[..2], false));
    // The next page waits for the decision.
    story.send(2, 2, (0, 0), &list_after(root, all[1].cursor));
    assert!(story.replies.is_empty());
    story.send(1, 0, (0, 0), &md::Decide { transaction: TRANSACTION, commit: true });
    let page = story.replies.drain(..).find(|(connection, _)| *connection == 2);
    let page = md::DirectoryEntries::from_bytes(&page.unwrap().1.unwrap()).unwrap();
    assert_eq!((&page.entries[..], page.end), (&all[3..], true));
}

/// Like a listing, a removal of a directory does not wait for each locked name. The removal waits
/// only if the undecided transactions may remove all names of the directory.
#[test]
fn rmdir_waits_only_while_all_names_may_be_removed() {
    let mut story = Story::begin();
    let make = md::MakeDirectory { directory: InodeId::ROOT, name: b"d"[..].into(), new: NEW };
    let directory = story.ask(1, 1, (0, 1), &make).unwrap().entry.inode;
    for (index, name) in ["a", "b"].into_iter().enumerate() {
        story.ask(1, 1, (0, 2 + index as u64), &create_in(directory, name)).unwrap();
    }
    let all = story.list_names(directory).entries;
    let rmdir = md::RemoveDirectory { directory: InodeId::ROOT, name: b"d"[..].into() };
    story.ask(1, 0, (0, 0), &prepare(vec![removal(directory, &all[0])])).unwrap();
    let error = story.ask(1, 1, (0, 4), &rmdir).unwrap_err();
    assert_eq!(error.code(), ErrorCode::NotEmpty);
    let other = md::TransactionId { number: 8, ..TRANSACTION };
    let last = md::Prepare { transaction: other, steps: vec![removal(directory, &all[1])] };
    story.ask(1, 0, (0, 0), &last).unwrap();
    story.send(2, 1, (0, 5), &rmdir);
    assert!(story.replies.is_empty());
    for transaction in [TRANSACTION, other] {
        story.send(1, 0, (0, 0), &md::Decide { transaction, commit: true });
    }
    let removed = story.replies.drain(..).find(|(connection, _)| *connection == 2);
    assert!(removed.is_some_and(|(_, reply)| reply.is_ok()));
}

/// Prepares the removal of a name of the root directory, as the participant of a transaction.
fn prepare_removal(story: &mut Story, number: u64, entry: &md::DirectoryEntry) {
    let transaction = md::TransactionId { number, ..TRANSACTION };
    let steps = vec![removal(InodeId::ROOT, entry)];
    story.ask(1, 0, (0, 0), &md::Prepare { transaction, steps }).unwrap();
}

fn commit(story: &mut Story, number: u64) {
    let transaction = md::TransactionId { number, ..TRANSACTION };
    story.send(1, 0, (0, 0), &md::Decide { transaction, commit: true });
}

/// Returns the attributes in the reply on connection 2, if it has arrived, and drops all replies.
fn shown(story: &mut Story) -> Option<Attributes> {
    let reply = story.replies.drain(..).find(|(connection, _)| *connection == 2)?;
    Some(md::AttributesReply::from_bytes(&reply.1.unwrap()).unwrap().attributes)
}

const GET_ROOT: md::GetAttributes = md::GetAttributes { inode: InodeId::ROOT };

/// Regression test: a client moved a name from a directory of this group to a directory of another
/// group. The client then got the old size of the first directory, and its kernel cached this size
/// for a second. The coordinator sends the reply to the client and the decision to this group at
/// the same time.
#[test]
fn directory_attributes_wait_for_decisions_about_its_names() {
    let mut story = Story::begin();
    ["a", "b", "c"].into_iter().zip(1..).for_each(|(name, sequence)| {
        story.create_as(name, 1, (0, sequence));
    });
    let all = story.list_names(InodeId::ROOT).entries;
    prepare_removal(&mut story, 7, &all[0]);
    story.send(2, 2, (0, 0), &GET_ROOT);
    assert_eq!(shown(&mut story), None);
    // Transaction 8 is prepared later, so the request does not wait for it.
    prepare_removal(&mut story, 8, &all[1]);
    commit(&mut story, 7);
    assert_eq!(shown(&mut story).map(|it| it.size), Some(2));
    // The reply to a change of attributes has all attributes, so the change waits too.
    let chmod =
        md::SetAttributes { size: None, permissions: Some(0o700), ..truncate(GET_ROOT.inode) };
    story.send(3, 1, (0, 4), &chmod);
    assert!(story.replies.is_empty());
    commit(&mut story, 8);
    let changed = story.replies.drain(..).find(|(connection, _)| *connection == 3);
    let changed = md::SetAttributesReply::from_bytes(&changed.unwrap().1.unwrap()).unwrap();
    assert_eq!((changed.attributes.size, changed.attributes.permissions), (1, 0o700));
}

/// A client needs the attributes of a directory to use any path through it. So one failed
/// coordinator must not block all names in the directory.
#[test]
fn directory_attributes_do_not_wait_for_a_failed_coordinator() {
    let mut story = Story::begin();
    story.create_as("a", 1, (0, 1));
    let all = story.list_names(InodeId::ROOT).entries;
    let before = story.ask(1, 2, (0, 0), &GET_ROOT).unwrap().attributes;
    prepare_removal(&mut story, 7, &all[0]);
    story.send(2, 2, (0, 0), &GET_ROOT);
    assert_eq!(shown(&mut story), None);
    story.now += DECISION_PATIENCE;
    story.happens(Event::Tick);
    let after = shown(&mut story).unwrap();
    assert_eq!(after.size, 1);
    assert!(
        after.change_counter > before.change_counter,
        "no client may use a listing from before the transaction"
    );
    story.send(2, 2, (0, 0), &GET_ROOT);
    assert_eq!(shown(&mut story).map(|it| it.size), Some(1), "later requests do not wait");
}

/// If the reply lacks attributes, the client asks for them in a second request, which waits for the
/// decision.
#[test]
fn replies_omit_attributes_of_directories_in_undecided_changes() {
    let mut story = Story::begin();
    let make = md::MakeDirectory { directory: InodeId::ROOT, name: b"d"[..].into(), new: NEW };
    let directory = story.ask(1, 1, (0, 1), &make).unwrap().entry.inode;
    story.ask(1, 1, (0, 2), &create_in(directory, "a")).unwrap();
    let entry = story.list_names(directory).entries.remove(0);
    let lookup = md::Lookup { directory: InodeId::ROOT, name: b"d"[..].into() };
    let list = md::ReadDirectory { with_attributes: true, ..list_after(InodeId::ROOT, 0) };
    let has_attributes = |story: &mut Story, sequence: u64| {
        let created = story.ask(1, 1, (0, sequence), &create_in(directory, &sequence.to_string()));
        let found = story.ask(1, 2, (0, 0), &lookup).unwrap();
        let listed = story.ask(1, 2, (0, 0), &list).unwrap().entries.remove(0).entry;
        let all = [created.unwrap().directory, found.attributes, listed.attributes];
        all.map(|it| it.is_some())
    };
    assert_eq!(has_attributes(&mut story, 3), [true; 3]);
    story.ask(1, 0, (0, 0), &prepare(vec![removal(directory, &entry)])).unwrap();
    assert_eq!(has_attributes(&mut story, 4), [false; 3]);
    story.ask(1, 0, (0, 0), &md::Decide { transaction: TRANSACTION, commit: false }).unwrap();
    assert_eq!(has_attributes(&mut story, 5), [true; 3]);
}

/// Prepares an unlink of a file of group 3 that has a name in the root directory. After this step,
/// the coordinator `other` locks the name, and the target gets the reply of group 3. Returns
/// whether the target aborts its transaction.
fn aborts_for(story: &mut Story, other: u32) -> bool {
    let attributes = vec![Attributes::new(FILE, FileKind::Regular, 0o644, Timestamp::default())];
    story.send(1, 1, (0, 1), &link(FILE, "a"));
    story.reply_to::<md::Prepare>(Ok(md::PrepareReply { attributes, ..PREPARED }));
    story.reply_to::<md::Decide>(Ok(skep_wire::management::EmptyReply {}));
    story.replies.clear();
    let entry = story.list_names(InodeId::ROOT).entries.remove(0);
    story.send(1, 1, (0, 2), &md::Unlink { directory: InodeId::ROOT, name: entry.name.clone() });
    let transaction = md::TransactionId { coordinator: GroupId::new(other), number: 7 };
    let steps = vec![removal(InodeId::ROOT, &entry)];
    story.ask(1, 0, (0, 0), &md::Prepare { transaction, steps }).unwrap();
    story.reply_to::<md::Prepare>(Ok(PREPARED));
    assert!(story.replies.is_empty());
    story.calls.iter().any(|it| it.1.message == md::Decide::ID)
}

/// Regression test: two groups, each with a transaction prepared at the other group, aborted both
/// transactions. Both groups then prepared their transactions again at the same time.
#[test]
fn only_the_group_with_the_higher_id_aborts_its_transaction() {
    let mut story = begin_with_two_groups();
    assert!(!aborts_for(&mut story, 3));
    let transaction = md::TransactionId { coordinator: GroupId::new(3), number: 7 };
    story.send(2, 0, (0, 0), &md::Decide { transaction, commit: false });
    let unlinked = story.replies.drain(..).find(|(connection, _)| *connection == 1);
    assert!(unlinked.is_some_and(|(_, reply)| reply.is_ok()));
    let decide = story.reply_to::<md::Decide>(Ok(skep_wire::management::EmptyReply {}));
    assert!(decide.commit);
    assert!(aborts_for(&mut begin_with_two_groups(), 0));
}

/// The transaction locks resources of another group, so it must not wait for a failed coordinator.
#[test]
fn transaction_aborts_if_a_failed_coordinator_keeps_the_lock() {
    let mut story = begin_with_two_groups();
    assert!(!aborts_for(&mut story, 3));
    story.now += TRANSACTION_WAIT;
    story.happens(Event::Tick);
    let decide = story.reply_to::<md::Decide>(Ok(skep_wire::management::EmptyReply {}));
    assert!(!decide.commit && story.replies.is_empty());
}
