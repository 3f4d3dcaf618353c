//! `skep mount`: mounts a cluster on a directory, and serves the mount until its unmount.

pub(crate) mod helper;
mod learned;
mod log_level;
mod log_place;
pub(crate) mod option_table;
pub(crate) mod options;
pub(crate) mod retry;

use crate::access::{Access, ClusterArgs, PATIENCE, with_token_file};
use crate::help::{Example, examples};
use crate::local::children::{LOG_LIMIT, describe, tail};
use crate::local::readiness::Readiness;
use crate::mount_result;
use crate::output::{is_for_people, print, warn};
use crate::program::program;
use crate::values;
pub(crate) use log_place::LOGS_OF_ROOT;
use options::Options;
use retry::Retry;
use rustix::process::Pid;
use serde::Serialize;
use skep_client::LogControl;
use skep_fuse::{
    ClusterOptions, JobVariables, RequestOptions, ServeOptions, TransportChoice, TransportKind,
};
use skep_metrics::Registry;
use skep_service::ByteSize;
use skep_service::followed_token::follow_file;
use skep_types::{Error, ErrorCode, Result};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// Default transport of a mount.
pub(super) const DEFAULT_TRANSPORT: &str = "auto";
/// Default log level of a mount.
const DEFAULT_LOG: &str = "info";

const EXAMPLES: &[Example] = &[
    ("mount a cluster of this host", "skep mount --cluster ./skep-data /mnt/skep"),
    (
        "mount a cluster on other hosts, read-only",
        "skep mount --cluster 10.0.0.1:7400 --token-file token -o ro /mnt/skep",
    ),
    (
        "count the load of each LSF job, whose programs have the variable LSB_JOBID",
        "skep mount --cluster 10.0.0.1:7400 -o job_variables=LSB_JOBID /mnt/skep",
    ),
    (
        "check the command and the token, and do not mount",
        "skep mount --dry-run --cluster 10.0.0.1:7400 --token-file token /mnt/skep",
    ),
];

/// Mount a cluster on a directory
#[derive(Debug, Clone, Default, clap::Args)]
#[command(
    after_help = examples(EXAMPLES),
    after_long_help = format!("{}\n{}", option_table::help(), examples(EXAMPLES))
)]
pub(crate) struct MountArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// The directory to mount on
    directory: PathBuf,
    /// Mount options as for `mount -o`, separated by commas: ro, nosuid, noexec, ...; `--help`
    /// lists all of them
    #[arg(short, long, value_name = "OPTIONS")]
    options: Vec<String>,
    /// Ignore unknown mount options
    #[arg(short = 's', long = "sloppy")]
    is_sloppy: bool,
    /// Check the command line and the connection to the cluster; do not mount
    #[arg(long = "dry-run")]
    is_dry_run: bool,
    /// Check the arguments only, as for `mount -f`. Set by the mount helper.
    #[arg(skip)]
    is_fake: bool,
    /// Print nothing once the cluster is mounted
    #[arg(short = 'q', long = "quiet")]
    is_quiet: bool,
    /// Stay in the foreground, and log to standard error; Ctrl-C unmounts the cluster
    #[arg(short = 'f', long = "foreground")]
    in_foreground: bool,
    /// No effect: a mount goes to the background unless --foreground is given. Accepted so that
    /// older scripts work.
    #[arg(long, hide = true, conflicts_with = "in_foreground")]
    detach: bool,
    /// Set for the process that stays in the background.
    #[arg(long, hide = true)]
    in_background: bool,
    /// The process that waits for the mount, such as mount(8). Set by the mount helper.
    #[arg(skip)]
    caller: Option<Pid>,
    /// Seconds to keep trying while management is unreachable [default: 15]
    #[arg(long, value_name = "SECONDS|forever")]
    retry: Option<Retry>,
    /// Transport between kernel and mount
    #[arg(long, default_value = DEFAULT_TRANSPORT, value_parser = values::transports())]
    transport: String,
    /// Let programs choose the stripe pattern of new files with the environment variable
    /// SKEP_PATTERN
    #[arg(long = "job-patterns")]
    has_job_patterns: bool,
    /// Count the load of each batch job, for `skep stats --by job`. The mount reads SLURM_JOB_ID
    /// and PBS_JOBID of each new program
    #[arg(long = "job-accounting")]
    has_job_accounting: bool,
    /// Like --job-accounting, but read these environment variables, with colons between them. The
    /// job of a program is the value of the first variable that is set
    #[arg(long, value_name = "NAMES")]
    job_variables: Option<JobVariables>,
    /// Also serve the metrics of the mount at this address, for Prometheus on other hosts, such as
    /// 0.0.0.0:7490
    #[arg(long, value_name = "ADDRESS", value_parser = options::metrics_address)]
    metrics: Option<String>,
    /// Log level, or a filter such as `info,skep_client=debug`
    #[arg(long, default_value = DEFAULT_LOG, value_parser = values::levels())]
    log: String,
    /// Size at which the mount renames the log file to FILE.old and starts a new log file; 0: never
    /// [default in the background: 16MiB]
    #[arg(long)]
    log_limit: Option<ByteSize>,
    /// Log file of a mount in the background [default: in the logs directory of a cluster on this
    /// host, otherwise in /var/log/skep for root and in ~/.local/state/skep for other users]
    #[arg(long)]
    log_file: Option<PathBuf>,
}

/// Time limit for the start of a mount in the background. The command adds the time for which the
/// mount retries to reach management to this limit.
const BACKGROUND_PATIENCE: Duration = Duration::from_secs(45);

/// The JSON output: the mount.
#[derive(Debug, Serialize)]
struct MountReport {
    mount_point: String,
    /// Transport between kernel and mount. `None` if another program has already unmounted the
    /// cluster.
    transport: Option<String>,
}

/// The JSON output of a dry run.
#[derive(Debug, Serialize)]
struct DryRunReport {
    mount_point: String,
}

pub(crate) fn run(args: &MountArgs) -> Result<()> {
    let mut with_options = args.clone();
    let options = options::read(&args.options, args.is_sloppy, &mut with_options)?;
    let args = &with_options;
    if options.is_remount {
        refuse_fixed_options(args, options)?;
        return match args.is_dry_run || args.is_fake {
            true => Ok(()),
            false => skep_fuse::remount(&args.directory, options.flags, options.read_ahead_bytes),
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
    match (args.is_dry_run, !args.in_foreground && !args.in_background) {
        (true, _) => {
            let patience = args.retry.map_or(Some(PATIENCE), Retry::patience);
            crate::cmd::block_on(async move { access.map_within(patience).await.map(drop) })?;
            let checked =
                DryRunReport { mount_point: absolute(&args.directory)?.display().to_string() };
            print(&checked, |it| {
                format!(
                    "The cluster answers, and {} can be mounted; nothing was mounted.",
                    it.mount_point
                )
            })
        }
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
    crate::failure::log_failures();
    log_level::follow_signals()?;
    follow_token(access)?;
    let cluster = ClusterOptions {
        cluster: access.contacts().into(),
        host: Some(skep_service::host_name())
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| "unknown".into()),
        version: skep_service::PROGRAM_VERSION.into(),
        patience: args.retry.unwrap_or_default().patience(),
        log: LogControl(Some(Arc::new(skep_service::node_requests::set_log_level))),
        map_observer: learned::observer(access),
        metrics_directory: mount_result::directory(),
        metrics_address: args.metrics.clone(),
        unconfirmed: mount_result::store,
    };
    let shown = absolute(&args.directory)?.display().to_string();
    let in_background = args.in_background;
    let on_ready = move |transport: TransportKind| {
        if in_background {
            // Call `outlive_parent` before the notification, because the waiting parent exits when
            // the notification arrives.
            skep_env::outlive_parent();
        }
        // A mount in the background prints no report, because the waiting parent prints the report.
        if !in_background {
            let transport = Some(transport.to_string());
            let mounted = MountReport { mount_point: shown, transport };
            let _ = print(&mounted, |it| {
                format!(
                    "{} is mounted, transport {transport}",
                    it.mount_point,
                    transport = it.transport.as_deref().unwrap_or_default()
                )
            });
        }
        skep_service::notify::ready();
    };
    let options = ServeOptions {
        mount_point: args.directory.clone(),
        source: access.name.clone(),
        flags: asked.flags,
        allows_others: asked.allows_others,
        transport,
        read_ahead_bytes: asked.read_ahead_bytes,
        workers: asked.workers,
        requests: RequestOptions {
            has_job_patterns: args.has_job_patterns,
            has_direct_io: asked.has_direct_io,
            job_variables: job_variables(args),
            metrics: Registry::new(),
            validity: asked.attribute_timeout.unwrap_or(skep_fuse::VALIDITY),
        },
        ends_on_signals: true,
        on_ready: Box::new(on_ready),
    };
    tracing::info!(
        "skep {} mounts the cluster at {} on {} (process {}): options {}, transport {transport}",
        skep_service::PROGRAM_VERSION,
        access.token.addresses.join(", "),
        args.directory.display(),
        std::process::id(),
        options::shown(asked, args)
    );
    mount_result::remove_old();
    let served = skep_fuse::mount(cluster, options)
        .map_err(|error| with_retry_hint(with_token_file(error, &access.token_file)));
    skep_service::notify::stopping();
    if served.is_ok() {
        tracing::info!("{} is unmounted", args.directory.display());
    }
    served
}

/// Returns the environment variables that contain the id of a job. `None` means that the mount does
/// not account for load by job.
fn job_variables(args: &MountArgs) -> Option<JobVariables> {
    let usual = || args.has_job_accounting.then(JobVariables::default);
    args.job_variables.clone().or_else(usual)
}

/// Starts a thread that follows changes of the token file. When the administrator has replaced the
/// token and revoked the old token, the mount can join again with the new token. The caller must
/// block the signals before this call.
fn follow_token(access: &Access) -> Result<()> {
    let (file, token) = (access.token_file.clone(), access.token.clone());
    skep_env::spawn_thread("skep-token".into(), None, move || {
        let followed = skep_env::block_on(follow_file(file, token));
        if let Err(error) = followed {
            tracing::warn!(
                "this mount cannot follow changes of its token file, so it needs a remount after \
                 the token was replaced: {error}"
            );
        }
    })?;
    Ok(())
}

/// If management could not be reached, adds a hint about the option `retry` to the error.
fn with_retry_hint(error: Error) -> Error {
    if !skep_client::has_given_up(&error) {
        return error;
    }
    let hint = "to wait longer: -o retry=SECONDS or retry=forever";
    Error::new(error.code(), format!("{} ({hint})", error.context()))
}

/// Returns an error if `asked` changes options that are fixed when a mount starts. This function
/// accepts equal values, since mount(8) passes the whole line of `/etc/fstab` also for a remount.
fn refuse_fixed_options(args: &MountArgs, asked: Options) -> Result<()> {
    let found = |name: &str| attribute(&args.directory, name);
    let refused = |option: &str, found: &str, wanted: &str| {
        let what = format!(
            "cannot change {option} of the mount on {} from {found} to {wanted}: this option is \
             fixed while the cluster is mounted; unmount the cluster, and then mount the cluster \
             with the new value",
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
    if asked.has_direct_io && found(skep_fuse::DIRECT_IO_XATTR)? != "true" {
        return refused("direct_io", "off", "on");
    }
    Ok(())
}

/// Returns an extended attribute of a mount's root directory.
fn attribute(directory: &Path, name: &str) -> Result<String> {
    let mut bytes = [0_u8; 64];
    let len = rustix::fs::getxattr(directory, name, &mut bytes)
        .map_err(|error| Error::from(std::io::Error::from(error)).within(directory.display()))?;
    Ok(String::from_utf8_lossy(&bytes[..len]).into_owned())
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|error| Error::from(error).within(path.display()))
}

/// Starts this program again in the background, and waits until the new process has mounted the
/// cluster. If this process exits before the mount is ready, the kernel kills the new process, so
/// that no mount appears after the command has failed.
fn detach(args: &MountArgs, asked: Options, access: &Access) -> Result<()> {
    let directory = absolute(&args.directory)?;
    let (log_path, log) = log_place::open(args.log_file.as_deref(), access, &directory)?;
    let log_start = log.metadata()?.len();
    let readiness = Readiness::new()?;
    let mut command = program();
    command.args(["mount", "--in-background", "--cluster", &access.name, "--token-file"]);
    command.arg(absolute(&access.token_file)?);
    command.args(["--transport", &args.transport, "--log", &args.log]);
    let retry = args.retry.unwrap_or_default();
    command.args(["--options", &asked.words(), "--retry", &retry.to_string()]);
    let limit = args.log_limit.unwrap_or(LOG_LIMIT);
    command.args(["--log-limit", &limit.to_string()]);
    if args.has_job_patterns {
        command.arg("--job-patterns");
    }
    if let Some(names) = job_variables(args) {
        command.args(["--job-variables", &names.to_string()]);
    }
    if let Some(address) = &args.metrics {
        command.args(["--metrics", address]);
    }
    command.arg(&directory).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    readiness.set_variable(&mut command);
    let mut child = skep_env::spawn_detaching(&mut command)?;
    let patience = retry.patience().map(|span| span + BACKGROUND_PATIENCE);
    let caller = args.caller;
    let mut warnings = Warnings { log: log_path.clone(), read: log_start };
    crate::cmd::block_on(async move {
        let has_ended = || {
            warnings.print_new();
            if caller.is_some() && caller != rustix::process::getppid() {
                let what = "cannot mount the cluster: the process that requested the mount has \
                            ended";
                return Some(Error::new(ErrorCode::Interrupted, what));
            }
            why_it_ended(&mut child, &log_path, log_start)
        };
        readiness.wait(patience, has_ended).await.map(|_| ())
    })?;
    if args.is_quiet {
        return Ok(());
    }
    let transport = attribute(&directory, skep_fuse::TRANSPORT_XATTR).ok();
    let mounted = MountReport { mount_point: directory.display().to_string(), transport };
    print(&mounted, |it| {
        format!("{} is mounted; `skep umount {0}` unmounts this directory.", it.mount_point)
    })
}

/// Returns the error of the background process if the process has exited, and `None` while the
/// process runs. The error is the last error in the log of the process, or the last lines of the
/// log if the process was killed.
fn why_it_ended(child: &mut Child, log: &Path, log_start: u64) -> Option<Error> {
    let status = child.try_wait().ok().flatten()?;
    let lines = tail(log, log_start, 5);
    let place = format!("Full log: {}", log.display());
    Some(match lines.rsplit_once(ERROR_MARK) {
        Some((_, cause)) => {
            let code = status.code().map_or(ErrorCode::Io, crate::failure::code_of_exit);
            Error::new(code, format!("cannot mount the cluster: {}\n{place}", cause.trim()))
        }
        None => {
            let how = describe(status);
            let what = format!(
                "cannot mount the cluster: the process of the mount ended \
                 ({how}):\n{lines}\n{place}"
            );
            Error::new(ErrorCode::NotReady, what)
        }
    })
}

/// Text in a log line between the time and the message of an error.
const ERROR_MARK: &str = "Z ERROR ";
/// Text in a log line between the time and the message of a warning.
const WARNING_MARK: &str = "Z  WARN ";

/// Maximum number of bytes of the log that are read at once to find warnings.
const MAX_WARNING_BYTES: u64 = 1 << 20;

/// Prints the warnings in the log of a mount that is starting, so that the user sees immediately
/// why the mount waits.
struct Warnings {
    log: PathBuf,
    /// Number of bytes of the log that have been read.
    read: u64,
}

impl Warnings {
    fn print_new(&mut self) {
        if !is_for_people() {
            return;
        }
        let new = self.next_bytes().unwrap_or_default();
        // The last line may be incomplete, because the mount may still be writing this line.
        let Some(end) = new.iter().rposition(|byte| *byte == b'\n') else { return };
        for line in String::from_utf8_lossy(&new[..end]).lines() {
            if let Some((_, text)) = line.split_once(WARNING_MARK) {
                warn(text);
            }
        }
        self.read += end as u64 + 1;
    }

    /// Reads the next bytes of the log, at most [`MAX_WARNING_BYTES`], because the log may be long.
    fn next_bytes(&self) -> std::io::Result<Vec<u8>> {
        let (mut log, mut bytes) = (File::open(&self.log)?, Vec::new());
        log.seek(SeekFrom::Start(self.read))?;
        log.take(MAX_WARNING_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}
