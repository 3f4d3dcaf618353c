//! `skep debug bundle`: an archive of the state of a real cluster and of other hosts, without
//! secrets.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use skep_testkit::cluster::program;
use skep_testkit::page::PageNetwork;
use skep_testkit::program::{finish, run};
use skep_testkit::view::Typed;
use skep_testkit::{Cluster, Scratch, Shape, schema, wait_for};
use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Time limit for the start of a cluster, and for a bundle of several hosts. The limit is long,
/// because the machine may be busy with other work.
const LONG: Duration = Duration::from_secs(300);

fn files_below(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory").flatten() {
        match entry.path() {
            path if path.is_dir() => files_below(&path, found),
            path => found.push(path),
        }
    }
}

/// Writes a bundle to a directory, sends a signal to the command during its work, and checks that
/// the directory is empty. Before the fix, an incomplete bundle remained, and the next command with
/// the same file name failed. A service of the cluster must be suspended, so that the command does
/// not end before the signal.
fn interrupt_bundle(cluster: &Cluster, directory: &Path) {
    let file = directory.join("bundle.tar");
    let mut bundle = Command::new(program());
    bundle.args(["debug", "bundle", "--cluster"]).arg(cluster.data()).arg("--file").arg(&file);
    let mut bundle = bundle.stdout(Stdio::null()).spawn().expect("skep can be started");
    let entries = || fs::read_dir(directory).expect("a directory").count();
    wait_for("the command writes the bundle", LONG, || (entries() > 0).then_some(()));
    assert!(!file.exists(), "the incomplete bundle already has its name");
    // The parent of the test may ignore SIGINT, and then the command would ignore Ctrl-C too.
    kill_process(Pid::from_child(&bundle), Signal::TERM).expect("the command runs");
    let status = wait_for("the command ends", LONG, || bundle.try_wait().expect("our own child"));
    assert_eq!(status.signal(), Some(Signal::TERM.as_raw()), "{status}");
    assert_eq!(entries(), 0, "a part of the bundle remains");
}

/// Command: skep debug bundle.
#[test]
fn debug_bundle_has_map_metrics_and_logs_but_no_secret() {
    let cluster = Cluster::start(Shape::small());
    let scratch = Scratch::new();
    let token = fs::read_to_string(cluster.data().join("management/join-token")).unwrap();
    let secret = token.split('@').next().unwrap().rsplit('-').next().unwrap().to_owned();
    let log = cluster.data().join("logs/management.log");
    let mut log = fs::OpenOptions::new().append(true).open(log).unwrap();
    writeln!(log, "planted: {} and {secret}", token.trim()).unwrap();
    let file = scratch.path().join("bundle.tar");
    let file_text = file.to_str().expect("UTF-8");
    // Suspend a service, because administrators most need a bundle while a service does not reply.
    let stopped = &cluster.processes("storage")[0];
    stopped.signal(Signal::STOP);
    // Each command of the bundle waits some seconds for the suspended service.
    let mut bundle = Command::new(program());
    bundle.args(["debug", "bundle", "--file", file_text, "--output", "json", "--cluster"]);
    let printed = finish(bundle.arg(cluster.data()), LONG);
    interrupt_bundle(&cluster, &scratch.directory("interrupted"));
    stopped.signal(Signal::CONT);
    let printed: Value = serde_json::from_str(&printed.expect_success()).unwrap();
    schema::check("debug-bundle", &printed);
    let again = cluster.try_skep(&["debug", "bundle", "--file", file_text]);
    assert!(again.expect_failure().contains("the file exists"));

    let place = scratch.directory("unpacked");
    run("tar", ["xf", file_text, "-C", place.to_str().expect("UTF-8")]);
    let mut files = Vec::new();
    files_below(&place, &mut files);
    assert_eq!(files.len(), printed["members"].list().len());
    for path in &files {
        let text = fs::read_to_string(path).unwrap();
        assert!(!text.contains(&secret), "{} has the secret", path.display());
    }
    let read = |end: &str| {
        let path = files.iter().find(|path| path.ends_with(end));
        fs::read_to_string(path.unwrap_or_else(|| panic!("{end} is missing: {files:?}"))).unwrap()
    };
    let targets: Value = serde_json::from_str(&read("commands/target-list.json")).unwrap();
    assert_eq!(targets.list().len(), 3);
    assert!(read("commands/health-check.json").contains("storage-1"));
    assert!(read("commands/stats-node.json").contains("metadata-1"));
    assert!(read("metrics/missing.txt").contains("storage-1"));
    let has = |part: &str, words: &str| {
        let mut meant = files.iter().filter(|path| path.to_string_lossy().contains(part));
        meant.any(|path| fs::read_to_string(path).unwrap().contains(words))
    };
    assert!(has("-metadata-1.ndjson", "\"skep_metadata_recovery_seconds\""), "{files:?}");
    assert!(has("-metadata-1.ndjson", "\"process_open_fds\""), "{files:?}");
    assert!(has("host/metrics/mount-", "\nskep_mount_operations_total{"), "{files:?}");
    let why: Value = serde_json::from_str(&read("commands/why.json")).unwrap();
    schema::check("why", &why);
    assert_eq!(printed["hosts"].list().len(), 0);
    assert_eq!(printed["missing_hosts"].list().len(), 0, "all services run on this host");
    assert!(read("logs/management.log").contains("planted: skep1-[removed]"));
    assert!(read("host/proc/meminfo").contains("MemTotal"));
    cluster.stop_checked(&[]);
}

/// Command: skep debug bundle.
#[test]
fn debug_bundle_has_archives_of_other_hosts() {
    let network = PageNetwork::new();
    let admin = network.host("admin", "10.0.0.99/24");
    admin
        .run(
            "rm -rf ~root/.ssh; mkdir -m 700 ~root/.ssh\n\
             ssh-keygen -q -t ed25519 -N '' -f ~root/.ssh/id_ed25519\n\
             printf 'StrictHostKeyChecking accept-new\nUser root\n' >~root/.ssh/config",
        )
        .expect_success();
    let key = admin.run("cat ~root/.ssh/id_ed25519.pub").expect_success();
    let up = "skep up --detach --no-mount --data-dir /srv/data";
    finish(&mut admin.shell(up), LONG).expect_success();
    let token = admin.run("cat /srv/data/management/join-token").expect_success();
    let secret = token.split('@').next().unwrap().rsplit('-').next().unwrap().to_owned();
    let mut other = network.host("s1", "10.0.0.1/24");
    other
        .run(&format!(
            "rm -rf /var/log/skep; mkdir -p /var/log/skep /etc/skep\n\
             echo 'planted: {secret}' >/var/log/skep/mount-a.log\n\
             echo 'password = \"planted-password\"' >/etc/skep/storage-a.toml"
        ))
        .expect_success();
    other.serve_ssh(&key);
    let bundle = "skep debug bundle --cluster /srv/data --file /srv/bundle.tar --output json \
                  --ssh 10.0.0.1,10.0.0.2";
    let printed = finish(&mut admin.shell(bundle), LONG).expect_success();
    let printed: Value = serde_json::from_str(&printed).unwrap();
    schema::check("debug-bundle", &printed);
    let hosts = printed["hosts"].list();
    assert_eq!((hosts.len(), &hosts[0]["problem"]), (2, &Value::Null), "{hosts:?}");
    let problem = hosts[1]["problem"].text();
    assert!(problem.contains("cannot reach host 10.0.0.2 by ssh"), "{problem}");
    let unpack = "mkdir /srv/all /srv/one; tar xf /srv/bundle.tar -C /srv/all\n\
                  tar xf /srv/all/*/hosts/10.0.0.1.tar -C /srv/one";
    admin.run(unpack).expect_success();
    let log = admin.run("cat /srv/one/*/logs/mounts/*").expect_success();
    assert!(log.starts_with("planted: xxxx"), "{log}");
    let settings = admin.run("cat /srv/one/*/settings/storage-a.toml").expect_success();
    assert!(settings.contains("password") && !settings.contains("planted"), "{settings}");
    admin.run("grep MemTotal /srv/one/*/host/proc/meminfo").expect_success();
    let search = format!("! grep -r {secret} /srv/all /srv/one");
    admin.run(&search).expect_success();
    finish(&mut admin.shell("skep down --data-dir /srv/data"), LONG).expect_success();
}
