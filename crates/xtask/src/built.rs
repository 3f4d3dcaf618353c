//! The builds of CI, and the programs that cargo makes in these builds.
//!
//! Cargo selects the features of libraries by the packages and targets that one call names. If two
//! calls select different features of one library, cargo compiles this library, and all crates that
//! depend on it, once for each call. So all steps of CI that need the same programs use the same
//! call, and this file has all calls that build tests.

use crate::repository::{Outcome, root};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The feature of this package that needs `skep-fuse`. All checks and tests of the workspace select
/// the feature, and thus include the decoder of kernel requests.
pub(crate) const KERNEL_REQUESTS_FEATURE: &str = "xtask/kernel-requests";

/// Arguments of the test of all crates, except the crates that have a step of their own.
pub(crate) const UNIT_TESTS: &[&str] = &[
    "test",
    "--workspace",
    "--exclude",
    "skep-sim",
    "--exclude",
    "skep-testkit",
    "--features",
    KERNEL_REQUESTS_FEATURE,
];

/// Arguments of the tests of the simulator.
pub(crate) const SIMULATION: &[&str] = &["test", "--release", "--package", "skep-sim"];

/// Arguments of the black-box tests.
pub(crate) const BLACK_BOX: &[&str] = &["test", "--release", "--package", "skep-testkit"];

/// A program that cargo has built.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// Name of the target of cargo.
    pub(crate) name: String,
    pub(crate) executable: PathBuf,
    /// Directory of the package in the repository.
    pub(crate) package: PathBuf,
    /// Whether the program consists of tests.
    pub(crate) is_test: bool,
}

/// Builds everything that cargo would run for these arguments of `cargo test`. Returns the test
/// programs, and also the programs that the tests start.
///
/// # Errors
/// Fails if a package cannot be compiled.
pub(crate) fn programs(tests: &[&str]) -> Outcome<Vec<Program>> {
    let output = Command::new(env!("CARGO"))
        .args(tests)
        .args(["--no-run", "--message-format", "json-render-diagnostics"])
        .current_dir(root())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo {} failed: {}", tests.join(" "), output.status));
    }
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| program(line).transpose())
        .collect()
}

/// Returns the program that a message of cargo names. `None` means that the message is not about a
/// program.
fn program(message: &str) -> Outcome<Option<Program>> {
    let message: Value = serde_json::from_str(message)
        .map_err(|error| format!("cannot parse a message of cargo: {error}"))?;
    let Some(executable) = message["executable"].as_str() else { return Ok(None) };
    let name = message["target"]["name"]
        .as_str()
        .ok_or("cannot read a message of cargo: a built program has no target name")?;
    let manifest = message["manifest_path"]
        .as_str()
        .ok_or("cannot read a message of cargo: a built program has no manifest path")?;
    let package = Path::new(manifest)
        .parent()
        .ok_or("cannot read a message of cargo: a manifest path has no directory")?;
    Ok(Some(Program {
        name: name.into(),
        executable: executable.into(),
        package: package.into(),
        is_test: message["profile"]["test"] == Value::Bool(true),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_programs_are_found_in_the_messages_of_cargo() {
        let message = |test: bool, executable: &str| {
            format!(
                "{{\"reason\":\"compiler-artifact\",\"manifest_path\":\"/top/testkit/Cargo.toml\",\
                 \"target\":{{\"name\":\"locks\"}},\"profile\":{{\"test\":{test}}},\
                 \"executable\":{executable}}}"
            )
        };
        for is_test in [true, false] {
            let found = program(&message(is_test, "\"/locks\"")).expect("valid");
            let expected = Program {
                name: "locks".into(),
                executable: "/locks".into(),
                package: "/top/testkit".into(),
                is_test,
            };
            assert_eq!(found, Some(expected));
        }
        for other in [message(true, "null"), "{}".into()] {
            assert!(program(&other).expect("valid").is_none(), "{other}");
        }
        assert!(program("text").is_err());
    }
}
