//! Shared files: several clients have such a file open at the same time, and at least one client
//! has it open for writing.

pub(crate) mod follow;
pub(crate) mod notifications;
