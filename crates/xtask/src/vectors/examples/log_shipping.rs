//! Examples of messages that ship the log of a metadata group.

use crate::vectors::{Example, example};
use skep_types::codec::Bytes;
use skep_types::{Epoch, Lsn};
use skep_wire::log_shipping::{AwaitLogSync, LogHeld, ShipLog, ShippedRecord};

pub(super) fn examples() -> Vec<Example> {
    let record = |epoch, payload: &[u8]| ShippedRecord {
        epoch: Epoch::new(epoch),
        payload: Bytes(payload.to_vec()),
    };
    let ship = ShipLog {
        epoch: Epoch::new(4),
        first: Lsn::new(0x0102_0304_0506_0708),
        previous_epoch: Epoch::new(2),
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
    vec![
        example(&ship, &held)
            .request(&ShipLog { records: Vec::new(), syncs_at_once: false, ..ship.clone() })
            .reply::<ShipLog>(&LogHeld { is_behind: true, ..held }),
        example(&AwaitLogSync { epoch: held.epoch, synced: held.synced }, &held),
    ]
}
