//! Settings that all services have in common.

use crate::ByteSize;
use serde::{Deserialize, Serialize};
use skep_types::registration::domain_problem;
use std::path::PathBuf;

/// The source text of [`NodeSettings`], for [`crate::Manual::SOURCES`].
pub const SOURCE: &str = include_str!("node.rs");

/// Minimum size of a log file in bytes. A smaller file could hardly hold the lines of one request.
const MIN_LOG_LIMIT: u64 = 4096;

/// The value of the setting `domain` that removes a service from its failure domain.
const NO_DOMAIN: &str = "none";

/// The value of the setting `metrics` for no page with metrics.
pub(crate) const NO_PAGE: &str = "none";

/// Settings that every service has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSettings {
    /// Directory in which the service keeps its identity and its state. `--init` creates this
    /// directory; there is no default.
    pub directory: PathBuf,
    /// Name for people, unique among the services of one kind. Empty: management assigns a name,
    /// such as `storage-1`.
    pub name: String,
    /// Address to listen on, as `host:port` or `host`. `0.0.0.0` means all IPv4 addresses, `[::]`
    /// all addresses of both families. With port 0 the service chooses a free port at the first
    /// start, writes the address to the file `address` in the directory, and uses the same port at
    /// each later start.
    pub listen: String,
    /// Addresses or names under which other nodes reach this service, as `host:port` or `host`,
    /// best first. Needed if other nodes reach the host through several networks or through network
    /// address translation (NAT). Empty: the address on which the service listens. If the service
    /// listens on all addresses, this host's address on the route to management; for management
    /// itself, the only address of this host or its address on the default route.
    pub advertise: Vec<String>,
    /// Address of the HTTP page `/metrics` with the metrics of this service, as `host:port`, for
    /// Prometheus and compatible programs. Set an address of the network, such as `0.0.0.0:7421`,
    /// to read the page from other hosts. The page asks for no password. Empty: the loopback
    /// address `127.0.0.1`, at the port after that of `listen`, or at a free port if that port is
    /// in use; the file `metrics-address` in the directory has the address. `none`: no page.
    pub metrics: String,
    /// Failure domain, such as `rack-2`: hosts that share a rack or a power supply fail together.
    /// The targets of a file are in as many domains as possible. Empty: the domain of the last
    /// start, or no domain at the first start. `none`: no domain, so the service is a domain by
    /// itself.
    pub domain: String,
    /// CPUs on which the threads of the service run, as numbers and ranges: `0-7,16`. Set this
    /// where other programs of the host have their own CPUs. Empty: all CPUs.
    pub cpus: String,
    /// Number of the NUMA node on whose CPUs the threads of the service run, such as `"1"`, and
    /// from which the threads take memory as long as the node has free memory. On hosts with
    /// several nodes, set the number of the node that has the network interface and the disks;
    /// `skep tune check` compares these nodes. Empty: all nodes.
    pub numa_node: String,
    /// Log level: `error`, `warn`, `info`, `debug` or `trace`, also for single parts, as in
    /// `info,skep_rpc=debug`.
    pub log: String,
    /// If the log is a file and has grown to this size, the service renames the file to `.old`,
    /// replaces an older `.old` file, and starts a new file. Set this where no other program
    /// rotates the file. Zero: no limit.
    pub log_limit: ByteSize,
}

/// Returns a description of each problem with the directories of a service's targets.
pub fn target_problems(targets: &[PathBuf], node: &NodeSettings) -> Vec<String> {
    let mut problems = Vec::new();
    if targets.is_empty() {
        problems.push("`targets` is empty: name at least one directory (`--target`)".into());
    }
    for (index, target) in targets.iter().enumerate() {
        let path = target.display();
        if target.as_os_str().is_empty() {
            problems.push(format!("`targets`: path {} is empty", index + 1));
        } else if *target == node.directory {
            problems.push(format!(
                "`targets`: {path} is `node.directory` too; a target needs its own directory"
            ));
        } else if targets[..index].contains(target) {
            problems
                .push(format!("`targets`: {path} is listed twice; remove one of the two entries"));
        }
    }
    problems
}

/// Returns a description of the problem with the setting `metrics`. `None` means that the setting
/// is valid.
fn page_problem(metrics: &str) -> Option<String> {
    let is_address = || {
        let port = metrics.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
        matches!(port, Some(Ok(_)))
    };
    let is_valid = metrics.is_empty() || metrics == NO_PAGE || is_address();
    (!is_valid).then(|| {
        format!("`node.metrics`: invalid address '{metrics}': expected host:port or `{NO_PAGE}`")
    })
}

impl NodeSettings {
    /// Returns the defaults of a service that listens on `port` of all addresses.
    pub fn with_port(port: u16) -> Self {
        Self {
            directory: PathBuf::new(),
            name: String::new(),
            listen: format!("0.0.0.0:{port}"),
            advertise: Vec::new(),
            metrics: String::new(),
            domain: String::new(),
            cpus: String::new(),
            numa_node: String::new(),
            log: "info".into(),
            log_limit: ByteSize(0),
        }
    }

    /// Returns the failure domain for the registration. `None` keeps the domain of the last start;
    /// an empty text removes the service from its domain.
    pub fn domain(&self) -> Option<String> {
        match self.domain.as_str() {
            "" => None,
            NO_DOMAIN => Some(String::new()),
            name => Some(name.to_owned()),
        }
    }

    /// Returns a description of each invalid value.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.directory.as_os_str().is_empty() {
            problems.push(
                "`node.directory` is not set: name the directory in which the service keeps its \
                 identity (`--directory`)"
                    .into(),
            );
        }
        let port = self.listen.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
        if !matches!(port, Some(Ok(_))) {
            problems.push(format!(
                "`node.listen`: invalid address '{}': expected host:port",
                self.listen
            ));
        }
        problems.extend(page_problem(&self.metrics));
        if let Some(empty) = self.advertise.iter().position(String::is_empty) {
            problems.push(format!("`node.advertise`: address {} is empty", empty + 1));
        }
        let domain = self.domain().filter(|domain| !domain.is_empty());
        if let Some(problem) = domain.as_deref().and_then(domain_problem) {
            problems.push(format!("`node.domain`: {problem}"));
        }
        problems.extend(crate::binding::problems(self));
        if let Err(problem) = crate::logging::check(&self.log) {
            problems.push(format!("`node.log`: {problem}"));
        }
        if (1..MIN_LOG_LIMIT).contains(&self.log_limit.0) {
            problems
                .push("`node.log_limit` is less than 4 KiB, which is too small for a log".into());
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_problems_of_the_targets_setting_are_reported() {
        let mut node = NodeSettings::with_port(1);
        node.directory = "/d".into();
        assert!(target_problems(&[], &node)[0].contains("`targets` is empty"));
        let targets = ["/a", "/d", "", "/a"].map(PathBuf::from);
        let problems = target_problems(&targets, &node).join("\n");
        for words in ["/d is `node.directory`", "path 3 is empty", "/a is listed twice"] {
            assert!(problems.contains(words), "{words}: {problems}");
        }
        assert_eq!(target_problems(&targets[..1], &node), Vec::<String>::new());
    }

    #[test]
    fn invalid_metrics_address_is_refused() {
        for (setting, is_valid) in [("", true), ("none", true), ("a:1", true), ("9000", false)] {
            assert_eq!(page_problem(setting).is_none(), is_valid, "{setting}");
        }
    }

    #[test]
    fn domain_setting_sets_preserves_or_removes_the_domain() {
        let mut node = NodeSettings::with_port(1);
        node.directory = "/d".into();
        for (setting, registered) in [("", None), ("rack-2", Some("rack-2")), ("none", Some(""))] {
            node.domain = setting.into();
            assert_eq!(node.domain().as_deref(), registered);
            assert_eq!(node.problems(), Vec::<String>::new());
        }
        node.domain = "rack 2".into();
        assert!(node.problems()[0].starts_with("`node.domain`: 'rack 2' cannot"));
    }
}
