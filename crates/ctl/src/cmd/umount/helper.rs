//! `umount.fuse.skep`: the helper that umount(8) runs for mounts of Skep. The helper is a link to
//! the program `skep`.
//!
//! The helper unmounts as `skep umount` does, so umount(8) returns when the process of the mount
//! has ended. Without the helper, umount(8) returns when the kernel has removed the mount, although
//! the process may still report to the servers.
//!
//! umount(8) passes `DIRECTORY [-nlfrv] [-N NAMESPACE] [-t TYPE]`. The helper does not wait after a
//! forced unmount (`-f`), because a user forces an unmount to end a mount that does not answer.
//! Only umount(8) can carry out some options. With these options, the helper calls umount(8) in a
//! form in which umount(8) runs no helper.

use super::UmountArgs;
use crate::helper_arguments::{FAILED, WRONGLY_CALLED, option_value, wrong};
use crate::output::say_aside;
use skep_types::{Error, ErrorCode, Result};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// The arguments of the helper.
#[derive(Debug, Default)]
struct Call {
    directory: PathBuf,
    is_lazy: bool,
    /// Whether umount(8) must carry out the unmount instead of the helper: for `-f`, `-r` and `-N`.
    is_left_to_umount: bool,
    /// All options, in the form in which the helper passes them to umount(8).
    options: Vec<OsString>,
}

/// Unmounts the cluster that the arguments from umount(8) name.
pub(crate) fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let result = parse(arguments).and_then(|call| match call.is_left_to_umount {
        true => Err(by_umount(&call)),
        false => super::run(&UmountArgs { directory: call.directory, lazy: call.is_lazy }),
    });
    let Err(error) = result else { return ExitCode::SUCCESS };
    say_aside(&format!("umount.fuse.skep: {}", crate::failure::describe(&error)));
    match error.code() {
        // The directory is unmounted, and the process of the mount still runs.
        ErrorCode::TimedOut => ExitCode::SUCCESS,
        ErrorCode::InvalidArgument => ExitCode::from(WRONGLY_CALLED),
        _ => ExitCode::from(FAILED),
    }
}

/// Replaces this process by umount(8), which then runs no helper (`-i`). Returns the error if
/// umount(8) cannot be run.
fn by_umount(call: &Call) -> Error {
    let mut command = Command::new("umount");
    let error = command.arg("-i").args(&call.options).arg("--").arg(&call.directory).exec();
    Error::new(ErrorCode::Io, format!("cannot run umount: {error}"))
}

fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Call> {
    let (mut call, mut places) = (Call::default(), Vec::new());
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let Some(letters) = argument.to_str().and_then(|it| it.strip_prefix('-')) else {
            places.push(argument);
            continue;
        };
        for (at, letter) in letters.char_indices() {
            match letter {
                'l' => call.is_lazy = true,
                'f' | 'r' => call.is_left_to_umount = true,
                'n' | 'v' => {}
                't' | 'N' => {
                    let value = option_value(letters, at, &mut arguments)?;
                    if letter == 'N' {
                        call.is_left_to_umount = true;
                        call.options.extend(["-N".into(), value]);
                    }
                    break;
                }
                other => {
                    return Err(wrong(format!(
                        "unknown option -{other}; the options are -n, -l, -f, -r, -v, -N and -t"
                    )));
                }
            }
            call.options.push(format!("-{letter}").into());
        }
    }
    let Ok([directory]) = <[OsString; 1]>::try_from(places) else {
        return Err(wrong("usage: umount.fuse.skep DIRECTORY [-nlfrv]"));
    };
    call.directory = directory.into();
    Ok(call)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn parsed(line: &str) -> Result<Call> {
        parse(line.split(' ').map(OsString::from))
    }

    #[test]
    fn options_that_only_umount_can_carry_out_are_left_to_umount() {
        let call = parsed("/mnt -n -v -t fuse.skep").unwrap();
        assert_eq!(call.directory, Path::new("/mnt"));
        assert!(!call.is_lazy && !call.is_left_to_umount);
        assert!(parsed("/mnt -l").unwrap().is_lazy);
        for (line, options) in [
            ("/mnt -l -f", ["-l", "-f"]),
            ("-nr /mnt", ["-n", "-r"]),
            ("/mnt -N /proc/1/ns/mnt", ["-N", "/proc/1/ns/mnt"]),
            ("/mnt -N/proc/1/ns/mnt", ["-N", "/proc/1/ns/mnt"]),
        ] {
            let call = parsed(line).unwrap();
            assert!(call.is_left_to_umount, "{line}");
            assert_eq!(call.options, options.map(OsString::from), "{line}");
        }
    }

    #[test]
    fn invalid_arguments_of_the_umount_helper_are_refused() {
        for line in ["-l", "/mnt /more", "/mnt -t", "/mnt -x"] {
            assert_eq!(parsed(line).unwrap_err().code(), ErrorCode::InvalidArgument, "{line}");
        }
    }
}
