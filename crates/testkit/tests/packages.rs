//! The packages of `cargo xtask package`, with the program of this build: they are reproducible,
//! can be installed, work, and leave nothing when they are removed. The hosts have root directories
//! of their own, so this machine is not changed.

use skep_testkit::cluster::program;
use skep_testkit::page::{PageHost, PageNetwork};
use skep_testkit::program::{finish, run};
use skep_testkit::{Scratch, files};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Limit of one run of the packaging tools: the machine may be busy with other work.
const LONG: Duration = Duration::from_secs(300);

/// Builds all packages in a directory, and returns them in the order of their names.
fn build(directory: &Path, program: &Path) -> Vec<PathBuf> {
    let xtask = crate::program().with_file_name("xtask");
    assert!(xtask.exists(), "{} is not built: run `cargo build -p xtask`", xtask.display());
    let mut command = Command::new(xtask);
    command.arg("package").arg("--program").arg(program).arg("--directory").arg(directory);
    finish(command.env("SOURCE_DATE_EPOCH", "1700000000"), LONG).expect_success();
    let entries = files::read_dir(directory);
    let mut packages: Vec<_> = entries.map(|it| it.expect("an entry").path()).collect();
    packages.sort();
    packages
}

/// Returns all files of a host in the places where a package has files.
fn contents(host: &PageHost) -> BTreeSet<String> {
    let list = host.run("find /etc /usr -xdev").expect_success();
    list.lines().map(str::to_owned).collect()
}

/// Checks that the installed program and its files work.
fn check_installation(host: &PageHost) {
    let check = |line: &str| host.run(line).expect_success();
    assert!(check("skep --version").contains("skep 0."));
    for file in [
        "/usr/share/man/man1/skep-mount.1.gz",
        "/usr/share/man/man8/mount.skep.8.gz",
        "/usr/lib/systemd/system/skep-storage@.service",
        "/usr/lib/systemd/system/skep.target",
        "/usr/share/doc/skep/operations/several-hosts.md",
        "/usr/share/doc/skep/examples/mnt-skep.mount",
        "/usr/share/skep/dashboards/grafana/skep-overview.json",
        "/usr/share/skep/dashboards/prometheus/alerts.yml",
        "/usr/share/skep/deploy/user-data/skep-node.sh",
    ] {
        check(&format!("test -s {file}"));
    }
    check("gzip -t /usr/share/man/man1/*skep*.gz");
    check("bash -c '. /usr/share/bash-completion/completions/skep; complete -p skep'");
    assert_eq!(check("stat -c '%a %U' /usr/bin/skep").trim(), "755 root");
    // `mount` finds the helper, and the helper is the program.
    let refused = host.run("mount -t skep -o retry=0 nothing.invalid /mnt").expect_failure();
    assert!(refused.contains("skep: "), "{refused}");
}

#[test]
fn packages_are_reproducible_and_removed_completely() {
    let scratch = Scratch::new();
    let small = scratch.directory("program").join("skep");
    let shown = small.display().to_string();
    run("strip", ["-o", &shown, &program().display().to_string()]);
    let packages = build(&scratch.directory("one"), &small);
    let again = build(&scratch.directory("two"), &small);
    assert_eq!(packages.len(), 3, "{packages:?}");
    for (one, two) in packages.iter().zip(&again) {
        assert_eq!(one.file_name(), two.file_name());
        run("cmp", [one, two]);
    }
    let package = |end: &str| {
        let found = packages.iter().find(|it| it.display().to_string().ends_with(end));
        found.unwrap_or_else(|| panic!("no {end} in {packages:?}")).display().to_string()
    };

    let network = PageNetwork::new();
    let host = network.host("p", "10.0.0.1/24");
    host.run("rm -f /usr/bin/skep /sbin/mount.skep /sbin/mount.fuse.skep").expect_success();
    let before = contents(&host);
    let expect_unchanged = |what: &str| {
        let after = contents(&host);
        let differences: Vec<_> = before.symmetric_difference(&after).collect();
        assert!(differences.is_empty(), "{what}: {differences:?}");
    };

    host.run(&format!("dpkg --force-depends -i {}", package(".deb"))).expect_success();
    check_installation(&host);
    host.run("dpkg --purge skep").expect_success();
    expect_unchanged("after dpkg --purge");

    // The database of rpm is empty on Debian, so the C library is missing there.
    let rpm = "rpm --dbpath /srv/rpm";
    host.run(&format!("{rpm} --initdb; {rpm} -i --nodeps {}", package(".rpm"))).expect_success();
    check_installation(&host);
    let requires = host.run(&format!("{rpm} -q --requires skep")).expect_success();
    assert!(requires.contains("GLIBC_2."), "{requires}");
    host.run(&format!("{rpm} -e skep")).expect_success();
    expect_unchanged("after rpm -e");

    host.run(&format!("tar -C / -xf {}", package(".tar.gz"))).expect_success();
    check_installation(&host);
}
