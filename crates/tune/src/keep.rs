//! The files that set values again at each boot.

use crate::changes::Change;
use crate::rules::Keep;

/// Sets values of sysctl.
const SYSCTL: &str = "/etc/sysctl.d/90-skep.conf";
/// Writes to files of the kernel.
const TMPFILES: &str = "/etc/tmpfiles.d/skep.conf";
/// Sets attributes of devices when they appear.
const UDEV: &str = "/etc/udev/rules.d/90-skep.rules";
const HEAD: &str = "# Written by `skep tune apply`; `skep tune undo` removes it.\n";

/// All files that keep values.
pub(crate) const FILES: [&str; 3] = [SYSCTL, TMPFILES, UDEV];

/// Returns the text of each file for all changes. `None` means that no change needs the file.
pub(crate) fn texts(changes: &[Change]) -> [(&'static str, Option<String>); 3] {
    FILES.map(|file| {
        let lines: Vec<String> = changes
            .iter()
            .filter_map(|change| line(change).filter(|(of, _)| *of == file))
            .map(|(_, line)| line + "\n")
            .collect();
        (file, (!lines.is_empty()).then(|| HEAD.to_owned() + &lines.concat()))
    })
}

/// Returns the line that sets a change again, and its file.
fn line(change: &Change) -> Option<(&'static str, String)> {
    let Change { file, after, keep, .. } = change;
    Some(match keep {
        Keep::Sysctl => {
            let name = file.strip_prefix("/proc/sys/")?.replace('/', ".");
            (SYSCTL, format!("{name} = {after}"))
        }
        Keep::Tmpfiles => (TMPFILES, format!("w {file} - - - - {after}")),
        Keep::UdevBlock => {
            let (device, attribute) = file.strip_prefix("/sys/block/")?.split_once('/')?;
            let of = format!("SUBSYSTEM==\"block\", KERNEL==\"{device}\"");
            (UDEV, format!("ACTION==\"add|change\", {of}, ATTR{{{attribute}}}=\"{after}\""))
        }
        Keep::UdevNet => {
            let (name, attribute) = file.strip_prefix("/sys/class/net/")?.split_once('/')?;
            let of = format!("SUBSYSTEM==\"net\", KERNEL==\"{name}\"");
            (UDEV, format!("ACTION==\"add|change\", {of}, ATTR{{{attribute}}}=\"{after}\""))
        }
    })
}
