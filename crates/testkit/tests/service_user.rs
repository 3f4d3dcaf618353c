//! The services run as the user `skep` without root's rights, like the services that the shipped
//! systemd units start. Administrators work as root on the directories of the services. The test
//! host has no systemd, so the test runs the commands of the units with the same user and rights.

use serde_json::Value;
use skep_testkit::page::{PageHost, PageNetwork};
use skep_testkit::{PATIENCE, files, schema, wait_for};

const USER: &str = include_str!("../../../packaging/sysusers/skep.conf");
const MANAGEMENT: &str = include_str!("../../../packaging/systemd/skep-management@.service");
const METADATA: &str = include_str!("../../../packaging/systemd/skep-metadata@.service");
const STORAGE: &str = include_str!("../../../packaging/systemd/skep-storage@.service");
const MONITOR: &str = include_str!("../../../packaging/systemd/skep-monitor.service");
/// The directories of all services.
const DIRECTORIES: &str =
    "/srv/management /srv/metadata /srv/storage /srv/lib/monitor /disk1/metadata /disk2/storage";

/// Commands that write the settings of all services, as an administrator with a private umask.
const SETTINGS: &str = r#"umask 077
mkdir /etc/skep
cd /etc/skep
printf '[node]\ndirectory = "/srv/management"\n' >management-a.toml
printf 'targets = ["/disk1/metadata"]\n[node]\ndirectory = "/srv/metadata"\n' >metadata-a.toml
printf 'targets = ["/disk2/storage"]\n[node]\ndirectory = "/srv/storage"\n' >storage-a.toml
echo 'directory = "/srv/lib/monitor"' >monitor.toml
"#;

/// Returns the value of a setting of a unit, for the instance `a`.
fn setting(unit: &str, key: &str) -> String {
    let value = unit.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    value.unwrap_or_else(|| panic!("no {key} in {unit}")).replace("%i", "a")
}

fn works(host: &PageHost, commands: &str) -> String {
    host.run(commands).expect_success()
}

/// Creates a host with the user of the services, and with the settings of all services.
fn host_with_settings(network: &PageNetwork) -> PageHost {
    let host = network.host("all", "10.0.0.1/24");
    works(&host, &format!("id skep 2>/dev/null || systemd-sysusers - <<'END'\n{USER}END\n"));
    works(&host, SETTINGS);
    host
}

fn await_log(host: &PageHost, words: &str) {
    wait_for(&format!("the log has '{words}'"), PATIENCE, || {
        files::read_to_string(host.log()).contains(words).then_some(())
    });
}

/// Runs the command that the unit runs as root before the start of the service.
fn give(host: &PageHost, unit: &str) -> String {
    let command = setting(unit, "ExecStartPre");
    let command = command.strip_prefix('+').expect("systemd runs the command as root").to_owned();
    works(host, &format!("umask {}; {command}", setting(unit, "UMask")))
}

/// Starts a service as systemd does, and waits until its log contains `words`.
fn start(host: &mut PageHost, unit: &str, words: &str) {
    give(host, unit);
    let (user, group) = (setting(unit, "User"), setting(unit, "Group"));
    let capabilities = setting(unit, "CapabilityBoundingSet");
    assert_eq!(capabilities, "", "the service gets no capability");
    host.start(&format!(
        "setpriv --reuid {user} --regid {group} --clear-groups --bounding-set=-all \
         --inh-caps=-all --no-new-privs {}",
        setting(unit, "ExecStart")
    ));
    await_log(host, words);
}

/// Starts management, metadata and storage as their user, in directories that root has initialised.
fn start_servers(host: &mut PageHost) {
    works(host, "skep management --init --config /etc/skep/management-a.toml");
    // Simulate an older unit that has run management as root.
    host.start("skep management --config /etc/skep/management-a.toml");
    await_log(host, " serves ");
    host.stop();
    start(host, MANAGEMENT, " serves ");
    works(host, "umask 077; skep cluster token --cluster /srv/management >/etc/skep/token");
    for (kind, unit) in [("metadata", METADATA), ("storage", STORAGE)] {
        let config = format!("/etc/skep/{kind}-a.toml");
        works(host, &format!("skep {kind} --init --config {config} --token-file /etc/skep/token"));
        start(host, unit, " serves ");
    }
    works(host, "skep cluster format");
}

/// Command: skep management, skep metadata, skep storage, skep monitor.
#[test]
fn services_of_an_ordinary_user_store_files() {
    let network = PageNetwork::new();
    let mut host = host_with_settings(&network);
    start_servers(&mut host);
    start(&mut host, MONITOR, "the web page of the monitor is at");
    let use_mount = "mkdir -p /mnt/skep; skep mount --cluster 10.0.0.1 /mnt/skep\n\
                     head -c 3000000 /dev/urandom >/srv/data; cp /srv/data /mnt/skep/file\n\
                     chown 1234 /mnt/skep/file; stat -c %u /mnt/skep/file; skep umount /mnt/skep\n\
                     skep mount --cluster 10.0.0.1 /mnt/skep; cmp /srv/data /mnt/skep/file\n\
                     skep umount /mnt/skep";
    let printed = works(&host, use_mount);
    assert!(printed.lines().any(|line| line == "1234"), "{printed}");
    let large = works(&host, "find /disk2/storage -type f -size +500k | wc -l");
    assert_ne!(large.trim(), "0", "the data are in the directory of the target");
    let others = works(&host, &format!("find {DIRECTORIES} ! -user skep 2>&1 || true"));
    let others: Vec<_> = others.lines().filter(|line| !line.contains("No such file")).collect();
    assert_eq!(others, Vec::<&str>::new());
    // The settings and the directory of settings still belong to root.
    let settings = works(&host, "stat -c '%U %G %a' /etc/skep /etc/skep/storage-a.toml");
    assert_eq!(settings, "root skep 710\nroot skep 640\n");
    root_replaces_the_token(&host);
    host.stop();
    // A command of root has left a file in a directory of a service.
    works(&host, "touch /disk2/storage/of-root");
    assert!(give(&host, STORAGE).contains("Gave one file of the storage service"));
    works(&host, "rm /disk2/storage/of-root");
    assert!(give(&host, STORAGE).contains("belong to the user skep"));
}

/// Running services can read a token that root installs in their directories.
fn root_replaces_the_token(host: &PageHost) {
    let id = works(
        host,
        "skep token replace --directory /srv/management >/etc/skep/new-token; \
                          chmod 600 /etc/skep/new-token; \
                          skep token install --token-file /etc/skep/new-token \
                          --directory /srv/storage; stat -c %U /srv/storage/join-token",
    );
    assert!(id.ends_with("skep\n"), "{id}");
    works(host, "mv /etc/skep/new-token /etc/skep/token");
    wait_for("the services accept the new token", PATIENCE, || {
        host.run("skep node list").status.success().then_some(())
    });
}

/// Command: skep storage.
#[test]
fn only_root_can_give_directories_to_an_existing_user() {
    let network = PageNetwork::new();
    let host = host_with_settings(&network);
    works(&host, "skep management --init --config /etc/skep/management-a.toml");
    let give = "skep management --config /etc/skep/management-a.toml --give-to";
    let unknown = host.run(&format!("{give} missing")).expect_failure();
    assert!(unknown.contains("no user 'missing'"), "{unknown}");
    assert!(unknown.contains("useradd --system"), "{unknown}");
    let user = "setpriv --reuid skep --regid skep --clear-groups";
    let command = format!("{user} skep management --directory /srv/management --give-to skep");
    let refused = host.run(&command).expect_failure();
    assert!(refused.contains("only root can give"), "{refused}");
    let printed = works(&host, &format!("{give} skep --output json"));
    let report: Value = serde_json::from_str(&printed).expect("JSON");
    schema::check("service-give", &report);
    assert_eq!(report["directories"][0], "/srv/management");
    assert_ne!(report["changed"], 0);
    // The command must refuse settings that belong to the user of the services. Otherwise a service
    // could name any directory of the host in its settings.
    works(&host, "chown skep /etc/skep/management-a.toml");
    let refused = host.run(&format!("{give} skep")).expect_failure();
    assert!(refused.contains("chown root /etc/skep/management-a.toml"), "{refused}");
}

/// A service cannot create a directory at the top of a disk. The error of the service names the
/// remedy.
///
/// Command: skep target add.
#[test]
fn error_for_a_missing_target_directory_names_the_fix() {
    let network = PageNetwork::new();
    let mut host = host_with_settings(&network);
    start_servers(&mut host);
    let add = "skep target add storage-1 /disk3/storage";
    let refused = host.run(add).expect_failure();
    let remedy = "install -d -m 700 -o skep -g skep /disk3/storage";
    assert!(refused.contains(remedy), "{refused}");
    works(&host, &format!("{remedy}; {add}"));
    host.stop();
    // The settings do not name this target, but the service serves this target.
    works(&host, "touch /disk3/storage/of-root");
    assert!(give(&host, STORAGE).contains("Gave one file of the storage service"));
}

/// Root runs the services by hand between two starts by their units. The next start by a unit also
/// gives the files that root has created below directories of the user to this user.
///
/// Command: skep management, skep metadata, skep storage.
#[test]
fn services_start_as_their_user_after_a_start_by_root() {
    let network = PageNetwork::new();
    let mut host = host_with_settings(&network);
    start_servers(&mut host);
    let write = "head -c 3000000 /dev/urandom >/srv/data; mkdir -p /mnt/skep\n\
                 skep mount --cluster 10.0.0.1 /mnt/skep; cp /srv/data /mnt/skep/$FILE\n\
                 skep umount /mnt/skep";
    works(&host, &format!("FILE=first\n{write}"));
    host.stop();
    for kind in ["management", "metadata", "storage"] {
        host.start(&format!("skep {kind} --config /etc/skep/{kind}-a.toml"));
        await_log(&host, " serves ");
    }
    works(&host, &format!("FILE=second\n{write}"));
    let config = "--config /etc/skep/storage-a.toml";
    let refused = host.run(&format!("skep storage {config} --give-to skep")).expect_failure();
    assert!(refused.contains("stop the service"), "{refused}");
    host.stop();
    for unit in [MANAGEMENT, METADATA, STORAGE] {
        start(&mut host, unit, " serves ");
    }
    let others = works(&host, "find /srv/storage /disk2/storage /disk1/metadata ! -user skep");
    assert_eq!(others, "");
    works(
        &host,
        "skep mount --cluster 10.0.0.1 /mnt/skep; cmp /srv/data /mnt/skep/second\n\
         echo more >>/srv/data; echo more >>/mnt/skep/second; skep umount /mnt/skep\n\
         skep mount --cluster 10.0.0.1 /mnt/skep; cmp /srv/data /mnt/skep/second\n\
         skep umount /mnt/skep",
    );
}
