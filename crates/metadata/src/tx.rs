//! Transactions: the tables that they change, the context in which handlers run, and the locks and
//! steps of transactions over several metadata groups.
//!
//! This module does not own the requests that start transactions (`handlers`) or the order in which
//! transactions run (`target`).

pub(crate) mod context;
pub(crate) mod locks;
pub(crate) mod operation;
mod participants;
pub(crate) mod pattern_changes;
pub(crate) mod prepared;
mod remembered_reads;
pub(crate) mod removal_guard;
pub(crate) mod shared;
pub(crate) mod start_numbers;
pub(crate) mod steps;
pub(crate) mod table;
pub(crate) mod wall_clock;
pub(crate) mod work;
