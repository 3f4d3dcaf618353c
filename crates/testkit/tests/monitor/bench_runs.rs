//! Runs `skep bench io` as several users at the same time, each as another batch job.

use super::*;
use rustix::time::{ClockId, clock_gettime};
use skep_testkit::files;

/// Number of bytes in one transfer of a benchmark.
pub(super) const TRANSFER: u64 = 32 << 10;

/// A phase of a run of `skep bench io`.
pub(super) struct BenchPhase {
    pub(super) bytes: u64,
    pub(super) seconds: f64,
    pub(super) mib_per_s: f64,
    /// The end of each transfer in seconds since 1970, and the bytes of all transfers until this
    /// end.
    progress: Vec<(f64, u64)>,
}

impl BenchPhase {
    /// Returns the bytes of all transfers that had ended at `time`.
    pub(super) fn bytes_at(&self, time: f64) -> u64 {
        let count = self.progress.partition_point(|(at, _)| *at <= time);
        count.checked_sub(1).map_or(0, |last| self.progress[last].1)
    }
}

/// Returns the time of a clock in seconds.
pub(super) fn seconds_by(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Returns the time of the boot in seconds since 1970. Makes several attempts, and uses the attempt
/// with the shortest time between its two readings of the boot-time clock.
fn booted_at() -> f64 {
    let attempt = || {
        let before = seconds_by(ClockId::Boottime);
        let wall = seconds_by(ClockId::Realtime);
        let after = seconds_by(ClockId::Boottime);
        (after - before, wall - before)
    };
    let best = (0..10).map(|_| attempt()).min_by(|one, other| one.0.total_cmp(&other.0));
    best.expect("ten attempts").1
}

/// A run of `skep bench io` that an ordinary user starts as a job.
pub(super) struct BenchRun {
    pub(super) user: u32,
    pub(super) job: u32,
    /// The phase that writes, and the phase that reads.
    pub(super) phases: [BenchPhase; 2],
}

/// Copies `skep` to a directory of the test, so that every user may run it. Returns the path of the
/// copy.
pub(super) fn program_for_users(scratch: &Scratch) -> PathBuf {
    files::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755));
    let program = scratch.join("skep");
    files::copy(cluster::program(), &program);
    program
}

/// Creates a directory in which every user may create files.
pub(super) fn create_for_users(directory: &Path) {
    files::create_dir(directory);
    files::set_permissions(directory, fs::Permissions::from_mode(0o777));
}

/// Runs `program` as `skep bench io` once for each place, each time as another user and another
/// job. Waits until all runs have ended. A place is a command that runs `setpriv` on the host of
/// the user, and the directory of the user's file.
pub(super) fn bench_as_users(program: &Path, places: Vec<(Command, PathBuf)>) -> Vec<BenchRun> {
    let start = |(number, (mut command, directory)): (u32, (Command, PathBuf))| {
        let (user, job) = (60_000 + number, 100 + number);
        command.args([format!("--reuid={user}"), format!("--regid={user}")]);
        command.arg("--clear-groups").arg(program).args(["bench", "io", "--keep-caches", "-o"]);
        command.arg(directory.join(format!("file-{user}")));
        let mib = (4 * (number + 4)).to_string() + "m";
        // Use direct I/O. Without direct I/O, the kernel would read from its page cache.
        command.args(["-w", "-r", "-B", "-e", "-k", "-b", &mib, "--output", "json"]);
        // Each transfer takes longer than the interval, so each transfer has a sample.
        command.args(["-t", &TRANSFER.to_string(), "--sample-interval", "1ms"]);
        command.env("SLURM_JOB_ID", job.to_string()).current_dir("/");
        let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        (user, job, child.expect("setpriv can be started"))
    };
    let running: Vec<_> = (0..).zip(places).map(start).collect();
    let booted_at = booted_at();
    let finish = |(user, job, child): (u32, u32, Child)| {
        let output = child.wait_with_output().expect("ours");
        assert!(output.status.success(), "{output:?}");
        let outcome: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let phase = |number: usize, name: &str| {
            let phase = &outcome["phases"][number];
            assert_eq!(phase["phase"], name, "{outcome}");
            let samples = phase["processes"][0]["samples"].list().iter();
            BenchPhase {
                bytes: phase["bytes"].number(),
                seconds: phase["seconds"].float(),
                mib_per_s: phase["bandwidth_mib_per_s"].float(),
                progress: samples.map(|it| (booted_at + it[0].float(), it[1].number())).collect(),
            }
        };
        BenchRun { user, job, phases: [phase(0, "write"), phase(1, "read")] }
    };
    running.into_iter().map(finish).collect()
}

/// Returns the written and the read bytes of benchmarks.
pub(super) fn bytes_of(runs: &[&BenchRun]) -> [u64; 2] {
    [0, 1].map(|phase| runs.iter().map(|run| run.phases[phase].bytes).sum())
}

/// The benchmarks that cause the load of an object (a user, job or client), by the id of the
/// object.
pub(super) type RunsById<'a> = BTreeMap<String, Vec<&'a BenchRun>>;

/// Returns the benchmarks by the ids of users, of jobs and of clients. `clients` has the id of the
/// client that runs the benchmarks with even numbers, and of the client that runs the benchmarks
/// with odd numbers.
pub(super) fn runs_by_ids<'a>(runs: &'a [BenchRun], clients: &[String; 2]) -> [RunsById<'a>; 3] {
    let by_user = runs.iter().map(|run| (run.user.to_string(), vec![run])).collect();
    let by_job = runs.iter().map(|run| (run.job.to_string(), vec![run])).collect();
    let mut by_client = RunsById::new();
    for (number, run) in runs.iter().enumerate() {
        by_client.entry(clients[number % 2].clone()).or_default().push(run);
    }
    [by_user, by_job, by_client]
}

/// Returns the id of the client that is mounted at `mount`, from the output of `skep client list`.
pub(super) fn client_at(mount: &Path, clients: &Value) -> String {
    let path = mount.to_str().expect("UTF-8");
    let found = clients.list().iter().find(|client| client["mount_point"] == path);
    found.unwrap_or_else(|| panic!("{path} is missing: {clients:#}"))["id"].to_string()
}
