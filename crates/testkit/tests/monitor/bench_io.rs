//! Compares the figures of the services, of the live output and of the monitor with the results of
//! `skep bench io`.

use super::*;

/// The fields of figures that count bytes, in the order of the phases of `skep bench io`.
const FIELDS: [&str; 2] = ["written_bytes", "read_bytes"];

/// A phase of one `skep bench io`.
struct BenchPhase {
    bytes: u64,
    seconds: f64,
    mib_per_s: f64,
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
        let mib = (8 * (number + 1)).to_string() + "m";
        // Use direct I/O. Otherwise the kernel would read from its page cache.
        command.args(["-w", "-r", "-B", "-e", "-k", "-t", "1m", "-b", &mib, "--output", "json"]);
        command.env("SLURM_JOB_ID", job.to_string()).current_dir("/");
        let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        (user, job, child.expect("setpriv can be started"))
    };
    let running: Vec<_> = (0..).zip(directories).map(start).collect();
    let finish = |(user, job, child): (u32, u32, Child)| {
        let output = child.wait_with_output().expect("ours");
        assert!(output.status.success(), "{output:?}");
        let outcome: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let phase = |number: usize, name: &str| {
            let phase = &outcome["phases"][number];
            assert_eq!(phase["phase"], name, "{outcome}");
            BenchPhase {
                bytes: phase["bytes"].number(),
                seconds: phase["seconds"].float(),
                mib_per_s: phase["bandwidth_mib_per_s"].float(),
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

/// Whether two figures differ by at most 3 %.
fn is_near(found: f64, expected: f64) -> bool {
    (found - expected).abs() <= expected * 0.03
}

/// Written and read bytes by the id of an object.
type BytesById = BTreeMap<String, [u64; 2]>;

/// A `skep stats` that prints the load of each second, while a test causes load.
struct LiveFigures {
    by: &'static str,
    child: Child,
    lines: Receiver<String>,
    /// The sums over all intervals.
    sums: BytesById,
}

impl LiveFigures {
    /// Starts the command, and waits until its first interval has begun.
    fn start(cluster: &Cluster, by: &'static str) -> Self {
        let mut command = Command::new(cluster::program());
        command.args(["stats", "--by", by, "--interval", "1s", "--output", "ndjson"]);
        command.arg("--cluster").arg(cluster.data());
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("built");
        // The command prints this line after its first question to the services.
        let mut announcement = String::new();
        let mut errors = BufReader::new(child.stderr.take().expect("piped"));
        errors.read_line(&mut announcement).expect("the command prints a line");
        assert!(announcement.contains("--once prints one interval"), "{announcement}");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, lines) = channel();
        // A thread reads the lines, so that the test does not wait for them without a limit.
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line).ok())
        });
        Self { by, child, lines, sums: BytesById::new() }
    }

    /// Adds up the intervals until they contain nearly all bytes of `expected`. Then the sums must
    /// be near `expected`, so they must not be much larger either.
    fn check(mut self, expected: &BytesById) {
        let has_all = |sums: &BytesById| {
            expected.iter().all(|(id, bytes)| {
                let found = sums.get(id).copied().unwrap_or_default();
                found.iter().zip(bytes).all(|(it, all)| *it as f64 >= *all as f64 * 0.97)
            })
        };
        let deadline = Instant::now() + PATIENCE;
        while !has_all(&self.sums) {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => self.add(&line),
                Err(error) => panic!("by {}: {:?} only: {error}", self.by, self.sums),
            }
        }
        self.child.kill().expect("our own child");
        self.child.wait().expect("our own child");
        while let Ok(line) = self.lines.recv() {
            self.add(&line);
        }
        for (id, bytes) in expected {
            let found = self.sums[id];
            let is_right =
                found.iter().zip(bytes).all(|(it, all)| is_near(*it as f64, *all as f64));
            assert!(is_right, "by {} {id}: {found:?} instead of {bytes:?}", self.by);
        }
    }

    fn add(&mut self, line: &str) {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|it| panic!("{it}: {line}"));
        let sums = self.sums.entry(line["id"].text().to_owned()).or_default();
        for (sum, field) in sums.iter_mut().zip(FIELDS) {
            *sum += line[field].number();
        }
    }
}

impl Drop for LiveFigures {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Four users on two mounts write and read at two storage services with `skep bench io`. The
/// numbers of the services, of the live output and of the monitor must differ by less than 3 %. In
/// each second, the sums over all users, all jobs and all clients must be equal.
///
/// Command: skep stats.
#[test]
fn figures_by_user_job_and_client_agree_with_bench_io() {
    let shape = Shape { targets_per_service: 2, metadata_targets: 1, ..Shape::default() };
    let rate = ["--set", "storage:emulation.rate=16MB"].map(String::from).to_vec();
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
    let live = ["user", "job", "client"].map(|by| LiveFigures::start(&cluster, by));
    let runs = bench_as_users(&program, &directories);
    let bytes = |run: &BenchRun| [run.phases[0].bytes, run.phases[1].bytes];
    let all = runs.iter().map(bytes).fold([0, 0], |sum, it| [sum[0] + it[0], sum[1] + it[1]]);
    assert_eq!(all, [80 * MIB as u64; 2]);

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
    let mut by_client = BytesById::new();
    for (number, run) in runs.iter().enumerate() {
        let sums = by_client.entry(id_of(&mounts[number % 2])).or_default();
        sums.iter_mut().zip(bytes(run)).for_each(|(sum, bytes)| *sum += bytes);
    }
    let by_user = runs.iter().map(|run| (run.user.to_string(), bytes(run))).collect();
    let by_job = runs.iter().map(|run| (run.job.to_string(), bytes(run))).collect();
    live.into_iter().zip([by_user, by_job, by_client]).for_each(|(it, bytes)| it.check(&bytes));

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
                let is_equal = (found - rate).abs() < 0.01;
                assert!(is_equal, "{field} {query} at {at}: {found} instead of {rate}");
            }
        }
    }
    mounts.into_iter().for_each(|mount| mount.unmount());
    cluster.stop();
}
