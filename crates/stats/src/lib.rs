//! Rates of load, computed from the replies of services to `GetStatistics`.
//!
//! A [`Round`] contains the replies that all services sent at about the same time. [`rows`]
//! compares two rounds, and adds up the differences by node, target, operation, client, user, group
//! or job. The command `skep stats` shows the rows, and the monitor stores them. [`why`] explains
//! where the time of requests went, and names the causes of slowness. [`advise`] proposes stripe
//! patterns. [`disks`] has the load of the disks of hosts, and [`interfaces`] the traffic of their
//! network interfaces. [`operation`] explains the time of one operation from its records.
//! [`balance`] has the balance of work and of space, [`long_spans`] has rules that need the load of
//! a minute, [`filling`] predicts when storage is full, and [`backup`] has the rule about backups.
//! [`csv`] and [`xml`] are forms of results for other programs.
//!
//! The crate is pure: it does no I/O and reads no clock. Its callers send the requests to the
//! services, and show the results.

pub mod advise;
pub mod backup;
pub mod balance;
mod change;
pub mod csv;
pub mod disks;
pub mod filling;
mod host_changes;
pub mod interfaces;
pub mod long_spans;
pub mod operation;
mod row;
pub mod why;
pub mod xml;

pub use change::{LEFT_OUT, label, series_with};
pub use row::{By, LoadScope, Row, rows, rows_by_service, rows_within, sum, tables};

use skep_wire::node::Statistics;

/// The reply of one service to `GetStatistics`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceFigures {
    /// Node id of the service.
    pub node: u32,
    /// Name of the service.
    pub name: String,
    /// The statistics in the reply.
    pub statistics: Statistics,
}

/// The replies of all services that could be reached, from about the same moment.
pub type Round = Vec<ServiceFigures>;
