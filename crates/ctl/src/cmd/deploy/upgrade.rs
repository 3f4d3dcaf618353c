//! `skep deploy upgrade`: replaces the program of a running cluster.

use super::args::DeployArgs;
use crate::help::{Example, examples};
use skep_deploy::report::Outcome;
use skep_types::Result;

const EXAMPLES: &[Example] = &[
    (
        "upgrade the cluster to the version of this program",
        "skep deploy upgrade --hosts hosts.toml",
    ),
    (
        "upgrade to another program, and remount the clients",
        "skep deploy upgrade --program ./skep --remount",
    ),
];

/// Replace the program on all hosts, and restart one service after the other while the cluster
/// serves
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct UpgradeArgs {
    /// Unmount and mount the clients at the end. This fails if programs use a mount
    #[arg(long = "remount")]
    remounts: bool,
    #[command(flatten)]
    deploy: DeployArgs,
}

pub(crate) fn run(args: &UpgradeArgs) -> Result<()> {
    args.deploy.change_with(|run| run.upgrade(args.remounts), done)
}

/// Returns the text about an upgrade that has succeeded.
fn done(outcome: &Outcome) -> String {
    if !outcome.is_only_verified() {
        return format!("Upgraded cluster {}", outcome.cluster);
    }
    let version = outcome.hosts.first().map_or("", |host| host.version.trim_start_matches("skep "));
    format!(
        "All hosts of cluster {} already have the program {version}; nothing was restarted",
        outcome.cluster
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_deploy::execute::StepReport;
    use skep_deploy::report::HostReport;

    #[test]
    fn upgrade_to_the_installed_version_names_this_version() {
        let step = |phase| StepReport {
            phase,
            host: "m1".into(),
            step: "x".into(),
            seconds: Some(1.0),
            error: None,
        };
        let host = HostReport {
            host: "m1".into(),
            address: "10.0.0.1".into(),
            roles: Vec::new(),
            kernel: "6.1.0".into(),
            version: "skep 0.1.0+x".into(),
            services: Vec::new(),
            is_mounted: None,
        };
        let mut outcome = Outcome {
            cluster: "scratch".into(),
            hosts: vec![host],
            management: Vec::new(),
            copies: 1,
            metadata_groups: Vec::new(),
            is_complete: None,
            warnings: Vec::new(),
            problems: Vec::new(),
            steps: vec![step("health"), step("verify: write")],
            seconds: 2.0,
        };
        let text = "All hosts of cluster scratch already have the program 0.1.0+x; nothing was \
                    restarted";
        assert_eq!(done(&outcome), text);
        outcome.steps.push(step("restart"));
        assert_eq!(done(&outcome), "Upgraded cluster scratch");
    }
}
