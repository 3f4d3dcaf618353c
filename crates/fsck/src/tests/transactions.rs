//! Tests of inodes that transactions of several metadata groups have not committed yet.

use super::{SESSION, Stopped, change, healthy, inode, prepared, put, put_entry};
use skep_format::metadata::{DecisionRecord, Key, StagedEntry, StagedRecord};
use skep_types::{FileKind, GroupId, InodeId, Timestamp};
use skep_wire::metadata::{Step, TransactionId};

#[test]
fn inodes_of_prepared_transactions_give_no_findings() {
    let mut records = healthy();
    put_entry(&mut records, InodeId::ROOT, "b", inode(5), FileKind::Regular);
    change(&mut records, InodeId::ROOT, |it| it.attributes.size = 3);
    let transaction = TransactionId { coordinator: GroupId::new(1), number: 3 };
    put(&mut records, &Key::Decision(3), &DecisionRecord { participants: Vec::new() });
    let step = Step::AddLink { inode: inode(5) };
    put(&mut records, &Key::Prepared(transaction), &prepared(vec![step]));
    let stopped = Stopped::new(&records, &[]);
    assert_eq!(stopped.words(), Vec::<&str>::new());
    assert_eq!(stopped.check().counts.prepared, 1);
}

/// The participant of the staged transaction has lost the new directory, and the coordinator has
/// not undone its entry yet.
#[test]
fn inodes_of_staged_transactions_give_no_findings() {
    let mut records = healthy();
    let (name, kind, made) = ("b", FileKind::Directory, inode(50));
    put_entry(&mut records, InodeId::ROOT, name, made, kind);
    change(&mut records, InodeId::ROOT, |it| {
        it.attributes.size = 3;
        it.attributes.links = 4;
    });
    let (directory, name) = (InodeId::ROOT, name.as_bytes().into());
    let staged = StagedRecord {
        participant: GroupId::new(1),
        since: Timestamp::default(),
        entry: StagedEntry { directory, name, inode: made, kind, is_added: true },
        session: SESSION,
        slot: 0,
        sequence: 1,
    };
    put(&mut records, &Key::Staged(3), &staged);
    assert_eq!(Stopped::new(&records, &[]).words(), Vec::<&str>::new());
}
