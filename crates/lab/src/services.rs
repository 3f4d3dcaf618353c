//! Starts the services and mounts of a lab. Each service and each mount is a process of the program
//! `skep`, which runs on one host of the lab.

use crate::command::{call, marked};
use crate::description::Description;
use crate::limits::{START_PATIENCE, TICK};
use crate::names::{
    MANAGEMENT_PORT, METADATA_PORT, NAMESPACES, PROCESS_VARIABLE, Role, STORAGE_PORT,
};
use crate::process::Process;
use crate::state::{Host, State};
use skep_types::{Error, ErrorCode, Result};
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Shell command that sets the name of a host for the programs on this host, and then runs a
/// program.
const SET_HOST_NAME: &str = "echo \"$0\" > /proc/sys/kernel/hostname && exec \"$@\"";
/// Size of a log at which a mount process renames the log to `FILE.old` and begins a new log.
const LOG_LIMIT: &str = "16MiB";
/// Number of lines of a log that an error message contains.
const SHOWN_LINES: usize = 5;

/// Starts the services and mounts of a lab.
pub(crate) struct Starter<'a> {
    /// Path of the program `skep`.
    pub(crate) program: &'a Path,
    pub(crate) state: &'a mut State,
    /// The socket to which processes report that they are ready. The socket has a path in the file
    /// system, because an abstract socket name is visible only in one network namespace.
    readiness: UnixDatagram,
    socket: PathBuf,
}

/// Returns a command that runs a program on a host. The program has the same process id as the
/// command. The command runs in the mount namespace of this machine, so that its mounts are visible
/// to all processes.
fn on_host(lab: &str, host: &Host) -> Command {
    let mut command = marked(lab, "nsenter");
    command.arg(format!("--net={NAMESPACES}/{}", host.namespace));
    command.args(["unshare", "--uts", "sh", "-c", SET_HOST_NAME, &host.name]);
    command
}

fn texts(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

impl<'a> Starter<'a> {
    pub(crate) fn new(program: &'a Path, state: &'a mut State) -> Result<Self> {
        let run = state.token_file.parent().expect("the token file lies in the lab's directory");
        let socket = run.join("ready");
        let named = |error: std::io::Error| Error::from(error).within(socket.display());
        fs::create_dir_all(&state.log_directory).map_err(named)?;
        let readiness = UnixDatagram::bind(&socket).map_err(named)?;
        readiness.set_read_timeout(Some(TICK)).map_err(named)?;
        Ok(Self { program, state, readiness, socket })
    }

    /// Returns the directory of the service `name` on a host.
    fn place(&self, host: &Host, name: &str) -> PathBuf {
        self.state.directory.join(&host.name).join(name)
    }

    /// Runs `skep` on a host until it exits. Returns the text of its standard output.
    pub(crate) fn skep(&self, host: &Host, arguments: &[OsString]) -> Result<String> {
        call(on_host(&self.state.name, host).arg(self.program).args(arguments))
    }

    /// Runs a `skep` command on the host of management. `words` are its arguments, without the
    /// options that name the cluster of the lab.
    pub(crate) fn administer(&self, words: &[&str]) -> Result<String> {
        let host = self.management_host();
        let mut arguments = texts(words);
        arguments.extend(texts(&["--cluster", &self.state.cluster, "--token-file"]));
        arguments.push(self.state.token_file.clone().into());
        self.skep(&host, &arguments)
    }

    /// Returns the host that runs the management service: the first metadata host.
    fn management_host(&self) -> Host {
        let mut hosts = self.state.hosts_of(Role::Metadata);
        hosts.next().expect("each lab has a metadata host").clone()
    }

    /// Starts the management service.
    pub(crate) fn start_management(&mut self) -> Result<()> {
        let host = self.management_host();
        let mut arguments = texts(&["management", "--directory"]);
        arguments.push(self.place(&host, "management").into());
        arguments.extend(texts(&["--listen", &format!("{}:{MANAGEMENT_PORT}", host.address)]));
        self.skep(&host, &[arguments.clone(), texts(&["--init"])].concat())?;
        let token = self.place(&host, "management").join("join-token");
        fs::copy(&token, &self.state.token_file)
            .map_err(|error| Error::from(error).within(token.display()))?;
        self.start("management", &host, arguments)
    }

    /// Starts the metadata service of a metadata host.
    pub(crate) fn start_metadata(&mut self, host: &Host) -> Result<()> {
        let targets: Vec<_> = (1..=self.state.description.metadata_targets)
            .map(|number| self.place(host, &format!("metadata-t{number}")))
            .collect();
        self.start_service("metadata", host, METADATA_PORT, &targets, &[])
    }

    /// Starts the storage service of a server host.
    pub(crate) fn start_storage(&mut self, host: &Host) -> Result<()> {
        let targets = self.state.targets.iter().filter(|target| target.server == host.name);
        let (targets, rates): (Vec<_>, Vec<_>) =
            targets.map(|target| (target.directory.clone(), target.rate_bytes_per_second)).unzip();
        let mut settings = Vec::new();
        if let Some(Some(rate)) = rates.first() {
            let description = &self.state.description;
            settings.push(format!("emulation.rate={rate}"));
            settings.push(format!("emulation.seed={}", description.seed));
            if let Some(variability) = description.target_variability {
                settings.push(format!("emulation.variability={}", variability.0));
            }
        }
        self.start_service("storage", host, STORAGE_PORT, &targets, &settings)
    }

    fn start_service(
        &mut self,
        kind: &str,
        host: &Host,
        port: u16,
        targets: &[PathBuf],
        settings: &[String],
    ) -> Result<()> {
        let mut arguments = texts(&[kind, "--directory"]);
        arguments.push(self.place(host, kind).into());
        arguments.extend(texts(&["--listen", &format!("{}:{port}", host.address)]));
        for target in targets {
            fs::create_dir_all(
                target.parent().expect("each target lies in the directory of its host"),
            )?;
            arguments.extend([OsString::from("--target"), target.into()]);
        }
        let named = format!("node.name={}", host.name);
        for setting in settings.iter().chain([&named]) {
            arguments.extend(texts(&["--set", setting]));
        }
        let mut init = arguments.clone();
        init.extend(texts(&["--init", "--token-file"]));
        init.push(self.state.token_file.clone().into());
        self.skep(host, &init)?;
        self.start(kind, host, arguments)
    }

    /// Mounts the cluster's file system on a client host.
    pub(crate) fn start_mount(&mut self, host: &Host) -> Result<()> {
        let point = host.mount_point.clone().expect("a client host has a mount point");
        fs::create_dir_all(&point).map_err(|error| Error::from(error).within(point.display()))?;
        // Name the token file as the cluster to mount. The mount table then shows the path of this
        // file as the source of the mount. So `skep` commands about files in the mount find the
        // cluster and the token without options.
        let mut arguments = texts(&["mount", "--foreground", "--cluster"]);
        arguments.push(self.state.token_file.clone().into());
        arguments.extend(texts(&["--log-limit", LOG_LIMIT]));
        arguments.push(point.into());
        self.start("mount", host, arguments)
    }

    /// Starts `skep` as a process that keeps running, adds the process to the state of the lab, and
    /// waits until the process is ready.
    fn start(&mut self, name: &str, host: &Host, arguments: Vec<OsString>) -> Result<()> {
        let log = self.state.log_directory.join(format!("{}-{name}.log", host.name));
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .map_err(|error| Error::from(error).within(log.display()))?;
        let mut command = on_host(&self.state.name, host);
        command.arg(self.program).args(arguments);
        command.env("NOTIFY_SOCKET", &self.socket).env(PROCESS_VARIABLE, &self.state.name);
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let mut child = skep_env::spawn_detached(&mut command)?;
        if let Some(process) = Process::of(name, &host.name, child.id()) {
            self.state.processes.push(process);
            self.state.save()?;
        }
        self.await_ready(&mut child).map_err(|error| {
            let what = format!(
                "cannot start the lab: {name} on {} {}:\n{}",
                host.name,
                error.context(),
                tail(&log)
            );
            Error::new(error.code(), what)
        })
    }

    fn await_ready(&self, child: &mut Child) -> Result<()> {
        let deadline = skep_env::now() + START_PATIENCE;
        let mut message = [0; 64];
        loop {
            if let Ok(len) = self.readiness.recv(&mut message)
                && message[..len].starts_with(b"READY=1")
            {
                return Ok(());
            }
            if let Some(status) = child.try_wait()? {
                let what = format!("ended during its start ({status})");
                return Err(Error::new(ErrorCode::NotReady, what));
            }
            if skep_env::now() > deadline {
                let what = format!("was not ready within {} s", START_PATIENCE.as_secs());
                return Err(Error::new(ErrorCode::TimedOut, what));
            }
        }
    }

    /// Waits until all targets are online. After this wait, formats the cluster, and sets its
    /// placement policy.
    pub(crate) fn format(&self, pause: Duration) -> Result<()> {
        let Description { metadata_servers, metadata_targets, .. } = self.state.description;
        let metadata = usize::from(metadata_servers) * usize::from(metadata_targets);
        let wanted = self.state.targets.len() + metadata;
        let deadline = skep_env::now() + START_PATIENCE;
        loop {
            let text = self.administer(&["target", "list", "--output", "json"])?;
            let list: serde_json::Value = serde_json::from_str(&text).map_err(|error| {
                Error::new(ErrorCode::Io, format!("cannot read the list of targets: {error}"))
            })?;
            let targets = list.as_array().map(Vec::as_slice).unwrap_or_default();
            let online = targets.iter().filter(|target| target["reachability"] == "Online");
            let online = online.count();
            if online == wanted {
                break;
            }
            if skep_env::now() > deadline {
                let what = format!(
                    "cannot start the lab: only {online} of {wanted} targets have registered with \
                     management"
                );
                return Err(Error::new(ErrorCode::TimedOut, what));
            }
            std::thread::sleep(pause);
        }
        self.administer(&["cluster", "format"])?;
        if let Some(chooser) = &self.state.description.chooser {
            self.administer(&["config", "set", "chooser", chooser])?;
        }
        Ok(())
    }
}

/// Returns the last lines of a log, each with an indent.
fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    let last = &lines[lines.len().saturating_sub(SHOWN_LINES)..];
    last.iter().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}
