//! `skep monitor`: runs the monitor of a cluster.

use super::service::parse_set;
use crate::access::ClusterArgs;
use crate::help::{Example, examples};
use crate::output::say;
use skep_monitor::MonitorSettings;
use skep_service::{config, logging, manual};
use skep_types::Result;
use std::path::PathBuf;

const EXAMPLES: &[Example] = &[
    (
        "monitor the cluster of this host; the page is http://localhost:7480",
        "skep monitor --directory /var/lib/skep/monitor",
    ),
    ("print a configuration file to start with", "skep monitor --print-sample"),
    (
        "show the reports of studies on the page, too",
        "skep monitor --directory /var/lib/skep/monitor --reports /srv/studies",
    ),
    (
        "run the monitor with a configuration file",
        "skep monitor --config /etc/skep/monitor.toml --token-file /etc/skep/token",
    ),
];

/// Run the monitor: history of the load, alerts, and a web page
///
/// The monitor asks all services of the cluster for their figures each second. Files and services
/// work without it.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct MonitorArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// Configuration file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Short for --set directory=DIR
    #[arg(long, value_name = "DIR")]
    directory: Option<String>,
    /// Short for --set listen=ADDRESS
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// Directory with reports to show on the page; short for --set reports=DIR
    #[arg(long, value_name = "DIR")]
    reports: Option<String>,
    /// Certificate of the page in PEM, for https; short for --set tls.certificate=FILE
    #[arg(long, value_name = "FILE")]
    tls_certificate: Option<String>,
    /// Private key of the certificate; short for --set tls.key=FILE
    #[arg(long, value_name = "FILE")]
    tls_key: Option<String>,
    /// Setting, overriding the configuration file; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Print the settings in effect and the source of each, and exit
    #[arg(long)]
    print_config: bool,
    /// Print a commented configuration file with all defaults, and exit
    #[arg(long)]
    print_sample: bool,
    /// Print the manual page of the settings, and exit
    #[arg(long, hide = true)]
    print_manual: bool,
}

pub(crate) fn run(args: &MonitorArgs) -> Result<()> {
    if args.print_sample {
        return say(&manual::sample::<MonitorSettings>());
    }
    if args.print_manual {
        return say(manual::page::<MonitorSettings>().trim_end());
    }
    let mut overrides = parse_set(&args.set)?;
    let short = [
        ("directory", &args.directory),
        ("listen", &args.listen),
        ("reports", &args.reports),
        ("tls.certificate", &args.tls_certificate),
        ("tls.key", &args.tls_key),
    ];
    for (key, value) in short {
        overrides.extend(value.iter().map(|value| (key.to_owned(), value.clone())));
    }
    let loaded = config::load::<MonitorSettings>(args.config.as_deref(), &overrides)?;
    if args.print_config {
        return say(loaded.print().trim_end());
    }
    let settings = loaded.settings;
    let access = args.query.access(None)?;
    // Files of the monitor contain names of users and files, so only the administrator may read
    // them.
    skep_env::restrict_new_files();
    logging::start(&settings.log, settings.log_limit)?;
    crate::failure::log_failures();
    tracing::info!(
        "skep {} starts the monitor of cluster {} (process {}): directory {}",
        skep_service::PROGRAM_VERSION,
        access.token.cluster,
        std::process::id(),
        settings.directory.display()
    );
    skep_monitor::run(&settings, &access.contacts(), &access.token_file)
}
