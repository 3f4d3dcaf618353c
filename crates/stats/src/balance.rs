//! Balance values: how evenly the work, the used space and the files are distributed over the
//! targets, as one value for each of the three. Also the rules that report uneven work or space.
//!
//! A value is the mean of all compared targets divided by the highest value of a target, in
//! percent. It is 100 % if all targets have the same value. If one of `n` targets has everything,
//! it is `100 / n` %.
//!
//! The module is pure: it does no I/O and reads no clock. The work of a time span comes from
//! [`Evidence`]. Space and files come from the cluster map, or from newer values of the caller.

use crate::why::{Cause, Evidence, names};
use serde::{Deserialize, Serialize};
use skep_cluster::problems::{Severity, target_kind_word};
use skep_types::map::{Capacity, CapacityPool, Condition, Consistency, Reachability};
use skep_types::{ClusterMap, Target, TargetId, TargetKind};
use std::collections::BTreeMap;

/// Minimum number of requests for each metadata target, on average, before their balance is
/// judged. With fewer requests, chance decides which target gets them.
pub const FEWEST_REQUESTS: u64 = 100;
/// Minimum used share of the fullest target, in percent, before the balance of the used space is
/// judged. Below this share, the files that the local file system creates for itself decide the
/// balance.
const LEAST_USED_PERCENT: f64 = 1.0;
/// Minimum number of files on each file system, on average, before their balance is judged. With
/// fewer files, chance decides which target gets them.
const FEWEST_FILES: u64 = 100;
/// A metadata target has far more than its share of the work if its work is at least this many
/// times the mean work of the other metadata targets.
const FAR_MORE_WORK: u64 = 4;
/// Minimum working share of the thread of a metadata target, in percent, before a large share of
/// the work is a problem. Below this share, requests hardly wait for each other
/// (`why/metadata_load.rs`).
const BUSY_PERCENT: u64 = 50;
/// Minimum length of a time span before uneven work in it is a problem. In a shorter span, a single
/// program may cause all the work.
const LEAST_SPAN_NS: u64 = 50_000_000_000;
/// Rules that name the user or the directory whose requests keep a metadata target busy.
const REASONS: [&str; 2] = ["user-storm", "directory-hot"];
/// A storage target has far more than its share of the data if its used share is at least this many
/// times the used share of the other storage targets.
const FAR_MORE_SPACE: f64 = 2.0;
/// Minimum used share of a storage target, in percent, before a large share of the data is a
/// problem. Below this share, the target still has enough free space for a long time.
const FULL_PERCENT: f64 = 50.0;

/// The value of one balance.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Balance {
    /// Number of targets that were compared. Targets on the same file system count as one.
    pub targets: usize,
    /// Mean of the targets divided by the highest value of a target, in percent. `None` means that
    /// the balance cannot be judged.
    pub percent: Option<f64>,
    /// The reason why the balance cannot be judged.
    pub reason: Option<String>,
    /// The target with the highest value. If several targets have this value, the target with the
    /// lowest id.
    pub highest: Option<Highest>,
}

/// The target with the highest value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Highest {
    /// Id of the target.
    pub target: u32,
    /// A share in percent. For work, the share of all requests that the target got. For space, the
    /// used share of the target's file system. For files, the share of all files that are on this
    /// file system.
    pub percent: f64,
}

/// The work of one metadata target in a time span.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// Number of completed requests. Requests that only wait for an event do not count.
    pub requests: u64,
    /// Time in which the thread of the target was not idle.
    pub working_ns: u64,
    /// Length of the time span.
    pub span_ns: u64,
}

/// The work of several targets, by target id.
pub type WorkByTarget = BTreeMap<u32, Work>;

/// Adds the work in `evidence` to `work`.
pub fn add_work(work: &mut WorkByTarget, evidence: &Evidence) {
    for (id, target) in &evidence.targets {
        let requests = target.kinds.values().fold(0_u64, |sum, it| sum.saturating_add(it.requests));
        let sum = work.entry(*id).or_default();
        sum.requests = sum.requests.saturating_add(requests);
        sum.working_ns = sum.working_ns.saturating_add(target.working_ns);
        sum.span_ns = sum.span_ns.saturating_add(target.span_ns);
    }
}

impl Balance {
    fn unknown(targets: usize, reason: String) -> Self {
        Self { targets, percent: None, reason: Some(reason), highest: None }
    }

    /// Returns the balance of `targets` targets whose values add up to `all`. The target `target`
    /// has the highest value `most`, which is not zero.
    fn of_shares(targets: usize, (target, most): (u32, u64), all: u64) -> Self {
        let share = most as f64 / all as f64 * 100.0;
        Self {
            targets,
            percent: Some(rounded(100.0 * 100.0 / (share * targets as f64))),
            reason: None,
            highest: Some(Highest { target, percent: rounded(share) }),
        }
    }

    /// Returns the balance in words, for example `87 %`. If there is no value, returns the reason.
    pub fn in_words(&self) -> String {
        match (self.percent, &self.reason) {
            (Some(percent), _) => format!("{percent:.0} %"),
            (None, Some(reason)) => reason.clone(),
            (None, None) => "unknown".into(),
        }
    }
}

/// Rounds to one decimal place, so that JSON shows no meaningless digits.
fn rounded(percent: f64) -> f64 {
    (percent * 10.0).round() / 10.0
}

/// Returns the entry with the highest value. If several entries have it, returns the first of these
/// entries.
fn highest<T: PartialOrd + Copy>(values: &[(u32, T)]) -> Option<(u32, T)> {
    values.iter().copied().reduce(|best, next| if next.1 > best.1 { next } else { best })
}

/// Whether a target answers requests, according to the map.
fn answers(target: &Target) -> bool {
    let is_stopped = matches!(target.health.condition, Condition::Down | Condition::Hung);
    target.reachability == Reachability::Online && !is_stopped
}

/// Returns the metadata targets that answer, are the primary of a group, and whose work is known.
/// Returns each target with its number of requests. Only primaries get requests of clients. Another
/// rule reports a target that does not answer. Here, such a target would make the work of the other
/// targets seem uneven.
fn requests_of_primaries(work: &WorkByTarget, map: &ClusterMap) -> Vec<(u32, u64)> {
    let groups = map.groups.iter().filter(|group| group.kind == TargetKind::Metadata);
    let primaries = groups.filter_map(|group| map.target(group.primary));
    let mut found: Vec<_> = primaries
        .filter(|target| answers(target))
        .filter_map(|target| {
            let id = target.id.raw();
            Some((id, work.get(&id)?.requests))
        })
        .collect();
    found.sort_unstable();
    found.dedup_by_key(|(id, _)| *id);
    found
}

/// Returns how evenly the requests of a time span were distributed over the metadata targets that
/// serve clients.
pub fn of_metadata_work(work: &WorkByTarget, map: &ClusterMap) -> Balance {
    let found = requests_of_primaries(work, map);
    let targets = found.len();
    let all = found.iter().fold(0_u64, |sum, (_, requests)| sum.saturating_add(*requests));
    let Some((target, most)) = highest(&found).filter(|_| targets > 1) else {
        let reason = "fewer than two metadata targets serve clients";
        return Balance::unknown(targets, reason.into());
    };
    if all < FEWEST_REQUESTS.saturating_mul(targets as u64) {
        let reason = format!("not enough work to judge ({all} requests)");
        return Balance::unknown(targets, reason);
    }
    Balance::of_shares(targets, (target, most), all)
}

/// The targets of one kind on one file system.
#[derive(Debug, Clone, Copy)]
pub struct FileSystem<'a> {
    /// The target with the lowest id.
    pub target: &'a Target,
    /// Number of targets.
    pub targets: usize,
    /// Space and inodes. If the targets report different values, the smallest free space and the
    /// smallest number of free inodes count.
    pub capacity: Capacity,
}

impl FileSystem<'_> {
    /// Returns the used share of the space, in percent.
    pub fn used_percent(&self) -> f64 {
        used_percent(std::iter::once(self))
    }

    /// Returns the number of files, which is the number of used inodes. `None` means that the file
    /// system does not count inodes.
    pub fn files(&self) -> Option<u64> {
        let Capacity { total_inodes, free_inodes, .. } = self.capacity;
        (total_inodes > 0).then(|| total_inodes.saturating_sub(free_inodes))
    }
}

/// Returns the used share of all space of several file systems, in percent. Zero for
/// an empty iterator.
pub fn used_percent<'a>(file_systems: impl Iterator<Item = &'a FileSystem<'a>>) -> f64 {
    let (mut used, mut total) = (0.0, 0.0);
    for Capacity { total_bytes, free_bytes, .. } in file_systems.map(|it| it.capacity) {
        used += total_bytes.saturating_sub(free_bytes) as f64;
        total += total_bytes as f64;
    }
    if total > 0.0 { used / total * 100.0 } else { 0.0 }
}

/// Returns the file systems of the targets of a kind, in the order of the target ids. `capacity`
/// returns the capacity of a target. Omits targets of unknown size, and targets that were marked as
/// lost. A target whose file system is not known counts as the only target of a file system.
pub fn file_systems(
    map: &ClusterMap,
    kind: TargetKind,
    capacity: impl Fn(&Target) -> Capacity,
) -> Vec<FileSystem<'_>> {
    let is_counted =
        |target: &&Target| target.kind == kind && target.consistency != Consistency::Bad;
    let mut targets: Vec<&Target> = map.targets.iter().filter(is_counted).collect();
    targets.sort_by_key(|target| target.id);
    let mut found: Vec<FileSystem<'_>> = Vec::new();
    for target in targets {
        let capacity = capacity(target);
        if capacity.total_bytes == 0 {
            continue;
        }
        let id = capacity.file_system;
        let known = found.iter_mut().find(|it| id != 0 && it.capacity.file_system == id);
        match known {
            Some(known) => {
                let of_both = &mut known.capacity;
                of_both.free_bytes = of_both.free_bytes.min(capacity.free_bytes);
                of_both.free_inodes = of_both.free_inodes.min(capacity.free_inodes);
                known.targets += 1;
            }
            None => found.push(FileSystem { target, targets: 1, capacity }),
        }
    }
    found
}

/// Returns the file systems of the storage targets, with the capacities that the map contains.
fn of_storage(map: &ClusterMap) -> Vec<FileSystem<'_>> {
    file_systems(map, TargetKind::Storage, |target| target.capacity)
}

/// Returns the fullest file system with its used share in percent.
fn fullest<'a>(file_systems: &'a [FileSystem<'a>]) -> Option<(&'a FileSystem<'a>, f64)> {
    let used = file_systems.iter().map(|it| (it, it.used_percent()));
    used.reduce(|best, next| if next.1 > best.1 { next } else { best })
}

/// Returns the balance of targets that are on fewer than two file systems. Such a balance cannot be
/// judged.
fn too_few(targets: usize, kind: TargetKind) -> Balance {
    let kind = target_kind_word(kind);
    Balance::unknown(
        targets,
        format!("fewer than two {kind} targets have a file system of their own"),
    )
}

/// Returns how evenly the storage targets are filled, according to the map.
pub fn of_storage_space(map: &ClusterMap) -> Balance {
    of_space(&of_storage(map), TargetKind::Storage)
}

/// Returns how evenly the file systems of the targets of a kind are filled. The value of a file
/// system is the used share of its space. So disks of different sizes count as evenly filled if the
/// same share of each disk is used. The mean is the used share of the whole space.
pub fn of_space(file_systems: &[FileSystem<'_>], kind: TargetKind) -> Balance {
    let targets = file_systems.len();
    let Some((top, most)) = fullest(file_systems).filter(|_| targets > 1) else {
        return too_few(targets, kind);
    };
    if most < LEAST_USED_PERCENT {
        return Balance::unknown(targets, "not enough data to judge".into());
    }
    Balance {
        targets,
        percent: Some(rounded(used_percent(file_systems.iter()) / most * 100.0)),
        reason: None,
        highest: Some(Highest { target: top.target.id.raw(), percent: rounded(most) }),
    }
}

/// Returns how evenly the files lie on the file systems of the targets of a kind. The value of a
/// file system is its number of files. File systems that do not count inodes are left out.
pub fn of_files(file_systems: &[FileSystem<'_>], kind: TargetKind) -> Balance {
    let files = file_systems.iter().filter_map(|it| Some((it.target.id.raw(), it.files()?)));
    let files: Vec<(u32, u64)> = files.collect();
    let targets = files.len();
    let Some((target, most)) = highest(&files).filter(|_| targets > 1) else {
        return too_few(targets, kind);
    };
    let all = files.iter().fold(0_u64, |sum, (_, files)| sum.saturating_add(*files));
    if all < FEWEST_FILES.saturating_mul(targets as u64) {
        return Balance::unknown(targets, format!("not enough files to judge ({all} files)"));
    }
    Balance::of_shares(targets, (target, most), all)
}

/// Returns a finding if one metadata target is busy and gets far more requests than the other
/// metadata targets. `work` covers a minute or more. `evidence` covers the newest seconds, and the
/// target must be busy in these seconds as well. `found` are the causes of slowness. If a cause in
/// `found` names the user or the directory that keeps the target busy, returns no finding.
pub fn uneven_work(
    (work, evidence): (&WorkByTarget, &Evidence),
    map: &ClusterMap,
    found: &[Cause],
) -> Option<Cause> {
    let balance = of_metadata_work(work, map);
    let (percent, top) = (balance.percent?, balance.highest?);
    let own = work.get(&top.target)?;
    let newest = evidence.targets.get(&top.target)?;
    let is_named =
        |cause: &Cause| REASONS.contains(&cause.rule) && cause.targets.contains(&top.target);
    let is_busy_now = names::percent(newest.working_ns, newest.span_ns) >= BUSY_PERCENT;
    if own.span_ns < LEAST_SPAN_NS || !is_busy_now || found.iter().any(is_named) {
        return None;
    }
    let all = requests_of_primaries(work, map);
    let others = all.iter().filter(|(id, _)| *id != top.target);
    let others = others.fold(0_u64, |sum, (_, requests)| sum.saturating_add(*requests));
    let mean = others / (all.len() as u64).saturating_sub(1).max(1);
    let busy = names::percent(own.working_ns, own.span_ns);
    let is_uneven = own.requests >= mean.saturating_mul(FAR_MORE_WORK) && busy >= BUSY_PERCENT;
    is_uneven.then(|| Cause {
        rule: "work-uneven",
        severity: Severity::Warning,
        object: TargetId::new(top.target).to_string(),
        targets: vec![top.target],
        client: None,
        is_over: false,
        what: format!(
            "{} gets {:.0} % of the requests to {} metadata targets and works {busy} % of the \
             time; the balance of work is {percent:.0} %",
            names::target(map, top.target),
            top.percent,
            balance.targets
        ),
        remedy: "requests to this target wait for each other while other targets are idle. \
                 Directories directly below the root of the file system are spread over the \
                 metadata targets, and a new directory below them is on the target of its parent: \
                 divide the work among several directories below the root. `skep entry info \
                 DIRECTORY` shows the target of a directory"
            .into(),
    })
}

/// Returns a finding if one storage target is far fuller than the other storage targets. Returns no
/// finding for a target that is low on free space, because another rule reports it.
pub fn uneven_space(map: &ClusterMap) -> Option<Cause> {
    let file_systems = of_storage(map);
    let (fullest, used) = fullest(&file_systems).filter(|_| file_systems.len() > 1)?;
    let target = fullest.target;
    let others = used_percent(file_systems.iter().filter(|it| it.target.id != target.id));
    let is_uneven = used >= FULL_PERCENT
        && used >= others * FAR_MORE_SPACE
        && target.capacity_pool == CapacityPool::Normal;
    let balance = of_storage_space(map).in_words();
    is_uneven.then(|| Cause {
        rule: "space-uneven",
        severity: Severity::Warning,
        object: target.id.to_string(),
        targets: vec![target.id.raw()],
        client: None,
        is_over: false,
        what: format!(
            "{} is {used:.0} % full, but the other storage targets are {others:.0} % full; the \
             balance of used space is {balance}",
            names::target(map, target.id.raw())
        ),
        remedy:
            "this target fills before the others, and writes to its files then fail. New files use \
             targets with more free space more often, unless the pattern of their directory names \
             this target: `skep target files --paths ID` lists such directories and the files. \
             Copying a large file (`cp -a FILE FILE.new && mv FILE.new FILE`) places the file \
             again. If other programs use the disk, remove their data"
                .into(),
    })
}

#[cfg(test)]
mod tests;
