//! Locates the repository, lists and reads its files, and runs programs in the repository.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The result of a command for developers. The error is a sentence for the developer.
pub(crate) type Outcome<T = ()> = Result<T, String>;

/// Returns the path of the repository's top directory.
pub(crate) fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("xtask is two directories below the top")
}

/// Returns the sorted paths of the files in the repository, relative to its top directory. Includes
/// files that are not committed yet, but not files that Git ignores.
pub(crate) fn files() -> Outcome<Vec<PathBuf>> {
    let listed = output("git", &["ls-files", "--cached", "--others", "--exclude-standard"])?;
    let mut files: Vec<_> = listed.lines().map(PathBuf::from).collect();
    files.retain(|path| root().join(path).is_file());
    files.sort();
    files.dedup();
    Ok(files)
}

/// Returns the text of a file in the repository.
pub(crate) fn read(path: impl AsRef<Path>) -> Outcome<String> {
    let path = path.as_ref();
    fs::read_to_string(root().join(path))
        .map_err(|error| format!("cannot read {}: {error}", path.display()))
}

/// Runs a program in the top directory of the repository, and returns its standard output.
pub(crate) fn output(program: &str, arguments: &[&str]) -> Outcome<String> {
    output_with(program, arguments, &[])
}

/// Does the same as [`output`], with further environment variables.
pub(crate) fn output_with(
    program: &str,
    arguments: &[&str],
    variables: &[(&str, &str)],
) -> Outcome<String> {
    let mut command = Command::new(program);
    command.args(arguments).envs(variables.iter().copied()).current_dir(root());
    let output = command.output().map_err(|error| format!("cannot run {program}: {error}"))?;
    if !output.status.success() {
        let printed = String::from_utf8_lossy(&output.stderr);
        return Err(format!(
            "{program} {} failed: {}\n{printed}",
            arguments.join(" "),
            output.status
        ));
    }
    String::from_utf8(output.stdout).map_err(|_| format!("the output of {program} is not UTF-8"))
}

/// Runs a program in the top directory of the repository. The program uses the standard streams of
/// this process.
pub(crate) fn run(program: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Outcome {
    let mut command = Command::new(program);
    command.args(arguments).envs(variables.iter().copied()).current_dir(root());
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{program} {} failed: {status}", arguments.join(" "))),
        Err(error) => Err(format!("cannot run {program}: {error}")),
    }
}

/// A generated file: its path from the top directory of the repository, and its text.
pub(crate) struct Generated {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

/// Writes generated files. With `check`, writes nothing, and fails if a file is stale. The error
/// message contains `command`, the command that updates the files.
pub(crate) fn write_or_check(files: &[Generated], check: bool, command: &str) -> Outcome {
    let mut stale = Vec::new();
    for file in files {
        let path = root().join(&file.path);
        if fs::read_to_string(&path).is_ok_and(|present| present == file.text) {
            continue;
        }
        stale.push(file.path.display().to_string());
        if !check {
            let parent = path.parent().expect("generated files are in the repository");
            fs::create_dir_all(parent)
                .map_err(|error| format!("cannot create {}: {error}", parent.display()))?;
            fs::write(&path, &file.text)
                .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
            println!("wrote {}", file.path.display());
        }
    }
    if check && !stale.is_empty() {
        return Err(format!(
            "these generated files are not current: {}; run `{command}`",
            stale.join(", ")
        ));
    }
    Ok(())
}
