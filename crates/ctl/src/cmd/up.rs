//! `skep up`: a whole cluster on this host, from one command.

use crate::help::{Example, examples};
use crate::local::children::{LOG_LIMIT, open_log, tail};
use crate::local::layout::{Layout, Shape, WantedShape};
use crate::local::readiness::Readiness;
use crate::local::summary;
use crate::local::supervisor::{self, Plan};
use crate::program::program;
use crate::values;
use skep_types::{Error, ErrorCode, Result};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

const EXAMPLES: &[Example] = &[
    ("a cluster in ./skep-data, mounted on ./skep-mnt, until Ctrl-C", "skep up"),
    ("in the background, with 4 metadata targets", "skep up --detach --metadata-targets 4"),
    (
        "sync each change of the namespace before it is answered",
        "skep up --set metadata:metadata.sync=always",
    ),
    (
        "with the second storage service in a failure domain",
        "skep up --set storage-2:node.domain=rack-2",
    ),
];

/// Start a whole cluster on this host, mount it, and keep it running
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct UpArgs {
    /// Where the cluster keeps its data
    #[arg(long, default_value = "./skep-data")]
    data_dir: PathBuf,
    /// Where it is mounted; made if it doesn't exist
    #[arg(long, default_value = "./skep-mnt")]
    mount_point: PathBuf,
    /// Metadata services, with one target each [default: 2, or as the cluster was made]
    #[arg(long)]
    metadata_targets: Option<u16>,
    /// Storage services [default: 2, or as the cluster was made]
    #[arg(long)]
    storage_services: Option<u16>,
    /// Storage targets of each storage service [default: 4, or as the cluster was made]
    #[arg(long)]
    targets_per_service: Option<u16>,
    /// Start the services, but don't mount
    #[arg(long)]
    no_mount: bool,
    /// Leave the cluster running in the background
    #[arg(long)]
    detach: bool,
    /// Transport between kernel and mount
    #[arg(long, default_value = super::mount::DEFAULT_TRANSPORT, value_parser = values::transports())]
    transport: String,
    /// A setting for all services of a kind, as in `metadata:metadata.sync=always`, for one, as in
    /// `storage-2:node.domain=rack-2`, or for `all`; may be repeated
    #[arg(long = "set", value_name = "SERVICE:KEY=VALUE")]
    set: Vec<String>,
    /// This is the process that stays in the background.
    #[arg(long, hide = true)]
    in_background: bool,
}

/// How long the background process may take; it has its own limits, and says what is wrong.
const PATIENCE: Duration = Duration::from_secs(180);

pub(super) fn run(args: UpArgs) -> Result<()> {
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
                "the mount point {} and the data directory {} must not lie within each other",
                mount_point.display(),
                layout.data.display()
            ),
        ));
    }
    args.transport
        .parse::<skep_fuse::TransportChoice>()
        .map_err(|what| Error::new(ErrorCode::Configuration, what))?;
    let shape = {
        // Only a supervisor may decide on the shape: its lock is held while looking.
        let _lock = layout.lock()?;
        layout.shape(WantedShape {
            metadata_targets: args.metadata_targets,
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
        in_foreground: !args.in_background,
    };
    // The last is a terminal that was closed.
    let signals = skep_env::Signals::take(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP])?;
    super::block_on(supervisor::run(plan, signals))
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|error| Error::from(error).within(path.display()))
}

/// Settings with whose they are: of all services, of those of a kind, or of one by its name.
fn parse_settings(texts: &[String], shape: &Shape) -> Result<Vec<(String, String)>> {
    let is_known = |of: &str| {
        ["management", "metadata", "storage", "all"].contains(&of)
            || shape.services().any(|(_, name)| name == of)
    };
    let parse = |text: &String| match text.split_once(':') {
        Some((of, setting)) if is_known(of) => Ok((of.to_owned(), setting.to_owned())),
        _ => Err(Error::new(
            ErrorCode::Configuration,
            format!(
                "--set {text}: write it as SERVICE:KEY=VALUE, with service management, metadata, \
                 storage, all, or the name of one, such as storage-1"
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
    let numbers = [
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
    readiness.tell(&mut command);
    let mut child = skep_env::spawn_detached(&mut command)?;
    let (layout, mount_point) = (layout.clone(), mount_point.map(Path::to_owned));
    super::block_on(async move {
        let has_ended = || {
            child.try_wait().ok().flatten().map(|_| {
                let lines = tail(&log_path, log_start, 12);
                Error::new(ErrorCode::NotReady, format!("the cluster did not start:\n{lines}"))
            })
        };
        readiness.wait(Some(PATIENCE), has_ended).await?;
        summary::print(&layout, mount_point.as_deref(), false).await
    })
}
