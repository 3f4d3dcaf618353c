//! The list behind `-o`, as `mount` and `/etc/fstab` have it.

use crate::cli::MountArgs;
use skep_fuse::MountFlags;
use skep_service::ByteSize;
use skep_types::{Error, ErrorCode, Result};

/// Words for others: for `mount` itself, for systemd, for people.
const OF_OTHERS: &[&str] = &[
    "defaults", "auto", "noauto", "nofail", "_netdev", "user", "nouser", "users", "nousers",
    "owner", "noowner", "group", "nogroup", "silent", "loud", "nomand",
];
const PREFIXES_OF_OTHERS: &[&str] = &["x-", "X-", "comment="];
/// What `/proc/mounts` shows of every FUSE mount: mount(8) says it again at `mount -o remount`.
const OF_THE_KERNEL: &[&str] = &["default_permissions", "allow_other"];
const PREFIXES_OF_THE_KERNEL: &[&str] = &["user_id=", "group_id=", "max_read="];

/// What a list of options asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// What every file system has.
    pub(crate) flags: MountFlags,
    /// Change the flags of what is mounted already.
    pub(crate) is_remount: bool,
}

fn refused(what: String) -> Error {
    Error::new(ErrorCode::Configuration, what)
}

/// Reads the list; options that have a flag of their own on the command line go to `args`.
///
/// # Errors
/// `Configuration` naming the option.
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
        match option.split_once('=').unwrap_or((option, "")) {
            ("job_patterns", "") => args.has_job_patterns = true,
            ("remount", "") => options.is_remount = true,
            ("token_file", file) if !file.is_empty() => {
                args.cluster.token_file = Some(file.into());
            }
            ("transport", name) if !name.is_empty() => name.clone_into(&mut args.transport),
            ("log", filter) if !filter.is_empty() => filter.clone_into(&mut args.log),
            ("log_file", file) if !file.is_empty() => args.log_file = Some(file.into()),
            ("log_limit", size) => {
                let size: Result<ByteSize, _> = size.parse();
                let size = size.map_err(|why| refused(format!("option {option}: {why}")))?;
                args.log_limit = Some(size);
            }
            _ if is_sloppy => {}
            _ => {
                return Err(refused(format!(
                    "there is no mount option '{option}'; Skep's own are token_file=, transport=, \
                     log=, log_file=, log_limit= and job_patterns (see docs/operations/mounting.md)"
                )));
            }
        }
    }
    Ok(options)
}
