//! Compares the stores of the members of each metadata group.
//!
//! All serving members of a group apply the same log records, so their stores are equal if they end
//! with the same record. Stores that end with different records are not compared.
//!
//! Does not check a member that does not serve: it may have changes that its group does not have,
//! and removes them before it serves again.

use crate::directories::Directories;
use crate::finding::{Finding, Findings};
use skep_format::metadata::Key;
use skep_metadata::engine::Engine;
use skep_metadata::engine::fjall_engine::FjallEngine;
use skep_store::failed_sync;
use skep_types::{Group, Lsn, MemberState, Result, TargetId, TargetKind};

/// Size in bytes of the cache of each key-value store. The check reads each record only once.
const CACHE_BYTES: u64 = 16 << 20;
/// Maximum number of records that one call reads from a store.
const PAGE: usize = 4096;

/// A key with its value.
type Pair = (Vec<u8>, Vec<u8>);

/// The store of a member.
struct Store {
    target: TargetId,
    engine: FjallEngine,
    /// The last log record that the store contains.
    applied: Lsn,
}

/// The key-value pairs of a store in the order of their keys, without the number of the last log
/// record.
struct Pairs<'a> {
    engine: &'a FjallEngine,
    page: std::vec::IntoIter<Pair>,
    after: Vec<u8>,
}

impl<'a> Pairs<'a> {
    fn of(engine: &'a FjallEngine) -> Self {
        Self { engine, page: Vec::new().into_iter(), after: Vec::new() }
    }

    fn next(&mut self) -> Result<Option<Pair>> {
        let applied = Key::Applied.to_bytes();
        loop {
            if let Some(pair) = self.page.find(|(key, _)| *key != applied) {
                return Ok(Some(pair));
            }
            let page = self.engine.scan(&[], &self.after, PAGE)?;
            let Some((last, _)) = page.last() else { return Ok(None) };
            self.after.clone_from(last);
            self.page = page.into_iter();
        }
    }
}

/// Returns the first key whose value differs between the stores, or that only one store has. `None`
/// means that the stores are equal.
fn first_difference(one: &FjallEngine, other: &FjallEngine) -> Result<Option<Vec<u8>>> {
    let (mut one, mut other) = (Pairs::of(one), Pairs::of(other));
    loop {
        match (one.next()?, other.next()?) {
            (None, None) => return Ok(None),
            (Some((key, _)), None) | (None, Some((key, _))) => return Ok(Some(key)),
            (Some(pair), Some(twin)) if pair != twin => return Ok(Some(pair.0.min(twin.0))),
            _ => {}
        }
    }
}

/// Opens the stores of the serving members that the check has found.
fn stores_of(group: &Group, directories: &Directories) -> Result<Vec<Store>> {
    let mut stores = Vec::new();
    for member in group.members.iter().filter(|it| it.state == MemberState::Serving) {
        let Some(directory) = directories.metadata_of(member.target) else { continue };
        let store = directory.path().join("store");
        // After a failed sync, the store may differ from the bytes on the device.
        if failed_sync::is_marked(directory.path()) || !store.exists() {
            continue;
        }
        let engine = FjallEngine::open(&store, CACHE_BYTES)?;
        let applied = engine.applied()?.unwrap_or_default();
        stores.push(Store { target: member.target, engine, applied });
    }
    Ok(stores)
}

/// Compares each store with the first store of its group that ends with the same record.
pub(crate) fn check(directories: &Directories, findings: &mut Findings) -> Result<()> {
    let groups = directories.map.groups.iter();
    for group in groups.filter(|it| it.kind == TargetKind::Metadata && it.members.len() > 1) {
        let stores = stores_of(group, directories)?;
        for (number, store) in stores.iter().enumerate() {
            let mut earlier = stores[..number].iter();
            let Some(first) = earlier.find(|it| it.applied == store.applied) else { continue };
            if let Some(key) = first_difference(&first.engine, &store.engine)? {
                findings.add(Finding::MembersDiffer {
                    group: group.id,
                    targets: [first.target, store.target],
                    record: store.applied,
                    key,
                });
            }
        }
    }
    Ok(())
}
