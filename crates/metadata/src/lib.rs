//! The namespace: entries, inodes, sessions, transactions.
