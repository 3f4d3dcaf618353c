//! Mounts the file system in memory by a separate process, and unmounts it even if the test fails.

use crate::memory::Memory;
use skep_fuse::{MountFlags, RequestOptions, ServeOptions, serve};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const SERVE: &str = "SKEP_SERVE_IN_MEMORY";
const PATIENCE: Duration = Duration::from_secs(20);

/// Serves a mount and returns the exit code, if [`Mounted::start`] started this process. The
/// environment variable `SERVE` then has the form `transport:mount point`.
pub(crate) fn serve_if_asked() -> Option<i32> {
    let asked = std::env::var(SERVE).ok()?;
    let (transport, mount_point) = asked.split_once(':').unwrap();
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let memory = Memory::new();
    let options = ServeOptions {
        flags: MountFlags::default(),
        allows_others: false,
        mount_point: mount_point.into(),
        source: "memory".into(),
        transport: transport.parse().unwrap(),
        read_ahead_bytes: None,
        workers: None,
        requests: RequestOptions {
            has_job_patterns: false,
            has_direct_io: false,
            validity: skep_fuse::VALIDITY,
            job_variables: None,
            metrics: skep_metrics::Registry::new(),
        },
        ends_on_signals: true,
        on_ready: Box::new(|transport| {
            println!("ready {transport}");
            std::io::stdout().flush().unwrap();
        }),
    };
    match serve(options, move |_| std::future::ready(Ok(memory.clone()))) {
        Ok(()) => Some(0),
        Err(error) => {
            println!("{error}");
            Some(1)
        }
    }
}

/// A mount that a separate process serves.
pub(crate) struct Mounted {
    pub(crate) path: PathBuf,
    pub(crate) transport: String,
    server: Child,
    _directory: Option<tempfile::TempDir>,
}

/// Waits until `holds` returns true.
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::thread::yield_now();
    }
}

/// Whether `path` is a mount point.
pub(crate) fn is_mounted(path: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    mounts.lines().any(|line| line.split(' ').nth(1) == path.to_str())
}

impl Mounted {
    pub(crate) fn new(transport: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut it = Self::start(transport, directory.path()).unwrap();
        it._directory = Some(directory);
        it
    }

    /// Mounts the file system on a directory. If the mount fails, returns the server's error
    /// message.
    pub(crate) fn start(transport: &str, path: &Path) -> Result<Self, String> {
        let mut server = Command::new(std::env::current_exe().unwrap())
            .env(SERVE, format!("{transport}:{}", path.display()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        match line.trim().strip_prefix("ready ") {
            Some(transport) => Ok(Self {
                path: path.to_owned(),
                transport: transport.to_owned(),
                server,
                _directory: None,
            }),
            None => {
                server.wait().unwrap();
                Err(line.trim().to_owned())
            }
        }
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub(crate) fn signal(&self, signal: i32) {
        // SAFETY: the call takes no pointers. The test has not waited for the child yet, so the id
        // is still the child's.
        assert_eq!(unsafe { libc::kill(self.server.id() as i32, signal) }, 0);
    }

    /// Waits until the server process exits.
    pub(crate) fn end(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("the server ends", || {
            status = self.server.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        if is_mounted(&self.path) {
            let path = std::ffi::CString::new(self.path.to_str().unwrap()).unwrap();
            // SAFETY: the string ends with a zero byte and outlives the call.
            unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
        }
    }
}
