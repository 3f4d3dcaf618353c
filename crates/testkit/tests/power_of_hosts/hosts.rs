//! A cluster in which each selected service has its own simulated host. Each of these services has
//! a separate disk. A service and its disk lose their power at the same moment.

use rustix::fs::OFlags;
use rustix::process::Signal;
use skep_testkit::power::{Disk, FileSystem};
use skep_testkit::process::{self, Process, Suspended};
use skep_testkit::program::{finish, run};
use skep_testkit::view::Typed;
use skep_testkit::{
    Cluster, Mounted, PATIENCE, Random, Scratch, Shape, Transport, files, wait_for,
};
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;

/// Required alignment of direct reads, in bytes.
const PAGE: u64 = 4096;
const DISK_BYTES: u64 = 2 << 30;
/// Maximum number of stops of the cluster until `skep fsck` has compared the members of a group.
const STOPS: usize = 4;
/// The services of a metadata group of two members, or of two metadata groups.
pub(crate) const METADATA: [&str; 2] = ["metadata-1", "metadata-2"];

/// A cluster in which the named services have separate disks.
pub(crate) struct Hosts {
    other: Option<Mounted>,
    pub(crate) cluster: Cluster,
    disks: BTreeMap<String, Disk>,
    /// The scratch directory must be the last field, because the disks are in this directory.
    _scratch: Scratch,
}

impl Hosts {
    /// Starts a cluster, and moves the directories of `services` to disks with the file systems XFS
    /// and ext4 in turn. The seed of the run determines which file system comes first.
    pub(crate) fn start(shape: Shape, services: &[&str]) -> Self {
        let scratch = Scratch::new();
        let cluster = Cluster::start(shape);
        cluster.stop();
        let mut disks = BTreeMap::new();
        let first = Random::seed_of_run() as usize % FileSystem::ALL.len();
        for (number, name) in (first..).zip(services) {
            let file_system = FileSystem::ALL[number % FileSystem::ALL.len()];
            let disk = Disk::with(&scratch, name, file_system, DISK_BYTES);
            let directory = cluster.data().join(name);
            run("cp", [Path::new("-a"), &directory, disk.path()]);
            files::remove_dir_all(&directory);
            files::symlink(disk.path().join(name), &directory);
            // Sync the disk now, because the disk may lose its power before the service has synced
            // any of its files.
            files::syncfs(disk.path());
            disks.insert((*name).to_owned(), disk);
        }
        cluster.up().expect_success();
        let mut hosts = Self { other: None, cluster, disks, _scratch: scratch };
        hosts.other = Some(hosts.cluster.mount(Transport::Device));
        hosts
    }

    /// Returns the mount point on which programs change files.
    pub(crate) fn mount(&self) -> &Path {
        self.cluster.path()
    }

    /// Returns the mount point through which the test looks for losses. The kernel has no pages of
    /// the files cached for this mount.
    pub(crate) fn other(&self) -> &Path {
        self.other.as_ref().expect("mounted until the end").path()
    }

    fn processes(&self, services: &[&str]) -> Vec<Process> {
        let of_service = |name: &&str| process::below(&self.cluster.data().join(name));
        let mut found: Vec<_> = services.iter().flat_map(of_service).collect();
        found.retain(|process| process.role() != "up" && process.role() != "mount");
        found
    }

    /// Waits until all members of each group serve. Before this moment, some data has fewer copies.
    pub(crate) fn wait_for_serving_members(&self) {
        wait_for("all members serve", PATIENCE, || {
            let groups = self.cluster.skep_list(&["group", "list"]);
            let mut members = groups.iter().flat_map(|group| group["members"].list());
            members.all(|member| member["state"] == "Serving").then_some(())
        });
    }

    /// Lets the hosts of `services` lose their power at the same moment, and restarts these hosts
    /// immediately.
    pub(crate) fn lose_power(&mut self, services: &[&str]) {
        // After this call, these hosts acknowledge no operation that they must sync first.
        let chosen = |disks: &mut BTreeMap<String, Disk>, act: fn(&mut Disk)| {
            let mut found = 0;
            for (_, disk) in disks.iter_mut().filter(|it| services.contains(&it.0.as_str())) {
                act(disk);
                found += 1;
            }
            assert_eq!(found, services.len(), "each of {services:?} has a disk");
        };
        chosen(&mut self.disks, Disk::stall);
        // Suspend the supervisor, because the supervisor must not start a service on a disk without
        // power.
        let supervisors = self.cluster.processes("up");
        supervisors.iter().for_each(|it| it.signal(Signal::STOP));
        let processes = self.processes(services);
        assert!(processes.len() >= services.len(), "{services:?} run: {processes:?}");
        processes.iter().for_each(|it| it.signal(Signal::KILL));
        chosen(&mut self.disks, Disk::lose_power);
        for process in &processes {
            wait_for("a killed process ends", PATIENCE, || (!process.runs()).then_some(()));
        }
        chosen(&mut self.disks, Disk::restore);
        supervisors.iter().for_each(|it| it.signal(Signal::CONT));
    }

    /// Kills a metadata service, and waits until other members have taken over the groups whose
    /// primary the service had. Only then lets the supervisor restart the service.
    pub(crate) fn kill_and_wait_for_take_over(&self, service: &str) {
        // If no member takes over, this value resumes the supervisor. Otherwise the programs of the
        // failed test would wait for the service without an end.
        let supervisors = Suspended::of(self.cluster.processes("up"));
        self.processes(&[service]).iter().for_each(Process::kill);
        wait_for("the other members take over", PATIENCE, || {
            let groups = self.cluster.skep_list(&["group", "list"]);
            let mut members = groups.iter().flat_map(|group| group["members"].list());
            let has_primary =
                members.any(|it| it["is_primary"] == true && it["node_name"] == service);
            (!has_primary).then_some(())
        });
        drop(supervisors);
    }

    /// Lets all hosts lose their power, including the hosts of clients, and restarts the cluster.
    pub(crate) fn lose_all_power(&mut self) {
        self.disks.values_mut().for_each(Disk::stall);
        let all = process::below(self.cluster.data());
        all.iter().for_each(|it| it.signal(Signal::KILL));
        self.disks.values_mut().for_each(Disk::lose_power);
        drop(self.other.take());
        self.cluster.kill_processes();
        self.disks.values_mut().for_each(Disk::restore);
        self.cluster.up().expect_success();
        self.other = Some(self.cluster.mount(Transport::Device));
    }

    /// Stops the cluster cleanly, and restarts the cluster.
    pub(crate) fn restart(&mut self) {
        self.other.take().expect("mounted").unmount();
        self.cluster.stop();
        self.cluster.up().expect_success();
        self.other = Some(self.cluster.mount(Transport::Device));
    }

    /// Stops the cluster, and checks its stores.
    pub(crate) fn end(mut self) {
        self.other.take().expect("mounted").unmount();
        self.cluster.stop_except(&["orphan"]);
    }

    /// Stops the cluster, and checks its stores. The stores of the members of each metadata group
    /// must be equal.
    ///
    /// If the signals to the services arrive at different times, a member may leave its group
    /// during the stop, and `skep fsck` does not compare this member. In that case this function
    /// restarts the cluster and repeats the stop.
    pub(crate) fn end_with_equal_members(mut self) {
        self.other.take().expect("mounted").unmount();
        let mut skipped = Vec::new();
        for _ in 0..STOPS {
            self.wait_for_serving_members();
            self.wait_for_written_maps();
            skipped = self.cluster.stop_and_list_skipped(&["orphan"]);
            if skipped.is_empty() {
                return;
            }
            self.cluster.up().expect_success();
        }
        panic!("members were not compared in {STOPS} stops: {skipped:?}");
    }

    /// Waits until the metadata services have written a cluster map that is not older than this
    /// call. `skep fsck` takes the states of members from this map.
    fn wait_for_written_maps(&self) {
        let written = |name: &str| {
            let path = self.cluster.data().join(name).join("kept-map");
            files::metadata(path).modified().expect("a time")
        };
        // A service may have begun the first write before this call, but not the second write.
        for limit in ["1001", "1002"] {
            let before = METADATA.map(written);
            self.cluster.skep(&["config", "set", "cleanup-limit", limit]);
            wait_for("the services write the map", PATIENCE, || {
                let after = METADATA.map(written);
                before.iter().zip(&after).all(|(old, new)| old != new).then_some(())
            });
        }
    }
}

/// Writes the dirty pages of the file at `path` to its disk, without a flush of the disk. This
/// function uses a direct read, which waits until the kernel has written the pages in the range of
/// the read.
pub(crate) fn write_back(path: &Path) {
    let direct = OFlags::DIRECT.bits().try_into().expect("a flag");
    let file = files::open_with(OpenOptions::new().read(true).custom_flags(direct), path);
    let len = files::metadata_of(&file).len().next_multiple_of(PAGE) as usize;
    let buffer = &mut vec![0; len + PAGE as usize];
    let start = buffer.as_ptr().align_offset(PAGE as usize);
    files::read_at(&file, &mut buffer[start..start + len], 0);
}

/// Drops the kernel's clean pages, so that the next reads on both mounts reach the services.
pub(crate) fn drop_pages() {
    let mut command = Command::new("sh");
    let ended = finish(command.args(["-c", "echo 1 > /proc/sys/vm/drop_caches"]), PATIENCE);
    ended.expect_success();
}
