//! `skep up`: starts a complete cluster on this host with one command.

use super::mount::DEFAULT_TRANSPORT;
use crate::help::{Example, examples};
use crate::local::children::{LOG_LIMIT, last_error, open_log, tail};
use crate::local::layout::Layout;
use crate::local::plan::Plan;
use crate::local::readiness::Readiness;
use crate::local::shape::{Shape, WantedShape};
use crate::local::summary;
use crate::local::supervisor;
use crate::program::program;
use crate::values;
use skep_env::Signals;
use skep_types::{Error, ErrorCode, Result};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

const EXAMPLES: &[Example] = &[
    ("run a cluster in ./skep-data, mounted on ./skep-mnt, until Ctrl-C", "skep up"),
    (
        "run a cluster in the background, with 4 metadata targets",
        "skep up --detach --metadata-targets 4",
    ),
    (
        "keep two copies of metadata, so that one takes over when the other fails",
        "skep up --metadata-copies 2",
    ),
    (
        "sync each change of the namespace before the reply",
        "skep up --set metadata:metadata.sync=always",
    ),
    (
        "put the second storage service into a failure domain",
        "skep up --set storage-2:node.domain=rack-2",
    ),
];

/// Start and mount a complete cluster on this host, and keep the cluster running
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct UpArgs {
    /// Data directory of the cluster
    #[arg(long, default_value = "./skep-data")]
    data_dir: PathBuf,
    /// Directory to mount the cluster on; created if missing
    #[arg(long, default_value = "./skep-mnt")]
    mount_point: PathBuf,
    /// Number of management nodes: 1, 3 or 5 [default: 1, or as the cluster was created]
    #[arg(long)]
    management_nodes: Option<u16>,
    /// Number of metadata services. Each service has one target, or one target for each copy of
    /// metadata [default: 2, or as the cluster was created]
    #[arg(long)]
    metadata_targets: Option<u16>,
    /// Number of copies of metadata, each on a different metadata service [default: 1, or as the
    /// cluster was created]
    #[arg(long)]
    metadata_copies: Option<u16>,
    /// Number of storage services [default: 2, or as the cluster was created]
    #[arg(long)]
    storage_services: Option<u16>,
    /// Storage targets per storage service [default: 4, or as the cluster was created]
    #[arg(long)]
    targets_per_service: Option<u16>,
    /// Start the services without mounting the cluster
    #[arg(long)]
    no_mount: bool,
    /// Start no monitor: no history of the load, no alerts and no web page
    #[arg(long)]
    no_monitor: bool,
    /// Leave the cluster running in the background
    #[arg(long)]
    detach: bool,
    /// Transport between kernel and mount
    #[arg(long, default_value = DEFAULT_TRANSPORT, value_parser = values::transports())]
    transport: String,
    /// Setting of all services of a kind, as in `metadata:metadata.sync=always`, of one service, as
    /// in `storage-2:node.domain=rack-2`, of the monitor, as in `monitor:history=1GiB`, or of `all`
    /// services; may be repeated
    #[arg(long = "set", value_name = "SERVICE:KEY=VALUE")]
    set: Vec<String>,
    /// Set for the process that stays in the background.
    #[arg(long, hide = true)]
    in_background: bool,
}

/// Time limit for the start of the background process. Each step of the start has a shorter limit,
/// so the process normally reports a failure before this limit.
const PATIENCE: Duration = Duration::from_secs(180);

pub(super) fn run(args: UpArgs) -> Result<()> {
    skep_env::restrict_new_files();
    if !args.no_mount {
        // Check the mount helper before the start of the cluster, because a failed mount would stop
        // the cluster that has just started.
        skep_fuse::check_helper()
            .map_err(|error| Error::from(error).within("cannot mount the cluster"))?;
    }
    let layout = Layout::make(&args.data_dir)?;
    let mount_point = match args.no_mount {
        true => None,
        false => Some(absolute(&args.mount_point)?),
    };
    if let Some(mount_point) = &mount_point
        && (mount_point.starts_with(&layout.data) || layout.data.starts_with(mount_point))
    {
        return Err(Error::new(
            ErrorCode::Configuration,
            format!(
                "cannot mount the cluster on {}: the mount point and the data directory {} must \
                 not contain each other; choose another --mount-point or --data-dir",
                mount_point.display(),
                layout.data.display()
            ),
        ));
    }
    args.transport
        .parse::<skep_fuse::TransportChoice>()
        .map_err(|what| Error::new(ErrorCode::Configuration, what))?;
    let shape = {
        // Take the lock of the supervisor, because only the holder of this lock may determine the
        // shape of the cluster.
        let _lock = layout.lock()?;
        layout.shape(WantedShape {
            management_nodes: args.management_nodes,
            metadata_targets: args.metadata_targets,
            metadata_copies: args.metadata_copies,
            storage_services: args.storage_services,
            targets_per_service: args.targets_per_service,
        })?
    };
    let set = parse_settings(&args.set, &shape)?;
    if args.detach {
        return detach(&args, &layout, mount_point.as_deref());
    }
    if !args.in_background {
        skep_service::logging::start("warn", LOG_LIMIT)?;
    }
    let plan = Plan {
        shape,
        layout,
        mount_point,
        transport: args.transport,
        set,
        has_monitor: !args.no_monitor,
        in_foreground: !args.in_background,
    };
    let mut numbers = vec![libc::SIGTERM, libc::SIGINT];
    // The kernel sends SIGHUP when the terminal is closed. Under `nohup`, the cluster continues.
    if !Signals::is_ignored(libc::SIGHUP) {
        numbers.push(libc::SIGHUP);
    }
    let signals = Signals::take(&numbers)?;
    super::block_on(supervisor::run(plan, signals))
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|error| {
        Error::from(error)
            .within(format_args!("cannot determine the absolute path of {}", path.display()))
    })
}

/// Splits each setting into its scope (all services, one kind, or one service) and `key=value`.
fn parse_settings(texts: &[String], shape: &Shape) -> Result<Vec<(String, String)>> {
    let is_known = |of: &str| {
        ["management", "metadata", "storage", "monitor", "all"].contains(&of)
            || shape.services().any(|(_, name)| name == of)
            || shape.management().any(|name| name == of)
    };
    let parse = |text: &String| match text.split_once(':') {
        Some((of, setting)) if is_known(of) => Ok((of.to_owned(), setting.to_owned())),
        _ => Err(Error::new(
            ErrorCode::Configuration,
            format!(
                "invalid --set '{text}': expected SERVICE:KEY=VALUE, where SERVICE is management, \
                 metadata, storage, monitor, all, or the name of one service such as storage-1"
            ),
        )),
    };
    texts.iter().map(parse).collect()
}

/// Starts this program again in the background, and waits until the cluster is up.
fn detach(args: &UpArgs, layout: &Layout, mount_point: Option<&Path>) -> Result<()> {
    let log_path = layout.log("up");
    let log = open_log(&log_path)?;
    let log_start = log.metadata()?.len();
    let readiness = Readiness::new()?;
    let mut command = program();
    command.args(["up", "--in-background", "--data-dir"]).arg(&layout.data);
    match mount_point {
        Some(mount_point) => command.arg("--mount-point").arg(mount_point),
        None => command.arg("--no-mount"),
    };
    if args.no_monitor {
        command.arg("--no-monitor");
    }
    let numbers = [
        ("--management-nodes", args.management_nodes),
        ("--metadata-targets", args.metadata_targets),
        ("--storage-services", args.storage_services),
        ("--targets-per-service", args.targets_per_service),
    ];
    for (option, number) in numbers {
        if let Some(number) = number {
            command.arg(option).arg(number.to_string());
        }
    }
    command.args(["--transport", &args.transport]);
    for setting in &args.set {
        command.args(["--set", setting]);
    }
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    readiness.set_variable(&mut command);
    let mut child = skep_env::spawn_detached(&mut command)?;
    let (layout, mount_point) = (layout.clone(), mount_point.map(Path::to_owned));
    let has_monitor = !args.no_monitor;
    super::block_on(async move {
        let has_ended = || {
            child.try_wait().ok().flatten().map(|_| {
                let what = last_error(&log_path, log_start).unwrap_or_else(|| {
                    format!("cannot start the cluster:\n{}", tail(&log_path, log_start, 12))
                });
                Error::new(ErrorCode::NotReady, what)
            })
        };
        readiness.wait(Some(PATIENCE), has_ended).await?;
        summary::print(&layout, mount_point.as_deref(), has_monitor, false).await
    })
}
