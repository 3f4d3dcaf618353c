//! `cargo xtask external --only miri`: runs the tests of the buffers in `crates/env` in Miri. Miri
//! finds undefined behaviour of `unsafe` code, such as a reference to bytes that change while the
//! reference exists, or an access beyond the end of a buffer. Miri also finds leaks.
//!
//! Miri needs a nightly compiler and runs no system calls of io_uring. So this suite runs only the
//! tests of `buffer.rs`, once for each of the two aliasing models (Stacked Borrows and Tree
//! Borrows).

use crate::needs::has_nightly;
use crate::repository::{Outcome, run as call};

/// The flags of the runs. Without a flag for the aliasing model, Miri checks Stacked Borrows.
const MODELS: [&str; 2] = ["-Zmiri-strict-provenance", "-Zmiri-tree-borrows"];

/// Returns how to install Miri if Miri is missing.
pub(crate) fn obstacle() -> Option<String> {
    let how = "Miri not found: run `rustup toolchain install nightly --component miri,rust-src`";
    (!has_nightly(&["cargo", "miri", "--version"])).then(|| how.into())
}

/// Runs the tests.
///
/// # Errors
/// Names the command that has failed.
pub(crate) fn run() -> Outcome {
    for flags in MODELS {
        let test = ["run", "nightly", "cargo", "miri", "test", "--package", "skep-env", "--lib"];
        let directory = crate::repository::root().join("target/miri").display().to_string();
        let arguments = [&test[..], &["--target-dir", &directory, "--", "buffer::"]].concat();
        println!("MIRIFLAGS={flags}");
        call("rustup", &arguments, &[("MIRIFLAGS", flags)])?;
    }
    Ok(())
}
