//! The arguments and exit codes that the helpers of mount(8) and umount(8) share.

use skep_types::{Error, ErrorCode, Result};
use std::ffi::OsString;

/// Exit code of mount(8) and umount(8) for wrong arguments.
pub(crate) const WRONGLY_CALLED: u8 = 1;
/// Exit code of mount(8) and umount(8) for a mount or unmount that failed.
pub(crate) const FAILED: u8 = 32;

/// Returns the error for wrong arguments.
pub(crate) fn wrong(what: impl Into<String>) -> Error {
    Error::new(ErrorCode::InvalidArgument, what)
}

/// Returns the value of the option at the byte `at` of `letters`. The value is the text after the
/// option, or the next argument if this text is empty.
///
/// # Errors
/// `InvalidArgument` if the option has no value.
pub(crate) fn option_value(
    letters: &str,
    at: usize,
    arguments: &mut impl Iterator<Item = OsString>,
) -> Result<OsString> {
    match &letters[at + 1..] {
        "" => arguments
            .next()
            .ok_or_else(|| wrong(format!("option -{} needs a value", &letters[at..]))),
        rest => Ok(rest.into()),
    }
}
