//! The table of all mount options, with their texts for the help and the manual. [`super::options`]
//! reads the options.

use std::fmt::Write;

/// Width of the text that explains an option, in columns.
const TEXT_COLUMNS: usize = 70;

/// The option of FUSE that lets other users access the mount.
pub(super) const ALLOW_OTHER: &str = "allow_other";

/// One of Skep's own mount options, with its text in the manual.
#[derive(Debug)]
pub(crate) struct OwnOption {
    pub(crate) name: &'static str,
    /// Name of the value in the help text, such as `SIZE`. `None` for an option without a value.
    pub(crate) value: Option<&'static str>,
    pub(crate) meaning: &'static str,
}

impl OwnOption {
    const fn new(name: &'static str, value: Option<&'static str>, meaning: &'static str) -> Self {
        Self { name, value, meaning }
    }
}

/// The mount options that only Skep has.
pub(crate) const OWN: &[OwnOption] = &[
    OwnOption::new("token_file", Some("FILE"), "file that holds the cluster's token"),
    OwnOption::new(
        "transport",
        Some("auto|uring|device"),
        "transport between kernel and mount; `auto` uses io_uring where the kernel supports it",
    ),
    OwnOption::new(
        "retry",
        Some("SECONDS|forever"),
        "seconds to keep trying while management is unreachable (default 15); permanent errors \
         fail immediately",
    ),
    OwnOption::new(
        "attribute_timeout",
        Some("SECONDS"),
        "seconds for which the kernel may cache names and attributes, at most 3600 (default 1); \
         with 0 the kernel asks the mount each time",
    ),
    OwnOption::new(
        "direct_io",
        None,
        "reads and writes of all programs bypass the kernel's page cache, as if they opened their \
         files with O_DIRECT, but with any alignment; for measurements, and for hosts whose memory \
         the programs need",
    ),
    OwnOption::new(
        "read_ahead",
        Some("SIZE"),
        "how far the kernel reads ahead of a program that reads a file sequentially, at most \
         128MiB (default 4MiB); 0: not at all; without root the kernel's limit is 128KiB",
    ),
    OwnOption::new(
        "workers",
        Some("COUNT"),
        "largest number of threads that serve programs (default: one for each processor); each \
         thread has connections of its own, so fewer threads relieve the servers of a cluster with \
         very many clients",
    ),
    OwnOption::new(
        "log",
        Some("LEVEL"),
        "log level: `error`, `warn`, `info`, `debug`, `trace`, or a filter",
    ),
    OwnOption::new(
        "log_file",
        Some("FILE"),
        "log file of a mount in the background; by default mount-NAME.log, where NAME is the mount \
         point with dashes for slashes, in the logs directory of a cluster on this host, otherwise \
         in /var/log/skep for root and in ~/.local/state/skep for other users",
    ),
    OwnOption::new(
        "log_limit",
        Some("SIZE"),
        "size at which the log file is renamed to FILE.old and a new one is started; 0: never",
    ),
    OwnOption::new(
        "job_accounting",
        None,
        "count the load of each batch job, for `skep stats --by job`; the mount reads SLURM_JOB_ID \
         and PBS_JOBID of each new program",
    ),
    OwnOption::new(
        "job_variables",
        Some("NAMES"),
        "like `job_accounting`, but the mount reads these environment variables, at most eight \
         with colons between them, such as LSB_JOBID:SLURM_JOB_ID; the job of a program is the \
         value of the first one that is set",
    ),
    OwnOption::new(
        "job_patterns",
        None,
        "let programs choose the stripe pattern of new files with the environment variable \
         SKEP_PATTERN",
    ),
    OwnOption::new(
        "metrics",
        Some("ADDRESS"),
        "also serve the metrics of the mount at this address, such as 0.0.0.0:7490, for Prometheus \
         on other hosts; the page asks for no password",
    ),
    OwnOption::new(
        "remount",
        None,
        "change the flags and `read_ahead` of an existing mount, as in `mount -o remount,ro`; \
         `transport`, `attribute_timeout` and `direct_io` cannot change",
    ),
];

/// Mount options of all file systems that Skep accepts, with their meaning in the manual.
pub(crate) const COMMON: &[(&str, &str)] = &[
    (
        "ro, rw, nosuid, nodev, noexec, noatime, sync, dirsync, ...",
        "as for every file system, see mount(8)",
    ),
    (
        "relatime, strictatime, atime, lazytime, ...",
        "accepted without effect: reading never changes an access time",
    ),
    (
        ALLOW_OTHER,
        "let other users access the mount (always on for root; others need user_allow_other in \
         /etc/fuse.conf)",
    ),
    (
        "defaults, noauto, nofail, _netdev, user, x-..., ...",
        "used by mount(8) and systemd; Skep ignores them",
    ),
];

/// Returns all mount options with their meanings.
pub(crate) fn list() -> Vec<(String, &'static str)> {
    let own = OWN.iter().map(|option| {
        let value = option.value.map(|value| format!("={value}"));
        (format!("{}{}", option.name, value.unwrap_or_default()), option.meaning)
    });
    own.chain(COMMON.iter().map(|(names, meaning)| ((*names).to_owned(), *meaning))).collect()
}

pub(super) fn help() -> String {
    let mut text = String::from("Mount options, for --options and in /etc/fstab:\n");
    for (option, meaning) in list() {
        let _ = writeln!(text, "  {option}");
        let mut line = String::new();
        for word in meaning.split(' ') {
            if line.len() + word.len() > TEXT_COLUMNS {
                let _ = writeln!(text, "         {line}");
                line.clear();
            }
            line = line + " " + word;
        }
        let _ = writeln!(text, "         {line}");
    }
    text
}
