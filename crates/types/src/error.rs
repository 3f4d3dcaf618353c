//! The closed set of error codes, and the error type that combines a code with its context.
//!
//! Programs react to the code, so a new code is allowed only if a caller reacts differently to it.
//! People read the context, which names the object and, if possible, how to fix the problem.
//! `docs/protocol/errors.md` lists the numbers of codes, and no number is ever reused.

use std::fmt;

/// `std::result::Result` whose default error type is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// How a caller may react to an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryClass {
    /// Do not retry, because the reply is final.
    Never,
    /// Wait for a moment, then retry at the same target.
    SameTarget,
    /// Get a newer cluster map from management, then retry.
    AfterRefresh,
    /// Reconnect, perhaps to a different member of the group, then retry.
    AfterFailover,
}

macro_rules! codes {
    ($($(#[doc = $doc:literal])* $name:ident = $number:literal, $class:ident;)*) => {
        /// The closed set of error codes. See `docs/protocol/errors.md`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum ErrorCode { $($(#[doc = $doc])* $name = $number,)* }

        impl ErrorCode {
            /// All codes with their name, retry class and meaning, in ascending order of their
            /// numbers.
            pub const ALL: &'static [(ErrorCode, &'static str, RetryClass, &'static str)] = &[$((
                ErrorCode::$name,
                stringify!($name),
                RetryClass::$class,
                concat!($($doc),*),
            ),)*];

            /// Returns the code with this number. Returns `None` for a number that this version of
            /// the program does not have.
            pub fn from_number(number: u16) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }

            /// Returns the meaning of the code: sentences without the first capital letter and the
            /// last full stop.
            pub fn as_text(self) -> String {
                let meaning = match self { $(Self::$name => concat!($($doc),*).trim(),)* };
                let meaning = meaning.strip_suffix('.').unwrap_or(meaning);
                let mut letters = meaning.chars();
                let first = letters.next().map(|first| first.to_ascii_lowercase());
                first.into_iter().chain(letters).collect()
            }

            /// Returns how a caller may react to the code.
            pub fn retry_class(self) -> RetryClass {
                match self { $(Self::$name => RetryClass::$class,)* }
            }
        }
    };
}

codes! {
    /// The entry or inode does not exist.
    NotFound = 1, Never;
    /// An entry with that name exists already.
    Exists = 2, Never;
    /// The inode is not a directory, and the operation needs a directory.
    NotDirectory = 3, Never;
    /// The inode is a directory, and the operation does not work on directories.
    IsDirectory = 4, Never;
    /// The directory is not empty.
    NotEmpty = 5, Never;
    /// The caller does not have the permission for the operation on this object.
    PermissionDenied = 6, Never;
    /// The operation is not permitted on this kind of object.
    NotPermitted = 7, Never;
    /// An argument is out of range or contradicts another argument.
    InvalidArgument = 8, Never;
    /// The name is longer than 255 bytes.
    NameTooLong = 9, Never;
    /// The inode has the maximum number of hard links.
    TooManyLinks = 10, Never;
    /// No space is left on the target.
    NoSpace = 11, Never;
    /// The operation would exceed a quota.
    QuotaExceeded = 12, Never;
    /// The range ends beyond the maximum file size.
    FileTooLarge = 13, Never;
    /// The extended attribute does not exist.
    NoAttribute = 14, Never;
    /// The value does not fit into the caller's buffer or exceeds a limit of the inode.
    TooLarge = 15, Never;
    /// The object was removed, or the handle belongs to a session that has ended.
    Stale = 16, Never;
    /// Stored data does not match its checksum or its format.
    Corrupt = 17, Never;
    /// The device failed; the target refuses writes until it is restarted.
    DeviceFailed = 18, Never;
    /// The receiver does not know the operation or message.
    Unsupported = 19, Never;
    /// The peer violated the protocol.
    Protocol = 20, Never;
    /// The peer or the join token belongs to a different cluster.
    AuthenticationFailed = 21, Never;
    /// The two sides have no protocol version in common.
    VersionMismatch = 22, Never;
    /// The receiver does not serve the target, group or shard of the request, or the request is
    /// based on an older cluster map or group epoch.
    StaleMap = 23, AfterRefresh;
    /// The target does not know the session, or its lease has expired. The client must open a new
    /// session.
    StaleSession = 24, Never;
    /// Another operation uses the resource at the moment.
    Busy = 25, SameTarget;
    /// The target is starting, recovering or stopping.
    NotReady = 26, AfterFailover;
    /// The connection was lost or refused.
    Disconnected = 27, AfterFailover;
    /// The caller's deadline has passed.
    TimedOut = 28, Never;
    /// A signal interrupted the caller.
    Interrupted = 29, Never;
    /// The local operating system returned an error.
    Io = 30, Never;
    /// The receiver has reached one of its limits.
    LimitReached = 31, SameTarget;
    /// The two paths are on different file systems or pools.
    CrossDevice = 32, Never;
    /// The file system or the target is read-only.
    ReadOnly = 33, Never;
    /// A rename would make a directory its own descendant, or the object is in use.
    InUse = 34, Never;
    /// The settings are invalid. The context lists each problem.
    Configuration = 35, Never;
    /// Waiting for this lock would close a deadlock cycle.
    Deadlock = 36, Never;
    /// The maximum number of locks, or of waits for locks, is reached.
    TooManyLocks = 37, Never;
    /// The client did not renew its lease in time. Other clients may hold its locks and may have
    /// changed its files since.
    Evicted = 40, Never;
    /// The file was truncated, or its end has moved, since the client's last read of its size. The
    /// client reads the attributes of the file again and repeats the write.
    EndMoved = 41, Never;
    /// Another member has become the primary of the sender's group. The sender must stop its work
    /// as primary immediately, and must not pass this error on to a program.
    Deposed = 42, Never;
    /// An administrator has marked the target as lost. The bytes on it do not exist any more.
    TargetLost = 43, Never;
    /// The receiver is not the leader of management. The text of the reply is the leader's
    /// addresses, separated by commas, or empty if the receiver knows no leader.
    NotLeader = 44, AfterFailover;
    /// The metadata target has started again since the start that the request names. The client
    /// must compare its acknowledged changes with the target's (`CompareSlots`), and then send the
    /// request again with the new start.
    StaleStart = 45, Never;
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// An error: a code for programs and a context for people.
///
/// The error boxes its content, so that a `Result` with a small value takes at most two words on
/// hot paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error(Box<Inner>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Inner {
    code: ErrorCode,
    context: String,
    /// The code of the error that this error replaces.
    cause: Option<ErrorCode>,
}

impl Error {
    /// Creates an error. The context is a sentence that names the object and, if possible, how to
    /// fix the problem.
    pub fn new(code: ErrorCode, context: impl Into<String>) -> Self {
        Self(Box::new(Inner { code, context: context.into(), cause: None }))
    }

    /// Creates an error that replaces an error with the code `cause`. Callers must react to `code`,
    /// and may explain `cause` to people. Messages to other processes do not contain the cause.
    pub fn in_place_of(cause: ErrorCode, code: ErrorCode, context: impl Into<String>) -> Self {
        Self(Box::new(Inner { code, context: context.into(), cause: Some(cause) }))
    }

    /// Returns the code.
    pub fn code(&self) -> ErrorCode {
        self.0.code
    }

    /// Returns the code of the error that this error replaces ([`Self::in_place_of`]).
    pub fn cause_code(&self) -> Option<ErrorCode> {
        self.0.cause
    }

    /// Returns the context. The context is empty if the code alone is clear enough.
    pub fn context(&self) -> &str {
        &self.0.context
    }

    /// Prepends `outer` to the context: "target t7: chunk file 2A-1F: ...".
    #[must_use]
    pub fn within(mut self, outer: impl fmt::Display) -> Self {
        self.0.context = if self.0.context.is_empty() {
            outer.to_string()
        } else {
            format!("{outer}: {}", self.0.context)
        };
        self
    }
}

impl From<ErrorCode> for Error {
    fn from(code: ErrorCode) -> Self {
        Self::new(code, String::new())
    }
}

impl From<std::io::Error> for Error {
    /// Maps the errors to which callers react, such as `ENOSPC` and `EFBIG`, to codes of their own.
    /// All other errors become `Io`.
    fn from(error: std::io::Error) -> Self {
        let code = match error.kind() {
            _ if is_out_of_descriptors(&error) => ErrorCode::LimitReached,
            std::io::ErrorKind::OutOfMemory => ErrorCode::LimitReached,
            std::io::ErrorKind::StorageFull => ErrorCode::NoSpace,
            std::io::ErrorKind::QuotaExceeded => ErrorCode::QuotaExceeded,
            // `EFBIG`: the file would exceed the maximum file size of the local file system, 16 TiB
            // on ext4.
            std::io::ErrorKind::FileTooLarge => ErrorCode::FileTooLarge,
            std::io::ErrorKind::ReadOnlyFilesystem => ErrorCode::ReadOnly,
            _ => ErrorCode::Io,
        };
        Self::new(code, error.to_string())
    }
}

/// Whether an error means that the process or the host has no free file descriptor (`EMFILE`,
/// `ENFILE`). Such an error is temporary, and does not depend on the file that the caller opens.
pub fn is_out_of_descriptors(error: &std::io::Error) -> bool {
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    matches!(error.raw_os_error(), Some(ENFILE | EMFILE))
}

/// Writes the context, which administrators and users read. These readers cannot interpret the
/// names of the codes, so only the alternate form `{error:#}` appends the code, for debug lines of
/// the log.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.context() {
            "" => f.write_str(&self.code().as_text())?,
            context => f.write_str(context)?,
        }
        match f.alternate() {
            true => write!(f, " [{}]", self.code()),
            false => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replacement_of_an_error_code_keeps_the_cause() {
        let error = Error::in_place_of(ErrorCode::Protocol, ErrorCode::Disconnected, "no service");
        let error = error.within("10.0.0.5:7420");
        assert_eq!(
            (error.code(), error.cause_code()),
            (ErrorCode::Disconnected, Some(ErrorCode::Protocol))
        );
        assert_eq!(error.to_string(), "10.0.0.5:7420: no service");
        assert_eq!(Error::new(ErrorCode::Disconnected, "gone").cause_code(), None);
    }

    #[test]
    fn error_numbers_are_unique_and_convert_back() {
        for window in ErrorCode::ALL.windows(2) {
            assert!((window[0].0 as u16) < window[1].0 as u16);
        }
        for (code, ..) in ErrorCode::ALL {
            assert_eq!(ErrorCode::from_number(*code as u16), Some(*code));
        }
        assert_eq!(ErrorCode::from_number(0), None);
    }

    #[test]
    fn error_texts_do_not_contain_names_of_error_codes() {
        let stale = Error::new(ErrorCode::StaleMap, "target t7 is not served by node n5");
        assert_eq!(stale.to_string(), "target t7 is not served by node n5");
        assert_eq!(format!("{stale:#}"), "target t7 is not served by node n5 [StaleMap]");
        let bare = Error::from(ErrorCode::Disconnected);
        assert_eq!(bare.to_string(), "the connection was lost or refused");
        for (code, name, ..) in ErrorCode::ALL {
            assert!(!Error::from(*code).to_string().contains(name), "{name}");
        }
    }
}
