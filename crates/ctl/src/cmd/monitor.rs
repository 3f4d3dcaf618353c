//! `skep monitor`: runs the monitor of a cluster.

use super::service::parse_set;
use super::service_user;
use crate::access::ClusterArgs;
use crate::help::{Example, examples};
use crate::output::say;
use skep_monitor::limits::MAX_CLUSTERS;
use skep_monitor::{MonitorSettings, WatchedCluster, is_name};
use skep_service::{config, logging, manual};
use skep_types::{Error, ErrorCode, Result};
use std::path::PathBuf;

const EXAMPLES: &[Example] = &[
    (
        "monitor the cluster of this host; the page is http://localhost:7480",
        "skep monitor --directory /var/lib/skep/monitor",
    ),
    ("print a configuration file to start with", "skep monitor --print-sample"),
    (
        "monitor two clusters of /etc/skep/client.toml on one page",
        "skep monitor --directory /var/lib/skep/monitor --cluster work --also test",
    ),
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
/// The monitor asks all services of the cluster for their metrics each second. Files and services
/// work without it.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct MonitorArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// Further cluster to monitor on the same page: a name in client.toml, or NAME=CLUSTER with
    /// CLUSTER as in --cluster, or NAME=CLUSTER,TOKEN-FILE; may be repeated
    #[arg(long = "also", value_name = "NAME[=CLUSTER[,TOKEN-FILE]]")]
    also: Vec<String>,
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
    /// Setting that replaces the one in the configuration file; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Make this user of the host the owner of the directory and of the token, permit this user to
    /// read the configuration file, and exit. Only root can do this. The unit of systemd does it
    /// before each start, so that the monitor can run as the user
    #[arg(long, value_name = "USER")]
    give_to: Option<String>,
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
    let clusters = clusters(&args.query, &args.also)?;
    if let Some(user) = &args.give_to {
        return service_user::give_monitor(user, args.config.as_deref(), &settings, &clusters);
    }
    // Files of the monitor contain names of users and files, so only the user of the monitor may
    // read these files.
    skep_env::restrict_new_files();
    logging::start(&settings.log, settings.log_limit)?;
    crate::failure::log_failures();
    tracing::info!(
        "skep {} starts the monitor of {} (process {}): directory {}",
        skep_service::PROGRAM_VERSION,
        names(&clusters),
        std::process::id(),
        settings.directory.display()
    );
    skep_monitor::run(&settings, &clusters)
}

/// Returns the names and ids of clusters for a log line.
fn names(clusters: &[WatchedCluster]) -> String {
    match clusters {
        [only] => format!("cluster {}", only.token.cluster),
        _ => {
            let all = clusters.iter().map(|it| format!("{} ({})", it.name, it.token.cluster));
            format!("clusters {}", all.collect::<Vec<_>>().join(", "))
        }
    }
}

/// Finds the clusters of the options. The first is the cluster of `--cluster`.
///
/// # Errors
/// - `InvalidArgument` if a name is invalid or occurs twice, or there are too many clusters.
/// - Errors of the search for a cluster and its token.
fn clusters(query: &ClusterArgs, also: &[String]) -> Result<Vec<WatchedCluster>> {
    let first = query.cluster.clone().filter(|name| is_name(name));
    let mut all = vec![watched(first.unwrap_or_else(|| "main".into()), query)?];
    if also.len() >= MAX_CLUSTERS {
        return Err(invalid(format!(
            "one monitor watches at most {MAX_CLUSTERS} clusters; start another \
             monitor for the other clusters"
        )));
    }
    for text in also {
        let (name, query) = further(text);
        if !is_name(name) {
            return Err(invalid(format!(
                "invalid name '{name}': expected at most 64 letters, digits, - and _"
            )));
        }
        if all.iter().any(|it| it.name == name) {
            return Err(invalid(format!(
                "the name '{name}' occurs twice; give each cluster a name of its own"
            )));
        }
        let new = watched(name.to_owned(), &query)?;
        if let Some(same) = all.iter().find(|it| it.token.cluster == new.token.cluster) {
            return Err(invalid(format!(
                "'{name}' is the same cluster as '{}': name each cluster once",
                same.name
            )));
        }
        all.push(new);
    }
    Ok(all)
}

fn invalid(why: String) -> Error {
    Error::new(ErrorCode::InvalidArgument, format!("cannot start the monitor: {why}"))
}

fn watched(name: String, query: &ClusterArgs) -> Result<WatchedCluster> {
    let access = query.access(None)?;
    Ok(WatchedCluster { name, token: access.contacts(), token_file: access.token_file })
}

/// Divides the value of `--also` into the name of the cluster on the page, and the options that
/// select the cluster.
fn further(text: &str) -> (&str, ClusterArgs) {
    let Some((name, place)) = text.split_once('=') else {
        return (text, ClusterArgs { cluster: Some(text.into()), token_file: None });
    };
    // A comma also separates the addresses of several management nodes, but addresses contain no
    // slash.
    let (cluster, token_file) = match place.rsplit_once(',') {
        Some((cluster, file)) if file.contains('/') => (cluster, Some(PathBuf::from(file))),
        _ => (place, None),
    };
    (name, ClusterArgs { cluster: Some(cluster.into()), token_file })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn also_option_contains_name_addresses_and_token_file() {
        let check = |text, name: &str, cluster: &str, token_file: Option<&str>| {
            let (found, args) = further(text);
            assert_eq!((found, args.cluster.as_deref()), (name, Some(cluster)), "{text}");
            assert_eq!(args.token_file, token_file.map(PathBuf::from), "{text}");
        };
        check("test", "test", "test", None);
        check("test=10.0.0.1:7400", "test", "10.0.0.1:7400", None);
        check("a=10.0.0.1,10.0.0.2", "a", "10.0.0.1,10.0.0.2", None);
        check("a=h1,h2,/etc/skep/a-token", "a", "h1,h2", Some("/etc/skep/a-token"));
        check("a=/srv/data", "a", "/srv/data", None);
    }
}
