//! Maps Skep's error codes to the kernel's error numbers.

use skep_types::ErrorCode;

/// Returns the error number of an error code.
pub fn errno(code: ErrorCode) -> i32 {
    match code {
        ErrorCode::NotFound => libc::ENOENT,
        ErrorCode::Exists => libc::EEXIST,
        ErrorCode::NotDirectory => libc::ENOTDIR,
        ErrorCode::IsDirectory => libc::EISDIR,
        ErrorCode::NotEmpty => libc::ENOTEMPTY,
        ErrorCode::PermissionDenied | ErrorCode::AuthenticationFailed => libc::EACCES,
        ErrorCode::NotPermitted => libc::EPERM,
        ErrorCode::InvalidArgument | ErrorCode::Configuration => libc::EINVAL,
        ErrorCode::NameTooLong => libc::ENAMETOOLONG,
        ErrorCode::TooManyLinks => libc::EMLINK,
        ErrorCode::NoSpace => libc::ENOSPC,
        ErrorCode::QuotaExceeded => libc::EDQUOT,
        ErrorCode::FileTooLarge => libc::EFBIG,
        ErrorCode::NoAttribute => libc::ENODATA,
        ErrorCode::TooLarge => libc::ERANGE,
        ErrorCode::Stale => libc::ESTALE,
        // After ENOSYS, the kernel would never send this operation again, for any file.
        ErrorCode::Unsupported => libc::EOPNOTSUPP,
        ErrorCode::Protocol | ErrorCode::VersionMismatch => libc::EPROTO,
        ErrorCode::Busy | ErrorCode::InUse => libc::EBUSY,
        ErrorCode::NotReady | ErrorCode::LimitReached => libc::EAGAIN,
        ErrorCode::TimedOut => libc::ETIMEDOUT,
        ErrorCode::Interrupted => libc::EINTR,
        ErrorCode::CrossDevice => libc::EXDEV,
        ErrorCode::ReadOnly => libc::EROFS,
        ErrorCode::Deadlock => libc::EDEADLK,
        ErrorCode::TooManyLocks => libc::ENOLCK,
        // Must not be ENOTCONN if a server is dead: programs and mount(8) take ENOTCONN for a dead
        // mount.
        ErrorCode::Corrupt
        | ErrorCode::DeviceFailed
        | ErrorCode::StaleMap
        | ErrorCode::StaleSession
        | ErrorCode::Disconnected
        | ErrorCode::Evicted
        | ErrorCode::EndMoved
        | ErrorCode::Deposed
        | ErrorCode::TargetLost
        | ErrorCode::NotLeader
        | ErrorCode::Io => libc::EIO,
    }
}

/// Whether the mount logs errors with this code. The mount logs an error if something is broken,
/// but not if only a program's request is invalid.
pub(crate) fn is_trouble(code: ErrorCode) -> bool {
    matches!(errno(code), libc::EIO | libc::EPROTO | libc::ETIMEDOUT | libc::ESTALE)
        || code == ErrorCode::AuthenticationFailed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_number_that_the_kernel_accepts() {
        for (code, ..) in ErrorCode::ALL {
            let number = errno(*code);
            // Numbers from 512 on are internal to the kernel (ERESTARTSYS). The kernel refuses a
            // reply with such a number.
            assert!(number > 0 && number < 512, "{code}");
            assert!(number != libc::ENOSYS && number != libc::ENOTCONN, "{code}");
        }
    }
}
