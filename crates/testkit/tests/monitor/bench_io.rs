//! Compares the statistics of the services, of the live output and of the monitor with the results
//! of `skep bench io`.
//!
//! # Each second
//! The live output and the benchmarks run in different processes, so their seconds begin at
//! different times. Therefore the test compares sums since the start. A benchmark reports the exact
//! time of the end of each transfer. A live value contains the time at which the services counted,
//! and the error of this time. A service counts a transfer just before it replies, and a benchmark
//! has one transfer in progress. So a live value is at least the bytes of the benchmarks at the
//! earliest possible time, and at most their bytes at the latest possible time plus the transfers
//! in progress. The test allows 3 % of the bytes of one second beyond these bounds. The test also
//! checks that in several seconds, the bounds are at most 3 % apart.

use super::live_figures::{FIELDS, LiveFigures, LiveSample};
use super::*;
use rustix::time::{ClockId, clock_gettime};

/// Maximum relative difference between a measured value and its expected value.
const TOLERANCE: f64 = 0.03;

/// Number of bytes in one transfer of a benchmark.
const TRANSFER: u64 = 32 << 10;

/// Maximum difference in bytes between the totals of two groupings (such as users and jobs) for the
/// same second. A service takes its snapshot while the threads of its targets count. So a snapshot
/// may include the last transfer of a thread in one grouping, but not in another. Each service has
/// two targets.
const AT_SNAPSHOT: u64 = 4 * TRANSFER;

/// Maximum error of the difference between two clocks of this host, in seconds.
const CLOCK_ERROR: f64 = 0.001;

/// A phase of one `skep bench io`.
struct BenchPhase {
    bytes: u64,
    seconds: f64,
    mib_per_s: f64,
    /// The end of each transfer in seconds since 1970, and the bytes of all transfers until then.
    progress: Vec<(f64, u64)>,
}

impl BenchPhase {
    /// Returns the bytes of all transfers that had ended at `time`.
    fn bytes_at(&self, time: f64) -> u64 {
        let count = self.progress.partition_point(|(at, _)| *at <= time);
        count.checked_sub(1).map_or(0, |last| self.progress[last].1)
    }
}

/// Returns the time of a clock in seconds.
fn seconds_by(clock: ClockId) -> f64 {
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

/// One `skep bench io` that an ordinary user runs as a job.
struct BenchRun {
    user: u32,
    job: u32,
    /// The phase that writes, and the phase that reads.
    phases: [BenchPhase; 2],
}

/// Starts one `skep bench io` for each directory, each as another user and another job, and waits
/// until all have ended.
fn bench_as_users(program: &Path, directories: &[PathBuf]) -> Vec<BenchRun> {
    let start = |(number, directory): (u32, &PathBuf)| {
        let (user, job) = (60_000 + number, 100 + number);
        let mut command = Command::new("setpriv");
        command.args([format!("--reuid={user}"), format!("--regid={user}")]);
        command.arg("--clear-groups").arg(program).args(["bench", "io", "--keep-caches", "-o"]);
        command.arg(directory.join(format!("file-{user}")));
        let mib = (4 * (number + 4)).to_string() + "m";
        // Use direct I/O. Otherwise the kernel would read from its page cache.
        command.args(["-w", "-r", "-B", "-e", "-k", "-b", &mib, "--output", "json"]);
        // Each transfer takes longer than the interval, so each one has a sample.
        command.args(["-t", &TRANSFER.to_string(), "--sample-interval", "1ms"]);
        command.env("SLURM_JOB_ID", job.to_string()).current_dir("/");
        let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        (user, job, child.expect("setpriv can be started"))
    };
    let running: Vec<_> = (0..).zip(directories).map(start).collect();
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

/// Returns the bytes per second in each second. `field` is a field of the history. The key is the
/// time of the second.
fn seconds_of(address: &str, query: &str, field: &str) -> BTreeMap<u64, f64> {
    let history = get(address, &format!("/api/history?{query}&span=300&points=300"));
    let at = history["at"].list().iter().map(Typed::number);
    let rates = history[field].list().iter().map(Value::as_f64);
    at.zip(rates).filter_map(|(at, rate)| Some((at, rate?))).collect()
}

/// Whether a measured value differs from the expected one by at most 3 %.
fn is_near(found: f64, expected: f64) -> bool {
    (found - expected).abs() <= expected * TOLERANCE
}

/// The benchmarks that cause the load of an object, by the id of the object.
type RunsById<'a> = BTreeMap<String, Vec<&'a BenchRun>>;

/// Returns the written and the read bytes of benchmarks.
fn bytes_of(runs: &[&BenchRun]) -> [u64; 2] {
    [0, 1].map(|phase| runs.iter().map(|run| run.phases[phase].bytes).sum())
}

/// Compares the live statistics of one object with the benchmarks that cause its load. Returns the
/// number of samples whose time is known so exactly that the smallest and the largest possible
/// number of bytes differ by at most 3 % of the bytes of a second.
fn check_each_second(what: &str, samples: &[LiveSample], runs: &[&BenchRun]) -> usize {
    let mut exact = 0;
    for (phase, field) in FIELDS.iter().enumerate() {
        let phases = || runs.iter().map(move |run| &run.phases[phase]);
        let bytes_at = |time| phases().map(|it| it.bytes_at(time)).sum::<u64>() as f64;
        let each_second: f64 = phases().map(|it| it.bytes as f64 / it.seconds).sum();
        let in_progress = (TRANSFER * runs.len() as u64) as f64;
        let total = bytes_of(runs)[phase];
        for sample in samples {
            let (error, bytes) = (sample.error + CLOCK_ERROR, sample.bytes[phase]);
            let least = bytes_at(sample.at - error);
            let most = bytes_at(sample.at + error) + in_progress;
            let allowed = each_second * TOLERANCE;
            let is_right = (least - allowed..=most + allowed).contains(&(bytes as f64));
            assert!(is_right, "{what} {field}: {bytes} is not in {least}..{most}, {sample:?}");
            exact += usize::from(most - least <= allowed && bytes > 0 && bytes < total);
        }
        for pair in samples.windows(2) {
            let [one, next] = pair else { unreachable!("windows of two") };
            let bytes = (next.bytes[phase] - one.bytes[phase]) as f64;
            let (span, error) = (next.at - one.at, next.error + one.error + CLOCK_ERROR);
            let least = bytes / (span + error) * (1.0 - TOLERANCE);
            let most = bytes / (span - error).max(CLOCK_ERROR) * (1.0 + TOLERANCE);
            let rate = next.rates[phase];
            let is_right = (least..=most).contains(&rate);
            assert!(is_right, "{what} {field}: {rate} is not in {least}..{most}, {one:?} {next:?}");
        }
    }
    exact
}

/// Compares the totals of all groupings. If one total was counted later than another one, it must
/// not be smaller.
fn check_sums(sums: &[(&str, Vec<LiveSample>)]) {
    let all = || sums.iter().flat_map(|(by, samples)| samples.iter().map(move |it| (by, it)));
    for (by, earlier) in all() {
        for (other, later) in all() {
            let is_earlier = earlier.at + earlier.error < later.at - later.error;
            let is_right = earlier.bytes.iter().zip(&later.bytes).all(|(one, next)| one <= next);
            assert!(!is_earlier || is_right, "by {by}: {earlier:?}, later by {other}: {later:?}");
        }
    }
}

/// Reads the live statistics until they contain the whole load, and compares them with the
/// benchmarks. `runs` contains for each grouping the benchmarks of each object id.
fn check_live(live: Vec<LiveFigures>, runs: &[RunsById<'_>]) {
    let ended = seconds_by(ClockId::Realtime);
    let mut sums = Vec::new();
    for (figures, runs) in live.into_iter().zip(runs) {
        let by = figures.by;
        let (objects, sum) = figures.read_until(ended);
        let mut exact = 0;
        for (id, runs) in runs {
            let samples = &objects[id];
            let what = format!("by {by} {id}");
            exact += check_each_second(&what, samples, runs);
            let found = samples.last().expect("a sample").bytes;
            let expected = bytes_of(runs);
            let is_right =
                found.iter().zip(&expected).all(|(it, all)| is_near(*it as f64, *all as f64));
            assert!(is_right, "{what}: {found:?} instead of {expected:?}");
        }
        assert!(exact >= 2, "by {by}: the times of only {exact} figures are known exactly");
        let all: Vec<&BenchRun> = runs.values().flatten().copied().collect();
        check_each_second(&format!("sum by {by}"), &sum, &all);
        sums.push((by, sum));
    }
    check_sums(&sums);
}

/// Four users on two mounts write and read at two storage services with `skep bench io`. The
/// numbers of the services, of the live output and of the monitor must differ by less than 3 %. The
/// live output must also agree in each second. In each second, the sums over all users, all jobs
/// and all clients must be equal, except for the transfers of that moment.
///
/// Command: skep stats.
#[test]
fn statistics_by_user_job_and_client_agree_with_bench_io() {
    let shape = Shape { targets_per_service: 2, metadata_targets: 1, ..Shape::default() };
    let rate = ["--set", "storage:emulation.rate=8MB"].map(String::from).to_vec();
    let mut cluster = Cluster::start(Shape { monitor: true, more: rate, ..shape });
    let mounts = [(); 2].map(|()| cluster.mount_with(Transport::Device, "job_accounting"));
    let address = address_of(&cluster);
    let scratch = Scratch::new();
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = scratch.join("skep");
    fs::copy(cluster::program(), &program).unwrap();
    let directories: Vec<_> =
        (0..4).map(|number: usize| mounts[number % 2].path().join("all")).collect();
    fs::create_dir(&directories[0]).unwrap();
    fs::set_permissions(&directories[0], fs::Permissions::from_mode(0o777)).unwrap();
    let live = Vec::from(["user", "job", "client"].map(|by| LiveFigures::start(&cluster, by)));
    let runs = bench_as_users(&program, &directories);
    let all = bytes_of(&runs.iter().collect::<Vec<_>>());
    assert_eq!(all, [88 * MIB as u64; 2]);

    let total = |by: &str, id: &str, field: &str| -> u64 {
        let lines = cluster.skep_json(&["stats", "--by", by, "--total"]);
        let own = lines.list().iter().filter(|line| id.is_empty() || line["id"] == id);
        own.map(|line| line[field].number()).sum()
    };
    for run in &runs {
        for (phase, field) in run.phases.iter().zip(FIELDS) {
            let found = [("user", run.user), ("job", run.job)]
                .map(|(by, id)| total(by, &id.to_string(), field));
            for bytes in found {
                assert!(is_near(bytes as f64, phase.bytes as f64), "{} {found:?}", run.user);
                let mib_per_s = bytes as f64 / MIB as f64 / phase.seconds;
                assert!(is_near(mib_per_s, phase.mib_per_s), "{mib_per_s} {}", phase.mib_per_s);
            }
        }
    }
    for by in ["client", "node", "target", "user", "group", "job", "operation"] {
        for (field, all) in FIELDS.iter().zip(all) {
            let found = total(by, "", field);
            assert!(is_near(found as f64, all as f64), "by {by}: {found} {field}");
        }
    }
    // The runs with even numbers have used the first mount.
    let clients = cluster.skep_json(&["client", "list"]);
    let id_of = |mount: &Mounted| {
        let path = mount.path().to_str().expect("UTF-8");
        let found = clients.list().iter().find(|client| client["mount_point"] == path);
        found.expect("the mount is listed")["id"].to_string()
    };
    let mut by_client = RunsById::new();
    for (number, run) in runs.iter().enumerate() {
        by_client.entry(id_of(&mounts[number % 2])).or_default().push(run);
    }
    let by_user = runs.iter().map(|run| (run.user.to_string(), vec![run])).collect();
    let by_job = runs.iter().map(|run| (run.job.to_string(), vec![run])).collect();
    check_live(live, &[by_user, by_job, by_client]);

    let sums_of = |field: &str| {
        let load = get(&address, "/api/load?by=user&span=300");
        load["rows"].list().iter().map(|row| row[field].number()).sum::<u64>()
    };
    wait_for("the monitor has all bytes", PATIENCE, || (FIELDS.map(sums_of) == all).then_some(()));
    let queries = ["by=node&service=storage", "by=target", "by=client", "by=user", "by=job"];
    for field in FIELDS {
        let divisions = queries.map(|query| seconds_of(&address, query, field));
        let [first, others @ ..] = &divisions;
        let busy = first.values().filter(|rate| **rate > 0.0).count();
        assert!(busy > 0, "{field}: {first:?}");
        for (query, other) in queries[1..].iter().zip(others) {
            for (at, rate) in first {
                let found = other.get(at).copied().unwrap_or(*rate);
                let is_equal = (found - rate).abs() < AT_SNAPSHOT as f64;
                assert!(is_equal, "{field} {query} at {at}: {found} instead of {rate}");
            }
        }
    }
    mounts.into_iter().for_each(|mount| mount.unmount());
    cluster.stop();
}
