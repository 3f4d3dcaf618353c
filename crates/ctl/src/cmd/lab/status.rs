//! `skep lab status`: shows the state of a lab.

use crate::help::{Example, examples};
use crate::output::{print, render, size, table};
use skep_lab::{DEFAULT_NAME, HostStatus, Role, State, Status};
use skep_types::Result;
use std::process::ExitCode;

const EXAMPLES: &[Example] = &[
    ("check that all processes and mounts of the lab run", "skep lab status"),
    ("print the state of the lab `two` for a script", "skep lab status --name two --output json"),
];

/// Show the hosts, links, targets, processes and mounts of a lab
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct StatusArgs {
    /// Name of the lab
    #[arg(long, default_value = DEFAULT_NAME)]
    name: String,
}

/// Exit code if a process of the lab does not run, or a mount of the lab does not serve.
const NOT_WELL: u8 = 1;

pub(crate) fn run(args: &StatusArgs) -> Result<ExitCode> {
    let status = skep_lab::status(&State::load(&args.name)?)?;
    print(&status, |it| {
        let verdict = match it.is_well {
            true => "All parts of the lab are running.".to_owned(),
            false => {
                format!(
                    "Some parts of the lab are not running; logs are in {}.",
                    it.log_directory.display()
                )
            }
        };
        format!("{}\n{verdict}", as_text(it))
    })?;
    Ok(if status.is_well { ExitCode::SUCCESS } else { ExitCode::from(NOT_WELL) })
}

/// Returns the state of a lab as text.
pub(super) fn as_text(status: &Status) -> String {
    let mut hosts = table(&["Host", "Address", "Link", ">Sent", ">Received", "Runs", "Mount"]);
    for host in &status.hosts {
        let link = host.link_bytes_per_second.map_or("-".into(), megabytes);
        let bytes = |bytes: Option<u64>| bytes.map_or("-".into(), size);
        let mount = host.mount_point.as_ref().map(|point| point.display().to_string());
        hosts.add_row([
            host.name.clone(),
            host.address.clone(),
            link,
            bytes(host.sent_bytes),
            bytes(host.received_bytes),
            runs(host),
            mount.unwrap_or_default(),
        ]);
    }
    let mut targets = table(&["Server", ">Rate", ">Varies", "Directory"]);
    for target in &status.targets {
        targets.add_row([
            target.server.clone(),
            target.rate_bytes_per_second.map_or("-".into(), megabytes),
            match target.variability_percent {
                0 => "-".into(),
                percent => format!("{percent}%"),
            },
            target.directory.display().to_string(),
        ]);
    }
    format!("{}\n{}", render(&hosts), render(&targets))
}

/// Returns a text that lists the processes that run on a host.
fn runs(host: &HostStatus) -> String {
    let mut words: Vec<String> = host
        .processes
        .iter()
        .map(|it| match it.runs {
            true => it.name.clone(),
            false => format!("{} ended", it.name),
        })
        .collect();
    if host.role == Role::Client && host.is_mounted == Some(false) {
        words.push("not mounted".into());
    }
    if !host.is_there {
        words = vec!["-".into()];
    }
    words.join(", ")
}

fn megabytes(bytes_per_second: u64) -> String {
    format!("{} MB/s", bytes_per_second as f64 / 1e6)
}
