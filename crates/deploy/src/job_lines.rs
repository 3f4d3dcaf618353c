//! The lines of a batch script that ask for copies before and after the job:
//!
//! ```text
//! #SKEP stage-in /home/ada/input
//! #SKEP stage-in /home/ada/tables-%j:tables
//! #SKEP stage-out output:/home/ada/output-%j
//! ```
//!
//! The module does no I/O. The module refuses each character that a shell would expand, because
//! neither Slurm nor Skep expands it. The module also refuses a line after the first command,
//! because Slurm ignores such lines. A user who does not notice this would miss the input or lose
//! the results.

use skep_types::text::shown;
use skep_types::{Error, ErrorCode, Result};

/// The first word of each line that asks Skep for a copy.
const MARK: &str = "#SKEP";
/// Maximum length of a line in bytes, as for a path.
const MOST_BYTES: usize = 4096;
/// Maximum number of lines of one script.
const MOST_LINES: usize = 32;
/// Maximum number of characters that a message shows of a line.
const MOST_SHOWN: usize = 80;
/// Characters with a meaning in shells. A path with one of them is an error of the user, or an
/// attempt to run a command.
const SHELL: &str = "'\"`$\\*?[]{}~;&|<>()!#";

/// The copies that a script asks for, in the order of its lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobLines {
    /// Copies before the job, in the form `SOURCE[:DESTINATION]`.
    pub stage_in: Vec<String>,
    /// Copies after the job, in the form `SOURCE:DESTINATION`.
    pub stage_out: Vec<String>,
}

/// Returns the copies that a batch script asks for. `job` is the job id, which replaces
/// `%j`.
///
/// # Errors
/// `Configuration` with the number of the first line that is not valid.
pub fn parse(script: &str, job: &str) -> Result<JobLines> {
    let mut lines = JobLines::default();
    let mut has_begun = false;
    for (index, line) in script.split('\n').enumerate() {
        let Some(rest) = after_mark(line) else {
            has_begun |= !line.trim().is_empty() && !line.starts_with('#');
            continue;
        };
        let has_place = lines.stage_in.len() + lines.stage_out.len() < MOST_LINES;
        let result = match (has_begun, has_place) {
            (true, _) => {
                Err("the line follows the first command; move the line to the top of the script"
                    .to_owned())
            }
            (false, false) => Err(format!("expected at most {MOST_LINES} lines with {MARK}")),
            (false, true) => read(line, rest, job, &mut lines),
        };
        result.map_err(|reason| {
            let what = format!("line {} of the script: {}", index + 1, shown(line, MOST_SHOWN));
            Error::new(ErrorCode::Configuration, format!("invalid {what}: {reason}"))
        })?;
    }
    Ok(lines)
}

/// Returns the text after [`MARK`]. `None` means that the line is not for Skep.
fn after_mark(line: &str) -> Option<&str> {
    let rest = line.strip_prefix(MARK)?;
    (rest.is_empty() || rest.starts_with(|it: char| it.is_whitespace())).then_some(rest)
}

/// Adds the copy that a line requests. `rest` is the text after [`MARK`].
fn read(line: &str, rest: &str, job: &str, lines: &mut JobLines) -> Result<(), String> {
    if line.len() > MOST_BYTES {
        return Err(format!("the line has {} bytes: expected at most {MOST_BYTES}", line.len()));
    }
    let is_bad = |it: &char| (it.is_control() && *it != '\t') || *it == '\u{FFFD}';
    if let Some(bad) = rest.chars().find(is_bad) {
        return Err(format!(
            "the line contains the character {}, which is a control character or not UTF-8; remove \
             this character",
            bad.escape_default()
        ));
    }
    let (verb, value) = rest.trim().split_once([' ', '\t']).unwrap_or((rest.trim(), ""));
    let (list, form) = match verb {
        "stage-in" => (&mut lines.stage_in, "SRC[:DST]"),
        "stage-out" => (&mut lines.stage_out, "SRC:DST"),
        _ => {
            let verb = shown(verb, MOST_SHOWN);
            return Err(format!("unknown word '{verb}': expected stage-in or stage-out"));
        }
    };
    let value = value.trim();
    if value.is_empty() {
        return Err(format!("expected {MARK} {verb} {form}"));
    }
    if let Some(bad) = value.chars().find(|it| SHELL.contains(*it)) {
        return Err(format!(
            "Skep does not expand '{bad}'; write the whole path without this character"
        ));
    }
    let value = value.replace("%j", job);
    if value.contains('%') {
        return Err("'%' is only valid in %j, the number of the job; write the path without this \
                    character"
            .to_owned());
    }
    if value.split(['/', ':']).any(|it| it == "..") {
        return Err("a path contains '..'; write the whole path without it".to_owned());
    }
    if value.contains("s3:") {
        let what = "copy objects with `skep copy` in the script";
        return Err(format!("a path is in an object store; {what}"));
    }
    if value.matches(':').count() > 1 {
        return Err(format!("the line has two colons: expected {MARK} {verb} {form}"));
    }
    match verb {
        "stage-in" => check_input(&value)?,
        _ => check_output(&value)?,
    }
    list.push(value);
    Ok(())
}

fn check_input(value: &str) -> Result<(), String> {
    match value.starts_with('/') {
        true => Ok(()),
        false => Err("the source is not an absolute path".to_owned()),
    }
}

/// Checks a copy after the job. An empty source is refused, because it would mean the whole file
/// system, which a user hardly wants to copy.
fn check_output(value: &str) -> Result<(), String> {
    match value.split_once(':') {
        None => Err(format!("expected {MARK} stage-out SRC:DST")),
        Some(("" | "." | "/", _)) => {
            Err("expected a path of the job's file system before the colon".to_owned())
        }
        Some((_, destination)) if !destination.starts_with('/') => {
            Err("the destination is not an absolute path".to_owned())
        }
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stage_lines_at_the_top_of_a_script_are_parsed() {
        let script = "#!/bin/sh\n#SBATCH -N4\n#SKEP stage-in /home/a b/in\n\n\
            #SKEP\tstage-in  /data/in-%j:x \n# SKEP stage-in /not\n#SKEPTIC\n\
            #SKEP stage-out out:/home/a/out-%j\n#SKEP stage-out r/s:/home/a b/all\nsrun x\n";
        let lines = parse(script, "31").unwrap();
        assert_eq!(lines.stage_in, ["/home/a b/in", "/data/in-31:x"]);
        assert_eq!(lines.stage_out, ["out:/home/a/out-31", "r/s:/home/a b/all"]);
        assert_eq!(parse("", "31").unwrap(), JobLines::default());
        assert_eq!(parse("#!/bin/sh\ncat <<X\n #SKEP\nX\n", "1").unwrap(), JobLines::default());
    }

    #[test]
    fn invalid_stage_lines_are_refused_with_their_line_number() {
        let long = format!("stage-in /{}", "a".repeat(MOST_BYTES));
        let wide = "x".repeat(MOST_BYTES / 2);
        for (line, words) in [
            ("", "unknown word ''"),
            (&wide, "...': expected stage-in or"),
            ("stage-in", "expected #SKEP stage-in SRC[:DST]"),
            ("ondemand", "unknown word 'ondemand'"),
            ("stage-out", "expected #SKEP stage-out SRC:DST"),
            ("stage-out /home/a/out", "expected #SKEP stage-out SRC:DST"),
            ("stage-out :/home/a", "before the colon"),
            ("stage-out /:/home/a", "before the colon"),
            ("stage-out .:/home/a", "before the colon"),
            ("stage-out out:relative", "destination is not an absolute path"),
            ("stage-out out:/a/../b", "contains '..'"),
            ("stage-out out:s3://b/k", "in an object store"),
            ("stage-out out:/a:/b", "two colons"),
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
