//! Ends the program `skep-sim` before it has run all seeds.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// A running simulator. The drop of this value kills the program.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Ignore the result, because the program has usually ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn simulation(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_skep-sim"));
    command.args(["--new", "100000000"]).args(arguments);
    command
}

/// Asserts that the line about the end names the reason, and counts the same seeds as the summary.
fn assert_counts(lines: &[String], reason: &str) {
    let ended = lines.iter().find(|line| line.starts_with("ended before seed"));
    let ended = ended.unwrap_or_else(|| panic!("no line about the end: {lines:?}"));
    assert!(ended.contains(reason), "{ended}");
    let count =
        ended.rsplit_once(", ").and_then(|(_, text)| text.strip_suffix(" seeds are finished"));
    let count = count.unwrap_or_else(|| panic!("no number of seeds: {ended}"));
    let summary = format!("{count} seeds, ");
    assert!(lines.iter().any(|line| line.starts_with(&summary)), "{lines:?}");
}

#[test]
fn simulator_ended_by_a_signal_prints_the_count_of_seeds() {
    let child = simulation(&[]).stdout(Stdio::piped()).spawn().expect("the program starts");
    let mut running = Running(child);
    let output = running.0.stdout.take().expect("a pipe");
    let mut lines = BufReader::new(output).lines().map(|line| line.expect("text"));
    // The program prints its first line after it has blocked the signals.
    assert!(lines.next().expect("a line").starts_with("seeds 1 and"));
    let pid = running.0.id().to_string();
    let killed = Command::new("kill").args(["-TERM", &pid]).status().expect("kill starts");
    assert!(killed.success(), "{killed}");
    let rest: Vec<String> = lines.collect();
    let status = running.0.wait().expect("the program ends");
    assert!(status.success(), "{status}: {rest:?}");
    assert_counts(&rest, "by signal 15");
}

#[test]
fn simulator_ended_by_its_time_limit_prints_the_seed_count() {
    let output = simulation(&["--seconds", "1"]).output().expect("the program runs");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    assert_counts(&lines, "by the time limit");
}
