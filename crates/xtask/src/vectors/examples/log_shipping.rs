//! Examples of messages that ship the log of a metadata group.

use crate::vectors::{Example, example};
use skep_types::codec::Bytes;
use skep_types::{Epoch, Lsn, TargetId};
use skep_wire::log_shipping::{
    AskGroup, AwaitLogSync, GroupProgress, LogHeld, MemberProgress, ShipLog, ShippedRecord,
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
        records: vec![record(3, b"first record"), record(4, b"second")],
        held: Lsn::new(0x0102_0304_0506_0705),
        safe: Lsn::new(0x0102_0304_0506_0703),
        syncs_at_once: true,
    };
    let held = LogHeld {
        epoch: Epoch::new(4),
        appended: Lsn::new(0x0102_0304_0506_0709),
        synced: Lsn::new(0x0102_0304_0506_0704),
        ship_after: Lsn::new(0x0102_0304_0506_070A),
        is_behind: false,
    };
    let member = MemberProgress {
        target: TargetId::new(5),
        appended: held.appended,
        synced: held.synced,
        silent_ms: Some(120),
        is_counted: true,
        needs_copy: false,
    };
    let silent = MemberProgress { silent_ms: None, is_counted: false, needs_copy: true, ..member };
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
            .reply::<ShipLog>(&LogHeld { is_behind: true, ..held }),
        example(&AwaitLogSync { epoch: held.epoch, synced: held.synced }, &held),
        example(&AskGroup {}, &progress)
            .reply::<AskGroup>(&GroupProgress { members: Vec::new(), ..progress.clone() }),
    ]
}
