//! Bodies of all messages.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| xtask::decoders::check("body", bytes));
