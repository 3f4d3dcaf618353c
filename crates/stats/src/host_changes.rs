//! The changes of the series of each host. Each service reports the statistics of its host, so the
//! changes of a host come from one of its services.

use crate::Round;
use crate::change::{Change, changes, seconds};
use std::collections::BTreeSet;

/// The changes of the series of one host.
#[derive(Debug)]
pub(crate) struct HostChanges<'a> {
    /// Name of the host.
    pub(crate) host: String,
    /// Length of the time span in seconds.
    pub(crate) seconds: f64,
    /// The changes of the series that both replies have. A service reports only the busiest
    /// devices of its host, and their counters begin at the boot of the host. So the first value
    /// of a device that was not among them before does not show the load in the time span.
    pub(crate) changes: Vec<Change<'a>>,
}

/// Returns the changes of each host between two rounds of replies. `host_of` returns the name of
/// the host of a service, by the node id of the service. Omits hosts on which no service has
/// replied in both rounds without a restart between them.
pub(crate) fn of_hosts<'a>(
    before: &Round,
    now: &'a Round,
    host_of: impl Fn(u32) -> String,
) -> Vec<HostChanges<'a>> {
    let mut hosts = BTreeSet::new();
    let mut found = Vec::new();
    for figures in now {
        let earlier = before.iter().find(|it| it.node == figures.node);
        let Some(seconds) = seconds(earlier, figures) else { continue };
        let host = host_of(figures.node);
        if hosts.insert(host.clone()) {
            let mut changes = changes(earlier, figures);
            changes.retain(|change| !change.is_new);
            found.push(HostChanges { host, seconds, changes });
        }
    }
    found
}
