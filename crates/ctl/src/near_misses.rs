//! Suggests the command of Skep that has the same purpose as a command that does not exist.
//!
//! Users of other file systems and tools type the commands of these tools. The suggestion of the
//! command-line parser compares letters only. For `status`, the parser would suggest `study`.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Words that users type as the first argument, each with the command that Skep suggests. If Skep
/// lacks the feature, the suggestion is a sentence that begins with a capital letter.
const ANSWERS: &[(&str, &str)] = &[
    ("status", "health check"),
    ("check", "health check"),
    ("health-check", "health check"),
    ("df", "health df"),
    ("ls", "node list"),
    ("list", "node list"),
    ("show", "node list"),
    ("nodes", "node list"),
    ("targets", "target list"),
    ("groups", "group list"),
    ("clients", "client list"),
    ("mounts", "client list"),
    ("locks", "lock list"),
    ("sessions", "session list"),
    ("start", "up"),
    ("run", "up"),
    ("stop", "down"),
    ("shutdown", "down"),
    ("unmount", "umount"),
    ("info", "entry info"),
    ("stat", "entry info"),
    ("getstripe", "entry info"),
    ("setstripe", "entry set"),
    ("setpattern", "entry set"),
    ("createfile", "entry create"),
    ("create", "entry create"),
    ("who", "entry who"),
    ("lsof", "entry who"),
    ("evict", "client evict"),
    ("format", "cluster format"),
    ("mkfs", "cluster format"),
    ("init", "management --init"),
    ("mgmtd", "management"),
    ("mgmt", "management"),
    ("meta", "metadata"),
    ("mds", "metadata"),
    ("oss", "storage"),
    ("get", "config get"),
    ("set", "config set"),
    ("settings", "config list"),
    ("logs", "node log-level"),
    ("log-level", "node log-level"),
    ("benchmark", "bench io"),
    ("storagebench", "bench storage"),
    ("netbench", "bench net"),
    ("version", "--version"),
    ("quota", "Skep has no quotas yet"),
    ("e2fsck", "fsck"),
    ("snapshot", "Skep has no snapshots yet"),
];

/// Words that users type after a noun (such as `node`), each with the subcommand that Skep
/// suggests.
const OF_NOUNS: &[(&str, &str)] =
    &[("ls", "list"), ("show", "list"), ("status", "list"), ("info", "list")];

/// Returns the suggestion for a command that does not exist. `None` means that there is no
/// suggestion, so that the parser's own error is reported.
pub(crate) fn answer(error: &clap::Error) -> Option<String> {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return None;
    }
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    let usage = error.get(ContextKind::Usage)?.to_string();
    // The usage text has the form "Usage: skep node [OPTIONS] <COMMAND>".
    let noun = usage.split_whitespace().skip_while(|it| *it != "skep").nth(1);
    match noun.filter(|noun| !noun.starts_with(['[', '<'])) {
        None => of_table(ANSWERS, word).map(|found| sentence(word, found)),
        Some(noun) => {
            let found = of_table(OF_NOUNS, word)?;
            let nouns = ["node", "target", "group", "client", "session", "lock", "config", "token"];
            let has_list = nouns.contains(&noun);
            has_list.then(|| sentence(&format!("{noun} {word}"), &format!("{noun} {found}")))
        }
    }
}

fn of_table(table: &[(&str, &'static str)], word: &str) -> Option<&'static str> {
    table.iter().find(|(known, _)| *known == word).map(|(_, answer)| *answer)
}

fn sentence(word: &str, answer: &str) -> String {
    match answer.starts_with(|first: char| first.is_ascii_uppercase()) {
        true => format!("unknown command `skep {word}`: {answer}"),
        false => format!("unknown command `skep {word}`: try `skep {answer}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::command;

    fn answer_to(line: &str) -> Option<String> {
        let error = command().try_get_matches_from(line.split(' ')).expect_err(line);
        answer(&error)
    }

    #[test]
    fn commands_of_other_tools_suggest_the_skep_command() {
        let answer = |line| answer_to(line).unwrap();
        assert_eq!(answer("skep status"), "unknown command `skep status`: try `skep health check`");
        assert!(answer("skep df").ends_with("try `skep health df`"));
        assert!(answer("skep version").ends_with("try `skep --version`"));
        assert!(answer("skep quota").ends_with("no quotas yet"));
        assert!(answer("skep node ls").ends_with("`skep node ls`: try `skep node list`"));
        assert_eq!(answer_to("skep helth"), None);
        assert_eq!(answer_to("skep entry lst"), None);
    }

    #[test]
    fn every_suggestion_is_an_existing_command() {
        for (word, line) in ANSWERS {
            let all = command();
            assert!(all.find_subcommand(word).is_none(), "`skep {word}` exists");
            let mut at = &all;
            for part in line.split(' ').filter(|part| !part.starts_with('-')) {
                if line.starts_with(|first: char| first.is_ascii_uppercase()) {
                    break;
                }
                at = at.find_subcommand(part).unwrap_or_else(|| panic!("{line}: no `{part}`"));
            }
        }
    }
}
