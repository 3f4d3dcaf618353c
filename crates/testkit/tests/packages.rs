//! The packages that `cargo xtask package` builds, with the program of this build. The packages
//! must be reproducible, the installed program must work, and a removal must leave no files. The
//! hosts of the tests have separate root directories, so the tests do not change this machine.
//!
//! The test `external::static_program` covers the static program in the tarball, because building
//! that program takes minutes. The test of reproducible packages compresses the packages as a
//! release does. The other tests compress with the least effort (`--fast`), because such a
//! compression takes seconds instead of a minute.

use serde_json::Value;
use skep_testkit::cluster::program;
use skep_testkit::page::{PageHost, PageNetwork, blocks_of};
use skep_testkit::program::{clean_up, finish, run};
use skep_testkit::view::Typed;
use skep_testkit::{PATIENCE, Scratch, files, wait_for};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Time limit for one run of the tools that build packages. The limit is long, because the machine
/// may be busy with other work.
const LONG: Duration = Duration::from_secs(900);
const PAGE: &str = include_str!("../../../docs/operations/installing.md");
const MONITORING: &str = include_str!("../../../docs/operations/monitoring.md");

/// Commands that create an archive for `apt` on a host. The archive contains empty packages with
/// the names of packages of other projects. Their version is 0, so `apt` keeps a real package that
/// is installed on the host. `apt` is set to continue without a question to the user.
const ARCHIVE: &str = "\
rm -rf /etc/apt/sources.list*
mount -t tmpfs tmpfs /run
mkdir /srv/archive /srv/home
mkdir -p /srv/prometheus/etc/prometheus
mkdir -p /srv/grafana/etc/grafana/provisioning/dashboards
mkdir -p /srv/grafana/etc/grafana/provisioning/datasources
for name in prometheus grafana; do
  mkdir /srv/$name/DEBIAN
  { echo Package: $name; echo Version: 0; echo Architecture: all
    echo 'Maintainer: Test <test@skep.example>'; echo Description: stand-in
  } >/srv/$name/DEBIAN/control
  dpkg-deb --build /srv/$name /srv/archive/$name.deb
done
cd /srv/archive
apt-ftparchive packages . >Packages
echo 'deb [trusted=yes] file:/srv/archive ./' >/etc/apt/sources.list
echo 'APT::Get::Assume-Yes \"true\";' >/etc/apt/apt.conf.d/90test
apt-get update
";

/// A script that replaces `systemctl`. When a service restarts, the script stores a copy of the
/// settings that this service reads.
const SYSTEMCTL: &str = r#"#!/bin/sh
set -e
[ "$1" = restart ]
case $2 in
  prometheus) settings=/etc/prometheus ;;
  grafana-server) settings=/etc/grafana/provisioning ;;
esac
rm -rf /srv/read-by-$2
cp -r $settings /srv/read-by-$2
"#;

/// Runs `cargo xtask package` with the program `program`. `SKEP_XTASK` is the path of `xtask`. By
/// default, `xtask` is beside the program `skep`.
fn build(directory: &Path, program: &Path, set: impl FnOnce(&mut Command)) {
    let beside = || crate::program().with_file_name("xtask");
    let xtask = std::env::var_os("SKEP_XTASK").map_or_else(beside, PathBuf::from);
    assert!(xtask.exists(), "{} is not built: run `cargo build -p xtask`", xtask.display());
    let mut command = Command::new(xtask);
    command.arg("package").arg("--program").arg(program).arg("--directory").arg(directory);
    set(&mut command);
    finish(command.env("SOURCE_DATE_EPOCH", "1700000000"), LONG).expect_success();
}

/// Returns the files of a directory in the order of their names.
fn list(directory: &Path) -> Vec<PathBuf> {
    let entries = files::read_dir(directory);
    let mut packages: Vec<_> = entries.map(|it| it.expect("an entry").path()).collect();
    packages.sort();
    packages
}

/// Returns a copy of the program from which the symbols are stripped.
fn small_program(scratch: &Scratch) -> PathBuf {
    let small = scratch.directory("program").join("skep");
    run("strip", ["-o", &small.display().to_string(), &program().display().to_string()]);
    small
}

/// Starts a host on which Skep is not installed.
fn host_without_program(network: &PageNetwork, name: &str, address: &str) -> PageHost {
    let host = network.host(name, address);
    host.run("rm -f /usr/bin/skep /sbin/mount.skep /sbin/mount.fuse.skep /sbin/umount.fuse.skep")
        .expect_success();
    host
}

/// Returns the paths of all files on a host that are in directories into which a package installs
/// files. Omits the lock file and the backup copies of the user database. These files exist since
/// the creation of the user, and a removal of the package does not remove the user.
fn contents(host: &PageHost) -> BTreeSet<String> {
    let find = "find /etc /usr -xdev ! -path '/etc/*-' ! -path /etc/.pwd.lock";
    let list = host.run(find).expect_success();
    list.lines().map(str::to_owned).collect()
}

/// Checks that a host has exactly the files in `before`.
fn expect_unchanged(host: &PageHost, before: &BTreeSet<String>, what: &str) {
    let after = contents(host);
    let differences: Vec<_> = before.symmetric_difference(&after).collect();
    assert!(differences.is_empty(), "{what}: {differences:?}");
}

/// Checks that the installed program and its files work.
fn check_installation(host: &PageHost, prefix: &str) {
    let check = |line: &str| host.run(line).expect_success();
    assert!(check("PATH=/usr/local/bin:$PATH skep --version").contains("skep 0."));
    for file in [
        "share/man/man1/skep-mount.1.gz",
        "share/man/man8/mount.skep.8.gz",
        "lib/systemd/system/skep-storage@.service",
        "lib/systemd/system/skep.target",
        "lib/sysusers.d/skep.conf",
        "share/doc/skep/operations/several-hosts.md",
        "share/doc/skep/examples/mnt-skep.mount",
        "share/skep/dashboards/grafana/skep-overview.json",
        "share/skep/dashboards/prometheus/alerts.yml",
        "share/skep/deploy/user-data/skep-node.sh",
    ] {
        check(&format!("test -s {prefix}/{file}"));
    }
    check(&format!("gzip -t {prefix}/share/man/man1/*skep*.gz"));
    let completion = format!("{prefix}/share/bash-completion/completions/skep");
    check(&format!("bash -c '. {completion}; complete -p skep'"));
    assert_eq!(check(&format!("stat -c '%a %U' {prefix}/bin/skep")).trim(), "755 root");
    // The user of the services cannot log in.
    let user = check("grep ^skep: /etc/passwd");
    assert!(user.trim_end().ends_with(":/usr/sbin/nologin"), "{user}");
    check("test -L /sbin/umount.fuse.skep -o -L /usr/sbin/umount.fuse.skep");
    // mount(8) must find the helper. The helper is a link to the program.
    let refused = host.run("mount -t skep -o retry=0 nothing.invalid /mnt").expect_failure();
    assert!(refused.contains("skep: "), "{refused}");
}

#[test]
fn packages_are_reproducible_and_removed_completely() {
    let scratch = Scratch::new();
    let small = small_program(&scratch);
    let (one, two) = (scratch.directory("one"), scratch.directory("two"));
    build(&one, &small, |_| ());
    build(&two, &small, |_| ());
    let packages = list(&one);
    assert_eq!(packages.len(), 3, "{packages:?}");
    for (one, two) in packages.iter().zip(&list(&two)) {
        assert_eq!(one.file_name(), two.file_name());
        run("cmp", [one, two]);
    }
    let package = |end: &str| {
        let found = packages.iter().find(|it| it.display().to_string().ends_with(end));
        found.unwrap_or_else(|| panic!("no {end} in {packages:?}")).display().to_string()
    };

    let network = PageNetwork::new();
    let mut host = host_without_program(&network, "p", "10.0.0.1/24");
    let before = contents(&host);
    let unpack = format!("tar -C /srv -xf {}; mv /srv/skep-0* /srv/skep", package(".tar.gz"));
    host.run(&unpack).expect_success();

    host.run(&format!("dpkg --force-depends -i {}", package(".deb"))).expect_success();
    check_installation(&host, "/usr");
    install_script_respects_a_package(&host);
    host.run("dpkg --purge skep").expect_success();
    expect_unchanged(&host, &before, "after dpkg --purge");
    // Without systemd, the package creates the user by another program.
    host.run("userdel skep; rm /usr/bin/systemd-sysusers").expect_success();
    let before = contents(&host);

    // Use `--nodeps`, because on Debian the database of rpm is empty and does not list the C
    // library.
    let rpm = "rpm --dbpath /srv/rpm";
    host.run(&format!("{rpm} --initdb; {rpm} -i --nodeps {}", package(".rpm"))).expect_success();
    check_installation(&host, "/usr");
    let requires = host.run(&format!("{rpm} -q --requires skep")).expect_success();
    assert!(requires.contains("GLIBC_2."), "{requires}");
    host.run(&format!("{rpm} -e skep")).expect_success();
    expect_unchanged(&host, &before, "after rpm -e");

    host.run("/srv/skep/install.sh").expect_success();
    check_installation(&host, "/usr/local");
    install_script_upgrades_under_a_service(&mut host);
    host.run("/usr/local/share/skep/install.sh --uninstall").expect_success();
    expect_unchanged(&host, &before, "after install.sh --uninstall");
    install_script_fails_without_remains(&host, &before);
}

/// The install script must not replace files of an installed package.
fn install_script_respects_a_package(host: &PageHost) {
    let before = contents(host);
    for prefix in ["/usr", "/usr/local"] {
        let install = format!("/srv/skep/install.sh --prefix {prefix}");
        let refused = host.run(&install).expect_failure();
        assert!(refused.contains("these files exist already"), "{refused}");
        assert!(refused.contains("  /sbin/mount.skep\n"), "{refused}");
        expect_unchanged(host, &before, "after a refused installation");
    }
}

/// A second run of the install script must replace the program while it is running, and must remove
/// files of the previous version.
fn install_script_upgrades_under_a_service(host: &mut PageHost) {
    let works = |host: &PageHost, command: &str| host.run(command).expect_success();
    let unit = "/usr/local/lib/systemd/system/skep-management@.service";
    let start = works(host, &format!("sed -n 's/^ExecStart=//p' {unit}")).replace("%i", "a");
    assert!(start.starts_with("/usr/local/bin/skep management"), "{start}");
    works(host, "mkdir -m 700 /etc/skep; printf '[node]\\ndirectory = \"/srv/m\"\\n' >/srv/m.toml");
    works(host, "cp /srv/m.toml /etc/skep/management-a.toml");
    works(host, &start.replace(" --config", " --init --config"));
    host.start(&start);
    let log = host.log();
    wait_for("management serves", PATIENCE, || {
        files::read_to_string(&log).contains(" serves ").then_some(())
    });
    works(host, "cp -a /srv/skep /srv/new; cd /srv/new/share; mv skep/dashboards doc/skep");
    works(host, "/srv/new/install.sh");
    works(host, "test -s /usr/local/share/doc/skep/dashboards/prometheus/alerts.yml");
    host.run("ls /usr/local/share/skep/dashboards/prometheus/alerts.yml").expect_failure();
    works(host, "/usr/local/bin/skep cluster token --cluster /srv/m");
    host.stop();
    works(host, "rm -r /etc/skep");
}

/// An installation that has failed on a full file system can be removed. For users other than root,
/// the script installs no system files.
fn install_script_fails_without_remains(host: &PageHost, before: &BTreeSet<String>) {
    let works = |command: &str| host.run(command).expect_success();
    works("mkdir /mnt/small; mount -t tmpfs -o size=2m tmpfs /mnt/small");
    let failed = host.run("/srv/skep/install.sh --prefix /mnt/small").expect_failure();
    assert!(failed.contains("No space left on device"), "{failed}");
    works("/srv/skep/install.sh --uninstall --prefix /mnt/small");
    assert_eq!(works("find /mnt/small -mindepth 1"), "");
    works("umount /mnt/small; rmdir /mnt/small");

    let user = "setpriv --reuid 65534 --regid 65534 --clear-groups";
    works("install -d -o 65534 /srv/home");
    let install = format!("{user} /srv/skep/install.sh --prefix /srv/home/skep");
    let refused = host.run(&install).expect_failure();
    assert!(refused.contains("not root") && refused.contains("--no-system"), "{refused}");
    works(&format!("{install} --no-system; {user} /srv/home/skep/bin/skep --version"));
    works(&format!("{user} /srv/home/skep/share/skep/install.sh --uninstall"));
    assert_eq!(works("find /srv/home -mindepth 1"), "");
    expect_unchanged(host, before, "after installations elsewhere");
}

/// Finds the first line of a file in which `key` follows only spaces, and returns the rest of this
/// line.
fn value_in<'a>(settings: &'a str, key: &str) -> &'a str {
    let mut lines = settings.lines().map(str::trim);
    let value = lines.find_map(|line| line.strip_prefix(key));
    value.unwrap_or_else(|| panic!("no '{key}' in {settings}")).trim()
}

/// The settings that Prometheus reads lead to the pages of all servers.
fn check_prometheus(host: &PageHost) {
    let works = |commands: &str| host.run(commands).expect_success();
    let parse = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
    let settings = works("cat /srv/read-by-prometheus/prometheus.yml");
    assert!(settings.contains("\n  - alerts.yml\n"), "{settings}");
    works("test -s /srv/read-by-prometheus/alerts.yml");
    let list = value_in(&settings, "- url:");
    let nodes = parse(&works("cd /srv/home; skep node list --output json"));
    let servers = nodes.list().iter().filter(|node| node["kind"] != "client");
    let servers: BTreeSet<_> = servers.map(|node| node["name"].text().to_owned()).collect();
    assert!(servers.len() > 2, "{servers:?}");
    let pages = wait_for("the monitor lists the pages of all servers", PATIENCE, || {
        let listed = host.run(&format!("curl -fs {list}"));
        let groups = parse(Some(listed.stdout.as_str()).filter(|it| !it.is_empty())?);
        let names = groups.list().iter().map(|it| it["labels"]["skep_name"].text().to_owned());
        (names.collect::<BTreeSet<_>>() == servers).then_some(groups)
    });
    for page in pages.list().iter().flat_map(|group| group["targets"].list()) {
        let page = works(&format!("curl -fs http://{}/metrics", page.text()));
        assert!(page.contains("skep_node_info{"), "{page}");
    }
    let monitor = value_in(&settings, "- targets: [\"").trim_end_matches("\"]");
    let page = works(&format!("curl -fs http://{monitor}/metrics"));
    assert!(page.ends_with("# EOF\n"), "{page}");
}

/// The settings that Grafana reads name the dashboards and Prometheus.
fn check_grafana(host: &PageHost) {
    let works = |commands: &str| host.run(commands).expect_success();
    let settings = works("cat /srv/read-by-grafana-server/dashboards/skep.yml");
    assert_eq!(value_in(&settings, "folder:"), "Skep");
    let place = value_in(&settings, "path:");
    let names = works(&format!("ls {place}"));
    assert_eq!(names.lines().count(), 6, "{names}");
    for name in names.lines() {
        let dashboard: Value =
            serde_json::from_str(&works(&format!("cat {place}/{name}"))).expect("JSON");
        assert!(dashboard["title"].text().starts_with("Skep: "), "{name}");
    }
    let settings = works("cat /srv/read-by-grafana-server/datasources/skep.yml");
    assert_eq!(value_in(&settings, "url:"), "http://localhost:9090", "the port of Prometheus");
}

/// The five commands on the page work unchanged. In this test, Prometheus and Grafana are empty
/// packages. The test reads the settings that these programs would read. `external::prometheus` has
/// a real Prometheus.
///
/// Page: docs/operations/monitoring.md
#[test]
fn five_documented_commands_set_up_dashboards() {
    let (scratch, network) = (Scratch::new(), PageNetwork::new());
    let (small, built) = (small_program(&scratch), scratch.directory("built"));
    build(&built, &small, |command| {
        command.args(["--fast", "--forms", "deb"]);
    });
    let host = host_without_program(&network, "server", "10.0.0.1/24");
    let works = |commands: &str| finish(&mut host.shell(commands), LONG).expect_success();
    works(ARCHIVE);
    let systemctl = "rm -f /usr/bin/systemctl; cat >/usr/bin/systemctl <<'END'";
    works(&format!("{systemctl}\n{SYSTEMCTL}END\nchmod 755 /usr/bin/systemctl"));
    let packages = list(&built);
    assert_eq!(packages.len(), 1, "{packages:?}");
    works(&format!("cp {} /srv/home", packages[0].display()));
    // The program `command_pages` runs the blocks of the host `monitor`.
    let blocks = blocks_of(MONITORING, "server");
    assert_eq!(blocks.len(), 1, "{blocks:?}");
    assert_eq!(blocks[0].commands.lines().count(), 5);
    println!("{}", works(&format!("cd /srv/home\n{}", blocks[0].commands)));
    check_prometheus(&host);
    check_grafana(&host);
    works("cd /srv/home; skep down");
}

/// A directory of GnuPG keys. Dropping this value ends the process that uses the keys.
struct Keys(Scratch);

impl Keys {
    fn new(user: &str) -> Self {
        let keys = Self(Scratch::new());
        let arguments = ["--batch", "--passphrase", "", "--quick-gen-key", user, "ed25519"];
        let mut gpg = Command::new("gpg");
        gpg.env("GNUPGHOME", keys.0.path()).args(arguments).args(["default", "never"]);
        finish(&mut gpg, PATIENCE).expect_success();
        keys
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        let mut end = Command::new("gpgconf");
        clean_up(end.env("GNUPGHOME", self.0.path()).args(["--kill", "all"]));
    }
}

/// Installs an empty package that provides the dependencies of Skep's package. The installation
/// needs this package because the database of `rpm` is empty on Debian.
fn provide_c_library(host: &PageHost) {
    let spec = "Name: host\nVersion: 1\nRelease: 1\nSummary: Host\nLicense: None\n\
        BuildArch: noarch\nProvides: /bin/sh\nProvides: libc.so.6(GLIBC_2.34)(64bit)\n\
        %description\nThe host.\n%files\n";
    let build = "rpmbuild -bb --quiet --define '_topdir /srv/rpm' /srv/host.spec";
    host.run(&format!("printf %s '{spec}' >/srv/host.spec; {build}")).expect_success();
    host.run("rpm --initdb; rpm -i /srv/rpm/RPMS/noarch/host-1-1.noarch.rpm").expect_success();
}

/// Returns the installed version of Skep on the Debian host and on the RHEL host.
fn versions(debian: &PageHost, rhel: &PageHost) -> [String; 2] {
    let debian = debian.run("dpkg-query -W -f '${db:Status-Abbrev}${Version}' skep || true");
    let rhel = rhel.run("rpm -q --qf '%{VERSION}-%{RELEASE}' skep || true");
    [debian, rhel].map(|it| it.expect_success().trim().to_owned())
}

/// Returns the command blocks of the page that are only for the host `host`.
fn page_blocks<const COUNT: usize>(host: &str) -> [String; COUNT] {
    let commands: Vec<_> = blocks_of(PAGE, host).into_iter().map(|it| it.commands).collect();
    commands.try_into().unwrap_or_else(|found| panic!("blocks for {host}: {found:?}"))
}

/// Page: docs/operations/installing.md
#[test]
fn apt_and_dnf_install_upgrade_and_remove_the_packages() {
    let (scratch, keys) = (Scratch::new(), Keys::new("packages@skep.example"));
    let (small, network) = (small_program(&scratch), PageNetwork::new());
    let mut web = network.host("web", "10.0.0.1/24");
    let debian = host_without_program(&network, "debian", "10.0.0.2/24");
    let rhel = host_without_program(&network, "rhel", "10.0.0.3/24");
    debian.run("rm -rf /etc/apt/sources.list*; mkdir /etc/apt/sources.list.d").expect_success();
    provide_c_library(&rhel);
    for host in [&web, &debian, &rhel] {
        host.run("echo 10.0.0.1 packages.example >>/etc/hosts").expect_success();
    }
    let packages = scratch.directory("packages");
    let publish = |web: &PageHost, revision: &str| {
        build(&scratch.directory("built"), &small, |command| {
            command.args(["--fast", "--forms", "deb,rpm", "--revision", revision, "--repository"]);
            command.arg(&packages).args(["--sign", "packages@skep.example"]);
            command.env("GNUPGHOME", keys.0.path());
        });
        // Copy the packages to a new path. A host that has read a file of this machine does not get
        // subsequent changes of that file.
        let new = scratch.join(&format!("published-{revision}")).display().to_string();
        run("cp", ["-a", &packages.display().to_string(), &new]);
        let copy = format!("mkdir -p /srv/packages; cp -a {new}/. /srv/packages");
        web.run(&copy).expect_success();
    };
    let on = |host: &PageHost, commands: &str| {
        finish(&mut host.shell(commands), LONG).expect_success();
    };

    publish(&web, "1");
    let [serve] = page_blocks("web");
    web.start(&serve);
    wait_for("the repository is served", PATIENCE, || {
        let answer = web.run("curl -fs -o /srv/answer http://packages.example:8080/skep.asc");
        answer.status.success().then_some(())
    });
    let [install_deb, upgrade_deb, remove_deb] = page_blocks("debian");
    let [install_rpm, upgrade_rpm, remove_rpm] = page_blocks("rhel");
    on(&debian, &install_deb);
    on(&rhel, &install_rpm);
    assert_eq!(versions(&debian, &rhel), ["ii 0.1.0-1", "0.1.0-1"]);
    check_installation(&debian, "/usr");
    check_installation(&rhel, "/usr");
    publish(&web, "2");
    on(&debian, &upgrade_deb);
    on(&rhel, &upgrade_rpm);
    assert_eq!(versions(&debian, &rhel), ["ii 0.1.0-2", "0.1.0-2"]);
    on(&debian, &remove_deb);
    on(&rhel, &remove_rpm);
    for host in [&debian, &rhel] {
        host.run("ls /usr/bin/skep").expect_failure();
    }

    // `apt` and `dnf` must refuse lists of packages that were changed.
    let lists = "/srv/packages/apt/dists/stable/InRelease /srv/packages/rpm/repodata/repomd.xml";
    web.run(&format!("sed -i 's/^Label: Skep/Label: Other/; s/<revision>/&1/' {lists}"))
        .expect_success();
    let refused = debian.run("apt-get update 2>&1").stdout;
    assert!(refused.contains("BADSIG"), "{refused}");
    let refused = rhel.run("dnf install -y --refresh skep").expect_failure();
    assert!(refused.contains("signature") || refused.contains("GPG"), "{refused}");
}
