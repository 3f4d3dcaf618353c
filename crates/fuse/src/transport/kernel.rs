//! The system calls of a FUSE daemon: I/O on `/dev/fuse`, mounting and unmounting.

use crate::mount_flags::MountFlags;
use skep_env::Buf;
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// `FUSE_DEV_IOC_CLONE`: `_IOR(229, 0, uint32_t)`.
const CLONE: libc::Ioctl = 0x8004_e500_u32 as libc::Ioctl;
/// The module parameter that root sets to allow FUSE over io_uring.
const ENABLE_URING: &str = "/sys/module/fuse/parameters/enable_uring";

fn checked(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Reads one message of the kernel, and returns its length.
pub(crate) fn read(fd: &OwnedFd, buf: &Buf) -> io::Result<usize> {
    let _fill = buf.begin_fill();
    // SAFETY: the buffer is valid for its length, and `_fill` excludes references to its bytes.
    checked(unsafe { libc::read(fd.as_raw_fd(), buf.as_ptr().cast(), buf.len()) })
}

/// Writes one message to the kernel, which accepts either all of it or nothing.
pub(crate) fn write(fd: &OwnedFd, buf: &Buf) -> io::Result<()> {
    // SAFETY: the buffer is valid for its length.
    checked(unsafe { libc::write(fd.as_raw_fd(), buf.as_ptr().cast(), buf.len()) }).map(|_| ())
}

/// Makes reads of the descriptor return `EAGAIN` instead of waiting for a request.
pub(crate) fn set_nonblocking(fd: &OwnedFd) -> io::Result<()> {
    // SAFETY: the descriptor is open, and the calls take no pointers.
    let result = unsafe {
        let flags = libc::fcntl(fd.as_raw_fd(), libc::F_GETFL);
        libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK)
    };
    checked(result as isize).map(|_| ())
}

/// Whether the kernel still has the connection of a mounted file system. The connection ends when
/// the last mount of the file system is unmounted or aborted.
pub(crate) fn is_connected(fd: &OwnedFd) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: the pointer and the count describe one entry, which outlives the call.
    let count = unsafe { libc::poll(&raw mut poll, 1, 0) };
    count >= 0 && poll.revents & libc::POLLERR == 0
}

/// Opens `/dev/fuse`.
pub(crate) fn open_device() -> io::Result<OwnedFd> {
    Ok(std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse")?.into())
}

/// Returns another descriptor of the same mount, for which the kernel has a separate list of
/// requests in flight.
pub(crate) fn clone_device(fd: &OwnedFd) -> io::Result<OwnedFd> {
    let clone = open_device()?;
    let source = fd.as_raw_fd() as u32;
    // SAFETY: the argument is a pointer to the descriptor's number, as this `ioctl` requires.
    let result = unsafe { libc::ioctl(clone.as_raw_fd(), CLONE, &raw const source) };
    checked(result as isize).map(|_| clone)
}

/// Returns one more than the highest number of a CPU that the kernel may ever use. The kernel has
/// this number of io_uring queues.
pub(crate) fn possible_cpus() -> u16 {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let last = list.trim().rsplit([',', '-']).next().and_then(|last| last.parse::<u16>().ok());
    last.map_or_else(|| skep_env::available_cpus().len() as u16, |last| last + 1)
}

/// Whether this process runs as root and may mount without a helper.
pub(crate) fn is_root() -> bool {
    // SAFETY: the call takes no arguments and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Makes the kernel offer FUSE over io_uring to new mounts. If the feature is switched off,
/// switches it on. Only root may do this.
///
/// # Errors
/// Returns the reason why the kernel does not offer FUSE over io_uring.
pub(crate) fn allow_uring() -> Result<(), String> {
    let value = std::fs::read_to_string(ENABLE_URING).map_err(|_| {
        "this kernel has no FUSE over io_uring; it needs Linux 6.14 or later".to_owned()
    })?;
    if value.trim() == "Y" {
        return Ok(());
    }
    std::fs::write(ENABLE_URING, "Y").map_err(|error| {
        format!("{ENABLE_URING} is N, and this process cannot set this parameter to Y: {error}")
    })?;
    tracing::info!(
        "this mount has set {ENABLE_URING} to Y, for all later FUSE mounts of this host; mount \
         with the option transport=device to leave this parameter unchanged"
    );
    Ok(())
}

/// The value from `include/uapi/linux/prctl.h`, because the crate `libc` does not define this
/// constant.
const PR_SET_IO_FLUSHER: libc::c_int = 57;

/// Marks the calling thread as a thread that writes back dirty pages of other programs.
///
/// # Hazard: deadlock under memory pressure
/// Without the flag `PR_SET_IO_FLUSHER`, an allocation of memory by this thread may wait until
/// dirty pages of this mount are written back. But only threads such as this one can write these
/// pages back. The flag needs CAP_SYS_RESOURCE. A mount without this capability may stall if the
/// host runs out of memory while programs write to mapped files.
pub(crate) fn become_io_flusher() {
    // SAFETY: the call takes no pointers. If the kernel refuses the flag, the thread runs without
    // it.
    unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) };
}

fn c_string(text: &OsStr) -> io::Result<CString> {
    CString::new(text.as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// The arguments of a mount call.
#[derive(Debug, Clone)]
pub(crate) struct MountCall<'a> {
    pub(crate) mount_point: &'a Path,
    /// The source that `/proc/mounts` shows.
    pub(crate) source: &'a str,
    /// Mount flags that every Linux file system has, such as read-only.
    pub(crate) flags: MountFlags,
    /// Maximum length in bytes of one read.
    pub(crate) max_read: usize,
    /// Whether other users may access the mount.
    pub(crate) allow_other: bool,
}

/// Mounts with `mount(2)`. Returns the descriptor of the device.
pub(crate) fn mount(call: &MountCall<'_>) -> io::Result<OwnedFd> {
    let fd = open_device()?;
    // SAFETY: the calls take no arguments and cannot fail.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    let mut options = format!(
        "fd={},rootmode=40000,user_id={uid},group_id={gid},default_permissions,max_read={}",
        fd.as_raw_fd(),
        call.max_read
    );
    if call.allow_other {
        options.push_str(",allow_other");
    }
    let source = c_string(call.source.as_ref())?;
    let mount_point = c_string(call.mount_point.as_os_str())?;
    let options = c_string(options.as_ref())?;
    // SAFETY: all strings end with a zero byte and outlive the call.
    let result = unsafe {
        libc::mount(
            source.as_ptr(),
            mount_point.as_ptr(),
            c"fuse.skep".as_ptr(),
            call.flags.bits(),
            options.as_ptr().cast(),
        )
    };
    checked(result as isize).map(|_| fd)
}

/// Changes the flags of the mount on a directory.
pub(crate) fn remount(mount_point: &Path, flags: MountFlags) -> io::Result<()> {
    let mount_point = c_string(mount_point.as_os_str())?;
    let bits = flags.bits() | libc::MS_REMOUNT;
    // SAFETY: the strings end with a zero byte and outlive the call. The data pointer may be null.
    let result = unsafe {
        libc::mount(
            c"skep".as_ptr(),
            mount_point.as_ptr(),
            std::ptr::null(),
            bits,
            std::ptr::null(),
        )
    };
    checked(result as isize).map(|_| ())
}

/// How to unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unmount {
    /// Unmount only if no program uses the mount.
    IfIdle,
    /// Remove the mount from the directory tree immediately. Programs can still use their open
    /// files.
    Detach,
    /// Unmount immediately. Requests in flight fail with an error.
    Abort,
}

/// Unmounts with `umount2(2)`. The mount must not be one that this process serves
/// ([`unmount_by_program`] explains the reason).
pub(crate) fn unmount(mount_point: &Path, how: Unmount) -> io::Result<()> {
    let flags = match how {
        Unmount::IfIdle => 0,
        Unmount::Detach => libc::MNT_DETACH,
        Unmount::Abort => libc::MNT_DETACH | libc::MNT_FORCE,
    };
    let mount_point = c_string(mount_point.as_os_str())?;
    // SAFETY: the string ends with a zero byte and outlives the call.
    let result = unsafe { libc::umount2(mount_point.as_ptr(), flags | libc::UMOUNT_NOFOLLOW) };
    checked(result as isize).map(|_| ())
}

/// Unmounts with `umount(8)`, in a separate process.
///
/// # Hazard: a process that never exits
/// A process must not unmount its own mount by a system call, since the call waits until all
/// requests of the mount have ended. If the process is killed during the call, the waiting thread
/// holds the memory and files of the process, including its io_uring instances. So the requests
/// never end, and the thread never ends either.
pub(crate) fn unmount_by_program(mount_point: &Path, how: Unmount) -> io::Result<()> {
    let mut command = Command::new("umount");
    // Run no mount helpers (`-i`). Do not resolve the path (`-c`), since resolving it would send
    // requests to the mount.
    command.env("LC_ALL", "C").arg("-i").arg("-c");
    match how {
        Unmount::IfIdle => &mut command,
        Unmount::Detach => command.arg("-l"),
        Unmount::Abort => command.arg("-l").arg("-f"),
    };
    succeeded(&command.arg("--").arg(mount_point).stdin(Stdio::null()).output()?)
}

/// Converts the exit status and the messages of an unmount program to a result.
fn succeeded(output: &Output) -> io::Result<()> {
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let is_busy = message.contains("busy");
    let kind = if is_busy { io::ErrorKind::ResourceBusy } else { io::ErrorKind::Other };
    Err(io::Error::new(kind, message))
}

/// Name of the helper program that mounts for users other than root.
const FUSERMOUNT: &str = "fusermount3";

fn helper_failed(error: &io::Error) -> io::Error {
    // The result may be EACCES instead of ENOENT if this user may not enter a directory of PATH.
    if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) {
        return io::Error::new(
            error.kind(),
            format!(
                "users other than root need {FUSERMOUNT} to mount, and this user cannot run it \
                 ({error}): install the package fuse3; `skep up --no-mount` starts a cluster \
                 without a mount"
            ),
        );
    }
    io::Error::new(error.kind(), format!("{FUSERMOUNT}: {error}"))
}

/// Checks that this user can mount. The user must be root, or the helper program must exist.
///
/// # Errors
/// Returns `NotFound` with a hint on how to fix the problem if the helper is missing.
pub fn check_helper() -> io::Result<()> {
    let is_program = |path: &Path| {
        let found = std::fs::metadata(path);
        found.is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let exists = std::env::split_paths(&path).any(|it| is_program(&it.join(FUSERMOUNT)));
    match is_root() || exists {
        true => Ok(()),
        false => Err(helper_failed(&io::Error::new(
            io::ErrorKind::NotFound,
            "the program is in no directory of PATH",
        ))),
    }
}

/// Mounts with `fusermount3`, which opens the device and sends the descriptor through a socket.
pub(crate) fn mount_by_helper(call: &MountCall<'_>) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut options =
        format!("fsname={},subtype=skep,default_permissions", call.source.replace(',', "\\,"));
    options.push_str(&format!(",max_read={}", call.max_read));
    for word in call.flags.words().split(',').filter(|word| !word.is_empty()) {
        options.push_str(&format!(",{word}"));
    }
    if call.allow_other {
        options.push_str(",allow_other");
    }
    let raw = theirs.as_raw_fd();
    let mut command = Command::new(FUSERMOUNT);
    command.arg("-o").arg(options).arg("--").arg(call.mount_point);
    command.env("_FUSE_COMMFD", raw.to_string()).stdin(Stdio::null()).stderr(Stdio::piped());
    // SAFETY: `fcntl` is async-signal-safe, and the descriptor is open in the child.
    unsafe {
        command.pre_exec(move || {
            skep_env::Signals::unblock_all();
            checked(libc::fcntl(raw, libc::F_SETFD, 0) as isize).map(|_| ())
        })
    };
    let child = command.spawn().map_err(|error| helper_failed(&error))?;
    drop(theirs);
    let fd = receive_descriptor(&ours);
    let output = child.wait_with_output()?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        // Usually udev makes `/dev/fuse` accessible to all users. In a container without udev, only
        // root can open it.
        let is_closed = message.contains("/dev/fuse") && message.contains("Permission denied");
        let way_out = if is_closed { " (let root run: chmod 666 /dev/fuse)" } else { "" };
        return Err(io::Error::other(format!("{FUSERMOUNT} failed: {message}{way_out}")));
    }
    fd
}

/// Unmounts with `fusermount3`.
pub(crate) fn unmount_by_helper(mount_point: &Path, how: Unmount) -> io::Result<()> {
    let mut command = Command::new(FUSERMOUNT);
    command.arg("-u");
    if how != Unmount::IfIdle {
        command.arg("-z");
    }
    let output = command
        .arg("--")
        .arg(mount_point)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| helper_failed(&error))?;
    succeeded(&output)
}

/// Receives one descriptor from a socket.
fn receive_descriptor(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = [0_u8; 1];
    let mut vector = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // The buffer is aligned for the control header, and has space for one descriptor.
    let mut buffer = [0_u64; 8];
    // SAFETY: all-zero is a valid `msghdr`, and all memory that it points to outlives the call.
    // `CMSG_FIRSTHDR` checks that a control message is within the space that the kernel filled.
    let raw = unsafe {
        let mut message = std::mem::zeroed::<libc::msghdr>();
        message.msg_iov = &raw mut vector;
        message.msg_iovlen = 1;
        message.msg_control = buffer.as_mut_ptr().cast();
        // The type of this field depends on the C library.
        message.msg_controllen = size_of_val(&buffer) as _;
        checked(libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC))?;
        let control = libc::CMSG_FIRSTHDR(&raw const message);
        if control.is_null()
            || (*control).cmsg_type != libc::SCM_RIGHTS
            || (*control).cmsg_level != libc::SOL_SOCKET
        {
            return Err(io::Error::other(format!(
                "{FUSERMOUNT} did not return a file descriptor of /dev/fuse"
            )));
        }
        std::ptr::read_unaligned(libc::CMSG_DATA(control).cast::<i32>())
    };
    // SAFETY: the kernel has just created the descriptor for this process, so nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Requests the free space of a mount. The kernel never caches the result, so the daemon must
/// reply.
pub(crate) fn stat_fs(path: &Path) -> io::Result<()> {
    let path = c_string(path.as_os_str())?;
    // SAFETY: the string ends with a zero byte, and `buffer` is valid for the result.
    let result = unsafe {
        let mut buffer = std::mem::zeroed::<libc::statfs>();
        libc::statfs(path.as_ptr(), &raw mut buffer)
    };
    checked(result as isize).map(|_| ())
}
