//! The rules for sessions, opens, locks, transactions, and other records that belong to an inode.

use crate::finding::{Finding, Findings};
use crate::records::Records;
use skep_format::metadata::OpenCounts;
use skep_types::{FileKind, InodeId};
use std::collections::{BTreeMap, BTreeSet};

/// Checks opens, sessions, records that belong to an inode, and prepared transactions.
pub(crate) fn check(records: &Records, findings: &mut Findings) {
    check_sums(records, findings);
    check_sessions(records, findings);
    for (inode, record) in &records.inodes {
        let is_open = records.opens.get(inode).is_some_and(|it| !it.is_zero());
        let is_unnamed = record.links == 0 && record.kind != FileKind::Directory;
        if is_unnamed && !is_open && !records.in_doubt.contains(inode) {
            findings.add(Finding::NeitherNamedNorOpen { inode: *inode });
        }
    }
    let opens = records.opens.keys().map(|it| (*it, "opens"));
    for (inode, what) in opens.chain(records.attached.iter().copied()) {
        // When an inode is removed, its extended attributes are removed only if the inode's record
        // has the flag `has_xattrs`. So extended attributes of an inode without this flag have no
        // owner. When the inline bytes of a file move to storage, metadata removes them in the same
        // transaction.
        let is_owned = records.inodes.get(&inode).is_some_and(|it| match what {
            "extended attributes" => it.has_xattrs,
            "inline bytes" => it.pattern.as_ref().is_some_and(|it| it.inline_bytes() > 0),
            _ => true,
        });
        if !is_owned && !records.in_doubt.contains(&inode) {
            findings.add(Finding::NoOwner { inode, what });
        }
    }
    // A group that has prepared a transaction asks the transaction's coordinator for the decision.
    // So the coordinator must be a group whose store was read.
    for (group, transaction) in &records.prepared {
        if !records.reserved.contains_key(&transaction.coordinator) {
            let (group, transaction) = (*group, *transaction);
            findings.add(Finding::NoCoordinator { group, transaction });
        }
    }
}

/// Checks that the open counts of each inode are the sums of the opens of all sessions.
fn check_sums(records: &Records, findings: &mut Findings) {
    let mut sums: BTreeMap<InodeId, OpenCounts> = BTreeMap::new();
    for open in &records.session_opens {
        let sum = sums.entry(open.inode).or_default();
        sum.readers = sum.readers.saturating_add(open.counts.readers);
        sum.writers = sum.writers.saturating_add(open.counts.writers);
    }
    let inodes: BTreeSet<_> = sums.keys().chain(records.opens.keys()).copied().collect();
    for inode in inodes {
        let pair = |of: &BTreeMap<InodeId, OpenCounts>| {
            let counts = of.get(&inode).copied().unwrap_or_default();
            (counts.readers, counts.writers)
        };
        let (stored, counted) = (pair(&records.opens), pair(&sums));
        if stored != counted {
            findings.add(Finding::WrongOpens { inode, stored, counted });
        }
    }
}

/// Checks that opens, locks and slots belong to existing sessions, and that each session with a
/// lock on a file has the file open.
fn check_sessions(records: &Records, findings: &mut Findings) {
    let sessions = &records.sessions;
    let opens = records.session_opens.iter();
    let open_files: BTreeSet<_> =
        opens.clone().map(|it| (it.group, it.session, it.inode)).collect();
    let with_opens: BTreeSet<_> = opens.map(|it| (it.group, it.session)).collect();
    let with_locks: BTreeSet<_> = records.locks.iter().map(|(it, of)| (*it, of.session)).collect();
    // The slots of a session are removed some time after the end of the session, since the client
    // may still ask for earlier replies.
    let with_slots: BTreeSet<_> =
        sessions.with_slots.difference(&sessions.ended).copied().collect();
    for (owners, what) in [(with_opens, "opens"), (with_locks, "locks"), (with_slots, "slots")] {
        for (group, session) in owners.difference(&sessions.open) {
            findings.add(Finding::NoSession { group: *group, session: *session, what });
        }
    }
    let locked: BTreeSet<_> =
        records.locks.iter().map(|(group, of)| (*group, of.session, of.inode)).collect();
    for (_, session, inode) in locked.difference(&open_files) {
        findings.add(Finding::LockWithoutOpen { session: *session, inode: *inode });
    }
}
