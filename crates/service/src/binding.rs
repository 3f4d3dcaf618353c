//! Binds a service to CPUs or to a NUMA node (`node.cpus`, `node.numa_node`).
//!
//! The kernel allocates the memory of a thread on the node on which the thread runs. So threads
//! that are bound to CPUs of one node use memory of this node. If the settings name a NUMA node,
//! the service also asks the kernel to prefer this node for all memory. The preference also holds
//! for memory that a thread on another node uses first.

use crate::NodeSettings;
use skep_env::{available_cpus, bind_to_cpus, prefer_memory_of};
use skep_types::{Error, ErrorCode, Result, cpu_list};
use std::collections::BTreeSet;
use std::path::Path;

/// Directory in which the kernel shows the NUMA nodes of this host.
const NODES: &str = "/sys/devices/system/node";
/// Highest number of a NUMA node that Linux supports.
const MAX_NODE: usize = 1023;

/// Returns a description of each invalid value of the two settings.
pub(crate) fn problems(settings: &NodeSettings) -> Vec<String> {
    let mut problems = Vec::new();
    let (cpus, node) = (&settings.cpus, &settings.numa_node);
    if !cpus.is_empty() && cpu_list::parse(cpus).is_none() {
        problems.push(format!(
            "`node.cpus`: invalid list '{cpus}': expected CPUs and ranges, such as 0-7,16"
        ));
    }
    if !node.is_empty() && number(node).is_none() {
        problems.push(format!(
            "`node.numa_node`: invalid number '{node}': expected the number of a NUMA node, such \
             as 0"
        ));
    }
    if !cpus.is_empty() && !node.is_empty() {
        problems.push(
            "`node.cpus` and `node.numa_node` are both set: set only one of these settings".into(),
        );
    }
    problems
}

fn number(text: &str) -> Option<usize> {
    text.parse::<usize>().ok().filter(|number| *number <= MAX_NODE)
}

/// Binds the calling thread, and all threads that the calling thread starts after this call, to the
/// CPUs or the NUMA node in the settings. A service calls this function before it starts a thread.
///
/// # Errors
/// `Configuration` if this host does not have the CPUs or the NUMA node, or if this process may not
/// use them.
pub fn bind(settings: &NodeSettings) -> Result<()> {
    let available = available_cpus().into_iter().collect();
    let Some(cpus) = chosen(settings, &available, Path::new(NODES))? else { return Ok(()) };
    let shown = cpu_list::show(&cpus);
    bind_to_cpus(&cpus.iter().copied().collect::<Vec<_>>())
        .map_err(|error| refused(format!("cannot run on CPUs {shown}: {error}")))?;
    match number(&settings.numa_node) {
        None => tracing::info!("the threads run on CPUs {shown}"),
        Some(node) => {
            tracing::info!("the threads run on NUMA node {node} (CPUs {shown})");
            // The kernel may refuse this call in a container. Without the call, most memory is
            // still on the NUMA node, because the threads run on this node.
            if let Err(error) = prefer_memory_of(node) {
                tracing::warn!(
                    "cannot prefer the memory of NUMA node {node}: {error}; most memory is on this \
                     node nevertheless, because the threads run on the node"
                );
            }
        }
    }
    Ok(())
}

fn refused(what: String) -> Error {
    Error::new(ErrorCode::Configuration, what)
}

/// Returns the CPUs to which the settings bind the service. `None` means that the settings do not
/// bind the service. `available` are the CPUs that this process may use, and `nodes` is the
/// directory of NUMA nodes.
fn chosen(
    settings: &NodeSettings,
    available: &BTreeSet<usize>,
    nodes: &Path,
) -> Result<Option<BTreeSet<usize>>> {
    let may_use = || format!("this process may run on CPUs {}", cpu_list::show(available));
    if let Some(node) = number(&settings.numa_node) {
        let list = std::fs::read_to_string(nodes.join(format!("node{node}/cpulist")));
        let of_node = list.ok().and_then(|list| cpu_list::parse(list.trim()));
        let Some(of_node) = of_node else {
            let online = std::fs::read_to_string(nodes.join("online")).unwrap_or_default();
            let known = match online.trim() {
                "" => "the kernel of this host shows no NUMA nodes".to_owned(),
                known => format!("this host has the NUMA nodes {known}"),
            };
            return Err(refused(format!(
                "cannot bind the service to NUMA node {node}, which does not exist or has no CPUs: \
                 {known}; change `node.numa_node`"
            )));
        };
        let usable: BTreeSet<usize> = of_node.intersection(available).copied().collect();
        return match usable.is_empty() {
            false => Ok(Some(usable)),
            true => Err(refused(format!(
                "cannot bind the service to NUMA node {node}, which has the CPUs {}: {}; change \
                 `node.numa_node`",
                cpu_list::show(&of_node),
                may_use()
            ))),
        };
    }
    let Some(wanted) = cpu_list::parse(&settings.cpus) else { return Ok(None) };
    let missing: BTreeSet<usize> = wanted.difference(available).copied().collect();
    match missing.is_empty() {
        true => Ok(Some(wanted)),
        false => Err(refused(format!(
            "cannot run on CPUs {}: {}; change `node.cpus`",
            cpu_list::show(&missing),
            may_use()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(cpus: &str, node: &str) -> NodeSettings {
        let mut settings = NodeSettings::with_port(1);
        settings.directory = "/d".into();
        (settings.cpus, settings.numa_node) = (cpus.into(), node.into());
        settings
    }

    #[test]
    fn invalid_cpus_and_numa_nodes_are_refused() {
        let check = |cpus: &str, node: &str, words: &[&str]| {
            let found = settings(cpus, node).problems();
            assert_eq!(found.len(), words.len(), "{found:?}");
            for (problem, word) in found.iter().zip(words) {
                assert!(problem.contains(word), "{word}: {problem}");
            }
        };
        check("", "", &[]);
        check("0-7,16", "", &[]);
        check("", "1", &[]);
        check("3-1", "", &["invalid list '3-1'"]);
        check("", "x", &["invalid number 'x'"]);
        check("", "1024", &["invalid number '1024'"]);
        check("0", "0", &["both set"]);
    }

    #[test]
    fn service_is_bound_only_to_cpus_that_it_may_use() {
        let nodes = tempfile::tempdir().unwrap();
        std::fs::write(nodes.path().join("online"), "0-2\n").unwrap();
        for (node, list) in [(0, "0-3\n"), (1, "4-7\n"), (2, "\n")] {
            let directory = nodes.path().join(format!("node{node}"));
            std::fs::create_dir(&directory).unwrap();
            std::fs::write(directory.join("cpulist"), list).unwrap();
        }
        let available = BTreeSet::from([0, 1, 2]);
        let choose = |cpus: &str, node: &str| {
            let found = chosen(&settings(cpus, node), &available, nodes.path());
            found.map(|cpus| cpus.map(|cpus| cpu_list::show(&cpus)))
        };
        assert_eq!(choose("", "").unwrap(), None);
        assert_eq!(choose("1-2", "").unwrap().as_deref(), Some("1-2"));
        assert_eq!(choose("", "0").unwrap().as_deref(), Some("0-2"));
        let refused = |cpus: &str, node: &str, words: &[&str]| {
            let error = choose(cpus, node).unwrap_err();
            for word in words {
                assert!(error.context().contains(word), "{word}: {error}");
            }
        };
        refused("1-4", "", &["CPUs 3-4", "may run on CPUs 0-2", "node.cpus"]);
        refused("", "1", &["has the CPUs 4-7", "may run on CPUs 0-2"]);
        refused("", "2", &["has no CPUs"]);
        refused("", "9", &["NUMA node 9", "NUMA nodes 0-2"]);
    }
}
