//! Compares the statistics of the services, of the live output and of the monitor with the results
//! of `skep bench io`.

use super::bench_runs::{
    TRANSFER, bench_as_users, bytes_of, client_at, create_for_users, program_for_users, runs_by_ids,
};
use super::each_second::{check_live, is_near};
use super::live_figures::{FIELDS, LiveFigures};
use super::*;
use skep_testkit::files;
use skep_testkit::lab::Lab;
use skep_testkit::process::below;

/// Maximum difference in bytes between the totals of two groupings (such as users and jobs) for the
/// same second. A service takes its snapshot while the threads of its targets count transfers. So a
/// snapshot may include the last transfer of a thread in one grouping, but not in another. Each
/// service has two targets.
const AT_SNAPSHOT: u64 = 4 * TRANSFER;

/// The client hosts of the lab, in the order of [`runs_by_ids`].
const CLIENTS: [&str; 2] = ["c1", "c2"];

/// Rate of the link of each client host in bytes per second, in each direction.
const LINK: f64 = 8e6;

/// Returns the rate in bytes per second for each second of the monitor's history. `field` is the
/// key of the list of rates in the reply to `/api/history`. The keys of the returned map are the
/// times of the seconds.
fn seconds_of(address: &str, query: &str, field: &str) -> BTreeMap<u64, f64> {
    let history = get(address, &format!("/api/history?{query}&span=300&points=300"));
    let at = history["at"].list().iter().map(Typed::number);
    let rates = history[field].list().iter().map(Value::as_f64);
    at.zip(rates).filter_map(|(at, rate)| Some((at, rate?))).collect()
}

/// Four users on two mounts write and read at two storage services with `skep bench io`. The
/// numbers of the services, of the live output and of the monitor must differ from the benchmarks
/// by less than 3 %. In each second, the live output must also agree with the benchmarks. In each
/// second, the sums over all users, all jobs and all clients must be equal, except for transfers
/// that end while the services read their counters.
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
    create_for_users(&mounts[0].path().join("all"));
    let stats = || {
        let mut command = Command::new(cluster::program());
        command.args(["stats", "--cluster"]).arg(cluster.data());
        command
    };
    let live = Vec::from(["user", "job", "client"].map(|by| LiveFigures::start(stats(), by)));
    let place = |number: usize| (Command::new("setpriv"), mounts[number % 2].path().join("all"));
    let runs = bench_as_users(&program_for_users(&scratch), (0..4).map(place).collect());
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
    let clients = cluster.skep_json(&["client", "list"]);
    let clients = [0, 1].map(|number| client_at(mounts[number].path(), &clients));
    check_live(live, &runs_by_ids(&runs, &clients));

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

/// Mounts the file system of a lab on a client host with the option `--job-accounting`. The new
/// mount replaces the mount of `skep lab up`, which does not have this option. `skep lab down`
/// removes the new mount even if the test fails. Returns the mount point.
fn mount_with_jobs(lab: &Lab, host: &str) -> PathBuf {
    run("umount", [lab.mount(host)]);
    let point = lab.mount(&format!("{host}-jobs"));
    files::create_dir(&point);
    let log = lab.directory().join("logs").join(format!("{host}-jobs.log"));
    let mut command = lab.command_in_network(host, &cluster::program());
    command.args(["mount", "--job-accounting", "--log-file"]).arg(log);
    command.arg("--token-file").arg(lab.token()).arg(&point);
    finish(&mut command, PATIENCE).expect_success();
    point
}

/// Four users on two client hosts write and read at two server hosts with `skep bench io`. Each
/// host is a network namespace, and the links of the clients limit the rates. In each second, the
/// live output by user, by job and by client must differ from the benchmarks by less than 3 %. The
/// sums over all users, over all jobs and over all clients must be equal, except for transfers that
/// end while the services read their counters. The kernel must have counted at least as many bytes
/// on the link of each client.
///
/// Command: skep stats.
#[test]
fn statistics_of_hosts_agree_with_bench_io_in_each_second() {
    let lab = Lab::new();
    let shape = ["--servers", "2", "--targets", "2", "--clients", "2", "--in-memory"];
    // Other programs may slow this machine down. The rates of the benchmarks and of the statistics
    // then decrease together, so all checks still hold.
    lab.call("up", &[&shape[..], &["--client-link", "64Mbit", "--force"]].concat())
        .expect_success();
    let mounts = CLIENTS.map(|host| mount_with_jobs(&lab, host));
    create_for_users(&mounts[0].join("all"));
    let skep = |words: &[&str]| {
        let mut command = lab.command_in_network("m1", &cluster::program());
        command.args(words).arg("--token-file").arg(lab.token());
        command
    };
    let live = ["user", "job", "client"].map(|by| LiveFigures::start(skep(&["stats"]), by));
    let scratch = Scratch::new();
    let place = |number: usize| {
        let command = lab.command_in_network(CLIENTS[number % 2], Path::new("setpriv"));
        (command, mounts[number % 2].join("all"))
    };
    let runs = bench_as_users(&program_for_users(&scratch), (0..4).map(place).collect());
    for phase in runs.iter().flat_map(|run| &run.phases) {
        let rate = phase.bytes as f64 / phase.seconds;
        assert!(rate < 1.05 * LINK, "a link of {LINK} bytes per second moved {rate}");
    }
    let list = finish(&mut skep(&["client", "list", "--output", "json"]), PATIENCE);
    let list: Value = serde_json::from_str(&list.expect_success()).expect("JSON");
    let clients = mounts.each_ref().map(|mount| client_at(mount, &list));
    let by_ids = runs_by_ids(&runs, &clients);
    check_live(Vec::from(live), &by_ids);

    let status = lab.json("status", &[]);
    for (host, client) in CLIENTS.iter().zip(&clients) {
        let found = status["hosts"].list().iter().find(|it| it["name"] == *host);
        let found = found.unwrap_or_else(|| panic!("{host} is missing: {status:#}"));
        let [written, read] = bytes_of(&by_ids[2][client]);
        assert!(found["sent_bytes"].number() >= written, "{written} {found}");
        assert!(found["received_bytes"].number() >= read, "{read} {found}");
    }
    run("umount", &mounts);
    wait_for("the processes of the mounts end", PATIENCE, || {
        below(&lab.directory().join("mnt")).is_empty().then_some(())
    });
    lab.call("down", &[]).expect_success();
    assert_eq!(lab.remains(), Vec::<String>::new());
}
