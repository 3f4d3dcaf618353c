//! Runs test programs, several at a time, and measures their times.
//!
//! The output of a program goes to a file, and the runner prints this file when the program has
//! ended. So the lines of two programs do not mix.

use crate::built::Program;
use crate::repository::{Outcome, root};
use std::collections::VecDeque;
use std::fmt::Write;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

/// The settings of a run of test programs.
pub(crate) struct Runner<'a> {
    /// Directory for the outputs of the programs, relative to the repository.
    pub(crate) logs: &'a str,
    /// Number of programs that run at the same time.
    pub(crate) workers: usize,
    /// Returns the command that runs a program.
    pub(crate) command: fn(&Program) -> Command,
}

/// A test program that has ended.
pub(crate) struct Ended {
    pub(crate) name: String,
    pub(crate) is_success: bool,
    pub(crate) seconds: f64,
    /// The first panics in the output, each with its place and the first lines of its message.
    pub(crate) panics: Vec<String>,
}

/// Maximum number of panics in [`Ended`].
const PANICS: usize = 5;

/// Number of lines of each panic in [`Ended`]. The first line contains the file and the line of the
/// panic.
const PANIC_LINES: usize = 4;

/// Maximum number of characters of each of these lines. An assertion may print kilobytes in one
/// line, and such a line would hide the other panics. The log has the complete line.
const LINE_CHARACTERS: usize = 1_500;

impl Runner<'_> {
    /// Runs programs. Starts the programs in the order of `programs`.
    ///
    /// # Errors
    /// Fails if a program cannot be started.
    pub(crate) fn run(&self, programs: Vec<Program>) -> Outcome<Vec<Ended>> {
        let queue = Mutex::new(VecDeque::from(programs));
        let work = || -> Outcome<Vec<Ended>> {
            let mut ended = Vec::new();
            loop {
                let next = queue.lock().expect("no worker panics").pop_front();
                let Some(program) = next else { return Ok(ended) };
                ended.push(self.run_one(program)?);
            }
        };
        let outcomes: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..self.workers).map(|_| scope.spawn(work)).collect();
            threads.into_iter().map(|thread| thread.join().expect("no worker panics")).collect()
        });
        Ok(outcomes.into_iter().collect::<Outcome<Vec<_>>>()?.into_iter().flatten().collect())
    }

    /// Runs one program, and prints the program's output at its end.
    fn run_one(&self, program: Program) -> Outcome<Ended> {
        let logs = root().join(self.logs);
        fs::create_dir_all(&logs)
            .map_err(|error| format!("cannot create {}: {error}", logs.display()))?;
        // The name of the file has a hash, so programs of two packages have different logs.
        let file = program
            .executable
            .file_name()
            .ok_or("cannot run a test program: its path has no file name")?;
        let log = logs.join(file).with_extension("log");
        let begin = Instant::now();
        let is_success = run_into(&log, (self.command)(&program))
            .map_err(|error| format!("cannot run {}: {error}", program.executable.display()))?;
        let seconds = begin.elapsed().as_secs_f64();
        let text =
            fs::read(&log).map_err(|error| format!("cannot read {}: {error}", log.display()))?;
        let text = String::from_utf8_lossy(&text);
        let panics = if is_success { Vec::new() } else { panics(&text) };
        let ended = Ended { name: program.name, is_success, seconds, panics };
        // Print the whole text in one call, so that the lines of two programs do not mix.
        let (name, word) = (&ended.name, ended.word());
        println!("{text}\n{name} {word} {seconds:.1} s");
        Ok(ended)
    }
}

/// Runs a command with both output streams in one file. Returns whether the command has succeeded.
fn run_into(log: &Path, mut command: Command) -> std::io::Result<bool> {
    let out = File::create(log)?;
    let errors = out.try_clone()?;
    let status = command.stdin(Stdio::null()).stdout(out).stderr(errors).status()?;
    Ok(status.success())
}

impl Ended {
    fn word(&self) -> &'static str {
        if self.is_success { "ok" } else { "FAILED" }
    }
}

/// Sorts the programs by their times, the slowest first. Returns a line for each program.
pub(crate) fn table(ended: &mut [Ended]) -> String {
    ended.sort_by(|one, two| two.seconds.total_cmp(&one.seconds));
    let mut text = String::new();
    for program in ended.iter() {
        let Ended { name, seconds, .. } = program;
        writeln!(text, "{name:<22} {:<6} {seconds:>7.1} s", program.word())
            .expect("a string takes all text");
    }
    text
}

/// Returns the first panics in the output of a program.
fn panics(output: &str) -> Vec<String> {
    let lines: Vec<_> = output.lines().collect();
    let begins = lines.iter().enumerate().filter(|(_, line)| line.contains(" panicked at "));
    let text = |begin: usize| {
        let shown = &lines[begin..lines.len().min(begin + PANIC_LINES)];
        shown.iter().map(|line| shortened(line)).collect::<Vec<_>>().join("\n    ")
    };
    begins.take(PANICS).map(|(index, _)| text(index)).collect()
}

/// Returns the first [`LINE_CHARACTERS`] characters of a line. If the line is longer, the result
/// also has the number of missing characters.
fn shortened(line: &str) -> String {
    match line.char_indices().nth(LINE_CHARACTERS) {
        None => line.to_owned(),
        Some((end, _)) => {
            let missing = line[end..].chars().count();
            format!("{}... ({missing} more characters in the log)", &line[..end])
        }
    }
}

/// Prints the first panics of all programs that failed, because the end of the output is what a
/// reader sees first. Returns the names of these programs.
pub(crate) fn failed(ended: &[Ended]) -> Vec<String> {
    let failed: Vec<_> = ended.iter().filter(|program| !program.is_success).collect();
    for program in &failed {
        program.panics.iter().for_each(|panic| println!("{}: {panic}", program.name));
    }
    failed.iter().map(|program| program.name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(name: &str, is_success: bool, seconds: f64) -> Ended {
        Ended { name: name.into(), is_success, seconds, panics: Vec::new() }
    }

    #[test]
    fn table_begins_with_the_slowest_program() {
        let mut ended =
            [ended("advise", true, 3.0), ended("up", false, 39.04), ended("tune", true, 50.0)];
        let text = table(&mut ended);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "tune                   ok        50.0 s",
                "up                     FAILED    39.0 s",
                "advise                 ok         3.0 s",
            ]
        );
        assert_eq!(failed(&ended), ["up"]);
    }

    #[test]
    fn panics_of_a_program_have_their_places_and_messages() {
        let output =
            "test one ... ok\nthread 'two' (7) panicked at tests/up.rs:9:5:\nno file\nmore";
        assert_eq!(
            panics(output),
            ["thread 'two' (7) panicked at tests/up.rs:9:5:\n    no file\n    more"]
        );
        assert_eq!(panics("test one ... ok"), Vec::<String>::new());
    }

    #[test]
    fn long_lines_of_a_panic_are_shortened() {
        let long = "\u{e4}".repeat(LINE_CHARACTERS);
        assert_eq!(shortened(&long), long);
        let longer = format!("{long}+++");
        assert_eq!(shortened(&longer), format!("{long}... (3 more characters in the log)"));
        let output = format!("thread 'one' (7) panicked at tests/up.rs:9:5:\n{longer}\nend");
        let found = panics(&output);
        assert!(found[0].ends_with("(3 more characters in the log)\n    end"), "{found:?}");
    }

    #[test]
    fn all_test_programs_run_and_failures_are_reported() {
        let logs = tempfile::tempdir().expect("a directory");
        let runner = Runner {
            logs: logs.path().to_str().expect("UTF-8"),
            workers: 2,
            command: |program| Command::new(&program.executable),
        };
        let programs = ["true", "false", "true"].map(|name| Program {
            name: name.into(),
            executable: name.into(),
            package: "/".into(),
            is_test: true,
        });
        let ended = runner.run(programs.into()).expect("both programs exist");
        assert_eq!(ended.len(), 3);
        assert_eq!(failed(&ended), ["false"]);
    }
}
