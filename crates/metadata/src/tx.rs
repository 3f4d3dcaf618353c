//! Transactions: the state they change, the context a handler runs in, and the locks and steps of
//! transactions between metadata groups.
//!
//! Does not own the requests that start transactions (`handlers`) or the order in which they run
//! (`target`).

pub(crate) mod context;
pub(crate) mod epochs;
pub(crate) mod locks;
pub(crate) mod operation;
pub(crate) mod prepared;
pub(crate) mod shared;
pub(crate) mod steps;
pub(crate) mod table;
pub(crate) mod work;
