//! Checks the settings of the monitor in a hosts file in the same way as the monitor does, before
//! the deployment changes a host.

use skep_deploy::config::monitor_settings;
use skep_deploy::hosts::Deployment;
use skep_monitor::MonitorSettings;
use skep_service::config;
use skep_types::{Error, Result};

/// Checks the table `[monitor]` of a hosts file.
///
/// # Errors
/// `Configuration` with all problems, one per line: unknown settings, and values that the monitor
/// refuses.
pub(super) fn check(deployment: &Deployment) -> Result<()> {
    config::check::<MonitorSettings>(monitor_settings(deployment), "[monitor]").map_err(|error| {
        let problems = error.context();
        let what = format!("cannot use the table [monitor] of the hosts file: {problems}");
        Error::new(error.code(), what)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "[[host]]\nname = \"m1\"\nroles = [\"management\", \"metadata\", \
        \"storage\"]\nmetadata_directories = [\"/a\"]\nstorage_directories = [\"/b\"]\n";

    fn checked(monitor: &str) -> Result<()> {
        check(&Deployment::parse(&format!("{monitor}{HOST}")).unwrap())
    }

    #[test]
    fn settings_that_the_monitor_refuses_stop_a_deployment() {
        checked("").unwrap();
        checked("monitor = false\n").unwrap();
        let open = "[monitor]\nlisten = \"0.0.0.0:7480\"\n";
        let good = format!(
            "{open}password_file = \"/p\"\n[monitor.alerts]\nqueue = 9\n\
             command = [\"/usr/local/bin/notify\", \"team\"]\n"
        );
        checked(&good).unwrap();
        for (monitor, words) in [
            (open, "set `password_file`"),
            ("[monitor]\npasword_file = \"/p\"\n", "unknown setting `pasword_file`"),
            ("[monitor.alerts]\nwebhook = \"ftp://x\"\n", "`alerts.webhook`"),
            ("[monitor.tls]\nkey = \"/k\"\n", "`tls.certificate`"),
            // The option `--set` of the monitor accepts these texts, but the settings file does
            // not.
            ("[monitor.alerts]\ncommand = \"/usr/local/bin/notify\"\n", "`alerts.command`"),
            ("[monitor.alerts]\nqueue = \"9\"\n", "`alerts.queue`"),
        ] {
            let error = checked(monitor).unwrap_err();
            assert!(error.context().contains(words), "{monitor}: {error}");
            assert!(error.context().contains("table [monitor]"), "{error}");
            assert!(!error.context().contains("command line"), "{error}");
        }
    }
}
