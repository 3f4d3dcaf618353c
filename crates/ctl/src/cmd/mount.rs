//! `skep mount`: mounts a cluster on a directory, and serves it until it is unmounted.

pub(crate) mod helper;
mod log_level;
pub(crate) mod options;

use crate::access::Access;
use crate::cli::{DEFAULT_TRANSPORT, MountArgs};
use crate::local::children::{LOG_LIMIT, open_log, program, tail};
use crate::local::readiness::Readiness;
use crate::output::print;
use options::Options;
use serde::Serialize;
use skep_client::LogControl;
use skep_fuse::{ClusterOptions, ServeOptions, TransportChoice, TransportKind};
use skep_service::ByteSize;
use skep_types::{Error, ErrorCode, Result};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

/// How long management may be away when a mount begins.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long a mount in the background may take to begin.
const BACKGROUND_PATIENCE: Duration = Duration::from_secs(60);

/// Bytes of a mount point in the name of its log, at most: with the others there may be 255.
const LONGEST_LOG_NAME: usize = 150;

/// A mount that serves.
#[derive(Debug, Serialize)]
struct Mounted {
    mount_point: String,
    /// None: the process in the background knows.
    transport: Option<String>,
}

pub(crate) fn run(args: &MountArgs) -> Result<()> {
    let mut with_options = args.clone();
    let options = options::read(&args.options, args.is_sloppy, &mut with_options)?;
    let args = &with_options;
    if options.is_remount {
        refuse_what_stays(args, options)?;
        return match args.is_dry_run || args.is_fake {
            true => Ok(()),
            false => skep_fuse::remount(&args.directory, options.flags),
        };
    }
    let transport: TransportChoice = args
        .transport
        .parse()
        .map_err(|what: String| Error::new(ErrorCode::Configuration, what))?;
    let access = args.cluster.access(None)?;
    if args.is_fake {
        return Ok(());
    }
    skep_fuse::check_mount_point(&args.directory)?;
    match (args.is_dry_run, args.detach) {
        (true, _) => super::block_on(async move { access.map().await.map(drop) }),
        (false, true) => detach(args, options, &access),
        (false, false) => mount(args, options, transport, &access),
    }
}

fn mount(
    args: &MountArgs,
    asked: Options,
    transport: TransportChoice,
    access: &Access,
) -> Result<()> {
    skep_service::logging::start(&args.log, args.log_limit.unwrap_or(ByteSize(0)))?;
    log_level::follow_signals()?;
    let cluster = ClusterOptions {
        cluster: access.token.clone().into(),
        host: std::fs::read_to_string("/proc/sys/kernel/hostname")
            .map_or_else(|_| "unknown".into(), |name| name.trim().to_owned()),
        version: skep_service::PROGRAM_VERSION.into(),
        patience: PATIENCE,
        log: LogControl(Some(Arc::new(skep_service::node_requests::set_log_level))),
    };
    let shown = absolute(&args.directory)?.display().to_string();
    let on_ready = move |transport: TransportKind| {
        let mounted = Mounted { mount_point: shown, transport: Some(transport.to_string()) };
        let _ = print(&mounted, |_| format!("mounted, transport {transport}"));
        skep_service::notify::ready();
    };
    let options = ServeOptions {
        mount_point: args.directory.clone(),
        source: access.name.clone(),
        flags: asked.flags,
        allows_others: asked.allows_others,
        transport,
        has_job_patterns: args.has_job_patterns,
        validity: asked.attribute_timeout.unwrap_or(skep_fuse::VALIDITY),
        ends_on_signals: true,
        on_ready: Box::new(on_ready),
    };
    let served = skep_fuse::mount(cluster, options);
    skep_service::notify::stopping();
    served
}

/// Refuses to change what a mount's process was started with. What is as asked for already may be
/// said: mount(8) says all of a line of `/etc/fstab` again.
fn refuse_what_stays(args: &MountArgs, asked: Options) -> Result<()> {
    let found = |name: &str| {
        let mut bytes = [0_u8; 64];
        let len = rustix::fs::getxattr(&args.directory, name, &mut bytes).map_err(|error| {
            Error::from(std::io::Error::from(error)).within(args.directory.display())
        })?;
        Ok::<_, Error>(String::from_utf8_lossy(&bytes[..len]).into_owned())
    };
    let refused = |option: &str, found: &str, wanted: &str| {
        let what = format!(
            "{}: {option} is {found} and can't be changed to {wanted} while it is mounted; unmount \
             it and mount it again",
            args.directory.display()
        );
        Err(Error::new(ErrorCode::Configuration, what))
    };
    if args.transport != DEFAULT_TRANSPORT {
        let transport = found(skep_fuse::TRANSPORT_XATTR)?;
        if transport != args.transport {
            return refused("transport", &transport, &args.transport);
        }
    }
    if let Some(wanted) = asked.attribute_timeout {
        let timeout = found(skep_fuse::TIMEOUT_XATTR)?;
        if timeout.parse().ok().map(Duration::from_secs_f64) != Some(wanted) {
            return refused("attribute_timeout", &timeout, &wanted.as_secs_f64().to_string());
        }
    }
    Ok(())
}

fn absolute(path: &std::path::Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|error| Error::from(error).within(path.display()))
}

/// Starts this program again behind the terminal, and waits until it has mounted.
fn detach(args: &MountArgs, asked: Options, access: &Access) -> Result<()> {
    let directory = absolute(&args.directory)?;
    let log_path = match &args.log_file {
        Some(path) => path.clone(),
        None => log_file(access, &directory),
    };
    let log = open_log(&log_path)?;
    let log_start = log.metadata()?.len();
    let readiness = Readiness::new()?;
    let mut command = program();
    command.args(["mount", "--cluster", &access.name, "--token-file"]);
    command.arg(absolute(&access.token_file)?);
    command.args(["--transport", &args.transport, "--log", &args.log]);
    command.args(["--options", &asked.words()]);
    let limit = args.log_limit.unwrap_or(LOG_LIMIT);
    command.args(["--log-limit", &limit.to_string()]);
    if args.has_job_patterns {
        command.arg("--job-patterns");
    }
    command.arg(&directory).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    readiness.tell(&mut command);
    let mut child = skep_env::spawn_detached(&mut command)?;
    super::block_on(async move {
        let has_ended = || {
            child.try_wait().ok().flatten().map(|_| {
                let what = format!("nothing was mounted:\n{}", tail(&log_path, log_start, 5));
                Error::new(ErrorCode::NotReady, what)
            })
        };
        readiness.wait(BACKGROUND_PATIENCE, has_ended).await.map(|_| ())
    })?;
    if args.is_quiet {
        return Ok(());
    }
    let mounted = Mounted { mount_point: directory.display().to_string(), transport: None };
    print(&mounted, |it| format!("{} is mounted; `skep umount {0}` unmounts it.", it.mount_point))
}

/// In the cluster's directory, if it is a local one; otherwise among the temporary files.
fn log_file(access: &Access, mount_point: &std::path::Path) -> PathBuf {
    let mut name = mount_point.display().to_string().replace('/', "-");
    if name.len() > LONGEST_LOG_NAME {
        // The end of a path says more of it than its beginning.
        let mut start = name.len() - LONGEST_LOG_NAME;
        while !name.is_char_boundary(start) {
            start += 1;
        }
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        name = format!("-{:016x}{}", hasher.finish(), &name[start..]);
    }
    let logs = std::path::Path::new(&access.name).join("logs");
    match logs.is_dir() {
        true => logs.join(format!("mount{name}.log")),
        false => std::env::temp_dir().join(format!("skep-mount{name}-{}.log", std::process::id())),
    }
}
