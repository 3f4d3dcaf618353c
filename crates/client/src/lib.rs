//! All file operations: path walking, striping, caching, sessions.
