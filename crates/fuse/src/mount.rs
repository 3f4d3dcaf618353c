//! Mounting: which transport, who mounts, and what is there when it fails.

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

/// How to serve a file system through a mount.
pub struct ServeOptions {
    /// The directory to mount on.
    pub mount_point: PathBuf,
    /// What it comes from, as `/proc/mounts` shows it. `mount -a` knows by this and the directory
    /// that a line of `/etc/fstab` is mounted.
    pub source: String,
    /// What every file system can be asked for.
    pub flags: MountFlags,
    /// Let others than who mounts use it. If that is root, they always may; if it isn't,
    /// `/etc/fuse.conf` says whether it may be asked for.
    pub allows_others: bool,
    /// The transport.
    pub transport: TransportChoice,
    /// How its operations answer the kernel.
    pub requests: RequestOptions,
    /// Unmount and end on SIGTERM and SIGINT. Wants to be called before any thread is started.
    pub ends_on_signals: bool,
    /// Called once, when the mount takes requests.
    pub on_ready: Box<dyn FnOnce(TransportKind)>,
}

impl std::fmt::Debug for ServeOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "mount of {} on {}", self.source, self.mount_point.display())
    }
}

/// Mounts a file system and serves it until it is unmounted, from outside or after a signal.
/// `connect` gives each worker its access to it; it is called on the worker's thread, inside its
/// event loop, with the worker's number.
///
/// # Errors
/// When the directory can't be mounted on, nobody may mount, or `connect` fails; the context says
/// what to do. Nothing stays mounted then.
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

/// Changes the flags of what is mounted on a directory: all of them, as mount(2) does.
///
/// # Errors
/// The system's, naming the directory.
pub fn remount(mount_point: &Path, flags: MountFlags) -> Result<()> {
    kernel::remount(mount_point, flags).map_err(|error| {
        let what = format!("changing the mount on {}: {error}", mount_point.display());
        Error::new(Error::from(error).code(), what)
    })
}

/// Takes over the signals on which to end, if any.
pub(crate) fn take_signals(options: &ServeOptions) -> Result<Option<Signals>> {
    Ok(match options.ends_on_signals {
        true => Some(Signals::take(&[libc::SIGTERM, libc::SIGINT])?),
        false => None,
    })
}

/// As [`serve`], with signals that were taken over before.
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
    let wanted = candidates(options.transport)?;
    for transport in wanted {
        let Some((fd, features)) = open(&call, (transport, options.transport))? else { continue };
        let session = Session {
            fd: Arc::new(fd),
            mount_point: mount_point.clone(),
            features,
            options: options.requests,
        };
        // Another attempt is made only if this one was refused, and then it was never ready.
        let ready = std::rc::Rc::new(std::cell::Cell::new(on_ready.take()));
        let told = std::rc::Rc::clone(&ready);
        let shown = mount_point.clone();
        let tell = Box::new(move |transport| {
            tracing::info!("{} is mounted, transport {transport}", shown.display());
            if let Some(on_ready) = told.take() {
                on_ready(transport);
            }
        });
        let (end, signals_back) = session::run(session, connect.clone(), signals, tell)?;
        match end {
            End::Unmounted => return Ok(()),
            End::Refused => {
                tracing::warn!("the kernel refused FUSE over {transport}");
                signals = signals_back;
                on_ready = ready.take();
            }
        }
    }
    let what = format!("transport {} is not available here", options.transport);
    Err(Error::new(ErrorCode::Unsupported, what))
}

/// The transports to try, best first.
fn candidates(choice: TransportChoice) -> Result<Vec<TransportKind>> {
    match (choice, kernel::allow_uring()) {
        (TransportChoice::Only(TransportKind::Device), _) => Ok(vec![TransportKind::Device]),
        (TransportChoice::Only(TransportKind::Uring), Ok(())) => Ok(vec![TransportKind::Uring]),
        (TransportChoice::Only(TransportKind::Uring), Err(why)) => {
            Err(Error::new(ErrorCode::Unsupported, format!("transport uring: {why}")))
        }
        (TransportChoice::Auto, Ok(())) => Ok(vec![TransportKind::Uring, TransportKind::Device]),
        (TransportChoice::Auto, Err(why)) => {
            tracing::info!("transport device is taken: {why}");
            Ok(vec![TransportKind::Device])
        }
    }
}

/// Mounts and agrees on a transport; `None` if the kernel doesn't have the one that must be.
fn open(
    call: &MountCall<'_>,
    (wanted, choice): (TransportKind, TransportChoice),
) -> Result<Option<(OwnedFd, KernelFeatures)>> {
    let mount_point = call.mount_point;
    let fd = mount(call)?;
    let unmount = || {
        if let Err(error) = mount_point::unmount(mount_point, Unmount::Detach) {
            tracing::warn!("unmounting {}: {error}", mount_point.display());
        }
    };
    let features = init::negotiate(&fd, wanted).and_then(|features| {
        kernel::set_nonblocking(&fd)?;
        Ok(features)
    });
    match features {
        Ok(features) if features.transport == wanted || choice == TransportChoice::Auto => {
            mount_point::raise_read_ahead(mount_point, limits::READ_AHEAD_KIB);
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
        let what = format!("mounting on {}: {error}{hint}", call.mount_point.display());
        Error::new(Error::from(error).code(), what)
    })
}
