//! Frame headers.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| xtask::decoders::check("header", bytes));
