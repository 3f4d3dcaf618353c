//! Mounting a file system: the choice of the transport, mounting by system call or by the helper
//! program, and the clean-up after a failure.

use crate::context::RequestOptions;
use crate::file_system::FileSystem;
use crate::init::{self, KernelFeatures};
use crate::limits;
use crate::mount_flags::MountFlags;
use crate::mount_point;
use crate::session::{self, End, Session};
use crate::transport::kernel::{self, MountCall, Unmount};
use crate::transport::{TransportChoice, TransportKind};
use skep_env::Signals;
use skep_types::{Error, ErrorCode, Result};
use std::future::Future;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Options for serving a file system through a mount.
pub struct ServeOptions {
    /// The directory to mount on.
    pub mount_point: PathBuf,
    /// The source that `/proc/mounts` shows. `mount -a` compares the source and the directory with
    /// `/etc/fstab`, and so skips file systems that are mounted already.
    pub source: String,
    /// Mount flags that every Linux file system has, such as read-only.
    pub flags: MountFlags,
    /// Whether other users may access the mount. Always true if root mounts. If another user
    /// mounts, true requires `user_allow_other` in `/etc/fuse.conf`.
    pub allows_others: bool,
    /// The transports that the mount may use.
    pub transport: TransportChoice,
    /// How many bytes the kernel reads ahead of a program that reads a file sequentially, at most
    /// [`crate::MAX_READ_AHEAD_BYTES`]. `None` means [`crate::READ_AHEAD_BYTES`]. The kernel
    /// limits the read-ahead to 128 KiB if another user than root mounts.
    pub read_ahead_bytes: Option<u32>,
    /// The largest number of threads that serve requests. `None` means one for each CPU.
    pub workers: Option<usize>,
    /// Options for the processing of requests and for the replies to the kernel.
    pub requests: RequestOptions,
    /// Whether SIGTERM and SIGINT unmount the file system and end the process, except signals that
    /// the process ignores. If true, the caller must not have started any thread yet.
    pub ends_on_signals: bool,
    /// The function that the mount calls once, as soon as it serves requests.
    pub on_ready: Box<dyn FnOnce(TransportKind)>,
}

impl std::fmt::Debug for ServeOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "mount of {} on {}", self.source, self.mount_point.display())
    }
}

/// Mounts a file system and serves it until a program or a signal unmounts it. `connect` returns a
/// worker's access to the file system. The worker's thread calls `connect` inside its event loop,
/// with the index of the worker.
///
/// # Errors
/// Fails if the directory is not a valid mount point, if this process may not mount, or if
/// `connect` fails. The error's context has a hint on how to fix the problem. After an error, the
/// file system is not mounted.
pub fn serve<F, Fut>(
    options: ServeOptions,
    connect: impl Fn(usize) -> Fut + Clone + Send + 'static,
) -> Result<()>
where
    F: FileSystem,
    Fut: Future<Output = Result<F>> + 'static,
{
    let signals = take_signals(&options)?;
    serve_with(options, signals, connect)
}

/// Replaces all flags of the mount on a directory, like a remount by mount(2). Sets the read-ahead
/// of the mount to `read_ahead_bytes`, if this is not `None`.
///
/// # Errors
/// Returns the errors of mount(2) and of the write to the kernel's setting of the read-ahead. The
/// context names the directory.
pub fn remount(mount_point: &Path, flags: MountFlags, read_ahead_bytes: Option<u32>) -> Result<()> {
    let failed = |error: std::io::Error| {
        let what =
            format!("cannot change the options of the mount on {}: {error}", mount_point.display());
        Error::new(Error::from(error).code(), what)
    };
    kernel::remount(mount_point, flags).map_err(failed)?;
    let Some(bytes) = read_ahead_bytes else { return Ok(()) };
    mount_point::set_read_ahead(&mount_point::absolute(mount_point).map_err(failed)?, bytes)
}

/// Blocks in this thread the signals that end the mount, and returns these signals. `None` means
/// that, according to the options, no signal ends the mount.
pub(crate) fn take_signals(options: &ServeOptions) -> Result<Option<Signals>> {
    Ok(match options.ends_on_signals {
        true => {
            let numbers = Signals::not_ignored(&[libc::SIGTERM, libc::SIGINT]);
            Some(Signals::take(&numbers)?)
        }
        false => None,
    })
}

/// Like [`serve`], with signals that the caller has blocked already.
pub(crate) fn serve_with<F, Fut>(
    options: ServeOptions,
    mut signals: Option<Signals>,
    connect: impl Fn(usize) -> Fut + Clone + Send + 'static,
) -> Result<()>
where
    F: FileSystem,
    Fut: Future<Output = Result<F>> + 'static,
{
    let mount_point = mount_point::prepare(&options.mount_point)?;
    let call = MountCall {
        mount_point: &mount_point,
        source: &options.source,
        flags: options.flags,
        max_read: limits::MAX_IO_BYTES,
        allow_other: kernel::is_root() || options.allows_others,
    };
    let mut on_ready = Some(options.on_ready);
    let mut transports = candidates(options.transport)?.into_iter().peekable();
    while let Some(transport) = transports.next() {
        let read_ahead = options.read_ahead_bytes;
        let Some((fd, features)) = open(&call, (transport, options.transport), read_ahead)? else {
            continue;
        };
        if options.requests.has_direct_io && !features.has_direct_mmap {
            tracing::warn!(
                "with the mount option direct_io, mmap with MAP_SHARED fails with ENODEV on this \
                 kernel; such an mmap works from Linux 6.6 on"
            );
        }
        let session = Session {
            fd: Arc::new(fd),
            mount_point: mount_point.clone(),
            features,
            options: options.requests.clone(),
            workers: options.workers,
        };
        // If the kernel refuses this transport, the session has not called the callback, and the
        // session of the next transport gets the callback.
        let ready = std::rc::Rc::new(std::cell::Cell::new(on_ready.take()));
        let callback = std::rc::Rc::clone(&ready);
        let shown = mount_point.clone();
        let report = Box::new(move |transport| {
            tracing::info!("{} is mounted, transport {transport}", shown.display());
            if let Some(on_ready) = callback.take() {
                on_ready(transport);
            }
        });
        let (end, signals_back) = session::run(session, connect.clone(), signals, report)?;
        match end {
            End::Unmounted => return Ok(()),
            End::Refused => {
                // If no other transport is left, the error below reports the refusal.
                if let Some(other) = transports.peek() {
                    tracing::warn!(
                        "the kernel refused transport {transport} for {}; the mount tries \
                         transport {other}",
                        mount_point.display()
                    );
                }
                signals = signals_back;
                on_ready = ready.take();
            }
        }
    }
    let what = format!(
        "cannot use transport {}: this kernel refused it; mount with the option `transport=device`",
        options.transport
    );
    Err(Error::new(ErrorCode::Unsupported, what))
}

/// Returns the transports that the mount tries, the best one first.
fn candidates(choice: TransportChoice) -> Result<Vec<TransportKind>> {
    // Check the option before the call of `allow_uring`, because a mount that may use only the
    // device must not change a setting of the host.
    if choice == TransportChoice::Only(TransportKind::Device) {
        return Ok(vec![TransportKind::Device]);
    }
    match (choice, kernel::allow_uring()) {
        (TransportChoice::Only(_), Ok(())) => Ok(vec![TransportKind::Uring]),
        (TransportChoice::Only(_), Err(why)) => {
            Err(Error::new(ErrorCode::Unsupported, format!("cannot use transport uring: {why}")))
        }
        (TransportChoice::Auto, Ok(())) => Ok(vec![TransportKind::Uring, TransportKind::Device]),
        (TransportChoice::Auto, Err(why)) => {
            tracing::info!("the mount uses transport device: {why}");
            Ok(vec![TransportKind::Device])
        }
    }
}

/// Mounts the file system and negotiates the features. `None` means that the kernel lacks the only
/// transport that the options allow.
fn open(
    call: &MountCall<'_>,
    (preferred, choice): (TransportKind, TransportChoice),
    read_ahead: Option<u32>,
) -> Result<Option<(OwnedFd, KernelFeatures)>> {
    let read_ahead_bytes = read_ahead.unwrap_or(limits::READ_AHEAD_BYTES);
    let mount_point = call.mount_point;
    let fd = mount(call)?;
    let unmount = || {
        if let Err(error) = mount_point::unmount(mount_point, Unmount::Detach) {
            tracing::warn!(
                "cannot unmount {0} after a failed start: {error}; run `umount -l {0}`",
                mount_point.display()
            );
        }
    };
    let features = init::negotiate(&fd, preferred, read_ahead_bytes).and_then(|features| {
        kernel::set_nonblocking(&fd)?;
        Ok(features)
    });
    match features {
        Ok(features) if features.transport == preferred || choice == TransportChoice::Auto => {
            if let Err(error) = mount_point::set_read_ahead(mount_point, read_ahead_bytes) {
                // A read-ahead of up to 128 KiB takes effect through the reply to INIT, so only a
                // larger read-ahead needs a warning.
                match read_ahead {
                    Some(bytes) if bytes > limits::KERNEL_READ_AHEAD_BYTES => {
                        tracing::warn!("{error}; the kernel reads 128 KiB ahead");
                    }
                    _ => tracing::debug!("{error}"),
                }
            }
            Ok(Some((fd, features)))
        }
        Ok(_) => {
            unmount();
            Ok(None)
        }
        Err(error) => {
            unmount();
            Err(error)
        }
    }
}

fn mount(call: &MountCall<'_>) -> Result<OwnedFd> {
    let mounted = match kernel::is_root() {
        true => kernel::mount(call),
        false => kernel::mount_by_helper(call),
    };
    mounted.map_err(|error| {
        let hint = match error.raw_os_error() {
            Some(libc::EPERM) => " (in a container, mounting needs CAP_SYS_ADMIN)",
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
                " (is the fuse module loaded? modprobe fuse; in a container, pass /dev/fuse)"
            }
            _ => "",
        };
        let what = format!("cannot mount on {}: {error}{hint}", call.mount_point.display());
        Error::new(Error::from(error).code(), what)
    })
}
