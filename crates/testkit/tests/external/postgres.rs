//! PostgreSQL on a mount. During a PostgreSQL benchmark, the test kills Skep services, then the
//! PostgreSQL server, then the mount. No committed row may be lost, whichever mount the restarted
//! database uses.

use crate::text;
use skep_testkit::files;
use skep_testkit::process::Process;
use skep_testkit::program::{Finished, finish};
use skep_testkit::{Cluster, Scratch, Shape, Transport, wait_for};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Time limit of a step. The limit is longer than in other tests, because after a kill the database
/// recovers from its log.
const PATIENCE: Duration = Duration::from_secs(180);
/// User id of an unprivileged user, because PostgreSQL refuses to run as root.
const NOBODY: u32 = 65_534;

/// A PostgreSQL server: the directory of its programs, its data directory, and the directory for
/// its socket and logs.
struct Server<'a> {
    programs: PathBuf,
    data: PathBuf,
    local: &'a Path,
}

/// Returns the directory of PostgreSQL's programs. Searches Debian's directory first, and then
/// PATH.
fn programs() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let packaged = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let packaged: Vec<_> = packaged.map(|it| it.path().join("bin")).collect();
    let mut places = packaged.into_iter().chain(std::env::split_paths(&path));
    let found = places.find(|place| place.join("initdb").exists());
    found.expect("postgresql is installed")
}

impl Server<'_> {
    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        let packaged = self.programs.join(program);
        command.arg(if packaged.exists() { packaged } else { program.into() });
        command.args(arguments).current_dir(self.local);
        command.env("PGHOST", self.local).env("PGUSER", "postgres").env("PGDATABASE", "postgres");
        command
    }

    fn run(&self, program: &str, arguments: &[&str]) -> String {
        finish(&mut self.command(program, arguments), PATIENCE).expect_success()
    }

    fn control(&self, arguments: &[&str]) -> Finished {
        finish(
            &mut self.command("pg_ctl", &[&["-D", text(&self.data)], arguments].concat()),
            PATIENCE,
        )
    }

    /// Starts the server. `at` is the path of the data directory. This path may lead through a
    /// different mount than the path of the previous start.
    fn start(&mut self, at: PathBuf) {
        self.data = at;
        // These files contain the process id of a killed process. PostgreSQL would refuse to start
        // if another process has this id now.
        fs::remove_file(self.data.join("postmaster.pid")).ok();
        fs::remove_file(self.local.join(".s.PGSQL.5432.lock")).ok();
        let options = format!("-c listen_addresses= -k {}", text(self.local));
        let log = self.local.join("postgres.log");
        let started = self.control(&["-w", "-t", "120", "-o", &options, "-l", text(&log), "start"]);
        if !started.status.success() {
            panic!("{started:?}\n{}", fs::read_to_string(log).unwrap_or_default());
        }
    }

    fn stop(&self) {
        self.control(&["-w", "-m", "fast", "stop"]).expect_success();
    }

    fn postmaster(&self) -> u32 {
        let file = files::read_to_string(self.data.join("postmaster.pid"));
        file.lines().next().and_then(|line| line.parse().ok()).expect("the id of the process")
    }

    fn query(&self, query: &str) -> String {
        self.run("psql", &["--no-psqlrc", "-At", "-c", query]).trim().to_owned()
    }

    /// Starts a benchmark of at most `seconds` seconds. The benchmark ends early if the test kills
    /// the server.
    fn benchmark(&self, seconds: &str) -> Child {
        let mut command = self.command("pgbench", &["-n", "-c", "4", "-j", "2", "-T", seconds]);
        command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("pgbench starts")
    }

    fn transactions(&self) -> u64 {
        self.query("select count(*) from pgbench_history").parse().expect("a number")
    }

    /// Checks the tables, and returns the number of transactions. The sums in the tables must be
    /// equal, because every transaction changes all sums by the same amount. The tables must also
    /// match their indexes.
    fn check(&self) -> u64 {
        let sums = "select (select sum(abalance) from pgbench_accounts), \
                    (select sum(bbalance) from pgbench_branches), \
                    (select sum(tbalance) from pgbench_tellers), \
                    (select coalesce(sum(delta), 0) from pgbench_history)";
        let sums = self.query(sums);
        let sums: Vec<_> = sums.split('|').collect();
        assert!(sums.iter().all(|it| *it == sums[0]), "{sums:?}");
        self.query("create extension if not exists amcheck");
        self.run("pg_amcheck", &["--heapallindexed", "--all"]);
        self.transactions()
    }
}

/// Returns the number of transactions that the server acknowledged as committed.
fn acknowledged(benchmark: Child) -> u64 {
    let output = benchmark.wait_with_output().expect("our own child");
    let printed = String::from_utf8_lossy(&output.stdout);
    let line = printed.lines().find_map(|line| line.split_once("actually processed: "));
    let number = line.and_then(|(_, it)| it.split(['/', ' ']).next()?.parse().ok());
    number.unwrap_or_else(|| panic!("no result:\n{printed}"))
}

/// Kills a process and its child processes with SIGKILL.
fn kill_tree(root: u32) {
    let mut found = vec![root];
    for entry in files::read_dir("/proc").flatten() {
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // In `/proc/PID/stat`, the process name may contain any bytes, also spaces and parentheses.
        // The state and the parent process id follow the name.
        let parent = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1));
        if parent == Some(&root.to_string()) {
            found.extend(entry.file_name().to_str().and_then(|it| it.parse::<u32>().ok()));
        }
    }
    let numbers: Vec<_> = found.iter().map(u32::to_string).collect();
    finish(Command::new("kill").arg("-9").args(&numbers), PATIENCE);
    wait_for("the killed processes have ended", PATIENCE, || {
        let is_gone = |number: &String| {
            let status = fs::read_to_string(format!("/proc/{number}/status")).unwrap_or_default();
            status.is_empty() || status.contains("State:\tZ")
        };
        numbers.iter().all(is_gone).then_some(())
    });
}

pub(crate) fn postgres_loses_no_committed_row_after_kills(_: &()) {
    let mut cluster = Cluster::start(Shape::default());
    let second = cluster.mount(Transport::Device);
    let scratch = Scratch::new();
    for path in
        [scratch.path(), cluster.data().parent().expect("the cluster has a directory above it")]
    {
        files::set_permissions(path, Permissions::from_mode(0o755));
    }
    let local = scratch.directory("local");
    let here = cluster.path().join("base");
    files::create_dir(&here);
    for path in [&local, &here] {
        files::chown(path, Some(NOBODY), Some(NOBODY));
    }
    let there = second.path().join("base");
    let mut server = Server { programs: programs(), data: here.clone(), local: &local };
    server.run("initdb", &["-D", text(&here), "-U", "postgres", "-A", "trust", "--data-checksums"]);
    server.start(here.clone());
    server.run("pgbench", &["-i", "-q", "-s", "2"]);

    // Kill services of the cluster. This kill may delay the database, but must not cause an error.
    let benchmark = server.benchmark("15");
    for role in ["storage", "metadata"] {
        let before = server.transactions();
        cluster.processes(role).iter().take(1).for_each(Process::kill);
        wait_for("the benchmark continues", PATIENCE, || {
            (server.transactions() > before + 20).then_some(())
        });
    }
    let done = acknowledged(benchmark);
    assert_eq!(server.check(), done);

    // Kill the server, and restart the server on the other mount.
    let benchmark = server.benchmark("120");
    wait_for("the benchmark runs", PATIENCE, || (server.transactions() > done + 300).then_some(()));
    kill_tree(server.postmaster());
    let committed = done + acknowledged(benchmark);
    server.start(there.clone());
    let found = server.check();
    assert!(
        (committed..=committed + 4).contains(&found),
        "{committed} transactions were acknowledged, the database has {found}"
    );

    // Kill the mount that the server uses, and restart the server on the first mount.
    let benchmark = server.benchmark("120");
    wait_for("the benchmark runs", PATIENCE, || {
        (server.transactions() > found + 300).then_some(())
    });
    let postmaster = server.postmaster();
    second.kill();
    let committed = found + acknowledged(benchmark);
    kill_tree(postmaster);
    server.start(here.clone());
    let found = server.check();
    assert!(
        (committed..=committed + 4).contains(&found),
        "{committed} transactions were acknowledged, the database has {found}"
    );
    server.run("pg_dump", &["--file", text(&local.join("dump"))]);
    server.stop();
    server.run("pg_checksums", &["--check", "-D", text(&here)]);
    println!("{found} transactions");
    cluster.stop();
}
