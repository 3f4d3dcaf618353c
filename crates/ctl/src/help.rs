//! The command line with an example for each command, and what is made from it: help, completion,
//! and the pages in docs/commands. Manual pages are made in `manual`.
//!
//! Examples stand in one table here and not beside each verb, so that a test can try them all.

use crate::cli::Cli;
use crate::cmd::mount::options::{COMMON, OWN};
use clap::{Command, CommandFactory, FromArgMatches};
use std::fmt::Write;

/// Columns of help in pages, where no terminal says how wide it is.
const PAGE_COLUMNS: usize = 100;

/// Columns of the explanation of a mount option.
const TEXT_COLUMNS: usize = 70;

/// The command that has a list of mount options.
pub(crate) const MOUNT: &str = "skep mount";

/// A command and its examples: what is to be done, and the line that does it.
type Examples = (&'static str, &'static [(&'static str, &'static str)]);

const EXAMPLES: &[Examples] = &[
    (
        "skep up",
        &[
            ("a cluster in ./skep-data, mounted on ./skep-mnt, until Ctrl-C", "skep up"),
            ("in the background, with 4 metadata targets", "skep up --detach --metadata-targets 4"),
            (
                "sync each change of the namespace before it is answered",
                "skep up --set metadata:metadata.sync=always",
            ),
            (
                "with the second storage service in a failure domain",
                "skep up --set storage-2:node.domain=rack-2",
            ),
        ],
    ),
    ("skep down", &[("stop the cluster in ./skep-data", "skep down")]),
    (
        "skep mount",
        &[
            ("a cluster on this host", "skep mount --cluster ./skep-data --detach /mnt/skep"),
            (
                "one elsewhere, read-only",
                "skep mount --cluster 10.0.0.1:7400 --token-file token -o ro --detach /mnt/skep",
            ),
            (
                "only check the command and the token",
                "skep mount --dry-run --cluster 10.0.0.1:7400 --token-file token /mnt/skep",
            ),
        ],
    ),
    (
        "skep umount",
        &[
            ("unmount", "skep umount /mnt/skep"),
            ("even while programs use it", "skep umount --lazy /mnt/skep"),
        ],
    ),
    (
        "skep node list",
        &[
            ("of the cluster that is mounted here, or lies in ./skep-data", "skep node list"),
            (
                "for a script",
                "skep node list --cluster 10.0.0.1:7400 --token-file token --output json",
            ),
        ],
    ),
    (
        "skep node log-level",
        &[
            ("what all services log", "skep node log-level all"),
            ("more of one", "skep node log-level storage-1 debug"),
            ("more of one part of a mount", "skep node log-level n12 info,skep_client=debug"),
            ("as its settings say", "skep node log-level storage-1 default"),
        ],
    ),
    ("skep client list", &[("all mounts", "skep client list")]),
    (
        "skep client files",
        &[
            ("everything that is open", "skep client files"),
            ("what client 7 has open", "skep client files 7"),
        ],
    ),
    (
        "skep client evict",
        &[
            ("one that hangs and holds a lock", "skep client evict 7"),
            ("what would be given back?", "skep client evict 7 8 --dry-run"),
            ("one that is alive, though its programs get errors", "skep client evict 7 --force"),
        ],
    ),
    (
        "skep session list",
        &[
            ("all sessions", "skep session list"),
            ("those of client 7", "skep session list --client 7"),
        ],
    ),
    (
        "skep lock list",
        &[
            ("everything that is locked", "skep lock list"),
            ("in one file", "skep lock list /mnt/skep/database"),
        ],
    ),
    ("skep target list", &[("all targets with state and place", "skep target list")]),
    ("skep group list", &[("all groups with their members", "skep group list")]),
    ("skep health df", &[("room on all targets", "skep health df")]),
    (
        "skep health check",
        &[
            ("is all well? The exit code says it too", "skep health check"),
            (
                "for a monitor",
                "skep health check --cluster 10.0.0.1:7400 --token-file token --output json",
            ),
        ],
    ),
    (
        "skep entry info",
        &[
            ("where a file lies", "skep entry info /mnt/skep/file"),
            ("with chunk files and times", "skep entry info --verbose /mnt/skep/file"),
        ],
    ),
    (
        "skep entry set",
        &[
            (
                "new files in a directory: 8 targets, chunks of 1 MiB",
                "skep entry set --num-targets 8 --chunk-size 1MiB /mnt/skep/results",
            ),
            (
                "one target for the first 16 MiB of each file, all targets for the rest",
                "skep entry set --pattern count=1/from=16MiB,count=all /mnt/skep/results",
            ),
            ("as the cluster's settings say", "skep entry set --inherit /mnt/skep/results"),
        ],
    ),
    (
        "skep entry create",
        &[
            (
                "an empty file over all targets",
                "skep entry create --num-targets all /mnt/skep/checkpoint",
            ),
            ("on two targets by name", "skep entry create --targets 3,7 /mnt/skep/file"),
        ],
    ),
    (
        "skep entry map",
        &[
            ("where a file lies", "skep entry map /mnt/skep/file"),
            (
                "who has which part of its first 64 MiB, for a scheduler",
                "skep entry map --offset 0 --length 64MiB --output json /mnt/skep/file",
            ),
        ],
    ),
    ("skep entry who", &[("who has a file open", "skep entry who /mnt/skep/file")]),
    (
        "skep cluster format",
        &[(
            "once, when all metadata services have registered",
            "skep cluster format --cluster /srv/skep/management",
        )],
    ),
    (
        "skep cluster token",
        &[("on the management host", "skep cluster token --cluster /srv/skep/management")],
    ),
    ("skep config list", &[("all settings", "skep config list")]),
    ("skep config get", &[("one setting", "skep config get lease")]),
    (
        "skep config set",
        &[
            ("new files get chunks of 1 MiB", "skep config set chunk-size 1MiB"),
            ("would that be possible?", "skep config set lease 20s --dry-run"),
            ("as in a new cluster", "skep config set chunk-size default"),
        ],
    ),
    ("skep study plans", &[("what is ready to run", "skep study plans")]),
    (
        "skep study plan",
        &[("write it to a file, and change what your system needs", "skep study plan scenario1")],
    ),
    (
        "skep bench io",
        &[
            (
                "4 processes, a file each, 1 MiB at a time, written and read",
                "skep bench io --processes-per-host 4 -F -t 1m -b 256m -e -o /mnt/skep/test",
            ),
            (
                "one file from three hosts, read by others than wrote it, and compared",
                "skep bench io --hosts a,b,c -t 1m -b 1g -C -e -R -o /mnt/skep/test",
            ),
            (
                "random 4 KiB past the cache, five times, every single result as JSON",
                "skep bench io -F -z -B -t 4k -b 64m -i 5 -o /mnt/skep/test --output json",
            ),
            (
                "the same by IOR itself, in the same protocol",
                "skep bench io --tool ior -F -z -B -t 4k -b 64m -i 5 -o /mnt/skep/test",
            ),
        ],
    ),
    (
        "skep bench net",
        &[
            ("this host to all services, and services to each other", "skep bench net"),
            (
                "three hosts to two services, each pair five times by itself",
                "skep bench net --hosts a,b,c --services storage-1,storage-2 --only-from-hosts \
                 --repetitions 5",
            ),
            (
                "all hosts of a lab with all services at the same time",
                "skep bench net --lab lab --all-at-once --messages 256 --output json",
            ),
        ],
    ),
    (
        "skep bench storage",
        &[
            ("all targets at the same time", "skep bench storage"),
            (
                "two targets, one after the other, large files, five times",
                "skep bench storage --targets 3,7 --one-by-one --size 4g --repetitions 5",
            ),
        ],
    ),
    (
        "skep bench slow-targets",
        &[
            ("measure and judge; fails if one is slow", "skep bench slow-targets --repetitions 5"),
            (
                "judge what was measured before",
                "skep bench slow-targets --result storage.json --slower-by 20",
            ),
        ],
    ),
    (
        "skep bench metadata",
        &[
            (
                "4 processes, a tree each, 1000 files in each directory",
                "skep bench metadata --processes-per-host 4 -u -F -I 1000 -d /mnt/skep",
            ),
            (
                "from three hosts; each looks at what the next has made",
                "skep bench metadata --hosts a,b,c -n 10000 -N 1 -i 3 -d /mnt/skep",
            ),
        ],
    ),
    (
        "skep study run",
        &[
            ("a short study in a lab of its own", "skep study run small"),
            ("the study that this follows", "skep study run scenario1 --directory results"),
            ("go on with it", "skep study run scenario1 --directory results --resume"),
            (
                "a plan of your own on a mounted file system",
                "skep study run ./mine.toml --mount /mnt/skep/study --hosts n1,n2,n3,n4",
            ),
            ("what would be run?", "skep study run scenario1 --dry-run"),
        ],
    ),
    (
        "skep study report",
        &[
            ("a page for people, skep-study/report/index.html", "skep study report skep-study"),
            ("for a program", "skep study report skep-study --output json"),
        ],
    ),
    (
        "skep lab up",
        &[
            ("a small lab: two servers, two clients", "skep lab up"),
            ("a ready shape", "skep lab up scenario1"),
            (
                "what would be made of a shape with other rates?",
                "skep lab up scenario2 --target-rate 30MB/s --target-variability 20% --dry-run",
            ),
            (
                "by options alone, beside another lab",
                "skep lab up --servers 2 --targets 4 --clients 8 --link 400Mbit --name two",
            ),
        ],
    ),
    (
        "skep lab run",
        &[
            ("on all client hosts at once", "skep lab run -- stat --file-system ."),
            ("on one, for a minute at most", "skep lab run --host c1 --timeout 60s -- ls -l"),
        ],
    ),
    (
        "skep lab status",
        &[
            ("is all of it up?", "skep lab status"),
            ("for a script", "skep lab status --name two --output json"),
        ],
    ),
    (
        "skep lab down",
        &[
            ("remove the lab and its data", "skep lab down"),
            ("what would go?", "skep lab down --all --dry-run"),
        ],
    ),
    ("skep lab shapes", &[("the ready shapes", "skep lab shapes")]),
    (
        "skep management",
        &[
            ("a settings file to begin with", "skep management --print-sample"),
            (
                "make the directory of a new cluster",
                "skep management --init --config /etc/skep/management-a.toml",
            ),
            ("serve", "skep management --config /etc/skep/management-a.toml"),
        ],
    ),
    (
        "skep metadata",
        &[
            ("a settings file to begin with", "skep metadata --print-sample"),
            (
                "make the directories of a new service",
                "skep metadata --init --config /etc/skep/metadata-a.toml --token-file token",
            ),
            ("serve", "skep metadata --config /etc/skep/metadata-a.toml"),
        ],
    ),
    (
        "skep storage",
        &[
            ("a settings file to begin with", "skep storage --print-sample"),
            (
                "make the directories of a new service",
                "skep storage --init --config /etc/skep/storage-a.toml --token-file token",
            ),
            ("serve", "skep storage --config /etc/skep/storage-a.toml"),
        ],
    ),
    (
        "skep completion",
        &[
            (
                "bash, for all users: write it to /usr/share/bash-completion/completions/skep",
                "skep completion bash",
            ),
            ("zsh: write it to a directory of $fpath as _skep", "skep completion zsh"),
            ("fish: write it to ~/.config/fish/completions/skep.fish", "skep completion fish"),
        ],
    ),
    ("skep man", &[("all manual pages", "skep man --dir /usr/local/share/man")]),
];

/// The command line, with examples.
pub(crate) fn command() -> Command {
    with_examples(Cli::command(), "skep")
}

/// What was typed.
///
/// # Errors
/// What is wrong with it; or the help that was asked for.
pub(crate) fn parse() -> Result<Cli, clap::Error> {
    let mut matches = command().try_get_matches()?;
    Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command()))
}

fn names(command: &Command) -> Vec<String> {
    command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect()
}

fn with_examples(command: Command, path: &str) -> Command {
    let command = names(&command).iter().fold(command, |command, name| {
        command.mut_subcommand(name, |sub| with_examples(sub, &format!("{path} {name}")))
    });
    let Some(examples) = examples(path) else { return command };
    let text = format!("Examples:\n{examples}");
    match path {
        MOUNT => command.after_long_help(format!("{}\n{text}", mount_options())),
        _ => command,
    }
    .after_help(text)
}

/// The examples of a command, two lines for each.
pub(crate) fn examples(path: &str) -> Option<String> {
    let (_, examples) = EXAMPLES.iter().find(|(of, _)| *of == path)?;
    let lines = examples.iter().map(|(what, line)| format!("  # {what}\n  {line}"));
    Some(lines.collect::<Vec<_>>().join("\n"))
}

/// What can stand behind `-o`, and what it means.
pub(crate) fn mount_option_list() -> Vec<(String, &'static str)> {
    let own = OWN.iter().map(|option| {
        let value = option.value.map(|value| format!("={value}"));
        (format!("{}{}", option.name, value.unwrap_or_default()), option.meaning)
    });
    own.chain(COMMON.iter().map(|(names, meaning)| ((*names).to_owned(), *meaning))).collect()
}

fn mount_options() -> String {
    let mut text = String::from("Mount options, for --options and in /etc/fstab:\n");
    for (option, meaning) in mount_option_list() {
        let _ = writeln!(text, "  {option}");
        let mut line = String::new();
        for word in meaning.split(' ') {
            if line.len() + word.len() > TEXT_COLUMNS {
                let _ = writeln!(text, "         {line}");
                line.clear();
            }
            line = line + " " + word;
        }
        let _ = writeln!(text, "         {line}");
    }
    text
}

/// A page for each command that does something: its name with dashes, and its text.
pub(crate) fn pages() -> Vec<(String, String)> {
    let mut pages = Vec::new();
    let mut command = command().term_width(PAGE_COLUMNS).disable_help_subcommand(true);
    command.build();
    add_pages(&command, "skep", &mut pages);
    pages
}

fn add_pages(command: &Command, path: &str, pages: &mut Vec<(String, String)>) {
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        add_pages(sub, &format!("{path} {}", sub.get_name()), pages);
    }
    if command.has_subcommands() {
        return;
    }
    let help = command.clone().render_long_help().to_string();
    let help: String = help.lines().map(|line| line.trim_end().to_owned() + "\n").collect();
    let text = format!("# `{path}`\n\n```text\n{}\n```\n", help.trim_end());
    pages.push((path.replace(' ', "-"), text));
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn every_command_has_examples_and_each_of_them_can_be_typed() {
        let pages = pages();
        let named: Vec<String> = EXAMPLES.iter().map(|(path, _)| path.replace(' ', "-")).collect();
        for (name, text) in &pages {
            assert!(named.contains(name), "{name} has no example");
            assert!(text.contains("Examples:"), "{text}");
        }
        assert_eq!(named.len(), pages.len(), "an example is of no command: {named:?}");
        for (path, examples) in EXAMPLES {
            for (_, line) in *examples {
                assert!(line.starts_with(path), "{line}");
                Cli::try_parse_from(line.split(' ')).unwrap_or_else(|why| panic!("{line}: {why}"));
            }
        }
    }
}
