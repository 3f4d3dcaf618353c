//! Old log records on disk, for members that lack these records: the number of bytes that the log
//! keeps, the removal of older records when a target starts, and reads from the log.
//!
//! A read does not block the target's thread, which handles requests while the kernel reads.
//! [`crate::shipping`] chooses the records, and [`skep_store::log::read_back`] owns the files.

use super::Shell;
use crate::engine::Engine;
use crate::engine::fjall_engine::FjallEngine;
use crate::limits::LOG_READ_BYTES;
use crate::shipping::{FoundRecords, LogRead};
use crate::target::Event;
use skep_format::log::RECORD_HEADER_BYTES;
use skep_store::log::Log;
use skep_store::log::read_back::{LogPlace, WantedRecords};
use skep_types::{ClusterMap, GroupId, MemberState, Result, TargetId};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// For each member, the position in the log from which the next read continues.
pub(super) type LogPlaces = RefCell<HashMap<TargetId, LogPlace>>;

/// Returns the maximum number of bytes of segments that the log keeps although their changes are in
/// the store. The result is zero if all members serve, or if the disk has little free space.
pub(super) fn kept_bytes(map: &ClusterMap, group: GroupId, is_space_low: bool) -> u64 {
    let members = map.group(group).map_or(&[][..], |group| &group.members);
    let has_absent = members.iter().any(|member| member.state != MemberState::Serving);
    if has_absent && !is_space_low { map.policy.metadata_log_kept } else { 0 }
}

/// When a target starts, removes old segments beyond the number of bytes that the log keeps for
/// absent members. Before the removal, makes the store durable, because the store then has the only
/// copy of the changes in these segments.
///
/// The disk may have become full while the target did not run. Without this removal, the disk would
/// stay full. The target shortens its log only after a checkpoint, and begins a checkpoint only
/// after new data. But on a full disk, it refuses new data.
pub(super) fn shorten(
    log: &mut Log,
    engine: &FjallEngine,
    (map, group): (&ClusterMap, GroupId),
) -> Result<()> {
    log.keep(kept_bytes(map, group, false))?;
    let applied = engine.applied()?.unwrap_or_default();
    if log.has_old_segments(applied) {
        engine.checkpoint()?;
        log.trim(applied)?;
    }
    Ok(())
}

/// Begins to read records back from the log. Passes them to the state machine when the read has
/// ended.
pub(super) fn read(shell: &Rc<Shell>, log: &Log, read: LogRead) {
    let (shell, log) = (Rc::clone(shell), log.view());
    skep_env::spawn(async move {
        let LogRead { member, first, last } = read;
        let place = shell.membership.log_places.borrow_mut().remove(&member);
        let wanted = WantedRecords { first, last, bytes: LOG_READ_BYTES };
        let found = log.read(wanted, place).await;
        if let Ok(Some(place)) = found.as_ref().map(|it| it.place) {
            shell.membership.log_places.borrow_mut().insert(member, place);
        }
        let is_continued = place.is_some_and(|it| it.lsn() == first);
        match &found {
            Ok(found) if !is_continued && !found.records.is_empty() => {
                let records = found.records.iter();
                let bytes: u64 =
                    records.map(|it| (RECORD_HEADER_BYTES + it.payload.len()) as u64).sum();
                tracing::info!(
                    "target {member} was away, and gets the changes that it lacks from the log on \
                     disk: {} KiB",
                    (bytes + found.bytes_after) >> 10
                );
            }
            Ok(_) => {}
            Err(error) => tracing::error!(
                "cannot read the log records that target {member} lacks: {error}; target {member} \
                 gets a copy of the whole store instead"
            ),
        }
        let result = found.map(|it| FoundRecords {
            begins: it.begins,
            records: it.records,
            bytes_after: it.bytes_after,
        });
        shell.put(Event::LogRead { member, first, result });
    })
    .detach();
}
