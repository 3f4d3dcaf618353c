//! Sets the version of the program at build time: the version of the crate and, in a release build,
//! the commit.
//!
//! The version of a debug build contains no commit. Otherwise, cargo would compile all crates of
//! the workspace again after each commit.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let is_release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let build = match is_release {
        true => commit().unwrap_or_else(|| "unknown".into()),
        false => "debug".into(),
    };
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    println!("cargo:rustc-env=SKEP_VERSION={version}+{build}");
}

/// Returns the commit of the work tree, with the suffix `.changed` if files differ from this
/// commit. `None` if the source directory is not a work tree of Git, such as an unpacked archive.
fn commit() -> Option<String> {
    let directory = git(&["rev-parse", "--absolute-git-dir"])?;
    for file in ["HEAD", "index", "logs/HEAD"] {
        let path = Path::new(&directory).join(file);
        println!("cargo:rerun-if-changed={}", path.display());
    }
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let is_clean = git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    Some(if is_clean { commit } else { commit + ".changed" })
}

fn git(arguments: &[&str]) -> Option<String> {
    // Without this option, `git status` may write the index, and then each build would run this
    // script and compile all crates again.
    let output = Command::new("git").arg("--no-optional-locks").args(arguments).output().ok()?;
    let text = output.status.success().then_some(output.stdout)?;
    Some(String::from_utf8(text).ok()?.trim().to_owned())
}
