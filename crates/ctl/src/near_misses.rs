//! Suggests a command of Skep for an unknown command with the same purpose, and existing names that
//! are similar to an unknown name.
//!
//! Users of other file systems and tools type the commands of these tools. The suggestion of the
//! command-line parser compares letters only. For `status`, the parser would suggest `study`.

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use skep_types::text::escape_controls;

/// Words that users type as the first argument, each with the command that Skep suggests. If Skep
/// lacks the feature, the suggestion is a sentence that begins with a capital letter.
const ANSWERS: &[(&str, &str)] = &[
    ("status", "health check"),
    ("alert", "health check"),
    ("alerts", "health check"),
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
    ("disk", "node disks"),
    ("disks", "node disks"),
    ("iostat", "node disks"),
    ("sessions", "session list"),
    ("cp", "copy"),
    ("start", "up"),
    ("run", "up"),
    ("stop", "down"),
    ("shutdown", "down"),
    ("unmount", "umount"),
    ("info", "entry info"),
    ("identify", "cluster info"),
    ("about", "cluster info"),
    ("id", "cluster info"),
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
    ("log", "node log-level"),
    ("logs", "node log-level"),
    ("log-level", "node log-level"),
    ("benchmark", "bench io"),
    ("storagebench", "bench storage"),
    ("netbench", "bench net"),
    ("version", "--version"),
    ("quota", "Skep has no quotas yet"),
    ("e2fsck", "fsck"),
    ("lfsck", "fsck"),
    ("snapshot", "Skep has no snapshots yet"),
    ("top", "stats"),
    ("jobstats", "stats"),
    ("metrics", "stats"),
    ("dashboard", "monitor"),
    ("fid2path", "entry path"),
    ("migrate", FILES_STAY),
    ("rebalance", FILES_STAY),
    ("balance", FILES_STAY),
    ("pool", "Skep has no storage pools yet; `skep entry set --targets` chooses targets"),
    ("mirror", MIRRORS),
    ("buddygroup", MIRRORS),
    ("drain", "target set-state"),
    ("rename", "node rename"),
    ("backup", "cluster backup"),
    ("restore", "cluster restore"),
    ("bundle", "debug bundle"),
    ("sosreport", "debug bundle"),
    ("upgrade", "deploy upgrade"),
];

const FILES_STAY: &str = "Skep has no command that moves files to other targets yet; \
                          docs/operations/administration.md shows how to empty a target";
const MIRRORS: &str =
    "Skep has no mirrored files yet; `skep group list` shows the copies of metadata";

/// Words that users type after a noun (such as `node`), each with a subcommand of some nouns. Skep
/// suggests the first subcommand in the list that the noun has.
const OF_NOUNS: &[(&str, &str)] = &[
    ("ls", "list"),
    ("show", "list"),
    ("status", "list"),
    ("info", "list"),
    ("ls", "status"),
    ("list", "status"),
    ("show", "status"),
    ("info", "status"),
    ("status", "check"),
    ("list", "check"),
    ("show", "check"),
    ("ls", "info"),
    ("list", "info"),
    ("show", "info"),
    ("status", "info"),
    ("stat", "info"),
    ("identify", "info"),
    ("id", "info"),
    ("uuid", "info"),
    ("rm", "remove"),
    ("delete", "remove"),
    ("rm", "revoke"),
    ("delete", "revoke"),
    ("remove", "revoke"),
    ("rm", "evict"),
    ("delete", "evict"),
    ("remove", "evict"),
    ("kill", "evict"),
    ("mv", "rename"),
    ("new", "create"),
    ("new", "add"),
    ("new", "replace"),
    ("drain", "set-state"),
    ("close", "set-state"),
    ("open", "set-state"),
    ("state", "set-state"),
    ("log", "log-level"),
    ("getstripe", "info"),
    ("setstripe", "set"),
    ("setpattern", "set"),
    ("fid2path", "path"),
];

/// Returns the suggestion for a command that does not exist. `all` is the definition of the whole
/// command line. `None` means that there is no suggestion, so that the command reports the parser's
/// own error.
pub(crate) fn answer(error: &clap::Error, all: &Command) -> Option<String> {
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
            let of_noun = all.find_subcommand(noun)?;
            let mut candidates = OF_NOUNS.iter().filter(|(known, _)| *known == word);
            let (_, found) =
                candidates.find(|(_, verb)| of_noun.find_subcommand(verb).is_some())?;
            Some(sentence(&format!("{noun} {word}"), &format!("{noun} {found}")))
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

/// Maximum number of names in a hint.
const MAX_HINTS: usize = 3;
/// Maximum number of characters of a compared name. The time of a comparison is proportional to the
/// product of both lengths.
const MAX_COMPARED_CHARS: usize = 64;
/// Two names are similar if one name contains the other name, and the shorter name has at least
/// this number of characters.
const SHORTEST_PART: usize = 3;

/// Returns the names in `known` that resemble `name`, the most similar first, as an addition to an
/// error message: ` (similar: storage-1, storage-2)`. The text is empty if no name is similar.
pub(crate) fn hint<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let mut similar: Vec<(usize, &str)> = known
        .into_iter()
        .filter_map(|other| difference(name, other).map(|difference| (difference, other)))
        .collect();
    similar.sort_unstable();
    similar.dedup();
    let names: Vec<_> =
        similar.iter().take(MAX_HINTS).map(|(_, name)| escape_controls(name)).collect();
    match names.is_empty() {
        true => String::new(),
        false => format!(" (similar: {})", names.join(", ")),
    }
}

/// Returns the number of changes that turn one name into the other name. A change inserts, removes
/// or replaces a character, or swaps two characters. Ignores case. `None` means that the names are
/// not similar.
fn difference(one: &str, other: &str) -> Option<usize> {
    let lower = |text: &str| text.to_lowercase().chars().collect::<Vec<char>>();
    let (a, b) = (lower(one), lower(other));
    if a.len().max(b.len()) > MAX_COMPARED_CHARS {
        return None;
    }
    // `rows[i][j]` is the difference between the first `i` characters of `a` and the first `j`
    // characters of `b`.
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    let changes = rows[a.len()][b.len()];
    let shorter = a.len().min(b.len());
    let contains = |whole: &[char], part: &[char]| whole.windows(part.len()).any(|it| it == part);
    let is_part = shorter >= SHORTEST_PART && (contains(&a, &b) || contains(&b, &a));
    (is_part || changes <= (shorter / 3).min(2)).then_some(changes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::command;

    #[test]
    fn hint_lists_the_most_similar_names_first() {
        let known = ["storage-1", "storage-12", "metadata-1", "a\u{1b}[2J", "x"];
        assert_eq!(hint("metadta-1", known), " (similar: metadata-1)");
        assert_eq!(hint("storgae-1", known), " (similar: storage-1, storage-12)");
        assert_eq!(hint("Storage-1", known), " (similar: storage-1, storage-12)");
        assert_eq!(hint("storage", known), " (similar: storage-1, storage-12)");
        assert_eq!(hint("a\u{1b}[2", known), " (similar: a\\u{1b}[2J)");
        assert_eq!(hint("management", known), "");
        assert_eq!(hint("", known), "");
        assert_eq!(hint(&"x".repeat(100), known), "");
    }

    fn answer_to(line: &str) -> Option<String> {
        let error = command().try_get_matches_from(line.split(' ')).expect_err(line);
        answer(&error, &command())
    }

    #[test]
    fn commands_of_other_tools_suggest_the_skep_command() {
        let answer = |line| answer_to(line).unwrap();
        assert_eq!(answer("skep status"), "unknown command `skep status`: try `skep health check`");
        assert!(answer("skep df").ends_with("try `skep health df`"));
        assert!(answer("skep version").ends_with("try `skep --version`"));
        assert!(answer("skep quota").ends_with("no quotas yet"));
        assert!(answer("skep node ls").ends_with("`skep node ls`: try `skep node list`"));
        assert!(answer("skep identify").ends_with("try `skep cluster info`"));
        assert!(answer("skep cluster uuid").ends_with("try `skep cluster info`"));
        for (line, suggested) in [
            ("skep cluster status", "skep cluster info"),
            ("skep management ls", "skep management status"),
            ("skep health show", "skep health check"),
            ("skep transaction show", "skep transaction list"),
            ("skep entry stat", "skep entry info"),
            ("skep node delete", "skep node remove"),
            ("skep node mv", "skep node rename"),
            ("skep client remove", "skep client evict"),
            ("skep token rm", "skep token revoke"),
            ("skep target drain", "skep target set-state"),
            ("skep target ls", "skep target list"),
        ] {
            assert_eq!(answer(line), format!("unknown command `{line}`: try `{suggested}`"));
        }
        assert!(answer("skep migrate").contains("shows how to empty a target"));
        assert!(answer("skep mirror").contains("the copies of metadata"));
        assert_eq!(answer_to("skep bench ls"), None);
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
        let all = command();
        for (word, verb) in OF_NOUNS {
            let mut nouns = all.get_subcommands();
            let exists = nouns.any(|noun| noun.find_subcommand(verb).is_some());
            assert!(exists, "for `{word}`: no noun has `{verb}`");
        }
    }
}
