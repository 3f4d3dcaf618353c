//! File systems on demand (`skep ondemand`). Such a file system is on the local disks of a job's
//! hosts, has no redundancy, and exists only for the time of the job.
//!
//! The module owns the list of hosts, the token and the id of a run, and the script for each host.
//! The first host runs management and metadata. Each host runs storage and has a mount. All hosts
//! can start at the same time, because each has the token before management exists. The scripts run
//! over ssh ([`crate::ssh`]). In a batch job, each host runs only the script for itself.
//! `scripts/ondemand.sh` owns the actions on a host: locks, checks of paths, and the removal.

mod stage_out;

use crate::execute::in_parallel;
use crate::hosts::{
    Deployment, DiskSettings, Host, MountSettings, Role, SshSettings, is_address, is_name, is_path,
};
use crate::ssh::{HostProblem, Ssh, run_here};
use serde::Serialize;
use sha2::{Digest, Sha256};
use skep_types::{Error, ErrorCode, Result};
pub use stage_out::StageOut;
use stage_out::is_staged_path;
use std::fmt::Write;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Instant;

const SCRIPT: &str = include_str!("scripts/ondemand.sh");
/// Minimum length of a site's secret in bytes.
const SECRET_BYTES: usize = 32;
/// Maximum number of bytes that are read from the file with the secret.
const SECRET_LIMIT: u64 = 4096;
/// Maximum number of hosts of one file system.
const MAX_HOSTS: usize = 1024;
/// Number of hexadecimal digits in the id of a run.
const RUN_DIGITS: usize = 16;
/// Maximum number of hosts that a message lists.
const SHOWN_HOSTS: usize = 8;

/// A file system on demand.
#[derive(Debug, Clone)]
pub struct OnDemand {
    /// Name of the file system. The name distinguishes several file systems on the same hosts.
    pub name: String,
    /// Addresses of all hosts. The first of them runs management and metadata.
    pub hosts: Vec<String>,
    /// Directory on a local disk, with the same path on each host.
    pub directory: String,
    /// Mount point on each host.
    pub mount: String,
    /// The first of the three ports of the services on each host.
    pub port: u16,
    /// User that owns the top directory. `None` means that all users may write to it.
    pub owner: Option<u32>,
    /// Time limit of each command on a host, in seconds.
    pub patience: u32,
    /// Paths that must be readable on each host before a start, because files are copied from them.
    pub sources: Vec<String>,
    /// Copies out of the file system that must succeed before its removal.
    pub stage_out: Vec<StageOut>,
    /// The data that a removal may destroy.
    pub removal: Removal,
}

/// The data that a removal may destroy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Removal {
    /// Only data that no user has asked to preserve. The removal fails if copies out of the file
    /// system were requested, or if the file `.skep-hold` exists in it.
    #[default]
    Unneeded,
    /// All data, because the requested copies have succeeded. The removal still fails if the file
    /// `.skep-hold` exists.
    Saved,
    /// All data, whatever was requested.
    All,
}

/// The token and the id of one start of a file system. All hosts have the same token and id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    token: String,
    /// The id: 16 hexadecimal digits. All paths of the run contain it.
    id: String,
}

/// A command that the script of a host executes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Refuse a start that cannot succeed. Change nothing.
    Check,
    /// Create the file system and mount it.
    Start,
    /// Record the copies that must succeed before the removal.
    Keep,
    /// Record the copies that lines of a job's script ask for, and the user of the job.
    KeepOfJob,
    /// Unmount and remove the file system. If a run is given, remove only the part that this run
    /// has created.
    Stop,
    /// Print the state of the file system on the host.
    Status,
}

/// Where the scripts of the hosts run.
#[derive(Debug, Clone)]
pub enum Reach {
    /// The scripts run on all hosts, by ssh.
    Ssh,
    /// Only the script of this host runs. The value is the address of this host in the list of
    /// hosts.
    Here(String),
}

/// The state of the file system on one host.
#[derive(Debug, Default, Serialize)]
pub struct HostState {
    /// Address of the host.
    pub host: String,
    /// The services and `mount` that run on the host, in the order of their start.
    pub running: Vec<String>,
    /// Whether the file system is mounted on the host.
    pub is_mounted: bool,
    /// Time at which the start began, in UTC. `None` means that no start has succeeded.
    pub since: Option<String>,
    /// Copies that must succeed before the removal, in the form `SOURCE:DESTINATION`.
    pub stage_out: Vec<String>,
    /// The text in the file `.skep-hold`. A user creates this file to protect the data. `None`
    /// means that the file does not exist.
    pub hold: Option<String>,
    /// The user of the job whose script asks for `stage_out`. `None` if a command asks for it.
    #[serde(skip)]
    pub job_user: Option<u32>,
    /// Whether the host runs management and metadata.
    #[serde(skip)]
    pub is_first: bool,
    /// The storage servers that do not answer. Only the first host reports them, and only while
    /// copies out of the file system are required.
    pub lost: Vec<String>,
    /// Directories on the host with the data of other file systems from before the last boot of the
    /// host. Copies out of these file systems are required, and were not made.
    pub kept: Vec<String>,
    /// The hosts of the file system, for messages.
    #[serde(skip)]
    pub hosts: String,
    /// Address of the host in the list of hosts on which the file system was started.
    #[serde(skip)]
    pub address: Option<String>,
}

/// The result of a command on all hosts.
#[derive(Debug, Serialize)]
pub struct OnDemandOutcome {
    /// Name of the file system.
    pub name: String,
    /// Mount point.
    pub mount: String,
    /// The states of the hosts on which the command succeeded.
    pub hosts: Vec<HostState>,
    /// The problems of the hosts on which the command failed.
    pub problems: Vec<HostProblem>,
    /// Duration of the command.
    pub seconds: f64,
}

/// Reads a list of hosts with one host per line, as in a host file of MPI. Ignores empty lines,
/// lines that begin with `#`, and everything after the first word of a line. A host that occurs
/// several times is listed once.
///
/// # Errors
/// - `NotFound` if the file cannot be read.
/// - `Configuration` if the list is empty, or if a host is neither a host name nor an IPv4 address.
pub fn read_hosts(path: &Path) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        let what = format!("cannot read the list of hosts {}: {error}", path.display());
        Error::new(ErrorCode::NotFound, format!("{what}; name a list with --hosts"))
    })?;
    let mut hosts: Vec<String> = Vec::new();
    for line in text.lines() {
        let word = line.split_whitespace().next().unwrap_or_default();
        if word.is_empty() || word.starts_with('#') || hosts.iter().any(|it| it == word) {
            continue;
        }
        hosts.push(word.to_owned());
    }
    check_hosts(&hosts).map_err(|error| {
        error.within(format_args!("cannot use the list of hosts {}", path.display()))
    })?;
    Ok(hosts)
}

fn check_hosts(hosts: &[String]) -> Result<()> {
    let refuse = |what: String| Err(Error::new(ErrorCode::Configuration, what));
    if hosts.is_empty() || hosts.len() > MAX_HOSTS {
        return refuse(format!(
            "invalid number of hosts {}: expected 1 to {MAX_HOSTS}, one per line",
            hosts.len()
        ));
    }
    // The scripts append a colon and the port to the address of a host, so the address cannot
    // contain a colon.
    match hosts.iter().find(|host| !is_address(host) || host.contains(':')) {
        Some(host) => refuse(format!("invalid host '{host}': expected a name or an IPv4 address")),
        None => Ok(()),
    }
}

/// Returns the run of a batch job. Each host of the job computes the same token from the secret of
/// the site, which all hosts have. For this reason, no host has to send the token to another host.
///
/// # Errors
/// - `NotFound` if the file with the secret cannot be read.
/// - `Configuration` if the secret is too short, or if other users own it or can read it.
pub fn run_of_job(secret: &Path, job: &str) -> Result<Run> {
    use std::os::unix::fs::MetadataExt;
    let shown = secret.display();
    // Content, owner and mode are read through one descriptor, so that they belong to the same
    // file.
    let read = || -> std::io::Result<(Vec<u8>, std::fs::Metadata)> {
        let mut file = File::open(secret)?;
        let mut bytes = Vec::new();
        (&mut file).take(SECRET_LIMIT).read_to_end(&mut bytes)?;
        Ok((bytes, file.metadata()?))
    };
    let (bytes, facts) = read().map_err(|error| {
        let what = format!(
            "cannot read the secret {shown}: {error}; create this file with `(umask 077; head -c \
             32 /dev/urandom >{shown})`, and copy the file to all nodes"
        );
        Error::new(ErrorCode::NotFound, what)
    })?;
    if bytes.len() < SECRET_BYTES {
        let what = format!(
            "the secret {shown} has {} bytes: expected {SECRET_BYTES} or more",
            bytes.len()
        );
        return Err(Error::new(ErrorCode::Configuration, what));
    }
    let user = std::fs::metadata("/proc/self")?.uid();
    if facts.uid() != user {
        let what = format!(
            "the secret {shown} belongs to user {}, who could replace this file: run `chown {user} \
             {shown}`",
            facts.uid()
        );
        return Err(Error::new(ErrorCode::Configuration, what));
    }
    if facts.mode() & 0o077 != 0 {
        let what = format!("other users can read the secret {shown}: run `chmod 600 {shown}`");
        return Err(Error::new(ErrorCode::Configuration, what));
    }
    Ok(Run::of(&bytes, job))
}

impl Run {
    /// Returns a run with a random token and id.
    ///
    /// # Errors
    /// Returns an error if the system provides no random numbers.
    pub fn random() -> Result<Self> {
        let mut secret = [0; SECRET_BYTES];
        File::open("/dev/urandom")?.read_exact(&mut secret)?;
        Ok(Self::of(&secret, ""))
    }

    fn of(secret: &[u8], name: &str) -> Self {
        let derived = |purpose: &str| {
            // The secret is hashed twice, as in HMAC. With one hash, an attacker who knows one
            // derived value could compute other derived values (length extension).
            let inner = Sha256::new().chain_update(secret).chain_update(purpose).chain_update(name);
            let outer = Sha256::new().chain_update(secret).chain_update(inner.finalize());
            outer.finalize().iter().fold(String::new(), |mut text, byte| {
                let _ = write!(text, "{byte:02x}");
                text
            })
        };
        let token = format!("skep1-{}-{}", &derived("cluster")[..32], derived("secret"));
        Self { token, id: derived("run")[..RUN_DIGITS].to_owned() }
    }
}

impl OnDemand {
    /// Checks all values that the scripts will contain.
    ///
    /// # Errors
    /// Returns `Configuration` for the first invalid value.
    pub fn check(&self) -> Result<()> {
        let refuse = |what: String| Err(Error::new(ErrorCode::Configuration, what));
        check_hosts(&self.hosts)?;
        if !is_name(&self.name) {
            return refuse(format!(
                "invalid name '{}' of the file system: expected letters a to z, digits and '-'",
                self.name
            ));
        }
        for (what, path) in [("directory", &self.directory), ("mount point", &self.mount)] {
            if !is_path(path) {
                return refuse(format!(
                    "invalid {what} '{path}': expected an absolute path below the root directory"
                ));
            }
        }
        let outs = self.stage_out.iter().flat_map(|it| [&it.source, &it.destination]);
        match self.sources.iter().chain(outs).find(|path| !is_staged_path(path)) {
            Some(path) => refuse(format!(
                "invalid path '{path}': expected an absolute path or s3://bucket/key, without \
                 '..', colons, quotes and control characters"
            )),
            None => Ok(()),
        }
    }

    /// Runs a command on all hosts, or on this host only, depending on `reach`. Tries every host,
    /// even if other hosts fail. [`Command::Start`] needs a run.
    ///
    /// # Errors
    /// Returns an error if this host is not in the list of hosts.
    pub fn run(
        &self,
        command: Command,
        run: Option<&Run>,
        reach: &Reach,
    ) -> Result<OnDemandOutcome> {
        let begin = Instant::now();
        let hosts = match reach {
            Reach::Ssh => self.hosts.clone(),
            Reach::Here(name) if self.hosts.contains(name) => vec![name.clone()],
            Reach::Here(name) => {
                let what = format!(
                    "host {name} is not one of the hosts of the job: {}",
                    self.hosts.join(", ")
                );
                return Err(Error::new(ErrorCode::Configuration, what));
            }
        };
        let deployment = self.deployment();
        let ssh = Ssh::new(&deployment);
        // All hosts run the command at the same time, because each host waits for all other hosts.
        let results = in_parallel(&hosts, hosts.len(), |host| {
            let script = self.script(host, command, run);
            match reach {
                Reach::Ssh => ssh.run(deployment.host(host)?, &script),
                Reach::Here(_) => run_here(&script),
            }
        });
        let (mut states, mut problems) = (Vec::new(), Vec::new());
        for (host, result) in hosts.into_iter().zip(results) {
            match result {
                Ok(output) => states.push(state(host, &output.text)),
                Err(error) => {
                    problems.push(HostProblem { host, problem: error.context().to_owned() });
                }
            }
        }
        Ok(OnDemandOutcome {
            name: self.name.clone(),
            mount: self.mount.clone(),
            hosts: states,
            problems,
            seconds: begin.elapsed().as_secs_f64(),
        })
    }

    fn deployment(&self) -> Deployment {
        deployment(&self.name, &self.mount, &self.hosts)
    }

    /// Returns the script for a host. Its values are in quotes, and [`Self::check`] refuses values
    /// that contain quotes.
    fn script(&self, host: &str, command: Command, run: Option<&Run>) -> String {
        let first = self.hosts.first().map_or("", String::as_str);
        let verb = match command {
            Command::Check => "check",
            // After a start, the script also prints the state of the host.
            Command::Start => "start; status",
            Command::Keep => "keep",
            Command::KeepOfJob => "keep; keep_user",
            Command::Stop => "stop",
            Command::Status => "status",
        };
        let variables = [
            ("NAME", self.name.clone()),
            ("RUN", run.map(|it| it.id.clone()).unwrap_or_default()),
            ("HOST", host.to_owned()),
            ("HOSTS", shown(&self.hosts)),
            ("TOKEN", run.map(|it| it.token.clone()).unwrap_or_default()),
            ("FIRST", first.to_owned()),
            ("IS_FIRST", if first == host { "yes" } else { "no" }.to_owned()),
            ("SERVERS", self.hosts.len().to_string()),
            ("DIRECTORY", self.directory.clone()),
            ("MOUNT", self.mount.clone()),
            ("PORT", self.port.to_string()),
            ("OWNER", self.owner.map(|it| it.to_string()).unwrap_or_default()),
            ("PATIENCE", self.patience.to_string()),
            ("SOURCES", self.sources.join("\n")),
            (
                "STAGE_OUT",
                self.stage_out.iter().map(StageOut::shown).collect::<Vec<_>>().join("\n"),
            ),
            // If `run` is set, the command is a start, or the removal after a failed start. This
            // removal deletes only files that this start has created. These files contain no data
            // of users yet.
            (
                "DISCARD",
                match self.removal {
                    _ if run.is_some() => "all",
                    Removal::All => "all",
                    Removal::Saved => "saved",
                    Removal::Unneeded => "",
                }
                .to_owned(),
            ),
        ];
        let mut script = String::new();
        for (name, value) in variables {
            let _ = writeln!(script, "{name}='{value}'");
        }
        // The programs in the script must not read the rest of the script, which is on standard
        // input.
        let _ = writeln!(script, "{SCRIPT}{{ {verb}; }} </dev/null");
        script
    }
}

/// Returns a deployment for ssh sessions to `hosts`, with the user's own settings of `ssh`.
pub fn deployment(name: &str, mount: &str, hosts: &[String]) -> Deployment {
    let host = |address: &String| Host {
        name: address.clone(),
        address: address.clone(),
        network: vec![address.clone()],
        roles: vec![Role::Storage, Role::Client],
        domain: String::new(),
        disks: Vec::new(),
        directories: Vec::new(),
        tune: false,
        cpus: String::new(),
        numa_node: None,
    };
    Deployment {
        cluster: name.to_owned(),
        ssh: SshSettings::default(),
        mount: MountSettings { point: mount.to_owned(), options: String::new() },
        disks: DiskSettings::default(),
        copies: None,
        metrics: false,
        monitor: toml::Table::new(),
        hosts: hosts.iter().map(host).collect(),
        directory: PathBuf::new(),
    }
}

/// Returns the names of hosts as text for a message. If there are many hosts, names only the first
/// hosts.
pub fn shown(hosts: &[String]) -> String {
    let list = hosts.iter().take(SHOWN_HOSTS).map(String::as_str).collect::<Vec<_>>().join(", ");
    match hosts.len() > SHOWN_HOSTS {
        true => format!("{list}, ... ({} hosts)", hosts.len()),
        false => list,
    }
}

/// The subcommands of the processes on a host, in the order in which a start runs them.
const ROLES: [&str; 4] = ["management", "metadata", "storage", "mount"];

fn state(host: String, text: &str) -> HostState {
    let values = |name: &str| -> Vec<String> {
        let facts = text.lines().filter_map(|line| line.split_once('\t'));
        facts.filter(|(key, _)| *key == name).map(|(_, value)| value.to_owned()).collect()
    };
    // The script lists processes in the order of their pids. This is not always the order of their
    // start, because the kernel reuses small pids.
    let mut running = values("runs");
    running.sort_by_key(|it| ROLES.iter().position(|role| role == it));
    HostState {
        host,
        running,
        is_mounted: !values("mounted").is_empty(),
        since: values("since").pop(),
        stage_out: values("stage-out"),
        hold: values("held").pop(),
        job_user: values("user").pop().and_then(|it| it.parse().ok()),
        is_first: !values("first").is_empty(),
        lost: values("lost"),
        kept: values("kept"),
        hosts: values("hosts").pop().unwrap_or_default(),
        address: values("address").pop(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> OnDemand {
        OnDemand {
            name: "job-7".into(),
            hosts: vec!["n1".into(), "10.0.0.2".into()],
            directory: "/local".into(),
            mount: "/mnt/scratch".into(),
            port: 7600,
            owner: Some(1000),
            patience: 60,
            sources: vec!["/home/a b/input".into()],
            stage_out: vec![StageOut {
                source: "/mnt/scratch".into(),
                destination: "/home/out".into(),
            }],
            removal: Removal::Unneeded,
        }
    }

    #[test]
    fn hosts_of_a_job_compute_the_same_token_and_run_id() {
        let run = Run::of(&[7; 32], "31");
        assert_eq!(run, Run::of(&[7; 32], "31"));
        assert_eq!(run.token.len(), "skep1-".len() + 32 + 1 + 64);
        assert_eq!(run.id.len(), RUN_DIGITS);
        for other in [Run::of(&[7; 32], "32"), Run::of(&[8; 32], "31"), Run::random().unwrap()] {
            assert_ne!(run.token, other.token);
            assert_ne!(run.id, other.id);
        }
        // Other users can see the id in the arguments of processes, so it must not reveal the
        // token.
        assert!(!run.token.contains(&run.id));
        assert_ne!(Run::random().unwrap(), Run::random().unwrap());
    }

    #[test]
    fn running_services_of_a_host_are_listed_in_a_fixed_order() {
        let state = state("n1".into(), "runs\tmount\nruns\tmetadata\nruns\tmanagement\nrun\t7");
        assert_eq!(state.running, ["management", "metadata", "mount"]);
    }

    #[test]
    fn lost_storage_servers_are_read_from_the_first_host() {
        let facts = "first\tyes\nlost\tn2 (10.0.0.2:7602)\nlost\tn3 (10.0.0.3:7602)";
        let state = state("n1".into(), facts);
        assert!(state.is_first);
        assert_eq!(state.lost, ["n2 (10.0.0.2:7602)", "n3 (10.0.0.3:7602)"]);
    }

    #[test]
    fn unsaved_data_from_before_a_boot_is_read_from_each_host() {
        let state = state("n1".into(), "run\t7\nkept\t/var/lib/skep-ondemand/job-3.ab");
        assert_eq!(state.kept, ["/var/lib/skep-ondemand/job-3.ab"]);
    }

    #[test]
    fn secret_files_with_access_for_other_users_are_refused() {
        use std::os::unix::fs::{PermissionsExt, chown};
        let directory = tempfile::tempdir().unwrap();
        let secret = directory.path().join("secret");
        let refused = |words: &str| {
            let error = run_of_job(&secret, "job-7").unwrap_err();
            assert!(error.context().contains(words), "{words}: {error}");
        };
        refused("cannot read the secret");
        let mode = |mode| std::fs::Permissions::from_mode(mode);
        std::fs::write(&secret, [7; 31]).unwrap();
        std::fs::set_permissions(&secret, mode(0o600)).unwrap();
        refused("has 31 bytes: expected 32 or more");
        std::fs::write(&secret, [7; 32]).unwrap();
        assert_eq!(run_of_job(&secret, "job-7").unwrap(), Run::of(&[7; 32], "job-7"));
        std::fs::set_permissions(&secret, mode(0o640)).unwrap();
        refused("other users can read the secret");
        std::fs::set_permissions(&secret, mode(0o600)).unwrap();
        // Only root can change the owner of a file, so other users skip this check.
        if chown(&secret, Some(65534), None).is_ok() {
            refused("belongs to user 65534");
        }
    }

    #[test]
    fn names_with_shell_syntax_are_refused() {
        good().check().unwrap();
        let check = |change: fn(&mut OnDemand), word: &str| {
            let mut bad = good();
            change(&mut bad);
            let error = bad.check().unwrap_err();
            assert!(error.context().contains(word), "{word}: {error}");
        };
        check(|it| it.name = "$(id)".into(), "invalid name '$(id)'");
        check(|it| it.name = "a.b".into(), "invalid name 'a.b'");
        check(|it| it.hosts.push("a;b".into()), "invalid host 'a;b'");
        check(|it| it.hosts.push("a'b".into()), "invalid host 'a'b'");
        check(|it| it.hosts.push("fd00::1".into()), "expected a name or an IPv4 address");
        check(|it| it.directory = "relative".into(), "invalid directory");
        check(|it| it.directory = "/a/../b".into(), "invalid directory");
        check(|it| it.mount = "/".into(), "invalid mount point");
        check(|it| it.mount = "/a'b".into(), "invalid mount point");
        check(|it| it.hosts.clear(), "invalid number of hosts 0");
    }

    #[test]
    fn only_the_first_host_runs_management() {
        let run = Run::of(&[7; 32], "31");
        let first = good().script("n1", Command::Start, Some(&run));
        let second = good().script("10.0.0.2", Command::Start, Some(&run));
        for line in ["HOST='n1'", "IS_FIRST='yes'", "{ start; status; } </dev/null"] {
            assert!(first.lines().any(|it| it == line), "{line}: {first}");
        }
        for line in ["HOST='10.0.0.2'", "IS_FIRST='no'", "FIRST='n1'", "SERVERS='2'"] {
            assert!(second.lines().any(|it| it == line), "{line}: {second}");
        }
        for script in [&first, &second] {
            assert!(script.contains(&format!("RUN='{}'\n", run.id)), "{script}");
        }
    }

    #[test]
    fn stop_by_name_needs_neither_token_nor_run_id() {
        let script = good().script("n1", Command::Stop, None);
        assert!(script.contains("RUN=''\n") && script.contains("TOKEN=''\n"), "{script}");
        assert!(script.ends_with("{ stop; } </dev/null\n"), "{script}");
    }

    #[test]
    fn messages_list_at_most_eight_hosts() {
        let hosts: Vec<String> = (1..=9).map(|it| format!("n{it}")).collect();
        assert_eq!(shown(&hosts[..2]), "n1, n2");
        assert_eq!(shown(&hosts), "n1, n2, n3, n4, n5, n6, n7, n8, ... (9 hosts)");
    }
}
