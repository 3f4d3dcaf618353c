//! The one closed set of error codes, and the error type that carries one with its context.
//!
//! A code is for machines: a new one is allowed only where a caller would act differently. The
//! context is for people: it names the object and the way out. Numbers are never reused; they stand
//! in `docs/protocol/errors.md`.

use std::fmt;

/// Result with Skep's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Class of an error by the reaction of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryClass {
    /// The answer is final.
    Never,
    /// The same target will answer later.
    SameTarget,
    /// Ask management for a newer cluster map, then retry.
    AfterRefresh,
    /// Connect anew (perhaps to another member of the group), then retry.
    AfterFailover,
}

macro_rules! codes {
    ($($(#[doc = $doc:literal])* $name:ident = $number:literal, $class:ident;)*) => {
        /// The closed set of error codes. See `docs/protocol/errors.md`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum ErrorCode { $($(#[doc = $doc])* $name = $number,)* }

        impl ErrorCode {
            /// All codes with name, number, retry class and meaning, in the order of their numbers.
            pub const ALL: &'static [(ErrorCode, &'static str, RetryClass, &'static str)] = &[$((
                ErrorCode::$name,
                stringify!($name),
                RetryClass::$class,
                concat!($($doc),*),
            ),)*];

            /// The code of a number. `None` means that this version has no such code.
            pub fn from_number(number: u16) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }

            /// Its retry class.
            pub fn retry_class(self) -> RetryClass {
                match self { $(Self::$name => RetryClass::$class,)* }
            }
        }
    };
}

codes! {
    /// The entry or inode doesn't exist.
    NotFound = 1, Never;
    /// An entry of that name exists.
    Exists = 2, Never;
    /// A directory was needed.
    NotDirectory = 3, Never;
    /// The operation isn't for directories.
    IsDirectory = 4, Never;
    /// The directory isn't empty.
    NotEmpty = 5, Never;
    /// The caller may not do this to the object.
    PermissionDenied = 6, Never;
    /// The operation isn't permitted on such an object.
    NotPermitted = 7, Never;
    /// An argument is out of its range or contradicts another.
    InvalidArgument = 8, Never;
    /// The name is longer than 255 bytes.
    NameTooLong = 9, Never;
    /// The inode has as many hard links as it can have.
    TooManyLinks = 10, Never;
    /// No space is left on the target.
    NoSpace = 11, Never;
    /// A quota is used up.
    QuotaExceeded = 12, Never;
    /// The range ends beyond the longest file.
    FileTooLarge = 13, Never;
    /// The attribute doesn't exist.
    NoAttribute = 14, Never;
    /// The value doesn't fit into the space that the caller gave, or that an inode has.
    TooLarge = 15, Never;
    /// The object was removed, or the handle belongs to an ended session.
    Stale = 16, Never;
    /// Stored data contradicts its checksum or its format.
    Corrupt = 17, Never;
    /// The device failed; the target refuses writes until it is restarted.
    DeviceFailed = 18, Never;
    /// The operation or message isn't known here.
    Unsupported = 19, Never;
    /// The peer broke the protocol.
    Protocol = 20, Never;
    /// Peer or token isn't of this cluster.
    AuthenticationFailed = 21, Never;
    /// No protocol version that both sides speak.
    VersionMismatch = 22, Never;
    /// The request names a target, group or shard that isn't served here, or an older map or epoch.
    StaleMap = 23, AfterRefresh;
    /// The session is unknown here or its lease ran out; it has to be opened anew.
    StaleSession = 24, Never;
    /// A resource is in use by another operation for a moment.
    Busy = 25, SameTarget;
    /// The target is starting, recovering or stopping.
    NotReady = 26, AfterFailover;
    /// The connection was lost or refused.
    Disconnected = 27, AfterFailover;
    /// The time that the caller gave has run out.
    TimedOut = 28, Never;
    /// The caller was interrupted.
    Interrupted = 29, Never;
    /// The local operating system refused something.
    Io = 30, Never;
    /// A limit of the receiver was reached.
    LimitReached = 31, SameTarget;
    /// The two paths are on different file systems or pools.
    CrossDevice = 32, Never;
    /// The file system or the target is read-only.
    ReadOnly = 33, Never;
    /// A rename would make a directory its own descendant, or the directory is in use.
    InUse = 34, Never;
    /// Settings are wrong; the context lists each problem.
    Configuration = 35, Never;
    /// Whoever waits for this lock would wait for himself in the end.
    Deadlock = 36, Never;
    /// No more locks, or no more that wait for locks, can be kept.
    TooManyLocks = 37, Never;
    /// The client was out of touch for longer than its lease, and others may have what it had.
    Evicted = 40, Never;
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// An error: the code for machines, the context for people.
///
/// Boxed inside, so that a `Result` of a hot path stays two words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error(Box<Inner>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Inner {
    code: ErrorCode,
    context: String,
}

impl Error {
    /// An error with its context: a sentence that names the object and, where there is one, the way
    /// out.
    pub fn new(code: ErrorCode, context: impl Into<String>) -> Self {
        Self(Box::new(Inner { code, context: context.into() }))
    }

    /// The code.
    pub fn code(&self) -> ErrorCode {
        self.0.code
    }

    /// The context. Empty if the code is enough.
    pub fn context(&self) -> &str {
        &self.0.context
    }

    /// Returns the same error with `outer` before its context: "target t7: chunk file 2A-1F: ...".
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
    /// Maps errors to which callers react, such as `ENOSPC` and `EFBIG`, to their codes. All others
    /// become `Io`.
    fn from(error: std::io::Error) -> Self {
        let code = match error.kind() {
            std::io::ErrorKind::StorageFull => ErrorCode::NoSpace,
            std::io::ErrorKind::QuotaExceeded => ErrorCode::QuotaExceeded,
            // The file would exceed the limit of the file system: 16 TiB on ext4.
            std::io::ErrorKind::FileTooLarge => ErrorCode::FileTooLarge,
            std::io::ErrorKind::ReadOnlyFilesystem => ErrorCode::ReadOnly,
            _ => ErrorCode::Io,
        };
        Self::new(code, error.to_string())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.context.is_empty() {
            write!(f, "{}", self.0.code)
        } else {
            write!(f, "{} [{}]", self.0.context, self.0.code)
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_unique_and_lead_back_to_their_code() {
        for window in ErrorCode::ALL.windows(2) {
            assert!((window[0].0 as u16) < window[1].0 as u16);
        }
        for (code, ..) in ErrorCode::ALL {
            assert_eq!(ErrorCode::from_number(*code as u16), Some(*code));
        }
        assert_eq!(ErrorCode::from_number(0), None);
    }
}
