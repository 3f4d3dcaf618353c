//! Examples of messages that ship the log of a metadata group.

use crate::vectors::{Example, example};
use skep_types::codec::Bytes;
use skep_types::{Epoch, Lsn, TargetId};
use skep_wire::log_shipping::{
    AskGroup, AwaitLogSync, CopyProgress, CopyStep, CopyStore, GroupProgress, LogHeld,
    MemberProgress, ShipLog, ShippedRecord, StoreCopied, StoredPair,
};

pub(super) fn examples() -> Vec<Example> {
    let record = |epoch, payload: &[u8]| ShippedRecord {
        epoch: Epoch::new(epoch),
        payload: Bytes(payload.to_vec()),
    };
    let ship = ShipLog {
        epoch: Epoch::new(4),
        first: Lsn::new(0x0102_0304_0506_0708),
        previous_epoch: Epoch::new(2),
        last: Lsn::new(0x0102_0304_0506_070B),
        process: 0x1112_1314_1516_1718,
        records: vec![record(3, b"first record"), record(4, b"second")],
        held: Lsn::new(0x0102_0304_0506_0705),
        safe: Lsn::new(0x0102_0304_0506_0703),
        syncs_at_once: true,
        wait_ms: 250,
    };
    let held = LogHeld {
        epoch: Epoch::new(4),
        appended: Lsn::new(0x0102_0304_0506_0709),
        synced: Lsn::new(0x0102_0304_0506_0704),
        ship_after: Lsn::new(0x0102_0304_0506_070A),
        is_behind: false,
        needs_copy: false,
        process: 0x1112_1314_1516_1718,
        lease_ms: 2243,
    };
    let member = MemberProgress {
        target: TargetId::new(5),
        appended: held.appended,
        synced: held.synced,
        silent_ms: Some(120),
        is_counted: true,
        needs_copy: false,
        missing_bytes: Some(0x0020_0000),
        copy: None,
    };
    let copy = CopyProgress {
        pair_count: 4000,
        total_pairs: 9000,
        pair_bytes: 0x0010_0000,
        bytes_per_second: Some(0x0001_0000),
        problem: "the disk is full".into(),
    };
    let silent = MemberProgress {
        silent_ms: None,
        is_counted: false,
        needs_copy: true,
        missing_bytes: None,
        copy: Some(copy),
        ..member.clone()
    };
    let progress = GroupProgress {
        epoch: Epoch::new(4),
        primary: TargetId::new(3),
        last: ship.last,
        synced: held.synced,
        held: ship.held,
        safe: ship.safe,
        may_answer: true,
        kept_bytes: 4096,
        members: vec![member, silent],
    };
    vec![
        example(&ship, &held)
            .request(&ShipLog { records: Vec::new(), syncs_at_once: false, ..ship.clone() })
            .reply::<ShipLog>(&LogHeld { is_behind: true, needs_copy: true, ..held }),
        example(&AwaitLogSync { epoch: held.epoch, synced: held.synced }, &held),
        example(&AskGroup {}, &progress)
            .reply::<AskGroup>(&GroupProgress { members: Vec::new(), ..progress.clone() }),
        copy_example(),
    ]
}

fn copy_example() -> Example {
    let pair = |key: &[u8], value: &[u8]| StoredPair {
        key: Bytes(key.to_vec()),
        value: Bytes(value.to_vec()),
    };
    let payload = Bytes(b"a record".to_vec());
    let part = CopyStore {
        epoch: Epoch::new(4),
        step: CopyStep::Extend,
        after: Bytes(b"key 1".to_vec()),
        first: Lsn::new(0x0102_0304_0506_0708),
        previous_epoch: Epoch::new(2),
        records: vec![ShippedRecord { epoch: Epoch::new(3), payload }],
        pairs: vec![pair(b"key 2", b"two"), pair(b"key 3", b"three")],
        through: Bytes(b"key 3".to_vec()),
        is_last: false,
        pair_count: 3,
        pair_bytes: 26,
        checksum: 0x0A0B_0C0D,
    };
    let copied = StoreCopied {
        epoch: Epoch::new(4),
        is_copying: true,
        is_whole: false,
        applied: Lsn::new(0x0102_0304_0506_0708),
        after: part.through.clone(),
        pair_count: 3,
        pair_bytes: 26,
        checksum: 0x0A0B_0C0D,
    };
    let ask = CopyStore {
        step: CopyStep::Ask,
        after: Bytes(Vec::new()),
        records: Vec::new(),
        pairs: Vec::new(),
        through: Bytes(Vec::new()),
        ..part.clone()
    };
    let begin = CopyStore { step: CopyStep::Begin, ..ask.clone() };
    example(&part, &copied)
        .request(&ask)
        .request(&begin)
        .request(&CopyStore { is_last: true, ..part.clone() })
        .reply::<CopyStore>(&StoreCopied { is_copying: false, ..copied.clone() })
        .reply::<CopyStore>(&StoreCopied { is_whole: true, ..copied })
}
