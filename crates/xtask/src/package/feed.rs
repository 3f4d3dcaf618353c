//! A package repository, from which `apt` and `dnf` install and upgrade. The repository consists of
//! `apt/` and `rpm/` below one directory. Packages of earlier runs stay in the repository.
//!
//! `apt-ftparchive` and `createrepo_c`, the tools of the distributions, write the lists of
//! packages. The lists are signed if the caller names a `gpg` key. The lists contain the checksums
//! of all packages. A web server can serve the directory during an update, because a rename
//! replaces each list. The list that names the other lists is replaced last. `apt` requests the
//! other lists by their checksums.

use super::Form;
use crate::repository::{Outcome, output, run as call};
use std::fs;
use std::path::{Path, PathBuf};

/// Debian's names of the architectures for which a repository may have packages.
const MACHINES: [&str; 2] = ["amd64", "arm64"];
/// The fields of the file `Release`, which names all package lists of the repository for `apt`.
const FIELDS: [&str; 9] = [
    "Origin=Skep",
    "Label=Skep",
    "Suite=stable",
    "Codename=stable",
    "Components=main",
    "Architectures=amd64 arm64",
    "Acquire-By-Hash=yes",
    // The list must not contain itself.
    "Default-Patterns=false",
    "Patterns::=Packages",
];

/// A package repository below a directory.
pub(super) struct Feed<'a> {
    directory: &'a Path,
    /// The `gpg` key that signs the lists.
    key: Option<&'a str>,
}

fn named<T>(path: &Path, result: std::io::Result<T>) -> Outcome<T> {
    result.map_err(|error| format!("cannot use {}: {error}", path.display()))
}

fn text(path: &Path) -> Outcome<&str> {
    path.to_str().ok_or(format!("cannot use {}: the path is not UTF-8", path.display()))
}

/// Replaces a file atomically: writes the text to a file with another name, and renames that file.
fn replace(path: &Path, text: &str) -> Outcome {
    let new = path.with_extension("new");
    named(&new, fs::write(&new, text))?;
    named(path, fs::rename(&new, path))
}

fn remove(path: &Path) -> Outcome {
    if path.exists() { named(path, fs::remove_file(path)) } else { Ok(()) }
}

impl<'a> Feed<'a> {
    pub(super) fn new(directory: &'a Path, key: Option<&'a str>) -> Self {
        Self { directory, key }
    }

    /// Adds packages to the repository, and rewrites all lists.
    ///
    /// # Errors
    /// Fails if a tool is missing or fails.
    pub(super) fn add(&self, packages: &[(Form, PathBuf)]) -> Outcome {
        if let Some(key) = self.key {
            let exported = output("gpg", &["--batch", "--armor", "--export", key])?;
            if exported.is_empty() {
                return Err(format!(
                    "cannot sign the lists: gpg has no public key '{key}'; `gpg --list-keys` \
                     shows the keys"
                ));
            }
            named(self.directory, fs::create_dir_all(self.directory))?;
            replace(&self.directory.join("skep.asc"), &exported)?;
        }
        for (form, path) in packages {
            let pool = match form {
                Form::Deb => "apt/pool",
                Form::Rpm => "rpm/packages",
                Form::Tar => continue,
            };
            let pool = self.directory.join(pool);
            named(&pool, fs::create_dir_all(&pool))?;
            let to = pool
                .join(path.file_name().ok_or("cannot add a package: its path has no file name")?);
            let new = to.with_extension("new");
            named(path, fs::copy(path, &new))?;
            named(&to, fs::rename(&new, &to))?;
            match form {
                Form::Rpm => self.write_rpm()?,
                _ => self.write_apt()?,
            }
        }
        Ok(())
    }

    /// Writes the lists of packages for `apt`.
    fn write_apt(&self) -> Outcome {
        let top = self.directory.join("apt");
        let suite = top.join("dists/stable");
        // The paths of packages in a list are relative to the directory in which the tool runs.
        let archive = |arguments: &[&str]| {
            let program = ["-C", text(&top)?, "apt-ftparchive"];
            output("env", &[&program[..], arguments].concat())
        };
        for machine in MACHINES {
            let directory = suite.join(format!("main/binary-{machine}"));
            let hashes = directory.join("by-hash/SHA512");
            named(&hashes, fs::create_dir_all(&hashes))?;
            let list = directory.join("Packages");
            replace(&list, &archive(&["--arch", machine, "packages", "pool"])?)?;
            let sum = output("sha512sum", &[text(&list)?])?;
            let sum =
                sum.split(' ').next().ok_or("cannot read the output of sha512sum: it is empty")?;
            let hash = hashes.join(sum);
            named(&hash, fs::copy(&list, &hash))?;
        }
        let option = |field: &&str| ["-o".into(), format!("APT::FTPArchive::Release::{field}")];
        let options: Vec<String> = FIELDS.iter().flat_map(option).collect();
        let options: Vec<_> = options.iter().map(String::as_str).collect();
        let lists = archive(&[&options[..], &["release", "dists/stable"]].concat())?;
        replace(&suite.join("Release"), &lists)?;
        let signed = suite.join("InRelease");
        match self.key {
            None => remove(&signed),
            Some(_) => self.sign("--clearsign", &suite.join("Release"), &signed),
        }
    }

    /// Writes the lists of packages for `dnf`.
    fn write_rpm(&self) -> Outcome {
        let top = self.directory.join("rpm");
        call("createrepo_c", &["--quiet", text(&top)?], &[])?;
        let list = top.join("repodata/repomd.xml");
        match self.key {
            None => Ok(()),
            Some(_) => self.sign("--detach-sign", &list, &list.with_extension("xml.asc")),
        }
    }

    /// Signs a list.
    fn sign(&self, form: &str, list: &Path, to: &Path) -> Outcome {
        let key = self.key.ok_or("cannot sign the lists: name a key with --sign")?;
        let arguments = ["--batch", "--armor", "--local-user", key, "--output", "-", form];
        replace(to, &output("gpg", &[&arguments[..], &[text(list)?]].concat())?)
    }
}
