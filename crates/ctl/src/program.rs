//! The executable of this process: recognizes the names of the helpers of mount(8) and umount(8),
//! and starts the executable again as a new process.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Name of the processes that serve mounts, see [`set_process_name`].
pub(crate) const MOUNT_PROCESS: &str = "skep-mount";

/// Whether the program was started under one of the names of the mount helper.
pub(crate) fn is_mount_helper(program: &OsStr) -> bool {
    let name = Path::new(program).file_name().unwrap_or_default();
    name == "mount.skep" || name == "mount.fuse.skep"
}

/// Whether the program was started under the name of the helper of umount(8).
pub(crate) fn is_umount_helper(program: &OsStr) -> bool {
    Path::new(program).file_name().is_some_and(|name| name == "umount.fuse.skep")
}

/// Returns a command that runs the executable of this process a second time, even if a newer build
/// has replaced the file.
pub(crate) fn program() -> Command {
    let mut command = Command::new("/proc/self/exe");
    // A new process with the name of a helper would parse its arguments as this helper does.
    let is_plain = |name: &std::ffi::OsString| !is_mount_helper(name) && !is_umount_helper(name);
    let name = std::env::args_os().next().filter(is_plain);
    command.arg0(name.unwrap_or_else(|| "skep".into()));
    // `NOTIFY_SOCKET` belongs to the process that waits until this process is ready. That process
    // must not receive the notifications of the new process, and may also have exited.
    command.env_remove("NOTIFY_SOCKET");
    command
}

/// Sets the name that `ps`, `top` and `pgrep` show for this process. Without this call, a process
/// that [`program`] has started has the name `exe`. The kernel keeps the first 15 bytes of the
/// name.
pub(crate) fn set_process_name(name: &str) {
    // Ignore an error, because only people use the name. If /proc is missing, `program` fails
    // anyway.
    let _ = std::fs::write("/proc/self/comm", name);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_names_mount_skep_and_umount_skep_select_the_helpers() {
        assert!(is_mount_helper(OsStr::new("/sbin/mount.skep")));
        assert!(is_mount_helper(OsStr::new("mount.fuse.skep")));
        assert!(!is_mount_helper(OsStr::new("/usr/bin/skep")));
        assert!(is_umount_helper(OsStr::new("/sbin/umount.fuse.skep")));
        assert!(!is_umount_helper(OsStr::new("mount.fuse.skep")));
    }
}
