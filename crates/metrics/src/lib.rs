//! The statistics of Skep's processes: counters, gauges, latency histograms, tables of operations,
//! and accounts of load by client, user, group, job and directory. The crate also stores records of
//! slow and sampled operations.
//!
//! The crate contains the counters, the table of all metrics ([`catalog`]) and their text form
//! ([`text`]). The crate is pure except for atomic variables: it uses no clock, no I/O and no
//! threads. Callers measure durations and pass them to this crate. Other crates count the events.
//! `skep-exporter` has the HTTP server and the message that transport a snapshot.
//!
//! # Counting without locks
//! Each thread has its own instances of the metrics. Only this thread changes its instances, by a
//! plain load and store of an atomic variable ([`Counter::add`]). Other threads can read these
//! instances at any time for a [`Snapshot`]. The [`Registry`] adds up the instances that have the
//! same name and labels. Counting an operation allocates no memory, except for the first operation
//! of its kind.

mod accounts;
mod cache_use;
pub mod catalog;
mod completed;
mod counter;
mod definition;
mod family;
mod histogram;
mod line_limit;
mod open_requests;
mod operations;
mod registry;
mod slow;
mod snapshot;
mod stage;
mod switch;
mod tail;
pub mod text;
mod traces;

pub use accounts::{Accounts, Dimension, LEFT_OUT, Load, MAX_ACCOUNTS, Origin};
pub use cache_use::{CacheFamily, CacheUse};
pub use completed::Completed;
pub use counter::{Counter, Gauge};
pub use definition::{Definition, Kind, Unit};
pub use family::OperationFamily;
pub use histogram::{BUCKETS, Histogram, HistogramValue, upper_bound_ns};
pub use line_limit::LineLimit;
pub use open_requests::OpenRequests;
pub use operations::OperationTable;
pub use registry::{Registry, Source};
pub use slow::{SLOW, SlowOperations};
pub use snapshot::{Labels, Series, Snapshot, Value};
pub use stage::{STAGES, Stage};
pub use switch::{STATISTICS_VARIABLE, is_off, switch_off};
pub use traces::{
    KeptOperation, KeptOperations, Reason, TraceStore, TracedCall, TracedCalls, TracedWait,
    is_sampled,
};
