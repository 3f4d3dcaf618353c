//! Values in metadata's store.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| xtask::decoders::check("metadata", bytes));
