//! The clean-up of chunk files that no inode owns, as a power loss of a metadata target can leave
//! them: it forgets a creation whose data are already here.
//!
//! Only chunk files older than the interval are looked at, and only what metadata says is gone is
//! removed: an inode is never created after its chunk files. Inode ids are never used again, so an
//! answer stays right.

use crate::chunk_store::ChunkStore;
use skep_rpc::{CallOptions, Router};
use skep_types::{ChunkFileKey, GroupId, InodeId, Result};
use skep_wire::limits::MAX_INODES_ASKED;
use skep_wire::storage::WhichExist;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

/// How often the interval, which may change at any time, is compared with the clock.
const LOOK: Duration = Duration::from_millis(500);
/// A metadata group that doesn't answer in this time is asked again in the next round.
const PATIENCE: Duration = Duration::from_secs(10);

/// What one round did.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Chunk files old enough to be looked at.
    pub(crate) looked_at: usize,
    /// Of those, removed.
    pub(crate) removed: usize,
    /// Of those, left for the next round since nobody could be asked.
    pub(crate) unknown: usize,
}

/// Cleans up again and again. Drop it at any time: removals that have begun run to their end.
pub(crate) async fn clean_up_forever(store: Rc<ChunkStore>, router: Rc<Router>) {
    let mut last = skep_env::now();
    loop {
        skep_env::sleep(LOOK).await;
        let map = router.map();
        let interval = Duration::from_millis(u64::from(map.policy.cleanup_interval_ms));
        if !map.formatted || skep_env::now() - last < interval {
            continue;
        }
        last = skep_env::now();
        match clean_up(&store, &router, interval).await {
            Ok(found) if found.removed > 0 || found.unknown > 0 => tracing::info!(
                "clean-up looked at {} chunk files: removed {} that no inode owns; {} could not be \
                 asked about",
                found.looked_at,
                found.removed,
                found.unknown
            ),
            Ok(found) => tracing::debug!("clean-up looked at {} chunk files", found.looked_at),
            Err(error) => tracing::error!("clean-up: {error}"),
        }
    }
}

/// One round over all chunk files.
async fn clean_up(store: &Rc<ChunkStore>, router: &Router, age: Duration) -> Result<Found> {
    let mut found = Found::default();
    let mut batches: BTreeMap<Option<GroupId>, BTreeMap<InodeId, Vec<ChunkFileKey>>> =
        BTreeMap::new();
    for leaf in store.leaves()? {
        for key in store.older_than(leaf, age)? {
            found.looked_at += 1;
            let group = router.shard_group(key.inode.shard()).ok();
            batches.entry(group).or_default().entry(key.inode).or_default().push(key);
        }
        // A leaf holds few inodes, so a batch passes the limit by little; asking cuts it.
        let full: Vec<_> = batches
            .iter()
            .filter(|(_, inodes)| inodes.len() >= MAX_INODES_ASKED / 2)
            .map(|(group, _)| *group)
            .collect();
        for group in full {
            if let Some(inodes) = batches.remove(&group) {
                ask_and_remove(store, router, (group, inodes), &mut found).await?;
            }
        }
        skep_env::yield_now().await;
    }
    for batch in batches {
        ask_and_remove(store, router, batch, &mut found).await?;
    }
    Ok(found)
}

type Batch = (Option<GroupId>, BTreeMap<InodeId, Vec<ChunkFileKey>>);

async fn ask_and_remove(
    store: &Rc<ChunkStore>,
    router: &Router,
    (group, owners): Batch,
    found: &mut Found,
) -> Result<()> {
    let owners: Vec<_> = owners.into_iter().collect();
    for part in owners.chunks(MAX_INODES_ASKED) {
        let inodes: Vec<_> = part.iter().map(|(inode, _)| *inode).collect();
        let Some(exists) = ask(router, group, inodes).await else {
            found.unknown += part.iter().map(|(_, keys)| keys.len()).sum::<usize>();
            continue;
        };
        let gone: BTreeSet<_> = part
            .iter()
            .zip(exists)
            .filter(|(_, exists)| !exists)
            .flat_map(|((_, keys), _)| keys.iter().copied())
            .collect();
        for key in &gone {
            tracing::debug!("chunk file {key}: no inode owns it");
        }
        let gone: Vec<_> = gone.into_iter().collect();
        // In a task of its own: a removal must not be dropped in the middle.
        let remover = Rc::clone(store);
        let count = gone.len();
        let (sender, removed) = skep_env::local::oneshot();
        skep_env::spawn(async move { sender.send(remover.remove(&gone).await) }).detach();
        removed.await.unwrap_or(Ok(()))?;
        found.removed += count;
    }
    Ok(())
}

/// Asks a metadata group which of its inodes exist; none if it can't say.
async fn ask(router: &Router, group: Option<GroupId>, inodes: Vec<InodeId>) -> Option<Vec<bool>> {
    let count = inodes.len();
    let options = CallOptions { time_left: Some(PATIENCE), ..CallOptions::default() };
    match router.call(group?, &WhichExist { inodes }, options).await {
        // An answer of another length answers another question.
        Ok((existing, _)) => Some(existing.exists).filter(|exists| exists.len() == count),
        Err(error) => {
            tracing::debug!("clean-up: {error}");
            None
        }
    }
}

#[cfg(test)]
mod tests;
