//! The files that set values again at each boot.

use crate::rules::Keep;

/// The file that sets values of sysctl.
const SYSCTL: &str = "/etc/sysctl.d/90-skep.conf";
/// The file whose lines write to files of the kernel.
const TMPFILES: &str = "/etc/tmpfiles.d/skep.conf";
/// The file that sets attributes of devices when the devices appear.
const UDEV: &str = "/etc/udev/rules.d/90-skep.rules";
const HEAD: &str = "# Written by `skep tune apply`; `skep tune undo` removes it.\n";

/// All files that set values at boot.
pub(crate) const FILES: [&str; 3] = [SYSCTL, TMPFILES, UDEV];

/// A value that is set again at each boot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting<'a> {
    /// The file of the kernel.
    pub(crate) file: &'a str,
    /// The text that sets the value.
    pub(crate) value: &'a str,
    /// The kind of file that sets the value at boot.
    pub(crate) keep: Keep,
}

/// Returns the text of each file for all settings. `None` means that no setting needs the file.
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

/// Returns the line that sets a value at boot, and the file of this line.
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
