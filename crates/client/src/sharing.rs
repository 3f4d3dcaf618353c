//! Shared files: files that several clients have open at once, at least one of them for writing.

pub(crate) mod follow;
pub(crate) mod notifications;
