//! The list of decoders, which `cargo xtask fuzz` and the libFuzzer targets in `fuzz/` share.

pub mod decoders;
