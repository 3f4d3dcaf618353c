//! `skep debug bundle`: writes the state of a cluster to one archive.
//!
//! The bundle contains the output of read-only commands, the figures of all services, and the logs,
//! settings and kernel facts of this host. Secrets are removed ([`super::redaction`]). If something
//! cannot be read, the bundle contains the reason in its place.

use super::archive::Archive;
use super::redaction::redacted;
use crate::access::{Access, ClusterArgs};
use crate::cmd::mount::LOGS_OF_ROOT;
use crate::help::{Example, examples};
use crate::output::{print, size, utc};
use crate::program::program;
use serde::Serialize;
use skep_types::{Error, Result};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const EXAMPLES: &[Example] = &[
    ("write a bundle about the cluster of this host", "skep debug bundle"),
    (
        "add another log to the bundle, and name the file of the bundle",
        "skep debug bundle --log /var/log/mount.log --file /tmp/problem.tar",
    ),
];

/// Number of bytes that a bundle contains of each log. The bundle has the end of a longer log.
const LOG_BYTES: u64 = 4 << 20;
/// Maximum number of logs and settings files that a bundle takes from one directory.
const MAX_FILES: usize = 500;

/// Maximum number of lines that a bundle contains of the journal.
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

/// Files of this host with facts about it and its kernel.
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

/// Write configuration without secrets, map, logs, figures and kernel facts to one archive
///
/// Logs, settings and kernel facts come from this host; run the command on each host that has a
/// problem. A bundle has the logs of `skep up`, or the journal of the services under systemd and
/// the logs of the mounts of root; name other logs with --log. The figures of all services that can
/// be reached are in every bundle.
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
}

/// The JSON output about a written bundle.
#[derive(Debug, Serialize)]
struct Bundle {
    file: String,
    bytes: u64,
    members: Vec<String>,
}

pub(crate) fn run(args: &BundleArgs) -> Result<()> {
    let access = args.query.access(None)?;
    let now = skep_env::wall_time();
    let seconds = u64::try_from(now.seconds).unwrap_or(0);
    let stamp: String = utc(now).chars().filter(char::is_ascii_alphanumeric).take(15).collect();
    let default = || PathBuf::from(format!("skep-debug-{stamp}.tar"));
    let path = args.file.clone().unwrap_or_else(default);
    let mut writer = Writer {
        archive: Archive::create(&path, seconds)?,
        secret: secret_of(&access),
        folder: format!("skep-debug-{stamp}"),
    };
    let written = writer.write_all(args, &access);
    if let Err(error) = written {
        // Removes the file, because readers would take an archive without its end for a complete
        // one.
        let _ = std::fs::remove_file(&path);
        return Err(error.within(path.display()));
    }
    let Archive { members, bytes, .. } = writer.archive;
    let bundle = Bundle { file: path.display().to_string(), bytes, members };
    print(&bundle, as_text)
}

fn as_text(bundle: &Bundle) -> String {
    let is_of_service = |it: &String| it.contains(LOGS) && !it.contains(MOUNT_LOGS);
    let missing = match bundle.members.iter().any(is_of_service) {
        true => "",
        false => {
            "\nIt has no log of a service. If services on this host write their logs to files, name \
             each file with --log FILE, and write the bundle again."
        }
    };
    format!(
        "Wrote {} with {} files ({}). It has no secrets of the cluster, but names of hosts, users \
         and paths; check its contents before you pass it on.{missing}",
        bundle.file,
        bundle.members.len(),
        size(bundle.bytes)
    )
}

/// Returns the secret of the cluster in hexadecimal digits, as it may appear in texts.
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
    fn write_all(&mut self, args: &BundleArgs, access: &Access) -> Result<()> {
        let about = format!(
            "program: skep {}\ncluster: {}\nhost: {}\nuser: {}\n",
            skep_service::PROGRAM_VERSION,
            access.token.cluster,
            std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim(),
            rustix::process::geteuid().as_raw()
        );
        self.add("about.txt", &about)?;
        for (name, words) in COMMANDS {
            let mut command = program();
            command.args(*words).args(["--output", "json"]);
            name_cluster(&mut command, args, access);
            self.add_output(&format!("commands/{name}.json"), &mut command)?;
        }
        let mut command = program();
        command.args(["tune", "check", "--output", "json"]);
        self.add_output("host/tune-check.json", &mut command)?;
        for fact in FACTS {
            self.add_file(&format!("host{fact}"), Path::new(fact))?;
        }
        let mut kernel = Command::new("dmesg");
        self.add_output("host/dmesg.txt", &mut kernel)?;
        let of_up = files_in(&Path::new(&access.name).join("logs"), &["log", "old"]);
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
        self.archive.finish()
    }

    /// Adds the lines of the services in the journal of systemd, and the logs of the mounts of
    /// root.
    fn add_logs_of_host(&mut self) -> Result<()> {
        let mut journal = Command::new("journalctl");
        journal.args(["--quiet", "--no-pager", "--unit", "skep-*", "--lines", JOURNAL_LINES]);
        if let Ok(output) = journal.stdin(Stdio::null()).output()
            && output.status.success()
            && !output.stdout.is_empty()
        {
            self.add(&format!("{LOGS}journal.txt"), &String::from_utf8_lossy(&output.stdout))?;
        }
        let mounts = files_in(Path::new(LOGS_OF_ROOT), &["log"]);
        for (number, log) in mounts.into_iter().enumerate() {
            let name = log.file_name().unwrap_or_default().to_string_lossy().into_owned();
            // The number distinguishes logs whose names are equal after the archive has shortened
            // them.
            self.add_file(&format!("{MOUNT_LOGS}{number}-{name}"), &log)?;
        }
        Ok(())
    }

    /// Adds a text after its secrets are removed.
    fn add(&mut self, name: &str, text: &str) -> Result<()> {
        let text = redacted(text, &self.secret);
        self.archive.add(&format!("{}/{name}", self.folder), text.as_bytes())
    }

    /// Adds the last bytes of a file, or the reason why it cannot be read.
    fn add_file(&mut self, name: &str, path: &Path) -> Result<()> {
        let text = end_of(path).unwrap_or_else(|error| format!("cannot read {name}: {error}\n"));
        self.add(name, &text)
    }

    /// Adds the output of a command, or the reason why it failed.
    fn add_output(&mut self, name: &str, command: &mut Command) -> Result<()> {
        let text = match command.stdin(Stdio::null()).output() {
            Ok(output) => {
                let out = String::from_utf8_lossy(&output.stdout).into_owned();
                let errors = String::from_utf8_lossy(&output.stderr);
                if out.is_empty() { errors.into_owned() } else { out }
            }
            Err(error) => format!("cannot run the command: {error}\n"),
        };
        self.add(name, &text)
    }
}

fn name_cluster(command: &mut Command, args: &BundleArgs, access: &Access) {
    command.args(["--cluster", &access.name]);
    if args.query.token_file.is_some() || !Path::new(&access.name).exists() {
        command.arg("--token-file").arg(&access.token_file);
    }
}

/// Returns the files of a directory that have one of these extensions, in the order of their names.
fn files_in(directory: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let is_meant = |path: &PathBuf| {
        let extension = path.extension().unwrap_or_default().to_string_lossy();
        extensions.contains(&&*extension)
    };
    let mut files: Vec<_> = entries.map(|entry| entry.path()).filter(is_meant).collect();
    files.sort();
    files.truncate(MAX_FILES);
    files
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

    #[test]
    fn bundle_without_a_log_of_a_service_leads_to_the_log_option() {
        let text = |log: &str| {
            let members = vec!["skep-debug-1/about.txt".into(), format!("skep-debug-1/{log}")];
            as_text(&Bundle { file: "a.tar".into(), bytes: 9, members })
        };
        assert!(text("logs/mounts/0-mount-mnt.log").contains("--log FILE"));
        assert!(!text("logs/storage.log").contains("--log FILE"));
        assert!(!text("logs/journal.txt").contains("--log FILE"));
    }
}
