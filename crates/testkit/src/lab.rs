//! Labs of `skep lab` for tests. Each lab has a unique name, and is removed even if the test fails.

use crate::cluster::program;
use crate::files;
use crate::program::{Finished, finish};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Maximum run time of a `skep lab` command. The limit is long, because such a command may start a
/// whole cluster in network namespaces.
const PATIENCE: Duration = Duration::from_secs(120);

/// Environment variable of all processes of a lab. The value of the variable is the name of the
/// lab.
const MARK: &str = "SKEP_LAB_PROCESS";

static NEXT: AtomicU32 = AtomicU32::new(1);

/// The name of a lab. Dropping this value removes the lab with `skep lab down`.
#[derive(Debug)]
pub struct Lab(String);

impl Lab {
    /// Chooses an unused lab name. Does not start the lab.
    pub fn new() -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(format!("t{}x{number}", std::process::id()))
    }

    /// Returns the lab's name.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// Returns the command `skep lab VERB --name NAME`, followed by the arguments `more`.
    pub fn command(&self, verb: &str, more: &[&str]) -> Command {
        let mut command = Command::new(program());
        command.args(["lab", verb, "--name", &self.0]).args(more);
        command
    }

    /// Runs [`Self::command`], and waits until this command exits.
    ///
    /// # Panics
    /// Panics if the program runs longer than two minutes.
    pub fn call(&self, verb: &str, more: &[&str]) -> Finished {
        finish(&mut self.command(verb, more), PATIENCE)
    }

    /// Runs [`Self::command`] with `--output json`, and parses the output.
    ///
    /// # Panics
    /// Panics if the output is not JSON.
    pub fn json(&self, verb: &str, more: &[&str]) -> Value {
        let finished = self.call(verb, &[&["--output", "json"], more].concat());
        serde_json::from_str(&finished.stdout)
            .unwrap_or_else(|error| panic!("{finished:?}: {error}"))
    }

    /// Returns the directory with the lab's state.
    pub fn directory(&self) -> PathBuf {
        Path::new("/run/skep-lab").join(&self.0)
    }

    /// Returns the mount point of the cluster on the client host `host`.
    pub fn mount(&self, host: &str) -> PathBuf {
        self.directory().join("mnt").join(host)
    }

    /// Returns the path of the file with the cluster's token.
    pub fn token(&self) -> PathBuf {
        self.directory().join("token")
    }

    /// Returns the name of the network namespace of the host `host`.
    pub fn namespace(&self, host: &str) -> String {
        format!("skep-lab-{}-{host}", self.0)
    }

    /// Returns a command that runs `program` in the network namespace of the host `host` but in
    /// this machine's mount namespace. `skep lab down` kills the process of the program.
    pub fn command_in_network(&self, host: &str, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.namespace(host))).arg(program);
        command.env(MARK, &self.0);
        command
    }

    /// Returns the ids of all processes whose environment contains the lab's name.
    ///
    /// # Panics
    /// Panics if /proc cannot be read.
    pub fn processes(&self) -> Vec<u32> {
        let mark = format!("{MARK}={}", self.0);
        let is_marked = |pid: &u32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
        };
        let entries = files::read_dir("/proc");
        let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        pids.filter(is_marked).collect()
    }

    /// Lists the processes, network namespaces, mounts and directories of the lab that still exist.
    ///
    /// # Panics
    /// Panics if /proc cannot be read.
    pub fn remains(&self) -> Vec<String> {
        let mut found: Vec<String> =
            self.processes().iter().map(|pid| format!("process {pid}")).collect();
        let namespaces = fs::read_dir("/run/netns").into_iter().flatten();
        let namespaces = namespaces.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        found.extend(namespaces.filter(|name| name.contains(&format!("-{}-", self.0))));
        let mounts = files::read_to_string("/proc/self/mounts");
        let is_ours = |line: &&str| line.contains(&self.0);
        found.extend(mounts.lines().filter(is_ours).map(str::to_owned));
        let directories = [self.directory(), Path::new("/var/tmp/skep-lab").join(&self.0)];
        let there = directories.iter().filter(|path| fs::symlink_metadata(path).is_ok());
        found.extend(there.map(|path| path.display().to_string()));
        found
    }
}

impl Default for Lab {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if std::thread::panicking() {
            print_logs(&self.directory().join("logs"));
        }
        let removed = self.call("down", &[]);
        if !removed.status.success() {
            eprintln!("cannot remove the lab {}: {}", self.0, removed.stderr);
        }
    }
}

/// Prints the last lines of all logs in `directory`, so that the output of CI shows the cause of a
/// failure.
fn print_logs(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let text = fs::read_to_string(entry.path()).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        let name = entry.file_name();
        eprintln!("--- {}", Path::new(OsStr::new(&name)).display());
        lines[lines.len().saturating_sub(25)..].iter().for_each(|line| eprintln!("{line}"));
    }
}
