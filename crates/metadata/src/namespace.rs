//! The rules of the namespace, as functions within one transaction: names, inodes, opens, disposal,
//! access control lists, inline bytes and truncations.
//!
//! The module `tx` owns the execution of transactions, and `handlers` owns the request handlers.

pub(crate) mod acls;
pub(crate) mod directories;
mod disposal;
pub(crate) mod inline;
pub(crate) mod inline_end;
pub(crate) mod inodes;
pub(crate) mod names;
mod opens;
pub(crate) mod truncation_table;
pub(crate) mod truncations;
