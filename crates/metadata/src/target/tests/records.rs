//! Tests of the log records into which a target writes the changes of a batch.

use super::*;
use crate::limits::BATCH_HEAD_BYTES;
use skep_format::log::MAX_PAYLOAD_BYTES;
use skep_wire::limits::MAX_XATTR_VALUE_BYTES;

fn set_xattr(inode: InodeId, name: &str, bytes: usize) -> md::SetXattr {
    md::SetXattr {
        inode,
        name: name.as_bytes().into(),
        value: vec![7; bytes].into(),
        mode: md::XattrMode::Any,
        clear_set_group_id: false,
    }
}

/// Regression test: the target wrote all changes of a batch into one log record. At the next start,
/// it took a record of more than `MAX_PAYLOAD_BYTES` for the torn end of the log. So the target
/// lost all acknowledged changes of that batch and of later batches.
#[test]
fn large_batch_becomes_several_readable_records() {
    let mut story = Story::begin();
    let inodes: Vec<_> =
        (0..50).map(|number| story.create_as(&format!("{number}"), 1, (0, 1 + number))).collect();
    let count = 4 * MAX_PAYLOAD_BYTES / MAX_XATTR_VALUE_BYTES + 10;
    let requests = (0..count).map(|number| {
        let (inode, name) = (inodes[number % inodes.len()], format!("user.{number}"));
        let set = set_xattr(inode, &name, MAX_XATTR_VALUE_BYTES);
        arrival(1, 1, (1, 1 + number as u64), &set)
    });
    let requests = requests.collect();
    let before = story.target.last_logged().raw();
    story.happen_together(requests);
    assert_eq!(story.replies.len(), count);
    assert!(story.replies.drain(..).all(|(_, result)| result.is_ok()));
    assert!(story.target.last_logged().raw() > before + 10);
    story.restart();
    let mut found = 0;
    for inode in inodes {
        found += story.ask(1, 1, (0, 0), &md::ListXattrs { inode }).unwrap().names.len();
    }
    assert_eq!(found, count);
}

/// Each record has as many whole operations as fit. An operation above the limit of a record gets a
/// record of its own.
#[test]
fn an_operation_is_never_split_over_records() {
    let limits = Limits { record_bytes: 1000, ..Limits::default() };
    let mut story = Story::begin_with(limits);
    let inode = story.create(1, (0, 1));
    let sizes = [300, 10, 5_000, 10, 10];
    let sets = (1..).zip(sizes).map(|(sequence, bytes)| {
        arrival(1, 1, (1, sequence), &set_xattr(inode, &format!("user.{sequence}"), bytes))
    });
    let before = story.target.last_logged();
    story.happen_together(sets.collect());
    let mut records = skep_format::log::scan(LOG, Lsn::new(1), &story.log).unwrap().records;
    records.retain(|record| record.lsn > before);
    let xattrs = Key::xattrs_of(inode);
    let mut found = Vec::new();
    for record in &records {
        let batch = skep_format::metadata::Batch::from_bytes(&record.payload).unwrap();
        let sequences = batch.mutations.iter().filter(|it| it.key.0.starts_with(&xattrs));
        found.push(sequences.count());
    }
    found.retain(|count| *count > 0);
    assert_eq!(found, [2, 1, 2], "operations that fit share a record, the large one is alone");
    assert_eq!(records.last().map(|it| it.lsn), Some(story.target.last_logged()));
}

/// The target must refuse an operation that fits into no record, and must not change anything.
#[test]
fn operation_too_long_for_one_record_is_refused() {
    let limits = Limits { operation_bytes: 1000, ..Limits::default() };
    let mut story = Story::begin_with(limits);
    let inode = story.create(1, (0, 1));
    let error = story.ask(1, 1, (0, 2), &set_xattr(inode, "user.a", 1000)).unwrap_err();
    assert_eq!(error.code(), ErrorCode::TooLarge);
    story.ask(1, 1, (0, 3), &set_xattr(inode, "user.b", 100)).unwrap();
    story.restart();
    let names = story.ask(1, 1, (0, 0), &md::ListXattrs { inode }).unwrap().names;
    assert_eq!(names, [b"user.b"[..].into()]);
}

/// An operation at the limit, and a batch of many operations, must both become records that fit
/// into one frame between members of a group.
#[test]
fn no_log_record_is_longer_than_the_limits() {
    let limits = Limits { record_bytes: 1000, operation_bytes: 3000, ..Limits::default() };
    let longest = limits.operation_bytes + BATCH_HEAD_BYTES;
    let mut story = Story::begin_with(limits);
    let inode = story.create(1, (0, 1));
    let sets = (1..).zip((0..60).map(|step| 50 * step)).map(|(sequence, bytes)| {
        arrival(1, 1, (1, sequence), &set_xattr(inode, &format!("user.{sequence}"), bytes))
    });
    story.happen_together(sets.collect());
    let refused = story.replies.drain(..).filter(|(_, result)| result.is_err()).count();
    assert!((1..20).contains(&refused), "{refused} operations exceed the limit");
    let records = skep_format::log::scan(LOG, Lsn::new(1), &story.log).unwrap().records;
    let found = records.iter().map(|record| record.payload.len()).max();
    assert!(found.is_some_and(|found| found <= longest && found > longest - 100), "{found:?}");
}

/// Each record has the highest epoch of the group in any map so far. A map with a lower epoch
/// changes nothing.
#[test]
fn log_records_have_the_newest_epoch_of_the_group() {
    let mut story = Story::begin();
    let with_epoch = |epoch| {
        let mut map = map();
        map.version = MapVersion::new(2);
        map.groups[0].epoch = Epoch::new(epoch);
        Event::Map(Arc::new(map))
    };
    let set = |slot, in_epoch| {
        let set = arrival(1, 1, (slot, 1), &set_xattr(InodeId::ROOT, "user.a", 10));
        let Event::Request { connection, header, body } = set else { unreachable!() };
        let header = Header { epoch: Epoch::new(in_epoch), ..header };
        Event::Request { connection, header, body }
    };
    let first = story.target.last_logged();
    story.happen_together(vec![set(1, 1), with_epoch(5), set(2, 5)]);
    story.happen_together(vec![with_epoch(3), set(3, 3)]);
    let records = skep_format::log::scan(LOG, Lsn::new(1), &story.log).unwrap().records;
    let epochs = records.iter().filter(|it| it.lsn > first).map(|it| it.epoch.raw());
    assert_eq!(epochs.collect::<Vec<_>>(), [1, 5, 5]);
}
