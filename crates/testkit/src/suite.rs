//! Runs many short tests that share one cluster. The runner prints a line for each test, continues
//! after failures, and supports the most important arguments of `cargo test` (filters, `--list`).
//!
//! Rust's own test harness cannot stop a shared cluster, because that harness calls no function
//! after the last test.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

/// A test that runs on a value of type `T`, such as a directory.
pub struct Case<T: ?Sized + 'static> {
    /// Names of the test's module and function, joined by `::`.
    pub name: &'static str,
    /// The test function, which fails by panicking.
    pub body: fn(&T),
}

/// Builds a table of cases. `cases![symlink: is_relative, may_dangle]` builds the cases
/// `symlink::is_relative` and `symlink::may_dangle` from functions of the current module.
#[macro_export]
macro_rules! cases {
    ($module:ident: $($body:ident),* $(,)?) => {
        &[$($crate::suite::Case {
            name: concat!(stringify!($module), "::", stringify!($body)),
            body: $body,
        }),*]
    };
}

/// The test filters of the command line, and the results of the finished tests.
#[derive(Debug, Default)]
pub struct Suite {
    filters: Vec<String>,
    skips: Vec<String>,
    exact: bool,
    list: bool,
    failures: Vec<String>,
    passed: usize,
}

impl Suite {
    /// Parses the arguments that `cargo test` passes on.
    pub fn from_arguments() -> Self {
        let mut suite = Self::default();
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--list" => suite.list = true,
                "--exact" => suite.exact = true,
                "--skip" => suite.skips.extend(arguments.next()),
                // Ignore these options and their values. This runner always runs one test at a
                // time, and always shows the output of the tests.
                "--test-threads" | "--color" | "--format" | "--logfile" | "-Z" => {
                    arguments.next();
                }
                option if option.starts_with('-') => {}
                name => suite.filters.push(name.to_owned()),
            }
        }
        suite
    }

    fn wants(&self, name: &str) -> bool {
        let fits = |it: &String| if self.exact { name == it } else { name.contains(it.as_str()) };
        (self.filters.is_empty() || self.filters.iter().any(fits))
            && !self.skips.iter().any(|it| name.contains(it.as_str()))
    }

    /// Whether the filters select any of the cases. If the filters select no case, the caller need
    /// not start a cluster. `place` is the first part of the case names. If the option `--list` is
    /// given, prints the selected cases and returns false.
    pub fn starts<T: ?Sized>(&self, place: &str, tables: &[&[Case<T>]]) -> bool {
        let names = tables.iter().flat_map(|table| table.iter());
        let mut names = names.map(|case| format!("{place}::{}", case.name));
        if self.list {
            names.filter(|name| self.wants(name)).for_each(|name| println!("{name}: test"));
            return false;
        }
        names.any(|name| self.wants(&name))
    }

    /// Runs the cases that the filters select. `place` is the first part of the case names.
    pub fn run<T: ?Sized>(&mut self, place: &str, tables: &[&[Case<T>]], on: &T) {
        for case in tables.iter().flat_map(|table| table.iter()) {
            let name = format!("{place}::{}", case.name);
            if !self.wants(&name) {
                continue;
            }
            let start = Instant::now();
            let result = catch_unwind(AssertUnwindSafe(|| (case.body)(on)));
            let time = start.elapsed().as_secs_f64();
            if result.is_ok() {
                self.passed += 1;
                println!("test {name} ... ok ({time:.2} s)");
            } else {
                println!("test {name} ... FAILED ({time:.2} s)");
                self.failures.push(name);
            }
        }
    }

    /// Runs a step that belongs to no case, such as stopping the cluster. Records a failure if
    /// `body` panics.
    pub fn check(&mut self, name: &str, body: impl FnOnce()) {
        if !self.list && catch_unwind(AssertUnwindSafe(body)).is_err() {
            println!("test {name} ... FAILED");
            self.failures.push(name.to_owned());
        }
    }

    /// Prints the number of passed cases and the names of the failed cases. Returns the exit code
    /// of the test program.
    pub fn end(self) -> ExitCode {
        if self.list {
            return ExitCode::SUCCESS;
        }
        println!("\n{} passed, {} failed", self.passed, self.failures.len());
        self.failures.iter().for_each(|name| println!("    {name}"));
        if self.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
