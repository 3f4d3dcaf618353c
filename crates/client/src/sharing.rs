//! Files that several clients have open at once, and at least one of them may write.

pub(crate) mod follow;
pub(crate) mod notifications;
