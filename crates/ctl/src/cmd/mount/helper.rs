//! `mount.skep`: the helper that mount(8) runs for `mount -t skep` and for lines of `/etc/fstab`.
//! The helper is a link to the program `skep`.
//!
//! mount(8) passes `SOURCE DIRECTORY [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]`, in any order.
//! Under the name `mount.fuse.skep` the helper changes an existing mount (`mount -o remount`).

use super::{DEFAULT_LOG, DEFAULT_TRANSPORT, MountArgs};
use crate::helper_arguments::{FAILED, WRONGLY_CALLED, option_value, wrong};
use crate::output::say_aside;
use skep_types::{ErrorCode, Result};
use std::ffi::OsString;
use std::process::ExitCode;

/// Mounts the cluster that the arguments from mount(8) name, or changes an existing mount.
pub(crate) fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let result = parse(arguments).and_then(|args| super::run(&args));
    let Err(error) = result else { return ExitCode::SUCCESS };
    say_aside(&format!("mount.skep: {}", crate::failure::describe(&error)));
    match error.code() {
        ErrorCode::InvalidArgument => ExitCode::from(WRONGLY_CALLED),
        _ => ExitCode::from(FAILED),
    }
}

fn text(argument: OsString) -> Result<String> {
    let shown = argument.display().to_string();
    argument
        .into_string()
        .map_err(|_| wrong(format!("invalid argument '{shown}': the argument is not valid UTF-8")))
}

fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<MountArgs> {
    let mut places = Vec::new();
    let mut args = MountArgs {
        is_quiet: true,
        transport: DEFAULT_TRANSPORT.into(),
        log: DEFAULT_LOG.into(),
        caller: rustix::process::getppid(),
        ..MountArgs::default()
    };
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let Some(letters) = argument.to_str().and_then(|it| it.strip_prefix('-')) else {
            places.push(argument);
            continue;
        };
        for (at, letter) in letters.char_indices() {
            match letter {
                's' => args.is_sloppy = true,
                'f' => args.is_fake = true,
                'v' => args.is_quiet = false,
                'n' => {}
                'o' | 't' | 'N' => {
                    let value = text(option_value(letters, at, &mut arguments)?)?;
                    if letter == 'o' {
                        args.options.push(value);
                    }
                    break;
                }
                other => {
                    return Err(wrong(format!(
                        "unknown option -{other}; the options are -s, -f, -n, -v, -o, -t and -N"
                    )));
                }
            }
        }
    }
    let Ok([source, directory]) = <[OsString; 2]>::try_from(places) else {
        return Err(wrong("usage: mount.skep CLUSTER DIRECTORY [-o OPTIONS]"));
    };
    args.cluster.cluster = Some(text(source)?);
    args.directory = directory.into();
    Ok(args)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn parsed(line: &str) -> Result<MountArgs> {
        parse(line.split(' ').map(OsString::from))
    }

    #[test]
    fn mount_helper_accepts_its_arguments_in_any_order() {
        for line in [
            "/data /mnt -o ro,nosuid -t skep",
            "-oro,nosuid /data -N /proc/1/ns/mnt /mnt",
            "-n -o ro -o nosuid /data /mnt",
        ] {
            let args = parsed(line).unwrap();
            assert_eq!(args.cluster.cluster.as_deref(), Some("/data"), "{line}");
            assert_eq!(args.directory, Path::new("/mnt"));
            assert_eq!(args.options.join(","), "ro,nosuid");
            assert!(!args.in_foreground && args.is_quiet && !args.is_sloppy && !args.is_fake);
        }
        let args = parsed("-sfv /data /mnt").unwrap();
        assert!(args.is_sloppy && args.is_fake && !args.is_quiet);
    }

    #[test]
    fn invalid_arguments_of_the_mount_helper_are_refused() {
        for line in ["/data", "/data /mnt /more", "/data /mnt -o", "/data /mnt -x"] {
            assert_eq!(parsed(line).unwrap_err().code(), ErrorCode::InvalidArgument, "{line}");
        }
    }
}
