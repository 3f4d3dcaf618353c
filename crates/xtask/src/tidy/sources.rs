//! Checks of source text, line by line.

use super::Problems;

/// Maximum number of lines of a source file, not counting the tests at its end.
const MAX_LINES: usize = 500;
/// Files that may be longer than the limit, each with the reason. These files are tests, and tables
/// that a reader reads one entry at a time.
const LONGER: &[(&str, &str)] = &[
    ("crates/testkit/tests/", "black-box tests: long sequences of commands"),
    ("crates/fuse/tests/", "a whole file system in memory, as a test double"),
    ("crates/sim/src/", "the reference model and its checks, never shipped"),
];
/// Maximum number of fields of a struct in [`CORE_CRATES`].
const MAX_FIELDS: usize = 15;
/// Structs that may have more fields, each with the reason.
const LARGER_STRUCTS: &[(&str, &str)] = &[
    ("InitOut", "layout of the kernel"),
    ("Attr", "layout of the kernel"),
    ("Statx", "layout of the kernel"),
    ("SetAttrIn", "layout of the kernel"),
];
/// Crates whose state machines and tables must stay small enough to understand.
const CORE_CRATES: &[&str] = &[
    "cluster",
    "env",
    "rpc",
    "store",
    "service",
    "management",
    "metadata",
    "storage",
    "client",
    "fuse",
];
/// Maximum length of a line, in characters.
const MAX_COLUMNS: usize = 100;
/// Crates that may contain unsafe code.
const UNSAFE_CRATES: &[&str] = &["env", "fuse"];
/// Crates that must not use files, sockets, threads, clocks or the environment.
const PURE_CRATES: &[&str] = &["types", "wire", "format", "cluster", "stats"];
const IMPURE_MODULES: &[&str] = &["fs", "net", "thread", "env", "process"];
const IMPURE_WORDS: &[&str] = &["SystemTime", "Instant::now", "tokio"];

/// Returns the directory below `crates/` that contains a file.
fn crate_of(name: &str) -> Option<&str> {
    name.strip_prefix("crates/")?.split('/').next()
}

/// Checks a text file of any kind for marks of unfinished work, and for paths of a particular
/// machine.
pub(super) fn check_text(name: &str, text: &str) -> Problems {
    // The mark is assembled from two parts, so that this file does not contain the mark itself.
    let todo = concat!("TO", "DO");
    let never = [concat!("FIX", "ME"), concat!("X", "XX"), concat!("db", "g!(")];
    let machine = [concat!("/wo", "rk/"), concat!("/fa", "rm/"), concat!("/ro", "ot/")];
    let mut problems = Problems::new();
    for (index, line) in text.lines().enumerate() {
        let mut found = |what: String| problems.push(format!("{name}:{}: {what}", index + 1));
        if line.contains(todo) && !has_issue(line, todo) {
            found(format!(
                "{todo} without an issue: write {todo}(#12) with the number of the issue"
            ));
        }
        for word in never.iter().filter(|word| line.contains(**word)) {
            found(format!("{word} marks unfinished work; remove it"));
        }
        for path in machine.iter().filter(|path| line.contains(**path)) {
            found(format!("{path} is a path of a particular machine; remove it"));
        }
    }
    problems
}

/// Whether each mark in a line is followed by an issue number.
fn has_issue(line: &str, mark: &str) -> bool {
    line.split(mark).skip(1).all(|rest| {
        let number = rest.strip_prefix("(#").and_then(|rest| rest.split_once(')'));
        number.is_some_and(|(number, _)| number.parse::<u32>().is_ok())
    })
}

/// Checks a Rust source file.
pub(super) fn check_rust(name: &str, text: &str) -> Problems {
    let mut problems = Problems::new();
    if !text.lines().take(3).any(|line| line.starts_with("//!")) {
        problems
            .push(format!("{name}: begin the file with a //! comment that describes its contents"));
    }
    let code_lines = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or(text).lines();
    let length = code_lines.count();
    let may_be_longer = LONGER.iter().any(|(prefix, _)| name.starts_with(prefix));
    if length > MAX_LINES && !may_be_longer {
        problems.push(format!(
            "{name}: the file has {length} lines without tests, and the limit is {MAX_LINES}; \
             divide it"
        ));
    }
    if CORE_CRATES.contains(&crate_of(name).unwrap_or_default()) {
        problems.extend(large_structs(name, text));
    }
    for (index, line) in text.lines().enumerate() {
        let mut found = |what: &str| problems.push(format!("{name}:{}: {what}", index + 1));
        // Lines with a string literal may be longer than the limit. The formatter cannot break
        // string literals, and string literals that are broken by hand can be harder to read.
        let has_text = line.contains('"') || line.ends_with('\\');
        if line.chars().count() > MAX_COLUMNS && !has_text {
            found("the line is longer than 100 columns; break it");
        }
        if !line.is_ascii() {
            found("the line has a character outside ASCII; write it as \\u{...}");
        }
        if line.trim_start().starts_with(concat!("#[ign", "ore")) {
            found("the test is ignored, so it checks nothing; remove it or make it run");
        }
        let code = line.split("//").next().unwrap_or(line);
        let crate_name = crate_of(name).unwrap_or_default();
        if PURE_CRATES.contains(&crate_name) && is_impure(code) {
            found("this crate must not use files, sockets, threads, the clock or the environment");
        }
        if !UNSAFE_CRATES.contains(&crate_name) && is_unsafe(code) {
            found("only the crates env and fuse may have unsafe code");
        }
    }
    problems.extend(discarded_matches(name, text));
    problems
}

/// Returns a problem for each struct that has more than [`MAX_FIELDS`] fields.
fn large_structs(name: &str, text: &str) -> Problems {
    let mut problems = Problems::new();
    let mut open: Option<(&str, usize, usize)> = None;
    for (index, line) in text.lines().enumerate() {
        let code = line.trim();
        let declared = code.strip_prefix("pub ").or_else(|| code.strip_prefix("pub(crate) "));
        let declared = declared.or_else(|| code.strip_prefix("pub(super) ")).unwrap_or(code);
        match (&mut open, declared.strip_prefix("struct ")) {
            (_, Some(title)) if line.ends_with('{') => open = Some((title, index + 1, 0)),
            (Some((title, at, fields)), _) if code == "}" => {
                let name_of = title.trim_end_matches(" {");
                let is_listed = LARGER_STRUCTS.iter().any(|(listed, _)| *listed == name_of);
                if *fields > MAX_FIELDS && !is_listed {
                    problems.push(format!(
                        "{name}:{at}: struct {} has {fields} fields; group them, {MAX_FIELDS} are \
                         allowed",
                        name_of
                    ));
                }
                open = None;
            }
            (Some((_, _, fields)), _) if is_field(declared) => *fields += 1,
            _ => {}
        }
    }
    problems
}

/// Whether a line within a struct begins a field.
fn is_field(code: &str) -> bool {
    let name = code.split_once(':').map_or("", |(name, _)| name);
    !name.is_empty() && name.chars().all(|letter| letter.is_alphanumeric() || letter == '_')
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
}

fn is_impure(code: &str) -> bool {
    let named = code.split("std::").skip(1).any(|path| match path.strip_prefix('{') {
        Some(list) => list
            .split(['{', '}', ','])
            .any(|item| IMPURE_MODULES.contains(&words(item.trim()).next().unwrap_or_default())),
        None => IMPURE_MODULES.contains(&words(path).next().unwrap_or_default()),
    });
    named || IMPURE_WORDS.iter().any(|word| code.contains(word))
}

/// Whether a line contains or allows unsafe code. The word `unsafe` in a string literal or in the
/// name of a lint does not count.
fn is_unsafe(code: &str) -> bool {
    let opens = ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern", "unsafe trait"];
    let is_quoted = code.contains('"');
    (!is_quoted && opens.iter().any(|open| code.contains(open)))
        || code.contains(concat!("allow(unsafe", "_code)"))
        || code.contains(concat!("expect(unsafe", "_code"))
}

/// Finds each `matches!` that is a whole statement. The program drops the result of such a
/// statement, so a test with such a statement cannot fail.
fn discarded_matches(name: &str, text: &str) -> Problems {
    let mut problems = Problems::new();
    let mut before = ';';
    let mut at = 0;
    for (index, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or(line).trim();
        let is_statement = matches!(before, ';' | '{' | '}') && code.starts_with("matches!(");
        if is_statement && ends_with_semicolon(&text[at + line.len() - line.trim_start().len()..]) {
            problems.push(format!(
                "{name}:{}: the result of `matches!` is not used; put it into `assert!`",
                index + 1
            ));
        }
        before = code.chars().last().unwrap_or(before);
        at += line.len() + 1;
    }
    problems
}

/// Whether a semicolon follows the first pair of parentheses in a text.
fn ends_with_semicolon(text: &str) -> bool {
    let mut depth = 0;
    for (index, letter) in text.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' if depth == 1 => return text[index + 1..].trim_start().starts_with(';'),
            ')' => depth -= 1,
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_unfinished_work_are_refused() {
        let todo = concat!("TO", "DO");
        let count = |line: &str| check_text("a.rs", line).len();
        assert_eq!(count(&format!("// {todo}(#12): later")), 0);
        for bad in ["", ": x", "(#x)", "(12)"] {
            assert_eq!(count(&format!("// {todo}{bad}")), 1, "{bad}");
        }
        assert_eq!(count(concat!("let x = db", "g!(y);")), 1);
        assert_eq!(count(concat!("see /wo", "rk/main")), 1);
    }

    #[test]
    fn uses_of_clock_and_files_are_found_in_every_spelling() {
        for bad in ["use std::fs;", "std::net::TcpStream", "use std::{fmt, thread};", "SystemTime"]
        {
            assert!(is_impure(bad), "{bad}");
        }
        for good in ["use std::fmt;", "use std::{fmt, mem};", "let fs = 1;", "std::mem::size_of"] {
            assert!(!is_impure(good), "{good}");
        }
    }

    #[test]
    fn unsafe_code_is_found_but_not_the_word_in_text() {
        assert!(is_unsafe("let x = unsafe { y };"));
        assert!(!is_unsafe("unsafe_op_in_unsafe_fn"));
    }

    #[test]
    fn matches_macro_is_refused_only_as_a_statement() {
        let count = |text: &str| discarded_matches("a.rs", text).len();
        assert_eq!(count("fn f() {\n    matches!(x, Some(_));\n}"), 1);
        assert_eq!(count("fn f() {\n    matches!(\n        x,\n        Some(1),\n    );\n}"), 1);
        assert_eq!(count("fn f() -> bool {\n    matches!(x, Some(_))\n}"), 0);
        assert_eq!(count("let a =\n    matches!(x, Some(_));"), 0);
        assert_eq!(count("assert!(matches!(x, Some(_)));"), 0);
    }

    #[test]
    fn structs_with_many_fields_are_refused_in_core_crates() {
        let fields = "    /// A field: with a doc.\n    pub(crate) a: u8,\n";
        let of = |count| format!("//! X.\npub struct A {{\n{}}}\n", fields.repeat(count));
        assert_eq!(check_rust("crates/client/src/a.rs", &of(MAX_FIELDS)).len(), 0);
        assert_eq!(check_rust("crates/client/src/a.rs", &of(MAX_FIELDS + 1)).len(), 1);
        assert_eq!(check_rust("crates/ctl/src/a.rs", &of(MAX_FIELDS + 1)).len(), 0);
    }

    #[test]
    fn missing_headers_long_files_and_long_lines_are_refused() {
        let long = "//! Owns.\n".to_owned() + &"x\n".repeat(MAX_LINES);
        assert_eq!(check_rust("a.rs", &long).len(), 1);
        let tested =
            "//! Owns.\n".to_owned() + "\n#[cfg(test)]\nmod tests {" + &"\n".repeat(MAX_LINES);
        assert_eq!(check_rust("a.rs", &tested).len(), 0);
        assert_eq!(check_rust("a.rs", "fn f() {}").len(), 1);
        assert_eq!(check_rust("a.rs", &("//! ".to_owned() + &"x".repeat(97))).len(), 1);
    }
}
