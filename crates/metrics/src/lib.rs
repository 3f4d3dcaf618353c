//! The figures that the processes of Skep count about themselves: counters, gauges, latency
//! histograms, tables of operations, and accounts of load by client, user, group, job and
//! directory. Also keeps records of slow and sampled operations.
//!
//! Owns the counting, the table of all metrics ([`catalog`]) and their text form ([`text`]). Pure
//! except for atomic variables: no clock, no I/O, no threads. Callers pass durations. Does not own
//! the places where figures are counted, the HTTP server or the message that transports a snapshot
//! (`skep-exporter`).
//!
//! # Counting without locks
//! Each thread has its own instances, and only this thread changes them, by a plain load and store
//! of an atomic variable ([`Counter::add`]). Other threads read them at any time, for a
//! [`Snapshot`]. The [`Registry`] adds up the instances that have the same name and labels. After
//! an operation was counted for the first time, counting it allocates nothing.

mod accounts;
pub mod catalog;
mod completed;
mod counter;
mod definition;
mod family;
mod histogram;
mod operations;
mod registry;
mod slow;
mod snapshot;
mod stage;
mod tail;
pub mod text;
mod traces;

pub use accounts::{Accounts, Dimension, LEFT_OUT, Load, MAX_ACCOUNTS, Origin};
pub use completed::Completed;
pub use counter::{Counter, Gauge};
pub use definition::{Definition, Kind, Unit};
pub use family::OperationFamily;
pub use histogram::{BUCKETS, Histogram, HistogramValue, upper_bound_ns};
pub use operations::OperationTable;
pub use registry::{Registry, Source};
pub use slow::{SLOW, SlowOperations};
pub use snapshot::{Labels, Series, Snapshot, Value};
pub use stage::{STAGES, Stage};
pub use traces::{
    KeptOperation, KeptOperations, Reason, TraceStore, TracedCall, TracedCalls, is_sampled,
};
