//! The measured file systems, with the steps that start and stop each file system on this host.
//!
//! All file systems store their data below one directory, so that all of them use the same disk.
//! The peers are other file systems, which are measured only if their Debian packages are
//! installed. Each peer has 8 targets, the default number of Skep.

use crate::repository::{Outcome, output, output_with, root};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A measured file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum System {
    /// The local file system that stores the data of all other measured file systems.
    Local,
    /// Skep, as `skep up` starts it by default.
    Skep,
    /// Skep with feature level 2, so that changes of two metadata groups are staged. Measured only
    /// if `--systems` lists it.
    #[value(name = "skep-level-2")]
    SkepLevel2,
    /// GlusterFS: a volume distributed over 8 bricks.
    Gluster,
    /// MooseFS: 4 chunk servers with 2 directories each, and one copy of the data.
    Moose,
}

impl System {
    /// All file systems.
    pub(crate) const ALL: [Self; 5] =
        [Self::Local, Self::Skep, Self::SkepLevel2, Self::Gluster, Self::Moose];

    /// Returns the name of the file system in tables. The name in lower case is also the name of
    /// the directory with its data.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Skep => "Skep",
            Self::SkepLevel2 => "Skep-level-2",
            Self::Gluster => "GlusterFS",
            Self::Moose => "MooseFS",
        }
    }

    /// Whether the file system is Skep, on any feature level.
    pub(crate) fn is_skep(self) -> bool {
        matches!(self, Self::Skep | Self::SkepLevel2)
    }

    /// Whether a run without `--systems` measures the file system. The programs of a peer must be
    /// installed.
    pub(crate) fn is_measured_by_default(self) -> bool {
        match self {
            Self::Local | Self::Skep => true,
            Self::SkepLevel2 => false,
            Self::Gluster => is_program("glusterd"),
            Self::Moose => ["mfsmaster", "mfschunkserver", "mfsmount"].into_iter().all(is_program),
        }
    }

    /// Returns the versions of the measured packages, with a separator in front of each version.
    ///
    /// # Errors
    /// Describes the reason why `dpkg-query` failed.
    pub(crate) fn version(self) -> Outcome<String> {
        let package = match self {
            Self::Local | Self::Skep | Self::SkepLevel2 => return Ok(String::new()),
            Self::Gluster => "glusterfs-server",
            Self::Moose => "moosefs-master",
        };
        let version = output("dpkg-query", &["-W", "-f", "${Version}", package])?;
        Ok(format!(", {} {}", self.label(), version.trim()))
    }

    /// Starts the file system below `directory`, which must be empty.
    ///
    /// # Errors
    /// Describes the reason why the file system cannot be mounted.
    pub(crate) fn start(self, directory: &Path) -> Outcome<MountedSystem> {
        let mount_point = directory.join("mnt");
        let mut running = MountedSystem {
            system: self,
            directory: directory.to_owned(),
            mount_point,
            program: root().join("target/release/skep"),
            variables: &[],
            daemons: Vec::new(),
        };
        make(&running.mount_point)?;
        match self {
            Self::Local => Ok(()),
            Self::Skep => running.start_skep(&[]),
            Self::SkepLevel2 => {
                running.start_skep(&[]).and_then(|()| running.raise_feature_level("2"))
            }
            Self::Gluster => running.start_gluster(),
            Self::Moose => running.start_moose(),
        }?;
        Ok(running)
    }
}

/// Starts Skep below `directory`, which must be empty. `program` is the executable, `more` are
/// additional arguments of `skep up`, and `variables` are environment variables of all processes of
/// Skep.
///
/// # Errors
/// Describes the reason why the cluster cannot be started.
pub(crate) fn start_skep(
    program: &Path,
    directory: &Path,
    more: &[&str],
    variables: &'static [(&'static str, &'static str)],
) -> Outcome<MountedSystem> {
    let running = MountedSystem {
        system: System::Skep,
        directory: directory.to_owned(),
        mount_point: directory.join("mnt"),
        program: program.to_owned(),
        variables,
        daemons: Vec::new(),
    };
    make(&running.mount_point)?;
    running.start_skep(more)?;
    Ok(running)
}

fn is_program(name: &str) -> bool {
    ["/usr/sbin", "/usr/bin"].iter().any(|place| Path::new(place).join(name).exists())
}

fn make(path: &Path) -> Outcome {
    fs::create_dir_all(path).map_err(|error| format!("cannot create {}: {error}", path.display()))
}

fn write(path: &Path, text: &str) -> Outcome {
    fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

fn text(path: &Path) -> &str {
    path.to_str().expect("benchmarks run in a directory whose name is UTF-8")
}

/// Checks a condition repeatedly until the condition holds. Fails after a minute.
fn wait_for(what: &str, mut is_true: impl FnMut() -> bool) -> Outcome {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_true() {
        if Instant::now() > deadline {
            return Err(format!("gave up after a minute of attempts: {what}"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Returns an address of this host that is not the loopback address, because peers refuse the
/// loopback address. The kernel still sends packets for this address through the loopback device.
fn own_address() -> Outcome<String> {
    let all = output("hostname", &["-I"])?;
    let first = all.split_whitespace().next();
    first.map(str::to_owned).ok_or_else(|| {
        "cannot start peers: this host has only the loopback address; configure another address"
            .into()
    })
}

/// A mounted file system. The drop of this value unmounts and stops the file system.
pub(crate) struct MountedSystem {
    pub(crate) system: System,
    pub(crate) directory: PathBuf,
    pub(crate) mount_point: PathBuf,
    /// The executable of Skep.
    program: PathBuf,
    /// Environment variables of Skep's processes.
    variables: &'static [(&'static str, &'static str)],
    daemons: Vec<Child>,
}

impl MountedSystem {
    fn skep(&self, arguments: &[&str]) -> Outcome {
        output_with(text(&self.program), arguments, self.variables).map(drop)
    }

    fn start_skep(&self, more: &[&str]) -> Outcome {
        let data = self.directory.join("data");
        let up = ["up", "--detach", "--data-dir", text(&data), "--mount-point"];
        self.skep(&[&up[..], &[text(&self.mount_point)], more].concat())
    }

    /// Raises the feature level of Skep. The metadata targets receive the new level a moment after
    /// this call.
    fn raise_feature_level(&self, level: &str) -> Outcome {
        let data = self.directory.join("data");
        self.skep(&["config", "set", "feature-level", level, "--cluster", text(&data)])
    }

    fn spawn(&mut self, program: &str, arguments: &[&str]) -> Outcome {
        let log = fs::File::create(self.directory.join(format!("log-{}", self.daemons.len())));
        let log = log.map_err(|error| error.to_string())?;
        let error_log = log.try_clone().map_err(|error| error.to_string())?;
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(error_log)
            .spawn()
            .map_err(|error| format!("cannot start {program}: {error}"))?;
        self.daemons.push(child);
        Ok(())
    }

    fn is_mounted(&self) -> bool {
        let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
        mounts.lines().any(|line| line.split(' ').nth(1) == Some(text(&self.mount_point)))
    }

    fn start_gluster(&mut self) -> Outcome {
        let address = own_address()?;
        self.spawn("glusterd", &["--no-daemon"])?;
        wait_for("glusterd", || output("gluster", &["pool", "list"]).is_ok())?;
        let mut arguments: Vec<String> =
            ["--mode=script", "volume", "create", "bench", "transport", "tcp"]
                .map(str::to_owned)
                .into();
        for brick in 1..=8 {
            let path = self.directory.join(format!("brick-{brick}"));
            make(&path)?;
            arguments.push(format!("{address}:{}", path.display()));
        }
        arguments.push("force".into());
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        output("gluster", &arguments)?;
        output("gluster", &["--mode=script", "volume", "start", "bench"])?;
        let source = format!("{address}:/bench");
        output("mount", &["-t", "glusterfs", &source, text(&self.mount_point)])?;
        Ok(())
    }

    fn start_moose(&mut self) -> Outcome {
        let address = own_address()?;
        let master = self.directory.join("master");
        make(&master)?;
        // A new master server starts from an empty namespace. The package contains this namespace
        // as a file.
        fs::copy("/var/lib/mfs/metadata.mfs.empty", master.join("metadata.mfs")).map_err(
            |error| format!("cannot copy the empty metadata of MooseFS's master server: {error}"),
        )?;
        let exports = master.join("exports");
        write(&exports, "* / rw,alldirs,admin,maproot=0:0\n")?;
        let config = master.join("config");
        let lines = format!(
            "WORKING_USER = root\nWORKING_GROUP = root\nDATA_PATH = {0}\nEXPORTS_FILENAME = {1}\n\
             TOPOLOGY_FILENAME = {0}/topology\nMATOML_LISTEN_HOST = {address}\n\
             MATOCS_LISTEN_HOST = {address}\nMATOCL_LISTEN_HOST = {address}\n",
            master.display(),
            exports.display()
        );
        write(&config, &lines)?;
        write(&master.join("topology"), "")?;
        self.spawn("mfsmaster", &["-f", "-c", text(&config), "start"])?;
        for server in 1..=4 {
            let place = self.directory.join(format!("chunks-{server}"));
            let (first, second) = (place.join("1"), place.join("2"));
            make(&first)?;
            make(&second)?;
            write(&place.join("hdd"), &format!("{}\n{}\n", first.display(), second.display()))?;
            let config = place.join("config");
            let lines = format!(
                "WORKING_USER = root\nWORKING_GROUP = root\nDATA_PATH = {0}\n\
                 HDD_CONF_FILENAME = {0}/hdd\nMASTER_HOST = {address}\n\
                 CSSERV_LISTEN_HOST = {address}\nCSSERV_LISTEN_PORT = {1}\n",
                place.display(),
                29_420 + server
            );
            write(&config, &lines)?;
            self.spawn("mfschunkserver", &["-f", "-c", text(&config), "start"])?;
        }
        let mount_point = text(&self.mount_point).to_owned();
        wait_for("the mount of MooseFS by mfsmount", || {
            output("mfsmount", &[&mount_point, "-H", &address]).is_ok()
        })?;
        output("mfssetgoal", &["-r", "1", &mount_point])?;
        // Chunk servers report their free space within seconds. Until then, no file can be written.
        let probe = self.mount_point.join("probe");
        let has_space = || {
            let file = fs::File::create(&probe)?;
            (&file).write_all(b"probe")?;
            file.sync_all()
        };
        wait_for("the first write, which needs free space on MooseFS's chunk servers", || {
            has_space().is_ok()
        })?;
        fs::remove_file(&probe).map_err(|error| error.to_string())
    }

    /// Returns the path of the archive of small files. The archive is on the same disk as the
    /// servers' data.
    pub(crate) fn archive(&self) -> PathBuf {
        self.directory.join("tree.tar")
    }

    /// Waits until the writes of the previous workload are on disk, so that these writes do not
    /// slow down the next workload.
    pub(crate) fn wait_for_writeback(&self) -> Outcome {
        for place in [&self.mount_point, &self.directory] {
            output("sync", &["--file-system", text(place)])?;
        }
        Ok(())
    }
}

impl Drop for MountedSystem {
    fn drop(&mut self) {
        // Print errors and continue, because the whole clean-up must happen even after a failure.
        let mut problems = Vec::new();
        let mut attempt = |outcome: Outcome| problems.extend(outcome.err());
        if self.system.is_skep() {
            attempt(self.skep(&["down", "--data-dir", text(&self.directory.join("data"))]));
        }
        if self.is_mounted() {
            attempt(output("umount", &[text(&self.mount_point)]).map(drop));
        }
        if self.system == System::Gluster {
            let gluster = |verb| output("gluster", &["--mode=script", "volume", verb, "bench"]);
            attempt(gluster("stop").map(drop));
            attempt(gluster("delete").map(drop));
        }
        for daemon in self.daemons.iter_mut().rev() {
            let pid = daemon.id().to_string();
            attempt(output("kill", &["-TERM", &pid]).map(drop));
            attempt(daemon.wait().map(drop).map_err(|error| error.to_string()));
        }
        if !self.is_mounted() {
            attempt(fs::remove_dir_all(&self.directory).map_err(|error| error.to_string()));
        }
        for problem in problems {
            eprintln!("cannot stop {} completely: {problem}", self.system.label());
        }
    }
}
