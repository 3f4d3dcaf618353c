//! Region pages of chunk files.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| xtask::decoders::check("region_page", bytes));
