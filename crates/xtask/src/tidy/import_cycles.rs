//! Finds import cycles between the files of one crate. A reader must understand all files of a
//! cycle at the same time.
//!
//! Imports between a module and its ancestors are ignored, because a parent declares its submodules
//! and submodules may use the parent's types.

use super::Problems;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Accepted cycles: the first file of each cycle, and the reason.
const ACCEPTED: &[(&str, &str)] = &[];

/// Crates that are not checked. In the simulator, each file implements a part of the same `World`.
const UNCHECKED: &[&str] = &["sim"];

/// A module, as the list of names from the root of the crate.
type Module = Vec<String>;

/// Checks all crates of the product. `sources` are all Rust files with their texts.
pub(super) fn check(sources: &[(PathBuf, String)]) -> Problems {
    let mut crates: BTreeMap<String, Vec<(Module, &PathBuf, &str)>> = BTreeMap::new();
    for (path, text) in sources {
        let name = path.to_string_lossy();
        let Some((crate_name, rest)) =
            name.strip_prefix("crates/").and_then(|it| it.split_once("/src/"))
        else {
            continue;
        };
        let is_test = name.contains("/tests/") || name.ends_with("/tests.rs");
        if is_test || UNCHECKED.contains(&crate_name) {
            continue;
        }
        let text = text.split("\n#[cfg(test)]").next().unwrap_or(text);
        crates.entry(crate_name.to_owned()).or_default().push((module_of(rest), path, text));
    }
    let mut problems = Problems::new();
    for files in crates.values() {
        let modules: BTreeSet<&Module> = files.iter().map(|(module, ..)| module).collect();
        let edges: BTreeMap<&Module, BTreeSet<&Module>> = files
            .iter()
            .map(|(module, _, text)| (module, used_modules(module, text, &modules)))
            .collect();
        for cycle in cycles(&edges) {
            let path = |module: &&Module| {
                let file = files.iter().find(|(it, ..)| it == *module);
                file.map_or_else(String::new, |(_, path, _)| path.display().to_string())
            };
            let names: Vec<_> = cycle.iter().map(path).collect();
            if ACCEPTED.iter().all(|(first, _)| *first != names[0]) {
                problems.push(format!(
                    "{}: these modules import each other; move their common code to a module that \
                     they import",
                    names.join(", ")
                ));
            }
        }
    }
    problems
}

/// Returns the module that a file contains. The path `file` is relative to `src/`.
fn module_of(file: &str) -> Module {
    let path = file.trim_end_matches(".rs");
    let mut parts: Module = path.split('/').map(str::to_owned).collect();
    if matches!(parts.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        parts.pop();
    }
    parts
}

/// Returns the modules in the paths that a file uses. The paths begin at the root of the crate or
/// at the file's own module.
fn used_modules<'a>(
    module: &Module,
    text: &str,
    modules: &BTreeSet<&'a Module>,
) -> BTreeSet<&'a Module> {
    let mut used = BTreeSet::new();
    for path in paths(text) {
        let mut place: Module = match path.first().map(String::as_str) {
            Some("crate") => Vec::new(),
            Some("super") => module.clone(),
            _ => continue,
        };
        for part in path.iter().filter(|part| *part != "crate") {
            match part.as_str() {
                "super" => drop(place.pop()),
                "self" => {}
                name => place.push(name.to_owned()),
            }
        }
        // Shorten the path to its longest prefix that is a module. The rest of the path is an item
        // in that module.
        while !place.is_empty() && !modules.contains(&place) {
            place.pop();
        }
        let is_ancestry = module.starts_with(&place) || place.starts_with(module);
        if let Some(found) = modules.get(&place).filter(|_| !is_ancestry) {
            used.insert(*found);
        }
    }
    used
}

/// Returns all paths that begin with `crate` or `super`. The function expands a group in braces to
/// one path for each item.
fn paths(text: &str) -> Vec<Vec<String>> {
    let code: String =
        text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let mut found = Vec::new();
    for start in ["crate::", "super::"] {
        for (at, _) in code.match_indices(start) {
            let is_whole =
                code[..at].chars().next_back().is_none_or(|it| !is_word(it) && it != ':');
            if is_whole {
                expand(&mut Vec::new(), &code[at..], &mut found);
            }
        }
    }
    found
}

fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// Adds the paths at the start of `text` to `found`, each with `prefix` before the path. Returns
/// the number of bytes that were read from `text`.
fn expand(prefix: &mut Vec<String>, text: &str, found: &mut Vec<Vec<String>>) -> usize {
    let len = prefix.len();
    let mut at = 0;
    loop {
        let rest = &text[at..];
        if rest.starts_with('{') {
            at += 1;
            while let Some(letter) = text[at..].chars().next() {
                if is_word(letter) {
                    at += expand(prefix, &text[at..], found);
                    continue;
                }
                at += letter.len_utf8();
                if letter == '}' {
                    break;
                }
            }
            break;
        }
        let end = rest.find(|letter: char| !is_word(letter)).unwrap_or(rest.len());
        prefix.push(rest[..end].to_owned());
        at += end;
        if text[at..].starts_with("::")
            && text[at + 2..].starts_with(|it: char| is_word(it) || it == '{')
        {
            at += 2;
            continue;
        }
        found.push(prefix.clone());
        break;
    }
    prefix.truncate(len);
    at
}

/// Returns all groups of modules in which each module can reach every other module. Omits groups of
/// a single module.
fn cycles<'a>(edges: &BTreeMap<&'a Module, BTreeSet<&'a Module>>) -> Vec<Vec<&'a Module>> {
    let reach: BTreeMap<&Module, BTreeSet<&Module>> =
        edges.keys().map(|module| (*module, reachable(module, edges))).collect();
    let mut cycles: Vec<Vec<&Module>> = Vec::new();
    for (module, reached) in &reach {
        if !reached.contains(module) || cycles.iter().any(|cycle| cycle.contains(module)) {
            continue;
        }
        cycles.push(reached.iter().filter(|it| reach[**it].contains(module)).copied().collect());
    }
    cycles
}

fn reachable<'a>(
    from: &'a Module,
    edges: &BTreeMap<&'a Module, BTreeSet<&'a Module>>,
) -> BTreeSet<&'a Module> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(module) = open.pop() {
        for next in edges.get(module).into_iter().flatten() {
            if reached.insert(*next) {
                open.push(next);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(files: &[(&str, &str)]) -> usize {
        let sources = files.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned()));
        check(&sources.collect::<Vec<_>>()).len()
    }

    #[test]
    fn files_that_import_each_other_are_reported_as_a_cycle() {
        let a = ("crates/x/src/a.rs", "use crate::{\n    b::{self, One},\n    c,\n};");
        let back = ("crates/x/src/b.rs", "fn f() { super::a::g() }");
        let forth = ("crates/x/src/b.rs", "use crate::c::Two;");
        let c = ("crates/x/src/c.rs", "");
        assert_eq!(problems(&[a, back, c]), 1);
        assert_eq!(problems(&[a, forth, c]), 0);
    }

    #[test]
    fn imports_between_parent_and_child_modules_are_allowed() {
        let parent = ("crates/x/src/a.rs", "mod b;\nuse crate::a::b::One;");
        let child = ("crates/x/src/a/b.rs", "use super::Two;");
        assert_eq!(problems(&[parent, child]), 0);
    }

    #[test]
    fn imports_in_comments_and_unit_tests_do_not_count() {
        let a = ("crates/x/src/a.rs", "use crate::b::One;");
        let b = ("crates/x/src/b.rs", "// crate::a\n\n#[cfg(test)]\nmod tests { use crate::a; }");
        assert_eq!(problems(&[a, b]), 0);
    }
}
