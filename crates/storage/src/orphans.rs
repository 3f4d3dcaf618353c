//! The clean-up of orphans, which are chunk files without an inode. An orphan arises if a client
//! has written data of a new file to storage, and the metadata target loses power before the
//! creation of the file is durable.
//!
//! The clean-up checks only chunk files whose last change is at least one clean-up interval ago.
//! The clean-up removes a chunk file only if metadata reports that the inode does not exist. This
//! removal is safe, because a client creates the chunk files of a file only after metadata has
//! created the inode. Inode ids are never reused, so an inode that does not exist now can never
//! come into existence.

use crate::chunk_store::ChunkStore;
use crate::store_gauges::StoreGauges;
use skep_metrics::{Gauge, Registry, catalog};
use skep_rpc::{CallOptions, Router};
use skep_types::{ChunkFileKey, GroupId, InodeId, Result, TargetId};
use skep_wire::limits::MAX_INODES_ASKED;
use skep_wire::storage::WhichExist;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Interval at which [`clean_up_forever`] checks whether the clean-up interval has passed. The
/// interval between checks is short, because an administrator may shorten the clean-up interval at
/// any time.
const LOOK: Duration = Duration::from_millis(500);
/// Time limit for the reply of a metadata group. After a timeout, the next round repeats the
/// question.
const PATIENCE: Duration = Duration::from_secs(10);

/// Counts of chunk files in one round of the clean-up.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CleanUpCounts {
    /// Number of chunk files that were old enough for a check.
    pub(crate) looked_at: usize,
    /// Number of chunk files that no inode owns.
    pub(crate) orphans: usize,
    /// Number of chunk files that were moved to the quarantine.
    pub(crate) removed: usize,
    /// Number of chunk files that are left for the next round because metadata did not reply.
    pub(crate) unknown: usize,
}

/// The metrics of the running round.
#[derive(Debug)]
pub(crate) struct CleanUpProgress {
    directories: Arc<Gauge>,
    left: Arc<Gauge>,
}

impl CleanUpProgress {
    /// Creates the metrics for the calling thread.
    pub(crate) fn new(registry: &Registry, target: TargetId) -> Self {
        let labels = vec![("target", target.raw().to_string())];
        Self {
            directories: registry.gauge(&catalog::CLEANUP_DIRECTORIES, &labels),
            left: registry.gauge(&catalog::CLEANUP_LEFT, &labels),
        }
    }

    fn set(&self, directories: usize, left: usize) {
        self.directories.set(directories as i64);
        self.left.set(left as i64);
    }
}

impl Drop for CleanUpProgress {
    /// Sets the metrics to zero. If the target is marked as lost, the target drops the running
    /// round, but continues to report these metrics.
    fn drop(&mut self) {
        self.set(0, 0);
    }
}

/// Runs one clean-up per clean-up interval, without end. Cancel-safe, since removals that have
/// started run to completion in separate tasks.
pub(crate) async fn clean_up_forever(
    store: Rc<ChunkStore>,
    router: Rc<Router>,
    (progress, mut gauges): (CleanUpProgress, StoreGauges),
) {
    let target = store.target();
    let mut last = skep_env::now();
    // Retry: after an error, the next clean-up begins after `cleanup_interval_ms`, without limit.
    loop {
        skep_env::sleep(LOOK).await;
        gauges.update(&store);
        let map = router.map();
        let interval = Duration::from_millis(u64::from(map.policy.cleanup_interval_ms));
        if !map.formatted || skep_env::now() - last < interval {
            continue;
        }
        last = skep_env::now();
        let limit = map.policy.cleanup_limit as usize;
        let outcome = clean_up(&store, &router, (interval, limit), &progress).await;
        progress.set(0, 0);
        match outcome {
            Ok(counts) if counts.removed > 0 || counts.unknown > 0 => tracing::info!(
                "the clean-up of target {target} checked {} chunk files. The clean-up moved {} \
                 files that no inode owns to the quarantine, and did not decide on {} files, since \
                 metadata did not reply",
                counts.looked_at,
                counts.removed,
                counts.unknown
            ),
            Ok(counts) => tracing::debug!(
                "the clean-up of target {target} checked {} chunk files",
                counts.looked_at
            ),
            Err(error) => tracing::error!(
                "the clean-up of target {target} cannot look for chunk files without an inode, \
                 and retries at the next clean-up: {error:#}"
            ),
        }
        match store.empty_quarantine().await {
            Ok((count, left)) => {
                gauges.set_quarantined(left);
                if count > 0 {
                    tracing::info!(
                        "the clean-up of target {target} removed old files from the quarantine: \
                         {count}"
                    );
                }
            }
            Err(error) => tracing::error!(
                "the clean-up of target {target} cannot remove old files from the quarantine, and \
                 retries at the next clean-up: {error:#}"
            ),
        }
    }
}

/// Runs one round over all chunk files whose last change is at least `age` ago. If more than
/// `limit` of these chunk files have no inode, the round moves no file. Metadata may then have been
/// restored from an old backup, and the chunk files may belong to files that were created after the
/// backup.
async fn clean_up(
    store: &Rc<ChunkStore>,
    router: &Router,
    (age, limit): (Duration, usize),
    progress: &CleanUpProgress,
) -> Result<CleanUpCounts> {
    let mut counts = CleanUpCounts::default();
    let mut orphans = Vec::new();
    let mut batches: BTreeMap<Option<GroupId>, BTreeMap<InodeId, Vec<ChunkFileKey>>> =
        BTreeMap::new();
    // Groups that left at least one request of this round without a valid reply.
    let mut unsure = BTreeSet::new();
    let leaves = store.leaves()?;
    for (number, leaf) in leaves.iter().copied().enumerate() {
        progress.set(leaves.len(), leaves.len() - number);
        for key in store.older_than(leaf, age)? {
            counts.looked_at += 1;
            let group = router.shard_group(key.inode.shard()).ok();
            batches.entry(group).or_default().entry(key.inode).or_default().push(key);
        }
        // A leaf contains few inodes, so the batch of a group exceeds this bound only slightly.
        // `find_orphans` splits the batch.
        let full: Vec<_> = batches
            .iter()
            .filter(|(_, inodes)| inodes.len() >= MAX_INODES_ASKED / 2)
            .map(|(group, _)| *group)
            .collect();
        for group in full {
            if let Some(inodes) = batches.remove(&group)
                && !find_orphans(router, (group, inodes), &mut counts, &mut orphans).await
            {
                unsure.insert(group);
            }
        }
        skep_env::yield_now().await;
    }
    for batch in batches {
        let group = batch.0;
        if !find_orphans(router, batch, &mut counts, &mut orphans).await {
            unsure.insert(group);
        }
    }
    // Keep the chunk files of groups without a valid reply. A metadata target that was restored
    // from an old backup may have replied to other requests of this round before it detected the
    // restoration.
    orphans.retain(|key| !unsure.contains(&router.shard_group(key.inode.shard()).ok()));
    counts.orphans = orphans.len();
    if orphans.len() > limit {
        let warning = format!(
            "no inode owns {} chunk files of this target, and the clean-up may remove at most \
             {limit}; if metadata was not restored from an old backup, raise the setting \
             cleanup-limit",
            orphans.len()
        );
        let target = store.target();
        tracing::error!("the clean-up of target {target} removes no chunk file: {warning}");
        store.set_warning(warning);
        return Ok(counts);
    }
    store.set_warning(String::new());
    counts.removed = orphans.len();
    if !orphans.is_empty() {
        // A separate task moves the orphans, because a move must not be dropped in the middle.
        let mover = Rc::clone(store);
        let (sender, moved) = skep_env::local::oneshot();
        skep_env::spawn(async move { sender.send(mover.quarantine(&orphans).await) }).detach();
        moved.await.unwrap_or(Ok(()))?;
    }
    Ok(counts)
}

type Batch = (Option<GroupId>, BTreeMap<InodeId, Vec<ChunkFileKey>>);

/// Appends to `orphans` the chunk files of a batch whose inodes do not exist. Returns `false` if a
/// request got no valid reply.
async fn find_orphans(
    router: &Router,
    (group, owners): Batch,
    counts: &mut CleanUpCounts,
    orphans: &mut Vec<ChunkFileKey>,
) -> bool {
    let mut is_sure = true;
    let owners: Vec<_> = owners.into_iter().collect();
    for part in owners.chunks(MAX_INODES_ASKED) {
        let inodes: Vec<_> = part.iter().map(|(inode, _)| *inode).collect();
        let Some(exists) = ask(router, group, inodes).await else {
            counts.unknown += part.iter().map(|(_, keys)| keys.len()).sum::<usize>();
            is_sure = false;
            continue;
        };
        let missing = part.iter().zip(exists).filter(|(_, exists)| !exists);
        for key in missing.flat_map(|((_, keys), _)| keys) {
            tracing::debug!("no inode owns chunk file {key}");
            orphans.push(*key);
        }
    }
    is_sure
}

/// Asks a metadata group for each inode whether the inode exists. Returns `None` if there is no
/// valid reply.
async fn ask(router: &Router, group: Option<GroupId>, inodes: Vec<InodeId>) -> Option<Vec<bool>> {
    let count = inodes.len();
    let options = CallOptions { time_left: Some(PATIENCE), ..CallOptions::default() };
    match router.call(group?, &WhichExist { inodes }, options).await {
        // A reply of a different length is invalid.
        Ok((existing, _)) => Some(existing.exists).filter(|exists| exists.len() == count),
        Err(error) => {
            tracing::debug!("the clean-up cannot ask metadata which inodes exist: {error:#}");
            None
        }
    }
}

#[cfg(test)]
mod tests;
