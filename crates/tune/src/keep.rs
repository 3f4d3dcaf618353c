//! Writes the lines of the files that set kernel values again at each boot.

use crate::rules::Keep;

/// The file with the lines for sysctl.
const SYSCTL: &str = "/etc/sysctl.d/90-skep.conf";
/// The file with the lines for systemd-tmpfiles, which writes them to files of the kernel at boot.
const TMPFILES: &str = "/etc/tmpfiles.d/skep.conf";
/// The file with the rules for udev, which sets attributes of devices when the devices appear.
const UDEV: &str = "/etc/udev/rules.d/90-skep.rules";
const HEAD: &str = "# Written by `skep tune apply`; `skep tune undo` removes it.\n";

/// Paths of all files that set values at boot.
pub(crate) const FILES: [&str; 3] = [SYSCTL, TMPFILES, UDEV];

/// A value of a kernel file that must be set again at each boot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting<'a> {
    /// Path of the kernel file.
    pub(crate) file: &'a str,
    /// Text that sets the value when it is written to the kernel file.
    pub(crate) value: &'a str,
    /// The kind of boot file that sets the value.
    pub(crate) keep: Keep,
}

/// Returns the text of each boot file for these settings. `None` means that no setting needs the
/// boot file.
pub(crate) fn texts(settings: &[Setting]) -> [(&'static str, Option<String>); 3] {
    FILES.map(|file| {
        let lines: Vec<String> = settings
            .iter()
            .filter_map(|setting| line(setting).filter(|(of, _)| *of == file))
            .map(|(_, line)| line + "\n")
            .collect();
        (file, (!lines.is_empty()).then(|| HEAD.to_owned() + &lines.concat()))
    })
}

/// Returns the path of the boot file that sets this value, and the line in this file. `None` means
/// that the path of the kernel file does not suit the kind of boot file.
fn line(setting: &Setting) -> Option<(&'static str, String)> {
    let Setting { file, value, keep } = setting;
    Some(match keep {
        Keep::Sysctl => {
            let name = file.strip_prefix("/proc/sys/")?.replace('/', ".");
            (SYSCTL, format!("{name} = {value}"))
        }
        Keep::Tmpfiles => (TMPFILES, format!("w {file} - - - - {value}")),
        Keep::UdevBlock => {
            let (device, attribute) = file.strip_prefix("/sys/block/")?.split_once('/')?;
            let of = format!("SUBSYSTEM==\"block\", KERNEL==\"{device}\"");
            (UDEV, format!("ACTION==\"add|change\", {of}, ATTR{{{attribute}}}=\"{value}\""))
        }
        Keep::UdevNet => {
            let (name, attribute) = file.strip_prefix("/sys/class/net/")?.split_once('/')?;
            let of = format!("SUBSYSTEM==\"net\", KERNEL==\"{name}\"");
            (UDEV, format!("ACTION==\"add|change\", {of}, ATTR{{{attribute}}}=\"{value}\""))
        }
    })
}
