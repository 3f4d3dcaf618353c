//! `skep debug bundle`: writes the state of a cluster to one archive.
//!
//! The bundle contains the output of read-only commands, the metrics of all services
//! ([`super::metrics`]), and the logs, settings and kernel facts of this host. The bundle can
//! contain an archive of each other host ([`super::hosts`]). [`super::redaction`] removes the
//! secrets. In the place of a part that cannot be read, the bundle contains the reason.

use super::archive::Archive;
use super::directory::files_in;
use super::hosts::{HostResult, OtherHosts, hide};
use super::metrics;
use super::partial_file::PartialFile;
use super::redaction::redacted;
use crate::access::{Access, ClusterArgs};
use crate::cmd::mount::LOGS_OF_ROOT;
use crate::ending_signals::EndingSignals;
use crate::help::{Example, examples};
use crate::output::{print, size, utc};
use crate::program::program;
use serde::Serialize;
use serde_json::Value;
use skep_deploy::hosts::Deployment;
use skep_deploy::ondemand::deployment;
use skep_types::text::escape_controls;
use skep_types::{Error, Result};
use std::collections::BTreeSet;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const EXAMPLES: &[Example] = &[
    ("write a bundle about the cluster of this host", "skep debug bundle"),
    (
        "add another log to the bundle, and name the file of the bundle",
        "skep debug bundle --log /var/log/mount.log --file /tmp/problem.tar",
    ),
    (
        "add the logs and kernel facts of all hosts of the hosts file of skep deploy",
        "skep debug bundle --hosts hosts.toml",
    ),
    ("add the logs and kernel facts of two other hosts", "skep debug bundle --ssh root@s1,root@s2"),
];

/// Maximum number of bytes of each log in a bundle. If a log is longer, the bundle contains only
/// its last bytes.
const LOG_BYTES: u64 = 4 << 20;

/// Maximum number of lines of the journal in a bundle.
const JOURNAL_LINES: &str = "20000";
/// The directory of the logs in a bundle.
const LOGS: &str = "logs/";
/// The directory of the logs of mounts in a bundle.
const MOUNT_LOGS: &str = "logs/mounts/";

/// Read-only commands whose output a bundle contains, each with its file name in the archive.
const COMMANDS: &[(&str, &[&str])] = &[
    ("health-check", &["health", "check"]),
    ("health-df", &["health", "df"]),
    ("node-list", &["node", "list"]),
    ("target-list", &["target", "list"]),
    ("group-list", &["group", "list"]),
    ("client-list", &["client", "list"]),
    ("session-list", &["session", "list"]),
    ("lock-list", &["lock", "list"]),
    ("transaction-list", &["transaction", "list"]),
    ("config-list", &["config", "list"]),
    ("stats-node", &["stats", "--total", "--by", "node"]),
    ("stats-target", &["stats", "--total", "--by", "target"]),
    ("stats-operation", &["stats", "--total", "--by", "operation"]),
    ("stats-client", &["stats", "--total", "--by", "client"]),
    ("stats-user", &["stats", "--total", "--by", "user"]),
];

/// Maximum number of slow operations that a bundle explains. `skep why` lists at most this number.
const MAX_OPERATIONS: usize = 3;
/// Maximum number of hosts that the output names.
const SHOWN_HOSTS: usize = 20;

/// Files of this host with facts about the host and its kernel.
const FACTS: &[&str] = &[
    "/proc/version",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/loadavg",
    "/proc/uptime",
    "/proc/mounts",
    "/proc/diskstats",
    "/proc/net/dev",
    "/proc/net/snmp",
    "/proc/net/netstat",
    "/proc/pressure/cpu",
    "/proc/pressure/io",
    "/proc/pressure/memory",
    "/proc/sys/kernel/io_uring_disabled",
    "/proc/sys/vm/dirty_background_bytes",
    "/proc/sys/vm/dirty_background_ratio",
    "/proc/sys/vm/dirty_bytes",
    "/proc/sys/vm/dirty_ratio",
    "/proc/sys/fs/file-nr",
    "/sys/module/fuse/parameters/enable_uring",
    "/etc/os-release",
];

/// Write the cluster map, settings, logs, metrics and kernel facts to one archive, without secrets
///
/// Logs, settings, kernel facts and the metrics of mounts come from this host. With --hosts or
/// --ssh, a bundle also has an archive of each of these hosts, at most 32 MiB of each; otherwise
/// run the command on each host that has a problem. A bundle has the logs of `skep up`, or the
/// journal of the services under systemd and the logs of the mounts of root; name other logs with
/// --log. The metrics of all services that can be reached, the requests that wait, and the
/// explanation of the slowest operations are in every bundle.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct BundleArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// Archive to write [default: skep-debug-TIME.tar]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Another log to add; may be repeated
    #[arg(long, value_name = "FILE")]
    log: Vec<PathBuf>,
    /// Hosts file of `skep deploy`: add an archive of each of its hosts, written over ssh as root
    #[arg(long, value_name = "FILE")]
    hosts: Option<PathBuf>,
    /// Add an archive of each of these hosts, collected over ssh by the ssh login user
    #[arg(long, value_name = "HOST,...", value_delimiter = ',', conflicts_with = "hosts")]
    ssh: Vec<String>,
    /// Write the archive of this host to standard output. This archive has no facts about the
    /// cluster
    #[arg(long, hide = true, conflicts_with_all = ["hosts", "ssh", "file"])]
    of_host: bool,
}

/// The JSON output about a written bundle.
#[derive(Debug, Serialize)]
struct Bundle {
    file: String,
    bytes: u64,
    members: Vec<String>,
    /// The hosts of `--hosts` or `--ssh`.
    hosts: Vec<HostResult>,
    /// Other hosts of services. The bundle has no archive of these hosts, because the command names
    /// no hosts.
    missing_hosts: Vec<String>,
}

pub(crate) fn run(args: &BundleArgs) -> Result<()> {
    let now = skep_env::wall_time();
    let seconds = u64::try_from(now.seconds).unwrap_or(0);
    let stamp: String = utc(now).chars().filter(char::is_ascii_alphanumeric).take(15).collect();
    let folder = format!("skep-debug-{stamp}");
    if args.of_host {
        let archive = Archive::to_standard_output(seconds)?;
        return Writer { archive, secret: String::new(), folder }.write_host(args);
    }
    let signals = EndingSignals::block()?;
    let others = other_hosts(args)?;
    let access = args.query.access(None)?;
    let path = args.file.clone().unwrap_or_else(|| PathBuf::from(format!("{folder}.tar")));
    let (partial, file) = PartialFile::create(&path)?;
    let archive = Archive::new(file, seconds);
    let mut writer = Writer { archive, secret: secret_of(&access), folder };
    let written = partial.remove_at(signals).and_then(|()| {
        let hosts = writer.write_all(args, &access, others.as_ref())?;
        partial.complete()?;
        Ok(hosts)
    });
    let (hosts, missing_hosts) = written.map_err(|error| {
        partial.remove();
        error.within(format_args!("cannot write the bundle {}", path.display()))
    })?;
    let Archive { members, bytes, .. } = writer.archive;
    let file = path.display().to_string();
    print(&Bundle { file, bytes, members, hosts, missing_hosts }, as_text)
}

/// Returns the hosts of `--hosts` or `--ssh`. `None` means that the bundle is about this host only.
fn other_hosts(args: &BundleArgs) -> Result<Option<OtherHosts>> {
    if let Some(file) = &args.hosts {
        let deployment = Deployment::read(file)?;
        return Ok(Some(OtherHosts { deployment, as_root: true }));
    }
    let deployment = deployment("bundle", "", &args.ssh);
    Ok((!args.ssh.is_empty()).then_some(OtherHosts { deployment, as_root: false }))
}

fn as_text(bundle: &Bundle) -> String {
    let is_of_service = |it: &String| it.contains(LOGS) && !it.contains(MOUNT_LOGS);
    let missing = match bundle.members.iter().any(is_of_service) {
        true => "",
        false => {
            "\nThe bundle has no log of a service. If services on this host write their logs to \
             files, name each file with --log FILE, and repeat the command."
        }
    };
    let mut text = format!(
        "Wrote {} with {} files ({}). The bundle has no secrets of the cluster, but names of \
         hosts, users and paths; check the contents of the bundle before you pass it on.{missing}",
        bundle.file,
        bundle.members.len(),
        size(bundle.bytes)
    );
    for HostResult { host, problem } in &bundle.hosts {
        if let Some(problem) = problem {
            text += &format!("\nHost {host}: {}", escape_controls(problem));
        }
    }
    if !bundle.missing_hosts.is_empty() {
        let shown = bundle.missing_hosts.iter().take(SHOWN_HOSTS);
        let shown: Vec<_> = shown.map(|host| escape_controls(host).into_owned()).collect();
        let shown = shown.join(",");
        let count = bundle.missing_hosts.len();
        text += &format!(
            "\nThe bundle has no logs of other hosts of services ({count}): {shown}. Add these \
             logs with --hosts FILE (the hosts file of skep deploy) or --ssh HOST,..., or run the \
             command on these hosts."
        );
    }
    text
}

/// Returns the secret of the cluster in hexadecimal digits, the form in which texts may contain the
/// secret.
fn secret_of(access: &Access) -> String {
    let token = access.token.to_text();
    let secrets = token.split('@').next().unwrap_or_default();
    secrets.rsplit('-').next().unwrap_or_default().to_owned()
}

struct Writer {
    archive: Archive,
    secret: String,
    folder: String,
}

impl Writer {
    /// Writes the whole bundle. Returns the results of the hosts in `others`. If `others` is
    /// `None`, also returns the names of the other hosts on which services run.
    fn write_all(
        &mut self,
        args: &BundleArgs,
        access: &Access,
        others: Option<&OtherHosts>,
    ) -> Result<(Vec<HostResult>, Vec<String>)> {
        self.add_about(&access.token.cluster.to_string())?;
        let mut missing_hosts = Vec::new();
        for (name, words) in COMMANDS {
            let output = self.add_command(name, words, args, access)?;
            if *name == "node-list" && others.is_none() {
                missing_hosts = other_hosts_in(&output, &skep_service::host_name());
            }
        }
        let why = self.add_command("why", &["why"], args, access)?;
        for trace in slowest_in(&why) {
            let words = ["why", "--op", trace.as_str()];
            self.add_command(&format!("why-op-{trace}"), &words, args, access)?;
        }
        for (name, text) in metrics::of_services(access) {
            self.add(&name, &text)?;
        }
        self.add_facts()?;
        let of_up = files_in(&Path::new(&access.name).join("logs"), &["log", "old"]);
        self.add_logs_and_settings(of_up, args)?;
        let mut hosts = Vec::new();
        if let Some(others) = others {
            hosts = others.collect(|host, mut archive| {
                hide(&mut archive, &self.secret);
                self.archive.add(&format!("{}/hosts/{host}.tar", self.folder), &archive)
            })?;
        }
        self.archive.finish()?;
        Ok((hosts, missing_hosts))
    }

    /// Writes an archive with logs, settings and kernel facts of this host.
    fn write_host(mut self, args: &BundleArgs) -> Result<()> {
        self.add_about("-")?;
        self.add_facts()?;
        self.add_logs_and_settings(Vec::new(), args)?;
        self.archive.finish()
    }

    fn add_about(&mut self, cluster: &str) -> Result<()> {
        let about = format!(
            "program: skep {}\ncluster: {cluster}\nhost: {}\nuser: {}\n",
            skep_service::PROGRAM_VERSION,
            skep_service::host_name(),
            rustix::process::geteuid().as_raw()
        );
        self.add("about.txt", &about)
    }

    /// Adds and returns the output of a command of Skep.
    fn add_command(
        &mut self,
        name: &str,
        words: &[&str],
        args: &BundleArgs,
        access: &Access,
    ) -> Result<String> {
        let mut command = program();
        command.args(words).args(["--output", "json"]);
        name_cluster(&mut command, args, access);
        self.add_output(&format!("commands/{name}.json"), &mut command)
    }

    /// Adds the facts about this host and its kernel, and the metrics of its mounts.
    fn add_facts(&mut self) -> Result<()> {
        let mut command = program();
        command.args(["tune", "check", "--output", "json"]);
        self.add_output("host/tune-check.json", &mut command)?;
        for fact in FACTS {
            self.add_file(&format!("host{fact}"), Path::new(fact))?;
        }
        let mut kernel = Command::new("dmesg");
        self.add_output("host/dmesg.txt", &mut kernel)?;
        for (name, text) in metrics::of_mounts() {
            self.add(&name, &text)?;
        }
        Ok(())
    }

    /// Adds the logs of `skep up`, or the logs of the services and mounts of this host. The method
    /// also adds the logs in the arguments, and the settings files.
    fn add_logs_and_settings(&mut self, of_up: Vec<PathBuf>, args: &BundleArgs) -> Result<()> {
        if of_up.is_empty() {
            self.add_logs_of_host()?;
        }
        for log in of_up.into_iter().chain(args.log.clone()) {
            let name = log.file_name().unwrap_or_default().to_string_lossy().into_owned();
            self.add_file(&format!("{LOGS}{name}"), &log)?;
        }
        for file in files_in(Path::new("/etc/skep"), &["toml"]) {
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            self.add_file(&format!("settings/{name}"), &file)?;
        }
        Ok(())
    }

    /// Adds the lines of the services in the journal of systemd, and the logs of the mounts of
    /// root.
    fn add_logs_of_host(&mut self) -> Result<()> {
        let mut journal = Command::new("journalctl");
        journal.args(["--quiet", "--no-pager", "--unit", "skep-*", "--lines", JOURNAL_LINES]);
        if let Ok(output) = output_of(&mut journal)
            && output.status.success()
            && !output.stdout.is_empty()
        {
            self.add(&format!("{LOGS}journal.txt"), &String::from_utf8_lossy(&output.stdout))?;
        }
        let mounts = files_in(Path::new(LOGS_OF_ROOT), &["log"]);
        for (number, log) in mounts.into_iter().enumerate() {
            let name = log.file_name().unwrap_or_default().to_string_lossy().into_owned();
            // The archive shortens long names of logs, and two shortened names may be equal. The
            // number makes the names different.
            self.add_file(&format!("{MOUNT_LOGS}{number}-{name}"), &log)?;
        }
        Ok(())
    }

    /// Removes the secrets from a text, and then adds this text to the archive.
    fn add(&mut self, name: &str, text: &str) -> Result<()> {
        let text = redacted(text, &self.secret);
        self.archive.add(&format!("{}/{name}", self.folder), text.as_bytes())
    }

    /// Adds the last bytes of a file, or the reason why the file cannot be read.
    fn add_file(&mut self, name: &str, path: &Path) -> Result<()> {
        let text = end_of(path).unwrap_or_else(|error| format!("cannot read {name}: {error}\n"));
        self.add(name, &text)
    }

    /// Adds the output of a command, or the reason why the command failed. Returns the text before
    /// the removal of its secrets.
    fn add_output(&mut self, name: &str, command: &mut Command) -> Result<String> {
        let text = match output_of(command) {
            Ok(output) => {
                let out = String::from_utf8_lossy(&output.stdout).into_owned();
                let errors = String::from_utf8_lossy(&output.stderr);
                if out.is_empty() { errors.into_owned() } else { out }
            }
            Err(error) => format!("cannot run the command: {error}\n"),
        };
        self.add(name, &text)?;
        Ok(text)
    }
}

/// Runs a command to its end, and returns its output. The command ends if this process ends.
fn output_of(command: &mut Command) -> std::io::Result<Output> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    skep_env::spawn_child(command)?.wait_with_output()
}

/// Returns the hosts of services in the output of `skep node list`, without the host `own`.
fn other_hosts_in(nodes: &str, own: &str) -> Vec<String> {
    let nodes: Value = serde_json::from_str(nodes).unwrap_or_default();
    let services = nodes.as_array().into_iter().flatten().filter(|node| node["kind"] != "client");
    let hosts = services.filter_map(|node| node["host"].as_str());
    let hosts: BTreeSet<_> = hosts.filter(|host| *host != own).map(str::to_owned).collect();
    hosts.into_iter().collect()
}

/// Returns the trace ids of the slowest operations in the output of `skep why`.
fn slowest_in(why: &str) -> Vec<String> {
    let why: Value = serde_json::from_str(why).unwrap_or_default();
    let slowest = why["slowest"].as_array().into_iter().flatten();
    let traces = slowest.filter_map(|it| it["trace"].as_str()).take(MAX_OPERATIONS);
    traces.map(str::to_owned).collect()
}

fn name_cluster(command: &mut Command, args: &BundleArgs, access: &Access) {
    command.args(["--cluster", &access.name]);
    if args.query.token_file.is_some() || !Path::new(&access.name).exists() {
        command.arg("--token-file").arg(&access.token_file);
    }
}

/// Reads the last [`LOG_BYTES`] bytes of a file as text.
fn end_of(path: &Path) -> Result<String> {
    let mut file = std::fs::File::open(path).map_err(Error::from)?;
    let len = file.metadata().map_err(Error::from)?.len();
    if len > LOG_BYTES {
        file.seek(SeekFrom::Start(len - LOG_BYTES)).map_err(Error::from)?;
    }
    let mut bytes = Vec::new();
    file.take(LOG_BYTES).read_to_end(&mut bytes).map_err(Error::from)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(members: Vec<String>) -> Bundle {
        let (hosts, missing_hosts) = (Vec::new(), Vec::new());
        Bundle { file: "a.tar".into(), bytes: 9, members, hosts, missing_hosts }
    }

    #[test]
    fn bundle_output_names_hosts_without_logs_and_the_remedy() {
        let nodes = r#"[{"host": "s2"}, {"host": null}, {"host": "own"}, {"host": "s1"},
            {"host": "s2", "kind": "storage"}, {"host": "c1", "kind": "client"}]"#;
        let missing_hosts = other_hosts_in(nodes, "own");
        assert_eq!(missing_hosts, ["s1", "s2"]);
        assert!(other_hosts_in("cannot reach management", "own").is_empty());
        let text = as_text(&Bundle { missing_hosts, ..bundle(Vec::new()) });
        assert!(
            text.contains("other hosts of services (2): s1,s2. Add these logs with --hosts"),
            "{text}"
        );
        let problem = Some("cannot reach host s1 by ssh".to_owned());
        let hosts = vec![
            HostResult { host: "s1".into(), problem },
            HostResult { host: "s2".into(), problem: None },
        ];
        let text = as_text(&Bundle { hosts, ..bundle(Vec::new()) });
        assert!(text.ends_with("\nHost s1: cannot reach host s1 by ssh"), "{text}");
    }

    #[test]
    fn bundle_explains_the_slowest_operations() {
        let why = r#"{"slowest": [{"trace": "1a"}, {"trace": "2b"}]}"#;
        assert_eq!(slowest_in(why), ["1a", "2b"]);
        assert!(slowest_in("cannot reach management").is_empty());
    }

    #[test]
    fn note_on_a_missing_service_log_names_the_log_option() {
        let text = |log: &str| {
            let members = vec!["skep-debug-1/about.txt".into(), format!("skep-debug-1/{log}")];
            as_text(&bundle(members))
        };
        assert!(text("logs/mounts/0-mount-mnt.log").contains("--log FILE"));
        assert!(!text("logs/storage.log").contains("--log FILE"));
        assert!(!text("logs/journal.txt").contains("--log FILE"));
    }
}
