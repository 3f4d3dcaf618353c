//! Files that are one sealed record.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| xtask::decoders::check("sealed", bytes));
