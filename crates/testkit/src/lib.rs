//! Starts real clusters for black-box tests and measures them.
