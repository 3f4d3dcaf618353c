//! The rules for directory entries, directories and link counts.

use crate::finding::{Finding, Findings};
use crate::records::{Entry, Inode, Records};
use skep_format::metadata::{ORDINALS, name_cursor};
use skep_types::{ClusterMap, FileKind, InodeId};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// The numbers of directory entries, for each inode and for each directory.
#[derive(Default)]
struct Counted {
    /// For each inode, the number of entries that point to the inode.
    names: BTreeMap<InodeId, u32>,
    /// For each directory, the number of its entries, and the number of subdirectories among them.
    directories: BTreeMap<InodeId, (u64, u32)>,
    /// For each subdirectory, the directories that have an entry that points to it.
    parents: BTreeMap<InodeId, Vec<InodeId>>,
}

/// Checks the entries, the counts and the tree of the directories.
pub(crate) fn check(records: &Records, map: &ClusterMap, findings: &mut Findings) {
    let mut counted = Counted::default();
    for entry in &records.entries {
        *counted.names.entry(entry.inode).or_default() += 1;
        let (entries, below) = counted.directories.entry(entry.directory).or_default();
        *entries += 1;
        if entry.kind == FileKind::Directory {
            *below += 1;
            counted.parents.entry(entry.inode).or_default().push(entry.directory);
        }
    }
    if !records.inodes.contains_key(&InodeId::ROOT) {
        findings.add(Finding::NoRoot);
    }
    check_entries(records, map, findings);
    check_counts(records, &counted, map, findings);
    check_tree(records, &counted, findings);
}

/// Checks each directory entry. Its inode must exist, and must have the kind of file that the entry
/// names. A lookup must find the entry, and no other entry of the directory may have the same name.
fn check_entries(records: &Records, map: &ClusterMap, findings: &mut Findings) {
    let cursors: HashSet<_> = records.entries.iter().map(|it| (it.directory, it.cursor)).collect();
    let mut names = HashSet::new();
    for Entry { directory, cursor, name, inode, kind } in &records.entries {
        let (directory, inode) = (*directory, *inode);
        let in_doubt = [directory, inode].iter().any(|it| records.in_doubt.contains(it));
        match records.inodes.get(&inode) {
            None if !in_doubt => {
                findings.add(Finding::NoInode { directory, name: name.clone(), inode });
            }
            Some(found) if found.kind != *kind && !in_doubt => findings.add(Finding::WrongKind {
                directory,
                name: name.clone(),
                entry: *kind,
                inode: found.kind,
            }),
            _ => {}
        }
        let first = name_cursor(map.cluster, directory, name);
        let is_found = (first..first + ORDINALS).contains(cursor)
            && (first..*cursor).all(|earlier| cursors.contains(&(directory, earlier)));
        if !is_found {
            findings.add(Finding::WrongCursor { directory, name: name.clone() });
        }
        if !names.insert((directory, name)) {
            findings.add(Finding::SameName { directory, name: name.clone() });
        }
    }
}

/// Checks the link count of each inode and the size of each directory. Also checks that each inode
/// number is reserved.
fn check_counts(records: &Records, counted: &Counted, map: &ClusterMap, findings: &mut Findings) {
    let certain = |inode: &InodeId| !records.in_doubt.contains(inode);
    for directory in counted.directories.keys().filter(|it| certain(it)) {
        if !records.inodes.contains_key(directory) {
            findings.add(Finding::NoOwner { inode: *directory, what: "entries" });
        }
    }
    for (inode, record) in &records.inodes {
        let reserved = map.shard_group(inode.shard()).and_then(|it| records.reserved.get(&it));
        let reserved = reserved.copied().unwrap_or_default();
        if map.formatted && inode.number() >= reserved && *inode != InodeId::ROOT {
            findings.add(Finding::NumberNotReserved { inode: *inode, reserved });
        }
        if certain(inode) {
            check_counts_of(*inode, record, counted, findings);
        }
    }
}

fn check_counts_of(inode: InodeId, record: &Inode, counted: &Counted, findings: &mut Findings) {
    let (entries, below) = counted.directories.get(&inode).copied().unwrap_or_default();
    let links = match record.kind {
        FileKind::Directory => 2 + below,
        _ => counted.names.get(&inode).copied().unwrap_or_default(),
    };
    if record.links != links {
        findings.add(Finding::WrongLinks { inode, stored: record.links, counted: links });
    }
    if record.kind == FileKind::Directory && record.size != entries {
        let stored = record.size;
        findings.add(Finding::WrongSize { directory: inode, stored, counted: entries });
    }
    if record.kind != FileKind::Directory && entries > 0 {
        findings.add(Finding::NoOwner { inode, what: "entries" });
    }
}

/// Checks that the directories form a tree. Exactly one entry must point to each directory, and
/// this entry must be in the parent that the inode names. Each directory must be reachable from the
/// root.
fn check_tree(records: &Records, counted: &Counted, findings: &mut Findings) {
    let is_directory = |inode: &&InodeId| {
        records.inodes.get(*inode).is_some_and(|it| it.kind == FileKind::Directory)
    };
    let mut below: BTreeMap<InodeId, Vec<InodeId>> = BTreeMap::new();
    for (child, parents) in &counted.parents {
        for parent in parents {
            below.entry(*parent).or_default().push(*child);
        }
    }
    // The search also starts at directories that are already reported for a wrong parent. Otherwise
    // these directories and the directories below them would also be reported as loops.
    let mut next = vec![InodeId::ROOT];
    next.extend(records.in_doubt.iter().filter(is_directory));
    for (inode, record) in &records.inodes {
        if record.kind != FileKind::Directory || *inode == InodeId::ROOT {
            continue;
        }
        let entries = counted.parents.get(inode).map(Vec::as_slice).unwrap_or_default();
        if entries != [record.parent] && !records.in_doubt.contains(inode) {
            let (parent, entries) = (record.parent, entries.to_vec());
            findings.add(Finding::WrongParent { directory: *inode, parent, entries });
            next.push(*inode);
        }
    }
    // Directories without an inode are already reported, so the search also starts at them.
    next.extend(below.keys().filter(|it| !records.inodes.contains_key(it)));
    let mut reached = BTreeSet::new();
    while let Some(directory) = next.pop() {
        if reached.insert(directory) {
            next.extend(below.get(&directory).into_iter().flatten());
        }
    }
    for directory in records.inodes.keys().filter(is_directory) {
        if !reached.contains(directory) && *directory != InodeId::ROOT {
            findings.add(Finding::Loop { directory: *directory });
        }
    }
}
