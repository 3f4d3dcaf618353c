//! Checks the language of comments, messages, test names and documents. A mark is a phrase that
//! often occurs in sentences that need a second reading. Examples are a pronoun for a program, and
//! a verb that hides the protocol step. The check counts the marks in each area, and fails if a
//! count rises above the number in `language-counts.txt`.
//!
//! The marks are regular expressions, which miss some bad sentences and match some good sentences.
//! So in areas that only developers read, some sentences may have marks, but their number must not
//! rise. `cargo xtask language --lower` stores the counts that have fallen. Texts for users must
//! have no marks ([`CLEAN`]).
//!
//! Words that the glossary forbids are checked in [`super::glossary`].

use super::Problems;
use super::rust_text::{Kind, prose};
use crate::repository::{Outcome, read, root};
use regex::Regex;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// A mark of an unclear sentence, and advice on how to rewrite the sentence.
struct Marker {
    pattern: &'static str,
    advice: &'static str,
    /// Whether the mark is also forbidden in texts for users. Marks that are not strict match too
    /// many good sentences.
    is_strict: bool,
}

const fn strict(pattern: &'static str, advice: &'static str) -> Marker {
    Marker { pattern, advice, is_strict: true }
}

const fn lenient(pattern: &'static str, advice: &'static str) -> Marker {
    Marker { pattern, advice, is_strict: false }
}

#[rustfmt::skip]
const MARKERS: &[Marker] = &[
    strict(r"^(Who|Whom|Whoever|Whose|What|Whatever|Which|Whichever)\b[^?]*$",
           "begin with the acting client, thread, ..., not with a who/what clause"),
    strict(r"\b(for|than|and|or|of|by|from|to|with|if|that|but|as) who(m|ever|mever)?\b",
           "name the acting client, thread, ... instead of `who`"),
    strict(r"(?i)\bwho(m)?ever\b", "name the acting client, thread, ... instead of `whoever`"),
    strict(r"(?i)\b(none: |is none\b|are none\b|none if\b|is no (size|number|rate|option)\b)",
           "write \"`None` means ...\", or \"expected ...\""),
    strict(r"\b(tell|tells|told|telling|hear|hears|heard)\b",
           "use the protocol's verb: send, reply, report, notify, log"),
    strict(r"(?i)\b(nobody|somebody|everybody|anybody)\b",
           "name the client, session, caller or thread"),
    strict(r"(?i)\b(he|him|his|himself)\b", "name the client, session, caller or thread"),
    strict(r"\b(has|have|had) the word\b|'s word\b",
           "use the verb of the protocol, such as grant or hold"),
    strict(r"See the (file|module)'s description", "repeat the sentence of that description"),
    lenient(r"\b[Tt]hose (that|of|who|which)\b", "repeat the noun instead of `those`"),
    lenient(r"\b(says|said|saying)\b", "use the protocol's verb: send, reply, report, notify, log"),
    lenient(r"\b(of|by|with|under) (which|whom|what)\b", "divide the sentence into two"),
    lenient(r"\b(is|are|was|were) to be\b|\bto be had\b",
            "name the acting client, thread, ..., and use the active voice"),
    lenient(r"\bso (long|many|much)\b", "name the parameter"),
];

static COMPILED: LazyLock<Vec<(Regex, &'static Marker)>> = LazyLock::new(|| {
    let compile = |it: &'static Marker| (Regex::new(it.pattern).expect("a valid pattern"), it);
    MARKERS.iter().map(compile).collect()
});

/// Words that test names must not contain, because a test name states a guarantee with a clear
/// subject.
const UNCLEAR_IN_TEST_NAMES: &[&str] = &[
    "who", "whom", "whose", "what", "whoever", "nobody", "somebody", "told", "he", "his", "hears",
];
/// Maximum length of a test name, in characters.
const MAX_TEST_NAME: usize = 60;

/// Areas that users read. These areas must have no strict marks.
const CLEAN: &[&str] = &[
    "README.md",
    "ARCHITECTURE.md",
    "docs/semantics.md",
    "docs/glossary.md",
    "docs/operations",
    "docs/tutorials",
    "docs/commands",
    MESSAGES,
];
/// The area with all string literals of the program: help texts, errors and log lines.
const MESSAGES: &str = "messages";

/// Paths that the check omits: files with quotations of forbidden phrases or of output, and
/// documents that programs write.
const EXEMPT: &[&str] = &[
    "crates/xtask/src/tidy/",
    "docs/studies/",
    "docs/commands/output",
    "docs/operations/output.md",
];

/// The file with the stored counts. Each line has an area and its count.
const COUNTS: &str = "crates/xtask/src/tidy/language-counts.txt";

/// A sentence with a mark. Has the file, the line and the text of the sentence, and advice on how
/// to rewrite it.
struct Finding {
    place: String,
    sentence: String,
    advice: &'static str,
}

/// Checks all files. Texts for users must have no marks, and other areas must not have more marks
/// than their stored counts.
///
/// # Errors
/// Fails if a file cannot be read.
pub(super) fn check(files: &[PathBuf]) -> Outcome<Problems> {
    let counts = read(COUNTS)?;
    let limits = limits(&counts);
    let mut problems = Problems::new();
    for (area, findings) in findings(files)? {
        let limit = limits.get(area.as_str()).copied().unwrap_or(0);
        if findings.len() <= limit {
            continue;
        }
        problems.push(format!(
            "{area}: {} sentences have marks of unclear language, and the limit is {limit}; \
             reword the new ones (`cargo xtask language {area}` lists all)",
            findings.len()
        ));
        if limit == 0 {
            problems.extend(findings.iter().map(describe));
        }
    }
    Ok(problems)
}

/// Prints the findings of the areas whose names begin with `prefix`.
///
/// # Errors
/// Fails if a file cannot be read.
pub(super) fn list(files: &[PathBuf], prefix: &str) -> Outcome {
    for (area, findings) in findings(files)? {
        if area.starts_with(prefix) {
            println!("{area}: {}", findings.len());
            findings.iter().for_each(|it| println!("  {}", describe(it)));
        }
    }
    Ok(())
}

/// Stores each current count that is lower than the stored count.
///
/// # Errors
/// Fails if a file cannot be read or written.
pub(super) fn lower(files: &[PathBuf]) -> Outcome {
    let counts = read(COUNTS).unwrap_or_default();
    let before = limits(&counts);
    let mut text = String::new();
    for (area, findings) in findings(files)? {
        let count = before.get(area.as_str()).copied().unwrap_or(usize::MAX).min(findings.len());
        if count > 0 && !CLEAN.contains(&area.as_str()) {
            text.push_str(&format!("{area} {count}\n"));
        }
    }
    std::fs::write(root().join(COUNTS), text)
        .map_err(|error| format!("cannot write {COUNTS}: {error}"))
}

fn limits(counts: &str) -> BTreeMap<&str, usize> {
    let lines = counts.lines().filter_map(|line| line.rsplit_once(' '));
    lines.filter_map(|(area, count)| Some((area, count.parse().ok()?))).collect()
}

fn describe(finding: &Finding) -> String {
    let sentence: String = finding.sentence.chars().take(120).collect();
    format!("{}: {}: {sentence}", finding.place, finding.advice)
}

/// Returns all findings by area.
fn findings(files: &[PathBuf]) -> Outcome<BTreeMap<String, Vec<Finding>>> {
    let mut areas: BTreeMap<String, Vec<Finding>> = BTreeMap::new();
    for path in files {
        let name = path.to_string_lossy();
        if EXEMPT.iter().any(|exempt| name.starts_with(exempt)) {
            continue;
        }
        if name.ends_with(".rs") {
            check_rust(path, &read(path)?, &mut areas);
        } else if name.ends_with(".md") {
            let area = area_of(path);
            let is_clean = CLEAN.contains(&area.as_str());
            let found = areas.entry(area).or_default();
            for (line, text) in markdown_paragraphs(&read(path)?) {
                found.extend(marked(&format!("{name}:{line}"), &text, is_clean));
            }
        }
    }
    Ok(areas)
}

/// Returns the area to which a path belongs: a crate, a directory of documents, or a file.
fn area_of(path: &Path) -> String {
    let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
    parts[..parts.len().min(2)].join("/")
}

fn check_rust(path: &Path, source: &str, areas: &mut BTreeMap<String, Vec<Finding>>) {
    let name = path.to_string_lossy();
    let area = area_of(path);
    let tests_from = tests_begin(source);
    for piece in prose(source) {
        let place = format!("{name}:{}", piece.line);
        let is_tested = is_test_file(&name) || piece.line >= tests_from;
        match piece.kind {
            Kind::Literal if !piece.text.contains(' ') => {}
            Kind::Literal if !is_tested && !is_unshipped(&name) => {
                areas.entry(MESSAGES.into()).or_default().extend(marked(&place, &piece.text, true));
            }
            _ => areas.entry(area.clone()).or_default().extend(marked(&place, &piece.text, false)),
        }
    }
    let tests = test_names(source).filter_map(|(line, test)| {
        let advice = unclear_test_name(test)?;
        Some(Finding { place: format!("{name}:{line}"), sentence: test.to_owned(), advice })
    });
    areas.entry(area).or_default().extend(tests);
}

/// Whether a file has only tests and their tools.
pub(super) fn is_test_file(name: &str) -> bool {
    name.contains("/tests/") || name.ends_with("/tests.rs") || name.contains("/examples/")
}

/// Whether a path is in a crate that users never run.
fn is_unshipped(name: &str) -> bool {
    ["crates/sim/", "crates/testkit/", "crates/xtask/", "fuzz/"]
        .iter()
        .any(|it| name.starts_with(it))
}

/// Returns the line at which the unit tests at the end of a source file begin.
fn tests_begin(source: &str) -> usize {
    source.lines().position(|line| line == "#[cfg(test)]").map_or(usize::MAX, |index| index + 1)
}

/// Returns a finding for each sentence of a paragraph that has a mark.
fn marked(place: &str, paragraph: &str, only_strict: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for sentence in sentences(paragraph) {
        let marker = COMPILED
            .iter()
            .filter(|(_, marker)| marker.is_strict || !only_strict)
            .find(|(pattern, _)| pattern.is_match(&sentence));
        findings.extend(marker.map(|(_, marker)| Finding {
            place: place.to_owned(),
            sentence: sentence.clone(),
            advice: marker.advice,
        }));
    }
    findings
}

/// Splits a paragraph into sentences. Replaces code in backticks by another text, because code is
/// not prose.
fn sentences(paragraph: &str) -> Vec<String> {
    let prose: String = paragraph
        .split('`')
        .enumerate()
        .map(|(at, it)| if at % 2 == 0 { it } else { "x" })
        .collect();
    let mut sentences = vec![String::new()];
    let mut before = ' ';
    for letter in prose.chars() {
        let begins = letter.is_uppercase() || letter == '[' || letter == '"';
        let last = sentences.last_mut().expect("the list starts with one sentence");
        if begins && before == ' ' && last.trim_end().ends_with(['.', ':', ';', '!', '?']) {
            sentences.push(String::new());
        }
        sentences.last_mut().expect("the list starts with one sentence").push(letter);
        before = letter;
    }
    sentences.iter().map(|it| it.trim().to_owned()).filter(|it| !it.is_empty()).collect()
}

/// Returns the paragraphs, list items and table cells of a document, each with the number of its
/// first line. Omits code blocks.
fn markdown_paragraphs(text: &str) -> Vec<(usize, String)> {
    let mut paragraphs: Vec<(usize, String)> = Vec::new();
    let mut is_code = false;
    let mut is_open = false;
    for (index, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        if trimmed.starts_with("```") {
            is_code = !is_code;
            is_open = false;
            continue;
        }
        if is_code || trimmed.is_empty() || trimmed.starts_with('#') || line.starts_with("    ") {
            is_open = false;
            continue;
        }
        if trimmed.starts_with('|') {
            let cells = trimmed.split('|').map(str::trim).filter(|cell| !cell.is_empty());
            paragraphs.extend(cells.map(|cell| (index + 1, cell.to_owned())));
            is_open = false;
            continue;
        }
        let is_item = trimmed.starts_with("- ") || trimmed.starts_with("* ");
        let text = trimmed.trim_start_matches(['-', '*', ' ']);
        match paragraphs.last_mut() {
            Some((_, open)) if is_open && !is_item => {
                open.push(' ');
                open.push_str(text);
            }
            _ => paragraphs.push((index + 1, text.to_owned())),
        }
        is_open = true;
    }
    paragraphs
}

/// Returns the names of the `#[test]` functions of a source file, with their line numbers.
fn test_names(source: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_test = false;
    source.lines().enumerate().filter_map(move |(index, line)| {
        let line = line.trim();
        if line == "#[test]" {
            is_test = true;
            return None;
        }
        let name = line.strip_prefix("fn ")?.split('(').next()?;
        std::mem::take(&mut is_test).then_some((index + 1, name))
    })
}

fn unclear_test_name(name: &str) -> Option<&'static str> {
    if name.len() > MAX_TEST_NAME {
        return Some("a test name has at most 60 characters");
    }
    let is_unclear = name.split('_').any(|word| UNCLEAR_IN_TEST_NAMES.contains(&word));
    is_unclear.then_some("name a test after what it guarantees: subject, verb, condition")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> usize {
        marked("x", text, false).len()
    }

    #[test]
    fn unclear_sentences_are_counted_once_each() {
        assert_eq!(count("Who waits is told. The client retries."), 1);
        assert_eq!(count("Nobody hears of it. He waits for those that wait."), 2);
        assert_eq!(count("None: whoever has it."), 1);
    }

    #[test]
    fn style_check_ignores_clear_sentences_and_code() {
        assert_eq!(count("Returns the sessions that have the file open."), 0);
        assert_eq!(count("The target sends `told` to each client."), 0);
        assert_eq!(count("Which file is open?"), 0);
    }

    #[test]
    fn table_cells_and_list_items_are_paragraphs_of_their_own() {
        let text = "One\ntwo.\n\n- three\n- four\n\n| five | six |\n```\nWho\n```\n";
        let found: Vec<_> = markdown_paragraphs(text).into_iter().map(|it| it.1).collect();
        assert_eq!(found, ["One two.", "three", "four", "five", "six"]);
    }

    #[test]
    fn test_names_are_guarantees_of_limited_length() {
        assert!(unclear_test_name("who_waits_is_served").is_some());
        assert!(unclear_test_name(&"a".repeat(MAX_TEST_NAME + 1)).is_some());
        assert!(unclear_test_name("a_waiter_is_served_in_order").is_none());
        let names: Vec<_> = test_names("    #[test]\n    fn a_b() {}\n fn c() {}").collect();
        assert_eq!(names, [(2, "a_b")]);
    }
}
