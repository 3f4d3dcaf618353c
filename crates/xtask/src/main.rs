//! Placeholder main.
fn main() {}
