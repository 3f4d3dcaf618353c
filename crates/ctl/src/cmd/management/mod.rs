//! `skep management`: runs the management service. The subcommands change and show the management
//! nodes of a cluster.

mod add;
mod recover;
mod remove;
mod status;

use super::service::{InitReport, ServiceArgs, Task, log_start, prepare, token};
use super::service_user;
use crate::help::{Example, examples};
use crate::output::print;
use clap::Subcommand;
use serde::Serialize;
use skep_management::ManagementSettings;
use skep_types::{Error, ErrorCode, Result};

const EXAMPLES: &[Example] = &[
    ("print a configuration file to start with", "skep management --print-sample"),
    ("create a new cluster", "skep management --init --config /etc/skep/management-a.toml"),
    ("run the service", "skep management --config /etc/skep/management-a.toml"),
    (
        "as root, give all files of the service to the user that runs the service",
        "skep management --give-to skep --config /etc/skep/management-a.toml",
    ),
    (
        "initialise a further management node, which `skep management add` makes a member",
        "skep management --init --join --token-file token --config /etc/skep/management-b.toml",
    ),
];

/// Run the management service, or change and show the management nodes
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES), args_conflicts_with_subcommands = true)]
// Management has no targets, and refuses this option of the other services.
#[command(mut_arg("target", |option| option.hide(true)))]
pub(crate) struct ManagementArgs {
    #[command(subcommand)]
    verb: Option<ManagementVerb>,
    #[command(flatten)]
    service: ServiceArgs,
    /// With --init and --token-file: initialise a further management node of the cluster of the
    /// token, instead of a new cluster
    #[arg(long, requires = "init", requires = "token_file")]
    join: bool,
}

/// Subcommands of `skep management`.
#[derive(Debug, Subcommand)]
enum ManagementVerb {
    Status(status::StatusArgs),
    Add(add::AddArgs),
    Remove(remove::RemoveArgs),
    Recover(recover::RecoverArgs),
}

impl ManagementArgs {
    /// Whether this process runs the management service, or initialises the directory of a
    /// management node.
    pub(crate) fn is_service(&self) -> bool {
        self.verb.is_none()
    }
}

pub(crate) fn run(args: ManagementArgs) -> Result<()> {
    match args.verb {
        Some(ManagementVerb::Status(verb)) => status::run(verb),
        Some(ManagementVerb::Add(verb)) => add::run(verb),
        Some(ManagementVerb::Remove(verb)) => remove::run(verb),
        Some(ManagementVerb::Recover(verb)) => recover::run(&verb),
        None => run_service(&args.service, args.join),
    }
}

fn run_service(args: &ServiceArgs, is_joining: bool) -> Result<()> {
    if args.token_file.is_some() && !args.init {
        let what = "cannot use a token without --init: management reads its token from its \
                    directory; remove --token-file";
        return Err(Error::new(ErrorCode::Configuration, what));
    }
    match prepare::<ManagementSettings>(args, "")? {
        Task::Done => Ok(()),
        Task::Serve(settings) => {
            log_start("management", args, &settings.node);
            skep_service::binding::bind(&settings.node)?;
            skep_management::run(&settings)
        }
        Task::Give(settings, user) => {
            let config = args.config.as_deref();
            service_user::give_service("management", &user, config, &settings.node, &[])
        }
        Task::Initialise(settings) if is_joining => join(settings, args),
        Task::Initialise(settings) => initialise(settings, args),
    }
}

fn initialise(settings: ManagementSettings, args: &ServiceArgs) -> Result<()> {
    let directory = settings.node.directory.clone();
    let given = token(args)?;
    let (token, advertised) =
        super::block_on(async move { skep_management::initialise(&settings, given).await })?;
    let made = InitReport {
        kind: "management",
        directory: directory.display().to_string(),
        cluster: token.cluster.to_string(),
    };
    print(&made, |InitReport { directory, cluster, .. }| {
        format!(
            "Initialised {directory} for the new cluster {cluster}, with management at {}. Start \
             management without --init; `skep cluster token --cluster {directory}` prints the \
             token that other nodes need to join.{}",
            token.addresses.join(", "),
            other_addresses(&advertised.unused)
        )
    })
}

/// The JSON output: the initialised directory of a further management node.
#[derive(Debug, Serialize)]
struct JoinReport {
    kind: &'static str,
    directory: String,
    cluster: String,
    node: u32,
}

fn join(settings: ManagementSettings, args: &ServiceArgs) -> Result<()> {
    let directory = settings.node.directory.display().to_string();
    let token = token(args)?.expect("the option is required");
    let cluster = token.cluster.to_string();
    let node = super::block_on(async move { skep_management::join(&settings, token).await })?;
    let made = JoinReport { kind: "management", directory, cluster, node: node.raw() };
    print(&made, |JoinReport { directory, cluster, node, .. }| {
        format!(
            "Initialised {directory} for management node {node} of cluster {cluster}. Start the \
             node without --init, and then run `skep management add {node}`.\n"
        )
    })
}

/// Returns a hint that lists the addresses of this host which management does not advertise.
fn other_addresses(unused: &[skep_env::HostAddress]) -> String {
    if unused.is_empty() {
        return String::new();
    }
    format!(
        "\nThis host also has {}. If other hosts use one of these addresses, start management with \
         --advertise ADDRESS, once for each address or name.",
        skep_service::advertise::list(unused)
    )
}
