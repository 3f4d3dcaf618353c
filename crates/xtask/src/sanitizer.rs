//! `cargo xtask external --only address-sanitizer`: runs some black-box tests with programs that
//! check their own accesses to memory. AddressSanitizer finds accesses beyond the end of an
//! allocation, and to memory that was freed. Unlike Miri, AddressSanitizer checks whole services
//! and mounts.
//!
//! AddressSanitizer needs a nightly compiler. This suite does not search for leaks, because
//! services and mounts end without freeing their memory.

use crate::needs::{has_nightly, is_root};
use crate::repository::{Outcome, root, run as call};
use std::fs;

/// The test programs that the suite runs. Together, the programs cause most kinds of requests.
const TESTS: [&str; 3] = ["posix", "inline", "kills"];

/// Returns a missing requirement with its remedy: the user root, or the nightly compiler.
pub(crate) fn obstacle() -> Option<String> {
    if !has_nightly(&["rustc", "--version"]) {
        let how = "nightly compiler not found: run `rustup toolchain install nightly`";
        return Some(how.into());
    }
    (!is_root()).then(|| "the suite mounts file systems: run it as root".into())
}

/// Builds the programs, and runs the tests.
///
/// # Errors
/// Names the command that has failed, or the directory with the reports of AddressSanitizer.
pub(crate) fn run() -> Outcome {
    let directory = root().join("target/address-sanitizer");
    // The supervisor of a test's cluster restarts a program that AddressSanitizer has ended. So the
    // tests may pass, and only these reports show the failure.
    let reports = directory.join("reports");
    let failed =
        |error| format!("cannot use the directory of reports {}: {error}", reports.display());
    if reports.exists() {
        fs::remove_dir_all(&reports).map_err(failed)?;
    }
    fs::create_dir_all(&reports).map_err(failed)?;
    let options = format!("detect_leaks=0:log_path={}", reports.join("report").display());
    let variables = [("RUSTFLAGS", "-Zsanitizer=address"), ("ASAN_OPTIONS", options.as_str())];
    // With this option, cargo builds macros and build scripts without AddressSanitizer.
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let directory = directory.display().to_string();
    let place = ["--target", target.as_str(), "--target-dir", directory.as_str()];
    let cargo = |command: &str, more: &[&str]| {
        let start = ["run", "nightly", "cargo", command];
        call("rustup", &[&start[..], &place, more].concat(), &variables)
    };
    cargo("build", &["--package", "skep-ctl"])?;
    let outcomes = TESTS.map(|name| {
        let test = ["--package", "skep-testkit", "--test", name, "--", "--test-threads", "1"];
        cargo("test", &test)
    });
    let count = fs::read_dir(&reports).map_err(failed)?.count();
    if count > 0 {
        return Err(format!("AddressSanitizer wrote {count} reports to {}", reports.display()));
    }
    outcomes.into_iter().collect()
}
