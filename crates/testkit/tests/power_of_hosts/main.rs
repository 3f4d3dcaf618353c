//! Power losses of each kind of host alone, and of all hosts at the same time, immediately after
//! the acknowledgement of a change. After the power loss, the tree must have exactly the contents
//! that docs/semantics.md 3.1-3.5 promise.
//!
//! The disks of the hosts have a volatile write cache (`skep_testkit::power`), so a missing sync of
//! a service loses data. A program changes a tree on a mount and a local tree in the same way, and
//! the test compares the two trees after each power loss. The test prints the seeds of its random
//! numbers, and `SKEP_TEST_SEED` sets the first seed. `SKEP_POWER_LOSSES` sets the number of power
//! losses in each test, which is small in CI. [`two_groups`] has changes that are in progress at
//! the moment of the failure.

mod changes;
mod hosts;
mod locks;
mod two_groups;

use changes::{Syncs, Twins};
use hosts::{Hosts, drop_pages, write_back};
use skep_testkit::{PATIENCE, Random, Scratch, Shape, files, tree, wait_for};
use std::fs::OpenOptions;
use std::path::Path;

/// Number of changes before each power loss.
const CHANGES: usize = 12;
/// Number of files in which each power loss may tear a write.
const FILES: u64 = 16;
/// The error number `EIO`.
const IO_ERROR: i32 = 5;

/// Returns a seed for each power loss.
fn seeds() -> impl Iterator<Item = u64> {
    let count = std::env::var("SKEP_POWER_LOSSES").map_or(2, |it| it.parse().expect("a number"));
    let first = Random::seed_of_run();
    println!("seeds from {first} (SKEP_TEST_SEED={first} repeats them)");
    first..first + count
}

/// Makes random changes on the mount before each power loss, and compares the trees after the power
/// loss.
fn compare_after(
    hosts: &mut Hosts,
    syncs: Syncs,
    services: impl Fn(u64) -> &'static [&'static str],
) {
    let scratch = Scratch::new();
    for (round, seed) in (0..).zip(seeds()) {
        let services = services(round);
        let mut twins = Twins::new(hosts.mount(), scratch.path(), seed, syncs);
        hosts.wait_for_serving_members();
        twins.change(CHANGES + Random::new(seed).below(CHANGES));
        hosts.lose_power(services);
        drop_pages();
        for mount in [hosts.other(), hosts.mount()] {
            println!("    seed {seed}: {services:?} lost power, comparing {}", mount.display());
            tree::assert_same(twins.local(), &mount.join(twins.name()), false);
        }
    }
}

fn small(arguments: &[&str]) -> Shape {
    let more = arguments.iter().map(|it| (*it).to_owned()).collect();
    Shape { more, ..Shape::small() }
}

const ALWAYS: [&str; 2] = ["--set", "metadata:metadata.sync=always"];

/// docs/semantics.md 3.3. The metadata host and the client continue to run.
#[test]
fn synced_changes_survive_a_power_loss_of_storage() {
    let mut hosts = Hosts::start(small(&[]), &["storage-1"]);
    compare_after(&mut hosts, Syncs::Each, |_| &["storage-1"]);
    hosts.end();
}

/// docs/semantics.md 3.5. Each handle reports the possible loss once, whichever writes the disk has
/// kept.
#[test]
fn unsynced_writes_are_reported_after_a_power_loss_of_storage() {
    let mut hosts = Hosts::start(small(&[]), &["storage-1"]);
    for seed in seeds() {
        let bytes = Random::new(seed).bytes(900_000);
        let path = hosts.mount().join(format!("f{seed}"));
        let file = files::create(&path);
        let second = files::open_with(OpenOptions::new().write(true), &path);
        files::write_all_at(&file, &bytes, 0);
        hosts.lose_power(&["storage-1"]);
        for handle in [&file, &second] {
            let error = handle.sync_all().expect_err("unsynced writes may be lost");
            assert_eq!(error.raw_os_error(), Some(IO_ERROR), "{error}");
            files::sync_all(handle);
        }
        files::write_all_at(&file, &bytes, 0);
        files::sync_all(&file);
        hosts.lose_power(&["storage-1"]);
        files::sync_all(&file);
        drop_pages();
        assert!(files::read(hosts.other().join(format!("f{seed}"))) == bytes, "seed {seed}");
    }
    hosts.end();
}

/// An overwrite of a part of a synced file. A power loss may tear this write.
struct Overwrite {
    name: String,
    old: Vec<u8>,
    new: Vec<u8>,
    at: usize,
}

impl Overwrite {
    fn new(seed: u64, number: u64) -> Self {
        let mut random = Random::new(seed + number);
        let [old, new] = [300_000, 100_000].map(|len| random.bytes(len));
        let at = random.below(old.len() - new.len());
        Self { name: format!("f{seed}-{number}"), old, new, at }
    }

    fn assert_old_or_new(&self, mount: &Path) {
        let found = files::read(mount.join(&self.name));
        assert_eq!(found.len(), self.old.len(), "{}", self.name);
        for (index, byte) in found.iter().enumerate() {
            let of_new = index.checked_sub(self.at).and_then(|it| self.new.get(it));
            let is_possible = *byte == self.old[index] || Some(byte) == of_new;
            assert!(is_possible, "{}, byte {index}", self.name);
        }
    }
}

/// docs/semantics.md 3.3, 3.5. A power loss tears overwrites of synced bytes. The bytes outside the
/// overwritten range do not change, each byte in this range is either the old or the new byte, and
/// no read fails. To achieve this, the target must sync the record of an overwrite (in the dirty
/// log) before the overwrite.
#[test]
fn torn_overwrites_are_readable_after_a_power_loss_of_storage() {
    let mut hosts = Hosts::start(small(&[]), &["storage-1"]);
    let overwrites =
        |seed: u64| (0..FILES).map(|number| Overwrite::new(seed, number)).collect::<Vec<_>>();
    let rounds: Vec<_> = seeds().map(overwrites).collect();
    for file in rounds.iter().flatten() {
        let created = files::create(hosts.mount().join(&file.name));
        files::write_all_at(&created, &file.old, 0);
        files::sync_all(&created);
    }
    // A clean shutdown marks all regions of chunk files as synced. In a region with this mark, the
    // target reports each wrong checksum as damage.
    hosts.restart();
    for round in rounds {
        let write = |it: &Overwrite| {
            let path = hosts.mount().join(&it.name);
            let file = files::open_with(OpenOptions::new().write(true), path);
            files::write_all_at(&file, &it.new, it.at as u64);
            file
        };
        let handles: Vec<_> = round.iter().map(write).collect();
        hosts.cluster.chunk_files().iter().for_each(|it| write_back(it));
        hosts.lose_power(&["storage-1"]);
        drop_pages();
        round.iter().for_each(|it| it.assert_old_or_new(hosts.other()));
        for handle in handles {
            let error = handle.sync_all().expect_err("the overwrite may be lost");
            assert_eq!(error.raw_os_error(), Some(IO_ERROR), "{error}");
        }
    }
    hosts.end();
}

/// docs/semantics.md 3.3. The storage hosts and the client continue to run.
#[test]
fn synced_changes_survive_a_power_loss_of_metadata() {
    let mut hosts = Hosts::start(small(&[]), &["metadata-1"]);
    compare_after(&mut hosts, Syncs::Each, |_| &["metadata-1"]);
    hosts.end();
}

/// docs/semantics.md 3.2. With `metadata.sync = always`, the power loss reverts no change.
#[test]
fn all_changes_survive_a_power_loss_of_always_synced_metadata() {
    let mut hosts = Hosts::start(small(&ALWAYS), &["metadata-1"]);
    compare_after(&mut hosts, Syncs::Never, |_| &["metadata-1"]);
    hosts.end();
}

/// docs/semantics.md 3.2, 3.3. Changes concern two targets, and one target loses the changes that
/// it has not synced.
#[test]
fn synced_changes_survive_the_loss_of_one_of_two_metadata_hosts() {
    let shape = Shape { metadata_targets: 2, ..small(&[]) };
    let mut hosts = Hosts::start(shape, &["metadata-1", "metadata-2"]);
    compare_after(&mut hosts, Syncs::Each, |round| match round % 2 {
        0 => &["metadata-1"],
        _ => &["metadata-2"],
    });
    hosts.end();
}

/// docs/semantics.md 3.2. In a group of two members, the power loss of one member reverts no
/// change, although no member syncs its log before an acknowledgement.
#[test]
fn all_changes_survive_a_power_loss_of_one_member_of_a_group() {
    let shape = Shape { metadata_targets: 2, ..small(&["--metadata-copies", "2"]) };
    let mut hosts = Hosts::start(shape, &["metadata-1", "metadata-2"]);
    compare_after(&mut hosts, Syncs::Never, |round| match round % 2 {
        0 => &["metadata-1"],
        _ => &["metadata-2"],
    });
    hosts.end_with_equal_members();
}

/// docs/semantics.md 3.2, 3.3. A power loss of all members reverts the changes that no member has
/// synced. After the power loss, the two members have equal stores.
#[test]
fn synced_changes_survive_a_power_loss_of_a_whole_group() {
    let shape = Shape { metadata_targets: 2, ..small(&["--metadata-copies", "2"]) };
    let mut hosts = Hosts::start(shape, &["metadata-1", "metadata-2"]);
    compare_after(&mut hosts, Syncs::Each, |_| &["metadata-1", "metadata-2"]);
    hosts.end_with_equal_members();
}

/// docs/semantics.md 4.2. A power loss of the only management host does not revert an acknowledged
/// command, and programs do not notice the power loss.
#[test]
fn acknowledged_commands_survive_a_power_loss_of_management() {
    let mut hosts = Hosts::start(small(&[]), &["management"]);
    let scratch = Scratch::new();
    for (round, seed) in (0_u64..).zip(seeds()) {
        let mut twins = Twins::new(hosts.mount(), scratch.path(), seed, Syncs::Never);
        let value = (1000 + round).to_string();
        hosts.cluster.skep(&["config", "set", "cleanup-limit", &value]);
        hosts.lose_power(&["management"]);
        twins.change(CHANGES);
        tree::assert_same(twins.local(), &hosts.other().join(twins.name()), false);
        let found = wait_for("management answers", PATIENCE, || {
            let ended = hosts.cluster.try_skep(&["config", "get", "cleanup-limit"]);
            ended.status.success().then_some(ended.stdout)
        });
        assert!(found.contains(&value), "{found} is not {value}");
    }
    hosts.end();
}

/// docs/semantics.md 3.2, 3.3. All hosts and all clients lose their power at the same time.
#[test]
fn synced_changes_survive_a_power_loss_of_all_hosts() {
    let shape = Shape { metadata_targets: 2, ..small(&[]) };
    let services = ["management", "metadata-1", "metadata-2", "storage-1"];
    let mut hosts = Hosts::start(shape, &services);
    let scratch = Scratch::new();
    for seed in seeds() {
        let mut twins = Twins::new(hosts.mount(), scratch.path(), seed, Syncs::Each);
        twins.change(CHANGES + Random::new(seed).below(CHANGES));
        hosts.lose_all_power();
        println!("    seed {seed}: comparing");
        tree::assert_same(twins.local(), &hosts.other().join(twins.name()), false);
    }
    hosts.end();
}
