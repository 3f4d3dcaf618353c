//! `skep umount`: unmounts a directory, as root or through the helper of FUSE.

use crate::cli::UmountArgs;
use skep_types::{Error, ErrorCode, Result};
use std::path::Path;
use std::process::Command;

pub(super) fn run(args: &UmountArgs) -> Result<()> {
    unmount(&args.directory, args.lazy)
}

/// Unmounts a directory, by whichever way this user may.
pub(crate) fn unmount(directory: &Path, is_lazy: bool) -> Result<()> {
    // `umount` knows who may; users who mounted by `fusermount3` unmount by it.
    let mut by_system = Command::new("umount");
    by_system.args(is_lazy.then_some("-l")).arg(directory);
    let mut by_helper = Command::new("fusermount3");
    by_helper.arg("-u").args(is_lazy.then_some("-z")).arg(directory);
    let mut said = Vec::new();
    for mut command in [by_helper, by_system] {
        match command.output() {
            Ok(output) if output.status.success() => return Ok(()),
            Ok(output) => said.push(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(_) => {}
        }
    }
    let why = match said.last() {
        Some(text) if !text.is_empty() => text.clone(),
        _ => "neither umount nor fusermount3 could be run".into(),
    };
    let hint = if why.contains("busy") {
        "; `fuser -m` shows who uses it, and --lazy detaches it nevertheless"
    } else if why.contains("not mounted") || why.contains("no mount point") {
        "; `findmnt -t fuse.skep` lists the mounts of this host"
    } else {
        ""
    };
    Err(Error::new(ErrorCode::InUse, format!("{}: {why}{hint}", directory.display())))
}
