//! The planted bugs that forget keys at a start, change replies, or suppress calls.
//!
//! A test plants one bug to prove that a checker finds it. The code of each other planted bug is in
//! the part of the simulation that the bug changes.

use crate::knobs::PlantedBug;
use skep_format::log::Record;
use skep_format::metadata::{Batch, Key, inline_of};
use skep_metadata::engine::Engine;
use skep_metadata::engine::memory::MemoryEngine;
use skep_types::codec::{Codec, crc32c};
use skep_types::{Lsn, Result, SessionId};
use skep_wire::Request;
use skep_wire::inline::{SyncInline, SyncInlineReply};
use skep_wire::management::EmptyReply;
use skep_wire::metadata as md;

/// Whether a starting target with the planted bug forgets a key.
fn is_forgotten(plant: PlantedBug, key: &[u8]) -> bool {
    let prefix = match plant {
        PlantedBug::ForgetSlots => Key::slots_of(SessionId::default())[..2].to_vec(),
        PlantedBug::ForgetTruncations => Key::truncations(),
        PlantedBug::ReuseNumbers => Key::NumbersReserved.to_bytes(),
        PlantedBug::ForgetStarts => Key::starts(),
        PlantedBug::ForgetLocks => Key::all_file_locks(),
        PlantedBug::ForgetPrepared => Key::prepared(),
        PlantedBug::ForgetInline => return inline_of(key).is_some(),
        _ => return false,
    };
    key.starts_with(&prefix)
}

/// Removes the keys that a starting target with the planted bug forgets, both from its engine and
/// from its log records.
pub(crate) fn forget(
    plant: Option<PlantedBug>,
    engine: &mut MemoryEngine,
    applied: Lsn,
    records: &mut [Record],
) {
    let Some(plant) = plant else { return };
    let keys = engine.pairs().map(|(key, _)| key.clone());
    let removals: std::collections::BTreeMap<_, _> =
        keys.filter(|key| is_forgotten(plant, key)).map(|key| (key, None)).collect();
    if !removals.is_empty() {
        // Ignore the result, because an engine in memory never fails.
        let _ = engine.apply(&removals, applied);
    }
    for record in records {
        if let Ok(mut batch) = Batch::from_bytes(&record.payload) {
            batch.mutations.retain(|it| !is_forgotten(plant, &it.key.0));
            record.payload = batch.to_bytes();
        }
    }
}

/// Returns the reply that a target with the planted bug sends instead of `body`.
pub(crate) fn reply(plant: Option<PlantedBug>, message: u16, body: Vec<u8>) -> Vec<u8> {
    match plant {
        Some(PlantedBug::OmitEntries) if message == md::ReadDirectory::ID => {
            let Ok(mut page) = md::DirectoryEntries::from_bytes(&body) else { return body };
            // Omit the first entry of the page, as if the cursor of the request were one entry too
            // high.
            if page.entries.len() > 1 {
                page.entries.remove(0);
            }
            page.to_bytes()
        }
        Some(PlantedBug::OmitLastInlineByte) if message == md::Open::ID => {
            let Ok(mut opened) = md::OpenReply::from_bytes(&body) else { return body };
            if let Some(inline) = &mut opened.inline {
                inline.bytes.0.pop();
                inline.checksum = crc32c(&inline.bytes);
            }
            opened.to_bytes()
        }
        Some(PlantedBug::HideLostInline) if message == SyncInline::ID => {
            let Ok(reply) = SyncInlineReply::from_bytes(&body) else { return body };
            SyncInlineReply { is_lost: false, ..reply }.to_bytes()
        }
        Some(PlantedBug::HideLostChanges) if message == md::CompareSlots::ID => {
            let Ok(mut reply) = md::CompareSlotsReply::from_bytes(&body) else { return body };
            reply.slots.iter_mut().for_each(|it| it.sequence = u64::MAX);
            reply.to_bytes()
        }
        _ => body,
    }
}

/// Returns the reply that a target with the planted bug assumes instead of sending a call. `None`
/// means that the target sends the call. `is_starting` is true in the first batch of a process.
pub(crate) fn suppressed_call(
    plant: Option<PlantedBug>,
    message: u16,
    body: &[u8],
    is_starting: bool,
) -> Option<Result<Vec<u8>>> {
    let is_confirm = message == md::ConfirmPrepared::ID;
    match plant? {
        PlantedBug::LoseCommitNotices if message == md::Decide::ID && body.last() == Some(&1) => {
            Some(Ok(EmptyReply {}.to_bytes()))
        }
        PlantedBug::AssumePrepared if is_confirm => Some(Ok(prepared())),
        PlantedBug::CommitUnasked if is_confirm && is_starting => Some(Ok(prepared())),
        _ => None,
    }
}

/// Returns the reply of a participant that has durably prepared a transaction.
fn prepared() -> Vec<u8> {
    md::ConfirmPreparedReply { is_prepared: true }.to_bytes()
}
