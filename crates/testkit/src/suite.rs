//! A runner for many short tests that share one cluster: prints a line for each, goes on after
//! failures, and takes the words of `cargo test` that matter (names to filter by, `--list`).
//!
//! The built-in harness can't do that: it has no end at which a shared cluster could be stopped.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

/// A test on something of type `T`, such as a directory.
pub struct Case<T: ?Sized + 'static> {
    /// Its name: the module's and the function's.
    pub name: &'static str,
    /// What it does; it fails by panicking.
    pub body: fn(&T),
}

/// A table of cases: `cases![rename: over_a_file, into_itself]` gives them as `rename::over_a_file`
/// and so on, from functions of these names in the current module.
#[macro_export]
macro_rules! cases {
    ($module:ident: $($body:ident),* $(,)?) => {
        &[$($crate::suite::Case {
            name: concat!(stringify!($module), "::", stringify!($body)),
            body: $body,
        }),*]
    };
}

/// What the command line asks for.
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
    /// Reads the command line, as `cargo test` passes it on.
    pub fn from_arguments() -> Self {
        let mut suite = Self::default();
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--list" => suite.list = true,
                "--exact" => suite.exact = true,
                "--skip" => suite.skips.extend(arguments.next()),
                // Tests here run one after the other anyway, and always show what they print.
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

    /// Whether any of the cases is to run, so that a cluster is started only if it is needed. Lists
    /// them if that was asked for.
    pub fn starts<T: ?Sized>(&self, place: &str, tables: &[&[Case<T>]]) -> bool {
        let names = tables.iter().flat_map(|table| table.iter());
        let mut names = names.map(|case| format!("{place}::{}", case.name));
        if self.list {
            names.filter(|name| self.wants(name)).for_each(|name| println!("{name}: test"));
            return false;
        }
        names.any(|name| self.wants(&name))
    }

    /// Runs those cases that are wanted; `place` comes before their names.
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

    /// Notes a failure that isn't one case's, such as a cluster that doesn't stop.
    pub fn check(&mut self, name: &str, body: impl FnOnce()) {
        if !self.list && catch_unwind(AssertUnwindSafe(body)).is_err() {
            println!("test {name} ... FAILED");
            self.failures.push(name.to_owned());
        }
    }

    /// Says what passed and what failed.
    pub fn end(self) -> ExitCode {
        if self.list {
            return ExitCode::SUCCESS;
        }
        println!("\n{} passed, {} failed", self.passed, self.failures.len());
        self.failures.iter().for_each(|name| println!("    {name}"));
        if self.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
