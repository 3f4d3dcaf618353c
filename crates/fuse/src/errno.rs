//! Maps Skep's error codes to the kernel's error numbers.

use skep_types::ErrorCode;

/// Returns the kernel's error number for one of Skep's error codes.
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
        // Not ENOSYS, because the kernel would then never send this operation again, for any file.
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
        // An error of a dead server must not become ENOTCONN, because for programs and mount(8)
        // ENOTCONN means that the mount's daemon is dead.
        ErrorCode::Corrupt
        | ErrorCode::DeviceFailed
        | ErrorCode::StaleMap
        | ErrorCode::StaleSession
        | ErrorCode::StaleStart
        | ErrorCode::Disconnected
        | ErrorCode::Evicted
        | ErrorCode::EndMoved
        | ErrorCode::Deposed
        | ErrorCode::TargetLost
        | ErrorCode::NotLeader
        | ErrorCode::Io => libc::EIO,
    }
}

/// Whether the mount logs an error of an operation. The mount logs errors of a broken cluster or
/// connection, but no invalid request of a program. If another client has just removed the file to
/// which a name belonged, the mount logs nothing, because the kernel looks the name up again. The
/// mount does not log a query about a missing inode either, because the user chose the inode.
pub(crate) fn is_trouble(code: ErrorCode, operation: &str) -> bool {
    if code == ErrorCode::Stale
        && ["lookup", "get_attr", "stat_x", "open", "get_xattr"].contains(&operation)
    {
        return false;
    }
    matches!(errno(code), libc::EIO | libc::EPROTO | libc::ETIMEDOUT | libc::ESTALE)
        // The kernel itself refuses writes to a mount that is read-only, so this error is from a
        // server whose disk has become read-only.
        || matches!(code, ErrorCode::AuthenticationFailed | ErrorCode::ReadOnly)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_code_has_an_errno_that_the_kernel_accepts() {
        for (code, ..) in ErrorCode::ALL {
            let number = errno(*code);
            // Numbers from 512 on are internal to the kernel (ERESTARTSYS). The kernel refuses a
            // reply with one of these internal numbers.
            assert!(number > 0 && number < 512, "{code}");
            assert!(number != libc::ENOSYS && number != libc::ENOTCONN, "{code}");
        }
    }

    #[test]
    fn lookup_of_a_removed_file_logs_no_error() {
        assert!(!is_trouble(ErrorCode::Stale, "lookup"));
        assert!(!is_trouble(ErrorCode::Stale, "get_xattr"), "`skep entry path ID`");
        assert!(is_trouble(ErrorCode::Stale, "write"));
        assert!(is_trouble(ErrorCode::Io, "lookup"));
        assert!(!is_trouble(ErrorCode::NotFound, "lookup"));
    }

    #[test]
    fn read_only_disk_of_a_server_is_logged() {
        assert!(is_trouble(ErrorCode::ReadOnly, "write"));
    }
}
