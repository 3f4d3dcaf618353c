//! `skep management`: runs the management service.

use super::service::{InitReport, ServiceArgs, Task, log_start, prepare, token};
use crate::help::{Example, examples};
use crate::output::print;
use skep_management::ManagementSettings;
use skep_types::{Error, ErrorCode, Result};

const EXAMPLES: &[Example] = &[
    ("print a configuration file to start with", "skep management --print-sample"),
    ("create a new cluster", "skep management --init --config /etc/skep/management-a.toml"),
    ("run the service", "skep management --config /etc/skep/management-a.toml"),
];

/// Run the management service
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct ManagementArgs {
    #[command(flatten)]
    service: ServiceArgs,
}

pub(crate) fn run(args: &ManagementArgs) -> Result<()> {
    let args = &args.service;
    if args.token_file.is_some() && !args.init {
        let what = "cannot use a token without --init: management reads its token from its \
                    directory; remove --token-file";
        return Err(Error::new(ErrorCode::Configuration, what));
    }
    match prepare::<ManagementSettings>(args, "")? {
        Task::Done => Ok(()),
        Task::Serve(settings) => {
            log_start("management", args, &settings.node);
            skep_management::run(&settings)
        }
        Task::Initialise(settings) => {
            let directory = settings.node.directory.clone();
            let given = token(args)?;
            let (token, advertised) =
                super::block_on(
                    async move { skep_management::initialise(&settings, given).await },
                )?;
            let made = InitReport {
                kind: "management",
                directory: directory.display().to_string(),
                cluster: token.cluster.to_string(),
            };
            print(&made, |InitReport { directory, cluster, .. }| {
                format!(
                    "Initialised {directory} for the new cluster {cluster}, with management at {}. \
                     Start it without --init; `skep cluster token --cluster {directory}` prints \
                     the token that other nodes need to join.{}",
                    token.addresses.join(", "),
                    other_addresses(&advertised.unused)
                )
            })
        }
    }
}

/// Returns a hint about addresses of this host that management does not advertise.
fn other_addresses(unused: &[skep_env::HostAddress]) -> String {
    if unused.is_empty() {
        return String::new();
    }
    format!(
        "\nThis host also has {}: start management with --advertise ADDRESS, once for each address \
         or name, if other hosts use these.",
        skep_service::advertise::list(unused)
    )
}
