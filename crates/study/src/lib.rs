//! Studies: the behaviour of a storage system under many conditions, measured by a fixed protocol.
//!
//! The crate owns plans (the factors to vary), the order of runs, the journal of results,
//! statistics and reports. A plan names factors and repetitions. The crate lists the runs of a
//! plan, and divides the list into blocks. The blocks run in random order, with one run at a time.
//! The study writes each result to the journal before the next run begins. The report depends only
//! on the journal.
//!
//! Read [`plan`] first, then [`journal`] and [`report`]. docs/operations/studies.md is the manual
//! for users. The protocol is that of F. Boito, G. Pallez, L. Teylo, "The role of storage target
//! allocation in applications' I/O performance with BeeGFS", CLUSTER 2022.

pub mod acceptance;
pub mod aggregate;
pub mod journal;
pub mod lab;
pub mod limits;
pub mod order;
pub mod plan;
pub mod plans;
pub mod published;
pub mod record;
pub mod report;
pub mod runner;
pub mod statistics;
