//! The start of a target from its store and log.

use super::calls::Calls;
use super::gates::{BatchOutput, CheckpointTrigger, SyncGates};
use super::operations::Operations;
use super::start::Start;
use super::truncations::TruncationReplies;
use super::watermarks::{Watermarks, other_serving};
use crate::background::Background;
use crate::engine::Engine;
use crate::sessions::table::Sessions;
use crate::shipping::record_window::RecordWindow;
use crate::shipping::shipper::Shipper;
use crate::shipping::{Progress, preceding};
use crate::target::MetadataTarget;
use crate::tx::shared::Shared;
use crate::tx::table::Table;
use skep_format::log::Record;
use skep_format::metadata::Key;
use skep_types::{Epoch, Error, ErrorCode, Lsn, MapVersion, Result};
use skep_wire::senders::SenderEpochs;

impl<E: Engine> MetadataTarget<E> {
    /// Starts a target as the primary, from an engine and the log records since the engine's last
    /// checkpoint. Skips records whose changes the engine already has.
    ///
    /// # Errors
    /// - `Corrupt` if a record is missing or malformed.
    /// - The error of the engine, if it fails.
    pub fn open(
        engine: E,
        records: impl IntoIterator<Item = Record>,
        start: Start,
    ) -> Result<Self> {
        let mut table = Table::new(engine, start.limits.scan_page);
        let mut others = other_serving(&start.map, start.group, start.target);
        let has_asked_to_drop = others.iter().any(|it| start.counted.contains(it));
        others.extend(&start.counted);
        let stored = table.get_safe::<Lsn>(&Key::Applied.to_bytes())?.unwrap_or_default();
        // If replies wait for no other member, each record that this target has synced is safe.
        let are_safe = others.is_empty() && start.synced.is_none();
        let (window, last) = replay(&mut table, stored, records, are_safe)?;
        let reserved = table.get_decoded::<u64>(&Key::NumbersReserved.to_bytes())?;
        let fence = table.get_decoded::<MapVersion>(&Key::Fence.to_bytes())?;
        let synced = start.synced.map_or(last, |it| it.min(last));
        let own = Progress { appended: last, synced };
        let watermarks = Watermarks::new(own, stored, others);
        let mut target = Self {
            sessions: Sessions::default(),
            background: Background::default(),
            table,
            gates: SyncGates::new(start.policy, start.epoch, watermarks, start.now),
            shipper: Shipper::new(start.epoch, window),
            shared: Shared::new(&start, reserved, last),
            operations: Operations::new(),
            calls: Calls::default(),
            batch: BatchOutput::default(),
            checkpoints: CheckpointTrigger::default(),
            fence: fence.unwrap_or_default(),
            truncation_replies: TruncationReplies::default(),
            target: start.target,
            released: stored,
            senders: SenderEpochs::default(),
        };
        target.fence_former_primary(start.map.version);
        target.load_unsafe(last);
        target.load_sessions()?;
        target.load_truncations()?;
        target.load_background()?;
        target.load_staged(last)?;
        target.load_file_locks()?;
        target.load_sharing()?;
        target.load_starts()?;
        target.shipper.continue_to_count(start.counted);
        target.set_map(start.map)?;
        if has_asked_to_drop {
            target.gates.hold_only_synced();
        }
        target
            .shipper
            .release(target.gates.safe(), target.shared.limits.members.kept_for_absent_bytes);
        Ok(target)
    }

    /// Raises the fence to the version of the map in which this target is the primary. Each reply
    /// contains the fence, and clients send it to storage targets. A storage target with this
    /// version refuses the requests of the previous primary.
    fn fence_former_primary(&mut self, version: MapVersion) {
        if self.shared.primary_since > Epoch::new(1) {
            self.raise_fence(version);
        }
    }

    /// Passes the changes in records that are not *safe* to the background jobs, as if the target
    /// wrote these records now and began a sync of them.
    fn load_unsafe(&mut self, last: Lsn) {
        for (key, value) in self.table.unsafe_changes() {
            self.background.on_write(key, value.is_some());
        }
        self.background.before_sync(last);
    }
}

/// Applies the log records after `stored`, whose changes the engine does not have. If `are_safe`,
/// applies them to the engine, otherwise to the table of unsafe changes in memory. Returns all
/// records, because members may lack some of them, and the LSN of the last record.
fn replay<E: Engine>(
    table: &mut Table<E>,
    stored: Lsn,
    records: impl IntoIterator<Item = Record>,
    are_safe: bool,
) -> Result<(RecordWindow, Lsn)> {
    let mut window = RecordWindow::after(stored);
    let mut previous: Option<Lsn> = None;
    for record in records {
        let lsn = record.lsn;
        let expected = previous.map_or(stored.raw() + 1, |it| it.raw() + 1);
        let follows =
            if previous.is_none() { lsn.raw() <= expected } else { lsn.raw() == expected };
        if !follows {
            return Err(Error::new(
                ErrorCode::Corrupt,
                format!(
                    "cannot open the store: the log has record {lsn} where record {expected} was \
                     expected"
                ),
            ));
        }
        if previous.is_none() {
            window = RecordWindow::after(preceding(lsn));
        }
        // Skip records that the engine already has. If the restart wrote them again, it could fail
        // on a full disk.
        if lsn > stored {
            table.replay(lsn, &record.payload, are_safe)?;
        }
        window.push(record);
        previous = Some(lsn);
    }
    let last = window.last().max(stored);
    if window.last() < stored {
        // The log ends before the last record whose changes the store has. A power loss has removed
        // the last, unsynced segments of the log, but has reverted no change of the store.
        window = RecordWindow::after(stored);
    }
    if !are_safe {
        table.begin_sync(last);
    }
    Ok((window, last))
}
