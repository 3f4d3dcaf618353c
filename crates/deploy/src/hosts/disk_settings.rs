//! Options for the file systems that the deployment makes on disks: how it makes them, and how it
//! mounts them.

use super::Role;
use serde::Deserialize;

/// Options of XFS on the disks of each service. A deployment mounts new disks with these options. A
/// mounted disk keeps its current options until the next mount.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DiskSettings {
    /// Options of `mkfs.xfs` for disks with metadata targets, separated by spaces.
    pub metadata_mkfs: String,
    /// Mount options of disks with metadata targets, separated by commas.
    pub metadata_mount: String,
    /// Options of `mkfs.xfs` for disks with storage targets, separated by spaces.
    pub storage_mkfs: String,
    /// Mount options of disks with storage targets, separated by commas.
    pub storage_mount: String,
}

impl Default for DiskSettings {
    fn default() -> Self {
        Self {
            metadata_mkfs: String::new(),
            metadata_mount: "noatime".into(),
            storage_mkfs: String::new(),
            storage_mount: "noatime".into(),
        }
    }
}

impl DiskSettings {
    /// Returns the options of `mkfs.xfs` for the disks of a service.
    pub fn mkfs(&self, role: Role) -> impl Iterator<Item = &str> {
        let text = match role {
            Role::Metadata => &self.metadata_mkfs,
            _ => &self.storage_mkfs,
        };
        text.split_whitespace()
    }

    /// Returns the mount options for the disks of a service.
    pub fn mount(&self, role: Role) -> &str {
        match role {
            Role::Metadata => &self.metadata_mount,
            _ => &self.storage_mount,
        }
    }

    /// Returns the problems of the options.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for role in [Role::Metadata, Role::Storage] {
            problems.extend(self.mkfs(role).filter_map(|word| problem_of_mkfs(role, word)));
            problems.extend(problem_of_mount(role, self.mount(role)));
        }
        problems
    }
}

/// Returns the problem of a word in the options of `mkfs.xfs`.
fn problem_of_mkfs(role: Role, word: &str) -> Option<String> {
    let flags = word.strip_prefix('-').unwrap_or_default();
    let is_forced = flags.starts_with('f')
        || (flags.contains('f') && flags.chars().all(|it| it.is_ascii_alphabetic()));
    let problem = if !word.chars().all(|it| is_plain(it) || it == '-') {
        "expected options of mkfs.xfs, of letters, digits and -=,._:"
    } else if is_forced {
        "-f overwrites data; remove it"
    } else if word.contains("uuid=") {
        "the deployment sets the UUID; remove this option"
    } else {
        return None;
    };
    Some(format!("invalid disks.{role}_mkfs: '{word}': {problem}"))
}

/// Returns the problem of mount options.
fn problem_of_mount(role: Role, options: &str) -> Option<String> {
    let has = |wanted: &str| options.split(',').any(|option| option == wanted);
    let problem = if !options.chars().all(is_plain) || options.split(',').any(str::is_empty) {
        "expected mount options separated by commas, such as noatime,largeio"
    } else if has("nobarrier") || has("barrier=0") {
        "without barriers a power loss destroys synced data; remove this option"
    } else {
        return None;
    };
    Some(format!("invalid disks.{role}_mount: '{options}': {problem}"))
}

/// Whether scripts can contain a character without quotes.
fn is_plain(it: char) -> bool {
    it.is_ascii_alphanumeric() || "=,._:".contains(it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_endanger_data_are_refused() {
        assert_eq!(DiskSettings::default().problems(), Vec::<String>::new());
        let good = DiskSettings {
            metadata_mkfs: "-i size=512 -n size=8192,ftype=1".into(),
            storage_mkfs: "-K -i size=512 -d su=128k,sw=8".into(),
            storage_mount: "noatime,logbufs=8,logbsize=256k,largeio,swalloc".into(),
            ..DiskSettings::default()
        };
        assert_eq!(good.problems(), Vec::<String>::new());
        for (mkfs, words) in [
            ("-f", "-f overwrites data"),
            ("-K -qf", "-f overwrites data"),
            ("-m uuid=1234", "sets the UUID"),
            ("-i size=512; reboot", "'size=512;'"),
            ("-L $(name)", "'$(name)'"),
        ] {
            let settings = DiskSettings { storage_mkfs: mkfs.into(), ..DiskSettings::default() };
            let found = settings.problems().join("\n");
            assert!(found.contains("disks.storage_mkfs") && found.contains(words), "{found}");
        }
        for (mount, words) in [
            ("", "separated by commas"),
            ("noatime,,largeio", "separated by commas"),
            ("noatime largeio", "separated by commas"),
            ("noatime,nobarrier", "a power loss destroys"),
        ] {
            let settings = DiskSettings { metadata_mount: mount.into(), ..DiskSettings::default() };
            let found = settings.problems().join("\n");
            assert!(found.contains("disks.metadata_mount") && found.contains(words), "{found}");
        }
    }
}
