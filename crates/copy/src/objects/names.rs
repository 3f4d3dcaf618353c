//! Translates between the keys of objects and the paths of files. This module does no I/O.
//!
//! The key of a file consists of the names in its path, separated by `/`. A directory is stored as
//! an empty object whose key ends with `/`. Some keys cannot be paths, and some names cannot be in
//! keys. The copy refuses each entry with such a key or name, and never renames the entry, because
//! two entries could then get the same name.

use crate::plan::is_reserved;
use skep_s3::location::MOST_KEY;
use std::ffi::OsStr;

/// Maximum length of the name of an entry in a directory, in bytes.
const MOST_NAME: usize = 255;

/// The position of an object in the tree of directories.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place<'a> {
    /// The names of the directories that contain the object, from the top.
    pub(super) directories: Vec<&'a str>,
    /// The name of the file. `None` means that the object represents the last of these directories.
    pub(super) name: Option<&'a str>,
}

/// Returns the position of an object by its key. `rest` is the key without the prefix that all keys
/// of the tree have.
///
/// # Errors
/// Returns the reason why the key cannot be the path of a file.
pub(super) fn place(rest: &str) -> Result<Place<'_>, String> {
    let mut names: Vec<_> = rest.split('/').collect();
    let name = names.pop().filter(|it| !it.is_empty());
    for part in names.iter().copied().chain(name) {
        if part.is_empty() {
            return Err(
                "the key of this object has an empty name between two slashes; rename the object"
                    .into(),
            );
        }
        if part == "." || part == ".." {
            return Err(format!(
                "the key of this object contains the name {part}, which no file can have; rename \
                 the object"
            ));
        }
        if part.len() > MOST_NAME {
            return Err(format!(
                "a name in the key of this object is longer than {MOST_NAME} bytes; rename the \
                 object"
            ));
        }
        if part.contains('\0') {
            return Err(
                "the key of this object has a zero byte, which no path can have; rename the object"
                    .into(),
            );
        }
        if is_reserved(OsStr::new(part)) {
            return Err("names that begin with .skep-copy- belong to an upload that is not \
                        complete; finish this upload with --resume"
                .into());
        }
    }
    Ok(Place { directories: names, name })
}

/// Returns the key of an entry with the name `name`. `prefix` is empty or ends with `/`.
///
/// # Errors
/// Returns the reason why the name cannot be in a key.
pub(super) fn key(prefix: &str, name: &OsStr) -> Result<String, String> {
    if is_reserved(name) {
        return Err(
            "names that begin with .skep-copy- are reserved for incomplete copies; rename this \
             entry, or finish the copy that has created the entry"
                .into(),
        );
    }
    let Some(name) = name.to_str() else {
        return Err("the name of this entry is not UTF-8, as keys of objects must be; rename the \
                    entry"
            .into());
    };
    let key = format!("{prefix}{name}");
    match key.len() {
        // The key of a directory gets a slash at its end, so it must be shorter by one byte.
        len if len >= MOST_KEY => Err(format!(
            "the key of this entry would have {len} bytes, and keys have at most {}; copy the \
             directory of the entry with a separate command to a shorter key",
            MOST_KEY - 1
        )),
        _ => Ok(key),
    }
}

/// The earlier objects of a sorted listing whose keys may still turn out to be directories, as `a`
/// does when `a/b` follows.
///
/// # Invariants
/// - Each key begins with the key before it. For this reason, there are at most as many keys as a
///   key has bytes.
#[derive(Debug, Default)]
pub(super) struct Files(Vec<String>);

impl Files {
    /// Adds the next key of the listing. If an earlier key would have to be both a file and a
    /// directory, returns this earlier key.
    pub(super) fn add(&mut self, key: &str) -> Option<&str> {
        while self.0.last().is_some_and(|it| !key.starts_with(it.as_str())) {
            self.0.pop();
        }
        let has_below = |it: &String| !it.ends_with('/') && key[it.len()..].starts_with('/');
        let found = self.0.iter().position(has_below);
        self.0.push(key.to_owned());
        found.map(|index| self.0[index].as_str())
    }

    /// Panics if the invariant does not hold.
    #[cfg(test)]
    fn check_invariants(&self) {
        assert!(self.0.windows(2).all(|it| it[1].starts_with(it[0].as_str())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{prop, prop_assert_eq, proptest};
    use std::collections::BTreeSet;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn keys_that_are_no_valid_paths_are_refused() {
        let of = |rest: &'static str| place(rest).map(|it| (it.directories, it.name));
        assert_eq!(of("a"), Ok((vec![], Some("a"))));
        assert_eq!(of("a/b c/d"), Ok((vec!["a", "b c"], Some("d"))));
        assert_eq!(of("a/"), Ok((vec!["a"], None)));
        assert_eq!(of(""), Ok((vec![], None)));
        assert_eq!(of("..."), Ok((vec![], Some("..."))));
        let long = format!("a/{}", "x".repeat(256)).leak();
        for wrong in
            ["a//b", "/a", "..", "a/../b", "a/..", "./a", "a\0", ".skep-copy-1/x", "//", long]
        {
            assert!(place(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn file_names_that_are_no_valid_keys_are_refused() {
        assert_eq!(key("a/", OsStr::new("b\n")).unwrap(), "a/b\n");
        assert!(key("", OsStr::from_bytes(b"\xff")).unwrap_err().contains("UTF-8"));
        assert!(key("", OsStr::new(".skep-copy-x")).unwrap_err().contains("reserved"));
        assert!(key(&"x".repeat(1020), OsStr::new("abc")).is_ok());
        assert!(key(&"x".repeat(1020), OsStr::new("abcd")).unwrap_err().contains("1024 bytes"));
    }

    proptest! {
        #[test]
        fn key_that_is_an_object_and_a_directory_is_detected(
            keys in prop::collection::btree_set("[ab/-]{1,5}", 0..40),
        ) {
            let mut files = Files::default();
            let mut seen = BTreeSet::new();
            for key in &keys {
                // The expected result is the first earlier key that would have to be a directory,
                // because `key` continues it with a slash.
                let expected = seen.iter().find(|it: &&String| {
                    !it.ends_with('/') && key.starts_with(&format!("{it}/"))
                });
                prop_assert_eq!(files.add(key), expected.map(String::as_str));
                files.check_invariants();
                seen.insert(key.clone());
            }
        }
    }
}
