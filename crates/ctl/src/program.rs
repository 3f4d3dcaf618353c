//! This program as a process: the name it was called by, and how it starts itself again.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Whether the program was called by one of the helper's names.
pub(crate) fn is_mount_helper(program: &OsStr) -> bool {
    let name = Path::new(program).file_name().unwrap_or_default();
    name == "mount.skep" || name == "mount.fuse.skep"
}

/// This program, to be run again: this very one, even if its file was replaced by a newer build.
pub(crate) fn program() -> Command {
    let mut command = Command::new("/proc/self/exe");
    // Under a name of the helper it would take its arguments for those of mount(8).
    let name = std::env::args_os().next().filter(|name| !is_mount_helper(name));
    command.arg0(name.unwrap_or_else(|| "skep".into()));
    // Who waits for this process doesn't wait for those that it starts, and may be gone by then.
    command.env_remove("NOTIFY_SOCKET");
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_helper_is_known_by_its_name() {
        assert!(is_mount_helper(OsStr::new("/sbin/mount.skep")));
        assert!(is_mount_helper(OsStr::new("mount.fuse.skep")));
        assert!(!is_mount_helper(OsStr::new("/usr/bin/skep")));
    }
}
