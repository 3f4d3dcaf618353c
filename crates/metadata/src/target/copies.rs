//! Reads pages of the store, which the primary sends to members that need a copy of the store.
//!
//! The module `shipping::copy_sender` chooses the parts and the rate of the copies.

use crate::engine::Engine;
use crate::limits::{COPY_SCAN, Limits};
use crate::shipping::copy_sender::{StorePage, pair_bytes};
use crate::target::MetadataTarget;
use skep_format::metadata::Key;
use skep_types::codec::Bytes;
use skep_types::{Lsn, Result};
use skep_wire::log_shipping::StoredPair;

impl<E: Engine> MetadataTarget<E> {
    /// Reads the pages of the store that the shipper needs now, and passes them to it. The store
    /// has only *safe* changes. So after the same log record, the store of every other primary has
    /// the same pairs.
    pub(super) fn read_copies(&mut self) -> Result<()> {
        if !self.shipper.has_copies() {
            return Ok(());
        }
        let applied = self.table.get_safe::<Lsn>(&Key::Applied.to_bytes())?;
        let (stored, now) = (applied.unwrap_or_default(), self.shared.now);
        let rate = self.shared.map.policy.metadata_copy_rate;
        for (member, wanted) in self.shipper.wanted_parts(stored, now) {
            let page = match wanted.has_pairs {
                true => read_page(self.table.engine(), &wanted.after, &self.shared.limits)?,
                false => StorePage::default(),
            };
            self.shipper.put_part(member, (stored, page), rate, now);
        }
        Ok(())
    }
}

/// Reads the key-value pairs after a key, until the part of the copy is full.
fn read_page<E: Engine>(engine: &E, after: &[u8], limits: &Limits) -> Result<StorePage> {
    let (pairs_at_once, most) =
        (COPY_SCAN.min(limits.scan_page), limits.members.copy_part_bytes as u64);
    let applied = Key::Applied.to_bytes();
    let mut page = StorePage::default();
    let mut after = after.to_vec();
    while !page.is_last && pair_bytes(&page.pairs) < most {
        let found = engine.scan(&[], &after, pairs_at_once)?;
        page.is_last = found.len() < pairs_at_once;
        if let Some((last, _)) = found.last() {
            after.clone_from(last);
        }
        // Skip `Key::Applied`: its value is the LSN of the last record in this store, and the
        // member writes its own value.
        let pairs = found.into_iter().filter(|(key, _)| *key != applied);
        page.pairs
            .extend(pairs.map(|(key, value)| StoredPair { key: Bytes(key), value: Bytes(value) }));
    }
    Ok(page)
}
