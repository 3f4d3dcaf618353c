//! The log of metadata and management.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| xtask::decoders::check("log", bytes));
