//! The one list of files whose code may pause: a pause in a loop is a retry, a poll or a period, and
//! scattered retries multiply. A new one is listed here with its reason, or uses one that is there.

use super::Problems;
use std::path::PathBuf;

/// Files with calls of `sleep`, with what they wait for.
#[rustfmt::skip]
const PAUSES: &[(&str, &str)] = &[
];

/// Crates that aren't checked: the event loop itself, and programs that users don't run.
const UNCHECKED: &[&str] = &["crates/env/", "crates/sim/", "crates/testkit/", "crates/xtask/"];

/// Checks all sources against the list, and the list against the sources.
pub(super) fn check(sources: &[(PathBuf, String)]) -> Problems {
    let mut problems = Problems::new();
    let mut pausing = Vec::new();
    for (path, text) in sources {
        let name = path.to_string_lossy();
        let is_product = name.starts_with("crates/") && name.contains("/src/");
        let is_test = name.contains("/tests/") || name.ends_with("/tests.rs");
        if !is_product || is_test || UNCHECKED.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        if let Some(line) = first_pause(text) {
            if PAUSES.iter().all(|(listed, _)| *listed != name) {
                problems.push(format!(
                    "{name}:{line}: pauses; retries are in rpc::routing. If it isn't one, list the \
                     file with its reason in tidy/pauses.rs"
                ));
            }
            pausing.push(name.into_owned());
        }
    }
    let gone = PAUSES.iter().filter(|(listed, _)| pausing.iter().all(|name| name != listed));
    problems.extend(gone.map(|(listed, _)| format!("tidy/pauses.rs: {listed} doesn't pause")));
    problems
}

/// The line of the first call of `sleep` outside of unit tests and comments.
fn first_pause(text: &str) -> Option<usize> {
    let code = text.split("\n#[cfg(test)]").next().unwrap_or(text);
    let pauses = |line: &str| line.split("//").next().unwrap_or_default().contains("sleep(");
    code.lines().position(pauses).map(|index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_outside_of_tests_are_found() {
        assert_eq!(first_pause("a\nskep_env::sleep(PAUSE).await"), Some(2));
        assert_eq!(first_pause("// sleep(1)\n\n#[cfg(test)]\nmod tests { sleep(1) }"), None);
    }

    #[test]
    fn a_new_pause_must_be_listed() {
        let source = (PathBuf::from("crates/client/src/new.rs"), "sleep(1)".to_owned());
        assert!(check(&[source]).iter().any(|problem| problem.contains("client/src/new.rs")));
    }
}
