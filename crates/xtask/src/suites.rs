//! `cargo xtask suites`: installs the external test suites that black-box tests run. The suites are
//! separate programs, and not dependencies, because Skep does not link with the suites.

use crate::repository::{Outcome, root, run as call};

/// The name of each suite's package, and its version.
const SUITES: &[(&str, &str)] = &[("pjdfstest", "0.2.2"), ("fsx", "0.3.2")];

/// Installs the missing suites below `target/suites`.
///
/// # Errors
/// Fails if a suite cannot be downloaded or built.
pub(crate) fn run() -> Outcome {
    let place = root().join("target/suites");
    let build = place.join("build").display().to_string();
    let place = place.display().to_string();
    for (name, version) in SUITES {
        let arguments = ["install", name, "--version", version, "--locked", "--root", &place];
        call(env!("CARGO"), &arguments, &[("CARGO_TARGET_DIR", &build)])?;
    }
    Ok(())
}
