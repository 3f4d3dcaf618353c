//! Requests of the kernel, as FUSE transports get them.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| xtask::decoders::check("fuse_request", bytes));
