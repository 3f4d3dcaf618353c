//! Files that several clients have open at once.

pub(crate) mod notifications;
