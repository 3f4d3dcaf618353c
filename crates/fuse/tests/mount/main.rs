//! Tests of an in-memory file system behind real mounts, with both transports.
//!
//! The server of a mount is a second process of this program, since a test could not kill a server
//! in its own process. So the program has its own main function, which runs the tests. With an
//! argument, the main function runs only the tests whose names contain the argument.

// In a test an unwrap is an assertion. Clippy recognises tests only if the usual test harness runs
// them.
#![allow(clippy::unwrap_used)]

mod harness;
mod locks;
mod memory;
mod mount_ends;
mod operations;

use harness::Mounted;

/// A test and its name.
type Test = (&'static str, fn(&str));

fn main() {
    if let Some(code) = harness::serve_if_asked() {
        std::process::exit(code);
    }
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let mut run = 0;
    for (name, test) in operations::TESTS.iter().chain(mount_ends::TESTS).chain(locks::TESTS) {
        for transport in ["uring", "device"] {
            let name = format!("{name}::{transport}");
            if filter.as_ref().is_some_and(|filter| !name.contains(filter.as_str())) {
                continue;
            }
            println!("test {name} ...");
            test(transport);
            run += 1;
        }
    }
    println!("{run} tests passed");
}

/// Mounts with a transport, and checks that the mount uses this transport.
fn mounted(transport: &str) -> Mounted {
    let it = Mounted::new(transport);
    assert_eq!(it.transport, transport);
    it
}
