//! Mount options: the list after `-o`, or in the options field of `/etc/fstab`.

use super::option_table::{ALLOW_OTHER, OWN};
use super::retry::Retry;
use super::{MountArgs, job_variables};
use skep_fuse::{JobVariables, MountFlags};
use skep_service::ByteSize;
use skep_types::{Error, ErrorCode, Result};
use std::time::Duration;

/// Maximum time for which the kernel may cache names and attributes. A longer timeout saves hardly
/// any requests, even for files that never change. With this maximum, a wrong value has an effect
/// for at most an hour.
const LONGEST_ATTRIBUTE_TIMEOUT: Duration = Duration::from_secs(3600);

/// Maximum value of the option `workers`. No host has more processors.
const MOST_WORKERS: usize = 1 << 16;

/// Options that are addressed to mount(8) and systemd. Skep accepts and ignores these options.
const OF_OTHERS: &[&str] = &[
    "defaults", "auto", "noauto", "nofail", "_netdev", "user", "nouser", "users", "nousers",
    "owner", "noowner", "group", "nogroup", "silent", "loud", "nomand",
];
const PREFIXES_OF_OTHERS: &[&str] = &["x-", "X-", "comment="];
/// Options that `/proc/mounts` shows for every FUSE mount. mount(8) passes these options to the
/// helper for `mount -o remount`, so Skep accepts and ignores these options.
const OF_THE_KERNEL: &[&str] = &["default_permissions"];
const PREFIXES_OF_THE_KERNEL: &[&str] = &["user_id=", "group_id=", "max_read="];

fn is_own(name: &str) -> bool {
    OWN.iter().any(|option| option.name == name)
}

/// The parsed mount options.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// The mount flags that all file systems have, such as read-only.
    pub(crate) flags: MountFlags,
    /// Whether to change the flags of an existing mount.
    pub(crate) is_remount: bool,
    /// How long the kernel may cache names and attributes. `None` means the default of Skep.
    pub(crate) attribute_timeout: Option<Duration>,
    /// The largest number of threads that serve requests. `None` means one worker for each CPU.
    pub(crate) workers: Option<usize>,
    /// Whether other users may access a mount that an unprivileged user created.
    pub(crate) allows_others: bool,
    /// Whether reads and writes bypass the kernel's page cache.
    pub(crate) has_direct_io: bool,
    /// The kernel's read-ahead in bytes. `None` means the default of Skep.
    pub(crate) read_ahead_bytes: Option<u32>,
}

impl Options {
    /// Returns a list of options from which [`read`] parses a value that equals this one. The list
    /// does not contain the options that `skep mount` also has as arguments.
    pub(crate) fn words(self) -> String {
        let timeout = self.attribute_timeout;
        let timeout = timeout.map(|it| format!(",attribute_timeout={}", it.as_secs_f64()));
        let read_ahead = self.read_ahead_bytes;
        let read_ahead = read_ahead.map(|bytes| format!(",read_ahead={bytes}"));
        let workers = self.workers.map(|it| format!(",workers={it}"));
        let direct = if self.has_direct_io { ",direct_io" } else { "" };
        let others = if self.allows_others { ",allow_other" } else { "" };
        format!(
            "{}{}{}{direct}{}{others}",
            self.flags.words(),
            timeout.unwrap_or_default(),
            workers.unwrap_or_default(),
            read_ahead.unwrap_or_default()
        )
    }
}

/// Returns the options of a mount for its log, in the form of `mount -o`. The token file, the
/// transport, `retry` and the options of the log itself are left out. Without any other option,
/// returns `none`.
pub(super) fn shown(asked: Options, args: &MountArgs) -> String {
    let mut all = vec![asked.words().trim_start_matches(',').to_owned()];
    if args.has_job_patterns {
        all.push("job_patterns".into());
    }
    all.extend(job_variables(args).map(|names| format!("job_variables={names}")));
    all.extend(args.metrics.as_ref().map(|address| format!("metrics={address}")));
    all.retain(|words| !words.is_empty());
    if all.is_empty() { "none".into() } else { all.join(",") }
}

fn refused(what: String) -> Error {
    Error::new(ErrorCode::Configuration, what)
}

/// Returns the parsed value of an option. An error names the option.
fn parsed<T>(option: &str, value: Result<T, String>) -> Result<T> {
    value.map_err(|why| refused(format!("invalid mount option '{option}': {why}")))
}

/// Parses lists of mount options. An option that `skep mount` also has as an argument is stored in
/// `args`.
///
/// # Errors
/// `Configuration`. The error names the invalid option.
pub(crate) fn read(lists: &[String], is_sloppy: bool, args: &mut MountArgs) -> Result<Options> {
    let mut options = Options::default();
    for option in lists.iter().flat_map(|list| list.split(',')).filter(|it| !it.is_empty()) {
        let mut words = OF_OTHERS.iter().chain(OF_THE_KERNEL);
        let mut prefixes = PREFIXES_OF_OTHERS.iter().chain(PREFIXES_OF_THE_KERNEL);
        let of_others = words.any(|word| *word == option);
        if of_others
            || prefixes.any(|prefix| option.starts_with(prefix))
            || options.flags.take(option)
        {
            continue;
        }
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        if is_sloppy && !is_own(name) && name != ALLOW_OTHER {
            continue;
        }
        match (name, value) {
            ("job_patterns", "") => args.has_job_patterns = true,
            ("job_accounting", "") => args.has_job_accounting = true,
            ("job_variables", names) => {
                args.job_variables = Some(parsed(option, names.parse::<JobVariables>())?);
            }
            ("metrics", address) => {
                let address = metrics_address(address);
                let address = address
                    .map_err(|why| refused(format!("invalid mount option '{option}': {why}")))?;
                args.metrics = Some(address);
            }
            ("remount", "") => options.is_remount = true,
            ("direct_io", "") => options.has_direct_io = true,
            ("read_ahead", size) => {
                options.read_ahead_bytes = Some(parsed(option, read_ahead(size))?);
            }
            (ALLOW_OTHER, "") => options.allows_others = true,
            ("token_file", file) if !file.is_empty() => {
                args.cluster.token_file = Some(file.into());
            }
            ("transport", name) if !name.is_empty() => name.clone_into(&mut args.transport),
            ("log", filter) => {
                parsed(option, skep_service::logging::check(filter))?;
                filter.clone_into(&mut args.log);
            }
            ("log_file", file) if !file.is_empty() => args.log_file = Some(file.into()),
            ("retry", time) => args.retry = Some(parsed(option, time.parse::<Retry>())?),
            ("log_limit", size) => {
                args.log_limit = Some(parsed(option, size.parse::<ByteSize>())?);
            }
            ("attribute_timeout", seconds) => {
                options.attribute_timeout = Some(parsed(option, attribute_timeout(seconds))?);
            }
            ("workers", count) => {
                options.workers = Some(parsed(option, workers(count))?);
            }
            _ => {
                let own: Vec<_> = OWN.iter().map(|option| option.name).collect();
                return Err(refused(format!(
                    "unknown mount option '{option}': Skep's own options are {}; `skep mount \
                     --help` lists all options",
                    own.join(", ")
                )));
            }
        }
    }
    Ok(options)
}

/// Parses the address of a page with metrics.
pub(super) fn metrics_address(text: &str) -> Result<String, String> {
    let has_port = |(host, port): (&str, &str)| {
        !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
    };
    match text.rsplit_once(':').is_some_and(has_port) {
        true => Ok(text.to_owned()),
        false => Err(format!("invalid address '{text}': expected HOST:PORT, as in 0.0.0.0:7490")),
    }
}

/// Parses a number of seconds with an optional fraction.
fn attribute_timeout(seconds: &str) -> Result<Duration, String> {
    let longest = LONGEST_ATTRIBUTE_TIMEOUT;
    let number = seconds.parse::<f64>().ok();
    number
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .filter(|timeout| *timeout <= longest)
        .ok_or_else(|| format!("expected a number of seconds, at most {}", longest.as_secs()))
}

/// Parses the size of the kernel's read-ahead. Returns a number of bytes.
fn read_ahead(size: &str) -> Result<u32, String> {
    let most = skep_fuse::MAX_READ_AHEAD_BYTES;
    let size = size.parse::<ByteSize>()?;
    u32::try_from(size.0)
        .ok()
        .filter(|bytes| *bytes <= most)
        .ok_or_else(|| format!("expected a size of at most {}", ByteSize(most.into())))
}

/// Parses a number of threads.
fn workers(count: &str) -> Result<usize, String> {
    let number = count.parse::<usize>().ok().filter(|count| (1..=MOST_WORKERS).contains(count));
    number.ok_or_else(|| format!("expected a number of threads from 1 to {MOST_WORKERS}"))
}

#[cfg(test)]
mod tests {
    use super::super::option_table::OwnOption;
    use super::*;

    fn timeout(option: &str) -> Result<Option<Duration>> {
        let mut args = MountArgs::default();
        read(&[option.to_owned()], false, &mut args).map(|options| options.attribute_timeout)
    }

    #[test]
    fn mount_options_survive_formatting_and_parsing() {
        let list = "read_ahead=16MiB,ro,attribute_timeout=0.25,workers=16,allow_other,nosuid,\
                    direct_io";
        let options = read(&[list.to_owned()], false, &mut MountArgs::default()).unwrap();
        assert_eq!(options.attribute_timeout, Some(Duration::from_millis(250)));
        assert_eq!((options.has_direct_io, options.read_ahead_bytes), (true, Some(16 << 20)));
        assert_eq!(options.workers, Some(16));
        let words = "ro,nosuid,attribute_timeout=0.25,workers=16,direct_io,read_ahead=16777216,\
                     allow_other";
        assert_eq!(options.words(), words);
        assert_eq!(read(&[options.words()], false, &mut MountArgs::default()).unwrap(), options);
    }

    /// The table in docs/operations/mounting.md and the help of the command list exactly the same
    /// options.
    #[test]
    fn manual_and_help_list_all_mount_options() {
        let page = include_str!("../../../../../docs/operations/mounting.md");
        let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once(" | "));
        let mut described = Vec::new();
        for (options, _) in rows.filter(|(options, _)| !options.starts_with("option")) {
            let words: Vec<_> = options.split(['`', ',']).map(str::trim).collect();
            for word in words.into_iter().filter(|word| !word.is_empty() && *word != "...") {
                let (name, value) = word.split_once('=').unwrap_or((word, ""));
                described.push(name.to_owned());
                let typed = match value {
                    "SECONDS" => format!("{name}=1.5"),
                    "COUNT" => format!("{name}=16"),
                    "SIZE" => format!("{name}=16MiB"),
                    "LEVEL" => format!("{name}=debug"),
                    "ADDRESS" => format!("{name}=0.0.0.0:7490"),
                    _ => word.to_owned(),
                };
                // These words are values of the option `transport=`. The table row of this option
                // has these words.
                if ["uring", "device"].contains(&word) {
                    continue;
                }
                let read = read(std::slice::from_ref(&typed), false, &mut MountArgs::default());
                read.unwrap_or_else(|error| panic!("{typed}: {error}"));
            }
        }
        for name in OWN.iter().map(|option| option.name).filter(|name| *name != "remount") {
            assert!(described.iter().any(|it| it == name), "{name} is not in the manual");
        }
        assert!(page.contains("`mount -o remount,...`"), "the manual has no remount");
        let helps = [
            include_str!("../../../../../docs/commands/skep-mount.md").to_owned(),
            crate::cmd::man::manual::page_of_the_helper().1,
        ];
        for OwnOption { name, value, .. } in OWN {
            let option =
                value.map_or_else(|| (*name).to_owned(), |value| format!("{name}={value}"));
            for help in &helps {
                // Removes the markup of roff for bold text, and its escapes of dashes.
                let plain = help.replace("\\fB", "").replace("\\fR", "").replace("\\-", "-");
                assert!(plain.lines().any(|line| line.trim() == option), "{option}: {help}");
            }
        }
    }

    /// The parser accepts each option of the table.
    #[test]
    fn parser_accepts_each_mount_option_of_skep() {
        for OwnOption { name, value, .. } in OWN {
            let typed = match *value {
                None => (*name).to_owned(),
                Some("COUNT") => format!("{name}=1"),
                Some("SIZE") => format!("{name}=1MiB"),
                Some("LEVEL") => format!("{name}=debug"),
                Some("ADDRESS") => format!("{name}=0.0.0.0:7490"),
                Some(value) => match value.split('|').next().unwrap() {
                    "SECONDS" => format!("{name}=1"),
                    word => format!("{name}={word}"),
                },
            };
            read(std::slice::from_ref(&typed), false, &mut MountArgs::default())
                .unwrap_or_else(|error| panic!("{typed}: {error}"));
        }
    }

    #[test]
    fn read_ahead_must_be_a_bounded_size() {
        let read_ahead = |size: &str| {
            let list = [format!("read_ahead={size}")];
            read(&list, false, &mut MountArgs::default()).map(|it| it.read_ahead_bytes)
        };
        assert_eq!(read_ahead("0").unwrap(), Some(0));
        assert_eq!(read_ahead("128MiB").unwrap(), Some(skep_fuse::MAX_READ_AHEAD_BYTES));
        for wrong in ["134217729", "5GiB"] {
            let error = read_ahead(wrong).unwrap_err();
            assert!(error.to_string().contains("at most 128 MiB"), "{wrong}: {error}");
        }
        for wrong in ["", "many", "-1"] {
            assert!(read_ahead(wrong).is_err(), "{wrong}");
        }
        assert!(read(&["direct_io=1".to_owned()], false, &mut MountArgs::default()).is_err());
    }

    #[test]
    fn last_value_of_the_retry_option_is_used() {
        let mut args = MountArgs::default();
        let list = ["retry=80,ro".to_owned(), "retry=forever".to_owned()];
        read(&list[..1], false, &mut args).unwrap();
        assert_eq!(args.retry, Some(Retry::For(Duration::from_secs(80))));
        // If an option is repeated, the last value is used, as in other file systems.
        read(&list, false, &mut args).unwrap();
        assert_eq!(args.retry, Some(Retry::Forever));
        let error = read(&["retry=soon".to_owned()], true, &mut args).unwrap_err();
        assert!(
            error.to_string().contains("option 'retry=soon': expected a number of seconds"),
            "{error}"
        );
    }

    #[test]
    fn job_variables_option_is_parsed_or_quoted_in_the_error() {
        let mut args = MountArgs::default();
        read(&["job_variables=LSB_JOBID:MY_JOB,ro".to_owned()], false, &mut args).unwrap();
        assert_eq!(args.job_variables, "LSB_JOBID:MY_JOB".parse().ok());
        for wrong in ["job_variables", "job_variables=", "job_variables=A:B-C"] {
            let error = read(&[wrong.to_owned()], true, &mut args).unwrap_err();
            let text = format!("option '{wrong}': invalid name of an environment variable");
            assert!(error.to_string().contains(&text), "{error}");
        }
    }

    #[test]
    fn log_of_a_mount_shows_kernel_options_and_skep_options() {
        let shown = |options: &str| {
            let mut args = MountArgs::default();
            let asked = read(&[options.to_owned()], false, &mut args).unwrap();
            shown(asked, &args)
        };
        assert_eq!(shown("token_file=/etc/skep/token,defaults"), "none");
        assert_eq!(
            shown("job_variables=A:B,nosuid,job_patterns"),
            "nosuid,job_patterns,job_variables=A:B"
        );
        assert_eq!(shown("metrics=a:1"), "metrics=a:1");
        assert!(shown("job_accounting").starts_with("job_variables=SLURM_JOB_ID"));
    }

    #[test]
    fn address_of_the_metrics_needs_a_host_and_a_port() {
        let mut args = MountArgs::default();
        read(&["metrics=[::]:7490,ro".to_owned()], false, &mut args).unwrap();
        assert_eq!(args.metrics.as_deref(), Some("[::]:7490"));
        for wrong in ["metrics", "metrics=7490", "metrics=:7490", "metrics=a:0", "metrics=a:b"] {
            let error = read(&[wrong.to_owned()], true, &mut args).unwrap_err();
            assert!(error.to_string().contains("expected HOST:PORT"), "{error}");
        }
    }

    #[test]
    fn sloppy_option_ignores_unknown_options_but_not_wrong_values() {
        let read =
            |option: &str| read(&[option.to_owned()], true, &mut MountArgs::default()).map(|_| ());
        read("colour=red,sunny").unwrap();
        assert!(read("log_limit=many").is_err());
        assert!(read("transport=").is_err());
        let wrong = read("log=loud").unwrap_err();
        assert!(wrong.context().contains("option 'log=loud': 'loud': unknown level"), "{wrong}");
    }

    #[test]
    fn attribute_timeout_must_be_a_bounded_number_of_seconds() {
        assert_eq!(timeout("nosuid").unwrap(), None);
        assert_eq!(timeout("attribute_timeout=0").unwrap(), Some(Duration::ZERO));
        assert_eq!(timeout("attribute_timeout=3600").unwrap(), Some(Duration::from_secs(3600)));
        for wrong in ["", "x", "-1", "nan", "inf", "3601", "1e300"] {
            let error = timeout(&format!("attribute_timeout={wrong}")).unwrap_err();
            assert!(error.to_string().contains("at most 3600"), "{wrong}: {error}");
        }
    }

    #[test]
    fn workers_option_must_be_a_positive_number() {
        for wrong in ["workers", "workers=0", "workers=-1", "workers=65537", "workers=all"] {
            let error = read(&[wrong.to_owned()], true, &mut MountArgs::default()).unwrap_err();
            assert!(error.to_string().contains("from 1 to 65536"), "{wrong}: {error}");
        }
    }
}
