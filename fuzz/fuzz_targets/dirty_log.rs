//! The dirty log of a storage target.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| xtask::decoders::check("dirty_log", bytes));
