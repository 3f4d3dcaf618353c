//! Mount flags that every Linux file system has, under their names in mount(8).

/// Names of flags, each with its bit for mount(2). True means that the name sets the bit, false
/// that it clears the bit.
const WORDS: &[(&str, libc::c_ulong, bool)] = &[
    ("ro", libc::MS_RDONLY, true),
    ("rw", libc::MS_RDONLY, false),
    ("nosuid", libc::MS_NOSUID, true),
    ("suid", libc::MS_NOSUID, false),
    ("nodev", libc::MS_NODEV, true),
    ("dev", libc::MS_NODEV, false),
    ("noexec", libc::MS_NOEXEC, true),
    ("exec", libc::MS_NOEXEC, false),
    ("noatime", libc::MS_NOATIME, true),
    ("atime", libc::MS_NOATIME, false),
    ("nodiratime", libc::MS_NODIRATIME, true),
    ("diratime", libc::MS_NODIRATIME, false),
    ("relatime", libc::MS_RELATIME, true),
    ("norelatime", libc::MS_RELATIME, false),
    ("strictatime", libc::MS_STRICTATIME, true),
    ("nostrictatime", libc::MS_STRICTATIME, false),
    ("lazytime", libc::MS_LAZYTIME, true),
    ("nolazytime", libc::MS_LAZYTIME, false),
    ("sync", libc::MS_SYNCHRONOUS, true),
    ("async", libc::MS_SYNCHRONOUS, false),
    ("dirsync", libc::MS_DIRSYNC, true),
];

/// Flags of a mount. A later name overrides an earlier name for the same bit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MountFlags(libc::c_ulong);

impl MountFlags {
    /// Sets or clears the flag that `word` names, such as `ro` or `nosuid`. Returns false if `word`
    /// is not the name of a mount flag.
    pub fn take(&mut self, word: &str) -> bool {
        let Some((_, bit, sets)) = WORDS.iter().find(|(known, ..)| *known == word) else {
            return false;
        };
        self.0 = if *sets { self.0 | bit } else { self.0 & !bit };
        true
    }

    /// Returns the names of all flags that are set, separated by commas. [`Self::take`] accepts
    /// each of these names.
    pub fn words(self) -> String {
        let set = WORDS.iter().filter(|(_, bit, sets)| *sets && self.0 & bit != 0);
        set.map(|(word, ..)| *word).collect::<Vec<_>>().join(",")
    }

    /// Returns the bits for mount(2).
    pub(crate) fn bits(self) -> libc::c_ulong {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_mount_flags_override_and_unknown_flags_are_refused() {
        let mut flags = MountFlags::default();
        for word in ["ro", "nosuid", "noexec", "rw", "sync", "exec"] {
            assert!(flags.take(word), "{word}");
        }
        assert!(!flags.take("transport=uring") && !flags.take(""));
        assert_eq!(flags.words(), "nosuid,sync");
        assert_eq!(flags.bits(), libc::MS_NOSUID | libc::MS_SYNCHRONOUS);
    }
}
