//! Removes a lab, even a lab that was only partly created or partly removed.
//!
//! No step of the removal assumes that `up` has completed. Processes are found by the state file,
//! by their network namespaces, and by an environment variable. Network namespaces are found by
//! their names, and mounts by their directories. Any of these parts may already be missing.

use crate::command::{call, ip, marked};
use crate::data;
use crate::names::{DATA_ROOT, STATE_ROOT, state_directory};
use crate::process::{children, kill_all, of_lab};
use crate::state::{State, namespaces_of};
use serde::Serialize;
use skep_types::{Error, ErrorCode, Result};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Name of the process that starts the lab, in the list of processes in the lab's state.
pub(crate) const MAKER: &str = "up";

/// The parts of a lab that [`down`] has removed, or that [`down`] would remove.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Removed {
    /// Name of the lab.
    pub name: String,
    /// Whether any part of the lab existed.
    pub was_there: bool,
    /// Number of processes that were killed, or would be killed.
    pub processes: usize,
    /// Mount points that were unmounted, or would be unmounted.
    pub mounts: Vec<PathBuf>,
    /// Network namespaces that were removed, or would be removed.
    pub namespaces: Vec<String>,
    /// Directories that were removed, or would be removed.
    pub directories: Vec<PathBuf>,
}

/// The parts of a lab that exist now.
struct LabRemains {
    state: Option<State>,
    namespaces: Vec<String>,
    mounts: Vec<PathBuf>,
    data: PathBuf,
    run: PathBuf,
}

impl LabRemains {
    fn of(lab: &str) -> Result<Self> {
        // Ignore an unreadable state file, because `down` can find the other parts of the lab
        // without this file.
        let state = State::load(lab).ok();
        let run = state_directory(lab);
        let data = match &state {
            Some(state) => state.directory.clone(),
            None => Path::new(DATA_ROOT).join(lab),
        };
        let mut mounts: Vec<_> =
            data::mounts_below(&run)?.into_iter().map(|mount| mount.point).collect();
        if data::is_mount_point(&data)? {
            mounts.push(data.clone());
        }
        Ok(Self { state, namespaces: namespaces_of(lab), mounts, data, run })
    }

    /// Returns the ids of all running processes of the lab.
    fn processes(&self, lab: &str) -> Vec<u32> {
        // Repeat the search for network namespaces, because `up` may have created further
        // namespaces since the last search.
        let mut found = of_lab(lab, &namespaces_of(lab));
        let noted = self.state.iter().filter(|state| state.is_of_this_boot());
        for process in noted.flat_map(|state| &state.processes) {
            if process.pid != std::process::id() && process.runs() {
                found.push(process.pid);
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    fn directories(&self) -> Vec<PathBuf> {
        [&self.data, &self.run].into_iter().filter(|path| path.exists()).cloned().collect()
    }
}

/// Removes all parts of a lab that exist.
///
/// # Errors
/// - `Configuration`: the name is invalid.
/// - `NotPermitted`: this process does not run as root.
/// - Another error: a process, a mount or a directory cannot be removed. The remaining parts of the
///   lab stay, and another call of this function tries to remove these parts.
pub fn down(lab: &str) -> Result<Removed> {
    crate::description::check_name(lab)?;
    crate::check::check_root()?;
    let found = LabRemains::of(lab)?;
    // First kill the process that starts the lab, and the children of this process. Running
    // processes could create more parts.
    let maker = found.state.iter().filter(|state| state.is_of_this_boot());
    let maker = maker.flat_map(|state| &state.processes).find(|process| process.name == MAKER);
    let mut processes = 0;
    if let Some(maker) = maker.filter(|it| it.runs() && it.pid != std::process::id()) {
        let _ = skep_env::send_signal(maker.pid, libc::SIGSTOP);
        let started = children(maker.pid);
        processes += kill_all(|| maker.runs().then_some(maker.pid).into_iter().collect())?;
        let still = |pid: &u32| skep_env::process_start_time(*pid).is_some();
        processes += kill_all(|| started.iter().copied().filter(still).collect())?;
    }
    // The first search ended before the process that starts the lab was killed. So the search may
    // have missed parts that this process created last, and a child process may still run. Repeat
    // the search for parts until no network namespace and no mount is left.
    let found = LabRemains::of(lab)?;
    let mut namespaces = Vec::new();
    let mut mounts = Vec::new();
    loop {
        processes += kill_all(|| found.processes(lab))?;
        let left = LabRemains::of(lab)?;
        if left.namespaces.is_empty() && left.mounts.iter().all(|mount| *mount == left.data) {
            break;
        }
        for mount in left.mounts.iter().filter(|mount| **mount != left.data) {
            call(marked(lab, "umount").args(["--lazy", "--no-canonicalize"]).arg(mount))?;
            mounts.push(mount.clone());
        }
        for namespace in &left.namespaces {
            ip(lab, &format!("netns delete {namespace}"))?;
            namespaces.push(namespace.clone());
        }
    }
    if found.mounts.contains(&found.data) {
        mounts.push(found.data.clone());
    }
    let directories = found.directories();
    data::remove(lab, &found.data)?;
    remove_run(lab, &found.run)?;
    Ok(Removed {
        name: lab.to_owned(),
        was_there: found.state.is_some()
            || processes > 0
            || !(namespaces.is_empty() && directories.is_empty()),
        processes,
        mounts,
        namespaces,
        directories,
    })
}

/// Returns the parts that [`down`] would remove, and removes nothing.
///
/// # Errors
/// Returns `Configuration` if the name is invalid.
pub fn would_remove(lab: &str) -> Result<Removed> {
    crate::description::check_name(lab)?;
    let found = LabRemains::of(lab)?;
    let processes = found.processes(lab).len();
    let directories = found.directories();
    Ok(Removed {
        name: lab.to_owned(),
        was_there: found.state.is_some()
            || processes > 0
            || !(found.namespaces.is_empty() && directories.is_empty()),
        processes,
        mounts: found.mounts,
        namespaces: found.namespaces,
        directories,
    })
}

/// Removes the directory of the lab's state, logs and mount points. Removes the state file after
/// all other files.
fn remove_run(lab: &str, run: &Path) -> Result<()> {
    let named = |error: std::io::Error| Error::from(error).within(run.display());
    let ignore_missing = |result: std::io::Result<()>| match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other.map_err(named),
    };
    if let Some(mount) = data::mounts_below(run)?.first() {
        let what = format!(
            "cannot remove the lab: {} is still mounted; unmount this directory, and then repeat \
             `skep lab down`",
            mount.point.display()
        );
        return Err(Error::new(ErrorCode::InUse, what));
    }
    // Remove each mount point by a call that fails if the directory is not empty. A recursive
    // removal could delete files of a file system that is still mounted.
    let points = run.join("mnt");
    for entry in fs::read_dir(&points).into_iter().flatten() {
        ignore_missing(fs::remove_dir(entry.map_err(named)?.path()))?;
    }
    ignore_missing(fs::remove_dir(&points))?;
    ignore_missing(fs::remove_dir_all(run.join("logs")))?;
    for name in ["ready", "token", "lab.new", "lab.json"] {
        ignore_missing(fs::remove_file(run.join(name)))?;
    }
    ignore_missing(fs::remove_dir(run))
        .map_err(|error| error.within(format_args!("cannot remove lab '{lab}'")))?;
    // Ignore the error. The removal of these directories fails while other labs use them.
    for root in [STATE_ROOT, DATA_ROOT] {
        let _ = fs::remove_dir(root);
    }
    Ok(())
}
