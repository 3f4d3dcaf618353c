//! The rules of the namespace, as functions of one transaction: names, inodes, opens, disposal,
//! access control lists, first bytes in metadata and truncations.
//!
//! Does not own how a transaction runs (`tx`) or the requests of clients (`handlers`).

pub(crate) mod acls;
pub(crate) mod directories;
mod disposal;
pub(crate) mod inline;
pub(crate) mod inodes;
pub(crate) mod names;
mod opens;
pub(crate) mod truncation_table;
pub(crate) mod truncations;
