//! The code that the commands of all services share. This code reads the settings from the
//! configuration file and the command line.

use super::service_user;
use crate::output::{print, say};
use crate::token_check;
use serde::Serialize;
use skep_rpc::JoinToken;
use skep_service::directory::read_token;
use skep_service::{ByteSize, Initialised, NodeSettings, Settings, config, logging, manual};
use skep_types::{Error, ErrorCode, Result};
use std::path::{Path, PathBuf};

/// Arguments of the commands of all services.
#[derive(Debug, clap::Args)]
pub(super) struct ServiceArgs {
    /// Configuration file
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Short for --set node.directory=DIR
    #[arg(long, value_name = "DIR")]
    pub(super) directory: Option<String>,
    /// Short for --set node.listen=ADDRESS
    #[arg(long, value_name = "HOST:PORT")]
    pub(super) listen: Option<String>,
    /// Short for --set node.advertise=ADDRESS: address or name that other hosts use to reach the
    /// service [default: this host's address]; may be repeated, best first
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(super) advertise: Vec<String>,
    /// Short for --set node.domain=NAME: failure domain of the node, such as a rack; `none` removes
    /// it
    #[arg(long, value_name = "NAME")]
    pub(super) domain: Option<String>,
    /// Short for --set node.cpus=LIST: CPUs on which the threads of the service run, such as 0-7,16
    #[arg(long, value_name = "LIST", conflicts_with = "numa_node")]
    pub(super) cpus: Option<String>,
    /// Short for --set node.numa_node=NUMBER: NUMA node on which the threads of the service run
    #[arg(long, value_name = "NUMBER")]
    pub(super) numa_node: Option<String>,
    /// Data directory of a target; may be repeated
    #[arg(long, value_name = "DIR")]
    pub(super) target: Vec<String>,
    /// Setting that replaces the setting in the configuration file; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(super) set: Vec<String>,
    /// Initialise empty directories for a new node (for management: a new cluster), and exit. For
    /// an existing node: initialise added targets, and replace the token. Exit code 7 means that
    /// all directories are initialised already
    #[arg(long)]
    pub(super) init: bool,
    /// With --init: file that holds the token of the cluster to join (`skep cluster token` prints
    /// it); `-` reads the token from the standard input. For management: the new cluster gets the
    /// id and the secret of this token [default: a random id and secret]
    #[arg(long, value_name = "FILE")]
    pub(super) token_file: Option<PathBuf>,
    /// Make this user of the host the owner of the service's directories, permit this user to read
    /// the configuration file, and exit. Only root can do this. The units of systemd do it before
    /// each start, so that the service can run as the user
    #[arg(long, value_name = "USER", conflicts_with_all = ["init", "token_file"])]
    pub(super) give_to: Option<String>,
    /// Print the settings in effect and the source of each, and exit
    #[arg(long)]
    pub(super) print_config: bool,
    /// Print a commented configuration file with all defaults, and exit
    #[arg(long)]
    pub(super) print_sample: bool,
    /// Print the manual page of the settings, and exit
    #[arg(long, hide = true)]
    pub(super) print_manual: bool,
}

/// The next step of a service process after loading its settings.
pub(super) enum Task<T> {
    /// Exit, because the process has printed its settings.
    Done,
    /// Initialise the directories of the service, and exit.
    Initialise(T),
    /// Give the directories of the service to a user, and exit.
    Give(T, String),
    /// Run the service.
    Serve(T),
}

/// The functions of a service that has targets.
pub(super) struct Service<T> {
    /// Initialises the directories of the service.
    pub(super) initialise: fn(&T, Option<JoinToken>) -> Result<Initialised>,
    /// Runs the service until a signal ends it.
    pub(super) serve: fn(&T) -> Result<()>,
    /// Returns the directories of the targets in the settings.
    pub(super) targets: fn(&T) -> &[PathBuf],
}

/// Runs the command of a service that has targets: initialises its directories, or serves.
pub(super) fn run_hosted<T: Settings>(args: &ServiceArgs, service: &Service<T>) -> Result<()> {
    match prepare::<T>(args, "targets")? {
        Task::Done => Ok(()),
        Task::Initialise(settings) => {
            let directory = &settings.node().directory;
            let token = token(args)?;
            let mut foreign = None;
            if let Some(token) = &token {
                token_check::check_before_init(directory, token)?;
                foreign = token_check::foreign_secret(directory, token);
            }
            let done = (service.initialise)(&settings, token)?;
            token_check::forget(directory, foreign)?;
            report_init(T::NAME, directory, done)
        }
        Task::Give(settings, user) => {
            let (config, targets) = (args.config.as_deref(), (service.targets)(&settings));
            service_user::give_service(T::NAME, &user, config, settings.node(), targets)
        }
        Task::Serve(settings) => {
            refuse_token(args, T::NAME)?;
            log_start(T::NAME, args, settings.node());
            skep_service::binding::bind(settings.node())?;
            (service.serve)(&settings)
        }
    }
}

/// Loads the settings. Prints the settings if the user requested this output, and starts logging
/// otherwise. `targets` is the name of the setting that `--target` sets.
pub(super) fn prepare<T: Settings>(args: &ServiceArgs, targets: &str) -> Result<Task<T>> {
    if args.print_sample {
        return say(&manual::sample::<T>()).map(|()| Task::Done);
    }
    if args.print_manual {
        return say(manual::page::<T>().trim_end()).map(|()| Task::Done);
    }
    let loaded = config::load::<T>(args.config.as_deref(), &overrides(args, targets)?)?;
    if args.print_config {
        return say(loaded.print().trim_end()).map(|()| Task::Done);
    }
    let node = loaded.settings.node();
    // With `--give-to`, the log may be in a directory of the user that this option names. Root must
    // not start a new log file in this directory.
    let limit = if args.give_to.is_some() { ByteSize(0) } else { node.log_limit };
    logging::start(&node.log, limit)?;
    Ok(match (&args.give_to, args.init) {
        (Some(user), _) => Task::Give(loaded.settings, user.clone()),
        (None, true) => Task::Initialise(loaded.settings),
        (None, false) => Task::Serve(loaded.settings),
    })
}

/// Splits the values of `--set` into keys and values.
pub(super) fn parse_set(texts: &[String]) -> Result<Vec<(String, String)>> {
    let parse = |text: &String| match text.split_once('=') {
        Some((key, value)) => Ok((key.trim().to_owned(), value.to_owned())),
        None => {
            let what = format!("invalid --set '{text}': expected KEY=VALUE");
            Err(Error::new(ErrorCode::Configuration, what))
        }
    };
    texts.iter().map(parse).collect()
}

fn overrides(args: &ServiceArgs, targets: &str) -> Result<Vec<(String, String)>> {
    let mut overrides = parse_set(&args.set)?;
    let short = [
        ("node.directory", &args.directory),
        ("node.listen", &args.listen),
        ("node.domain", &args.domain),
        ("node.cpus", &args.cpus),
        ("node.numa_node", &args.numa_node),
    ];
    for (key, value) in short {
        overrides.extend(value.iter().map(|value| (key.to_owned(), value.clone())));
    }
    if !args.advertise.is_empty() {
        let list =
            serde_json::to_string(&args.advertise).expect("a list of strings has a JSON form");
        overrides.push(("node.advertise".to_owned(), list));
    }
    if !args.target.is_empty() {
        if targets.is_empty() {
            let what = "cannot use --target: the management service has no targets; remove the \
                        option";
            return Err(Error::new(ErrorCode::Configuration, what));
        }
        // A JSON list of strings is also a TOML list, and escapes every path correctly.
        let list = serde_json::to_string(&args.target).expect("a list of strings has a JSON form");
        overrides.push((targets.to_owned(), list));
    }
    Ok(overrides)
}

/// The JSON output: a directory of a service that was initialised.
#[derive(Debug, Serialize)]
pub(super) struct InitReport {
    pub(super) kind: &'static str,
    pub(super) directory: String,
    pub(super) cluster: String,
}

/// Prints what the initialisation of a service's directory has changed.
fn report_init(kind: &'static str, directory: &Path, done: Initialised) -> Result<()> {
    let directory = directory.display().to_string();
    print(&InitReport { kind, directory, cluster: done.cluster.to_string() }, |it| {
        let InitReport { kind, directory, cluster } = it;
        let mut text = match (done.is_new, done.has_new_token) {
            (true, _) => {
                format!("Initialised {directory} for a {kind} service of cluster {cluster}.")
            }
            (false, true) => format!("Replaced the token in {directory}."),
            (false, false) => String::new(),
        };
        if !done.is_new && done.new_targets > 0 {
            let targets = if done.new_targets == 1 { "target" } else { "targets" };
            text += &format!(" Initialised {} more {targets}.", done.new_targets);
        }
        format!("{} Start the service without --init.", text.trim_start())
    })
}

/// Returns an error if the user has named a token without `--init`.
fn refuse_token(args: &ServiceArgs, kind: &str) -> Result<()> {
    if args.token_file.is_none() {
        return Ok(());
    }
    let what = format!(
        "cannot use a token without --init: a service reads its token from its directory; `skep \
         {kind} --init --token-file FILE` with the same options replaces this token"
    );
    Err(Error::new(ErrorCode::Configuration, what))
}

/// Logs the first line of a service, from which a reader of the log can identify the service.
pub(super) fn log_start(kind: &str, args: &ServiceArgs, node: &NodeSettings) {
    crate::failure::log_failures();
    let settings = args.config.as_ref().map(|path| format!(", settings {}", path.display()));
    tracing::info!(
        "skep {} starts a {kind} service (process {}): directory {}, listen {}{}",
        skep_service::PROGRAM_VERSION,
        std::process::id(),
        node.directory.display(),
        node.listen,
        settings.unwrap_or_default()
    );
}

/// Returns the token that the user passes to `--init`. `None` if the user passes no token.
pub(super) fn token(args: &ServiceArgs) -> Result<Option<JoinToken>> {
    let Some(file) = &args.token_file else { return Ok(None) };
    if file.as_os_str() != "-" && !file.exists() {
        let what = format!(
            "cannot read the token file {}: no such file; `skep cluster token --cluster DIRECTORY` \
             on the management host prints the token: write the token to this file with mode 600, \
             or pass the token with `--token-file -`",
            file.display()
        );
        return Err(Error::new(ErrorCode::Configuration, what));
    }
    if file.as_os_str() != "-" {
        return read_token(file).map(Some);
    }
    let text = std::io::read_to_string(std::io::stdin()).map_err(Error::from);
    text.and_then(|text| text.parse())
        .map(Some)
        .map_err(|error: Error| error.within("cannot read the token from the standard input"))
}
