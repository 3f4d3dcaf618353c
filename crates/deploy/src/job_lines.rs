//! The lines of a batch script that ask for copies before the job:
//!
//! ```text
//! #SKEP stage-in /home/ada/input
//! #SKEP stage-in /home/ada/tables-%j:tables
//! ```
//!
//! The module does no I/O. It refuses everything that a shell would expand, because neither Slurm
//! nor Skep expands it. A line after the first command is refused too, because Slurm ignores such
//! lines, and a user who does not notice this would miss the input.

use skep_types::text::shown;
use skep_types::{Error, ErrorCode, Result};

/// The first word of such a line.
const MARK: &str = "#SKEP";
/// Maximum length of a line in bytes, as for a path.
const MOST_BYTES: usize = 4096;
/// Maximum number of lines of one script.
const MOST_LINES: usize = 32;
/// Maximum number of characters of a line in a message.
const MOST_SHOWN: usize = 80;
/// Characters with a meaning in shells. A path with one of them is an error of the user, or an
/// attempt to run a command.
const SHELL: &str = "'\"`$\\*?[]{}~;&|<>()!#";

/// Returns the copies that a batch script asks for, in the order of its lines. Each has the form
/// `SOURCE[:DESTINATION]`. `job` is the number of the job, which replaces `%j`.
///
/// # Errors
/// `Configuration` with the number of the first line that is not valid.
pub fn parse(script: &str, job: &str) -> Result<Vec<String>> {
    let mut copies = Vec::new();
    let mut has_begun = false;
    for (index, line) in script.split('\n').enumerate() {
        let Some(rest) = after_mark(line) else {
            has_begun |= !line.trim().is_empty() && !line.starts_with('#');
            continue;
        };
        let result = match (has_begun, copies.len() < MOST_LINES) {
            (true, _) => {
                Err("it follows the first command; move it to the top of the script".to_owned())
            }
            (false, false) => Err(format!("expected at most {MOST_LINES} lines with {MARK}")),
            (false, true) => copy_of(line, rest, job),
        };
        let copy = result.map_err(|reason| {
            let what = format!("line {} of the script: {}", index + 1, shown(line, MOST_SHOWN));
            Error::new(ErrorCode::Configuration, format!("invalid {what}: {reason}"))
        })?;
        copies.push(copy);
    }
    Ok(copies)
}

/// Returns the text after the mark. `None` means that the line is not for Skep.
fn after_mark(line: &str) -> Option<&str> {
    let rest = line.strip_prefix(MARK)?;
    (rest.is_empty() || rest.starts_with(|it: char| it.is_whitespace())).then_some(rest)
}

/// Returns the copy that a line asks for. `rest` is the text after the mark.
fn copy_of(line: &str, rest: &str, job: &str) -> Result<String, String> {
    if line.len() > MOST_BYTES {
        return Err(format!("it has {} bytes: expected at most {MOST_BYTES}", line.len()));
    }
    let is_bad = |it: &char| (it.is_control() && *it != '\t') || *it == '\u{FFFD}';
    if let Some(bad) = rest.chars().find(is_bad) {
        return Err(format!("a line contains the character {}", bad.escape_default()));
    }
    let (verb, value) = rest.trim().split_once([' ', '\t']).unwrap_or((rest.trim(), ""));
    if verb == "stage-out" {
        let what = "copy the results with `skep copy --job` in the script";
        return Err(format!("stage-out is not a line of a script; {what}"));
    }
    if verb != "stage-in" {
        return Err(format!("unknown word '{}': expected stage-in", shown(verb, MOST_SHOWN)));
    }
    let value = value.trim();
    if value.is_empty() {
        return Err(format!("expected {MARK} stage-in SRC[:DST]"));
    }
    if let Some(bad) = value.chars().find(|it| SHELL.contains(*it)) {
        return Err(format!("Skep does not expand '{bad}'; write the whole path without it"));
    }
    let value = value.replace("%j", job);
    if value.contains('%') {
        return Err("'%' is only valid in %j, the number of the job".to_owned());
    }
    if value.split(['/', ':']).any(|it| it == "..") {
        return Err("a path contains '..'; write the whole path without it".to_owned());
    }
    if value.starts_with("s3:") {
        let what = "copy objects with `skep copy` in the script";
        return Err(format!("the source is in an object store; {what}"));
    }
    if !value.starts_with('/') {
        return Err("the source is not an absolute path".to_owned());
    }
    if value.matches(':').count() > 1 {
        return Err(format!("it has two colons: expected {MARK} stage-in SRC[:DST]"));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_at_the_top_of_a_script_name_copies() {
        let script = "#!/bin/sh\n#SBATCH -N4\n#SKEP stage-in /home/a b/in\n\n\
            #SKEP\tstage-in  /data/in-%j:x \n# SKEP stage-in /not\n#SKEPTIC\nsrun x\n";
        assert_eq!(parse(script, "31").unwrap(), ["/home/a b/in", "/data/in-31:x"]);
        assert!(parse("", "31").unwrap().is_empty());
        assert!(parse("#!/bin/sh\ncat <<X\n #SKEP\nX\n", "1").unwrap().is_empty());
    }

    #[test]
    fn hostile_lines_are_refused_with_their_number() {
        let long = format!("stage-in /{}", "a".repeat(MOST_BYTES));
        let wide = "x".repeat(MOST_BYTES / 2);
        for (line, words) in [
            ("", "unknown word ''"),
            (&wide, "...': expected stage-in"),
            ("stage-in", "expected #SKEP stage-in SRC[:DST]"),
            ("ondemand", "unknown word 'ondemand'"),
            ("stage-out a:/b", "stage-out is not a line of a script"),
            ("stage-in $HOME/x", "does not expand '$'"),
            ("stage-in /a$(reboot)", "does not expand '$'"),
            ("stage-in /a`id`", "does not expand '`'"),
            ("stage-in '/a b'", "does not expand '''"),
            ("stage-in ~/x", "does not expand '~'"),
            ("stage-in /a/*", "does not expand '*'"),
            ("stage-in /a;id", "does not expand ';'"),
            ("stage-in /a/../../etc/shadow", "contains '..'"),
            ("stage-in /a:..", "contains '..'"),
            ("stage-in /a:b:c", "two colons"),
            ("stage-in --owner", "not an absolute path"),
            ("stage-in relative", "not an absolute path"),
            ("stage-in s3://bucket/in", "in an object store"),
            ("stage-in /a\r", "the character \\r"),
            ("stage-in /a\u{1b}[2J", "the character \\u{1b}"),
            ("stage-in /a%u", "only valid in %j"),
            (&long, "expected at most 4096"),
        ] {
            let error = parse(&format!("#!/bin/sh\n#SKEP {line}\n"), "31").unwrap_err();
            let text = error.context();
            assert!(text.contains(words) && text.contains("line 2"), "{line}: {text}");
            assert!(!text.contains(['\r', '\u{1b}']) && text.len() < 400, "{text}");
        }
        let many = "#SKEP stage-in /a\n".repeat(MOST_LINES + 1);
        assert!(parse(&many, "1").unwrap_err().context().contains("at most 32 lines"));
        let late = parse("#!/bin/sh\nmodule load x\n#SKEP stage-in /a\n", "1").unwrap_err();
        assert!(late.context().contains("line 3") && late.context().contains("first command"));
    }
}
