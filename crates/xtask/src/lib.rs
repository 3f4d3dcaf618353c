//! What `cargo xtask fuzz` and the libFuzzer targets in `fuzz/` share: the list of decoders.

pub mod decoders;
