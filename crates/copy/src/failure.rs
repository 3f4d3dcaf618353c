//! The failure of an operation on one entry, and the form in which paths are shown to people. This
//! module does no I/O.

use skep_types::{Error, ErrorCode};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A failed operation on a source or its copy.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The purpose of the operation, as a verb. Messages have the form "cannot {what}: {error}".
    pub(crate) what: &'static str,
    pub(crate) error: io::Error,
}

impl Failure {
    pub(crate) fn of<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self { what, error: error.into() }
    }

    /// Creates a failure for a reason that is not the error of a system call.
    pub(crate) fn because(what: &'static str, reason: impl Into<String>) -> Self {
        Self { what, error: io::Error::other(reason.into()) }
    }

    /// Creates the failure for a source that has changed during its copy.
    pub(crate) fn changed() -> Self {
        Self::because(
            "copy",
            "a program changed the source during the copy; copy the source again with --resume",
        )
    }

    /// Returns a function that creates the failure of a request to an object store.
    pub(crate) fn of_store(what: &'static str) -> impl FnOnce(Error) -> Self {
        move |error| {
            let kind = match error.code() {
                ErrorCode::Stale => return Self::changed(),
                ErrorCode::NoSpace | ErrorCode::QuotaExceeded => io::ErrorKind::StorageFull,
                ErrorCode::Disconnected | ErrorCode::AuthenticationFailed => {
                    io::ErrorKind::NotConnected
                }
                _ => io::ErrorKind::Other,
            };
            Self { what, error: io::Error::new(kind, error.context().to_owned()) }
        }
    }

    /// Whether the destination has no space left.
    pub(crate) fn is_full(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(self.error.kind(), StorageFull | QuotaExceeded)
    }

    /// Whether every later operation would fail too: the mount has ended (`ENOTCONN`, `ESHUTDOWN`),
    /// the file system refuses writes after an error of its device, or the object store cannot be
    /// used any more.
    pub(crate) fn is_lost(&self) -> bool {
        use rustix::io::Errno;
        let lost = [Errno::NOTCONN, Errno::SHUTDOWN, Errno::ROFS].map(Errno::raw_os_error);
        self.error.raw_os_error().is_some_and(|it| lost.contains(&it))
            || self.error.kind() == io::ErrorKind::NotConnected
    }
}

/// Returns a path as one line of text from which the exact bytes can be read. Control characters,
/// backslashes and bytes that are not UTF-8 are escaped. A name can therefore not send commands to
/// the terminal, and two different names never look the same.
pub(crate) fn shown(path: &Path) -> String {
    let mut text = String::new();
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        for character in chunk.valid().chars() {
            if character.is_control() || character == '\\' {
                text.extend(character.escape_default());
            } else {
                text.push(character);
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// Returns a path like [`shown`], without its middle if it is longer than a path that the kernel
/// accepts in one call. Users can create paths of half a megabyte, and a million entries below one
/// of them, which would fill memory or the disk of a log. `\...` stands for the middle. This text
/// differs from every name, because a backslash in a name is shown as two backslashes.
pub(crate) fn shown_shortened(path: &Path) -> String {
    /// Number of bytes that are shown from the start of a long path, and also from its end. Twice
    /// this number is `PATH_MAX`.
    const END: usize = 2048;
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() <= 2 * END {
        return shown(path);
    }
    let part = |bytes| shown(Path::new(OsStr::from_bytes(bytes)));
    format!("{}\\...{}", part(&bytes[..END]), part(&bytes[bytes.len() - END..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_path_has_no_control_characters_and_is_unique() {
        let show = |bytes: &[u8]| shown(Path::new(OsStr::from_bytes(bytes)));
        assert_eq!(show("/a/\u{e4} b".as_bytes()), "/a/\u{e4} b");
        assert_eq!(show(b"a\x1b[2J\n"), "a\\u{1b}[2J\\n");
        assert_eq!(show(b"a\xff"), "a\\xff");
        assert_eq!(show(b"a\\xff"), "a\\\\xff");
    }

    #[test]
    fn shown_path_longer_than_path_max_is_shortened() {
        let path = "a".repeat(2048) + "/middle/" + &"b".repeat(2048);
        let expected = "a".repeat(2048) + "\\..." + &"b".repeat(2048);
        assert_eq!(shown_shortened(Path::new(&path)), expected);
        assert_eq!(shown_shortened(Path::new(&path[8..])), path[8..]);
        assert_eq!(shown_shortened(Path::new("a\\...b")), "a\\\\...b");
    }

    #[test]
    fn errno_shows_that_a_file_system_is_full_or_lost() {
        let of = |errno: rustix::io::Errno| Failure::of("write")(errno);
        assert!(of(rustix::io::Errno::NOSPC).is_full() && of(rustix::io::Errno::DQUOT).is_full());
        assert!(of(rustix::io::Errno::NOTCONN).is_lost() && of(rustix::io::Errno::ROFS).is_lost());
        assert!(!of(rustix::io::Errno::IO).is_full() && !of(rustix::io::Errno::IO).is_lost());
    }
}
