//! `client.toml`: the names of the clusters that this host or this user uses.
//!
//! This module reads two files, and defines their format: `/etc/skep/client.toml` for all users of
//! the host, and `~/.config/skep/client.toml` (or the directory of `XDG_CONFIG_HOME`) for one user.
//! The file of the user takes precedence. The module [`crate::access`] chooses the cluster of a
//! command.

use crate::in_time::{LOOKUP_PATIENCE, within};
use serde::Deserialize;
use skep_management::DEFAULT_PORT;
use skep_service::advertise::with_port;
use skep_types::{Error, ErrorCode, Result};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Name of the settings file in each of the two directories.
const FILE: &str = "client.toml";
/// Directory of the settings file of this host.
const OF_HOST: &str = "/etc/skep";
/// Path of the token file that commands use if no option, no variable and no `client.toml` names a
/// token file.
pub(crate) const TOKEN_OF_HOST: &str = "/etc/skep/token";

/// The clusters in one `client.toml`, or the merged clusters of the host's and the user's file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClientFile {
    /// Name of the cluster that commands use if the user names none.
    #[serde(default)]
    pub(crate) cluster: Option<String>,
    #[serde(default)]
    pub(crate) clusters: BTreeMap<String, NamedCluster>,
}

/// A cluster that `client.toml` names.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NamedCluster {
    /// Addresses of management, as `host` or `host:port`. If empty, the addresses in the token
    /// apply.
    #[serde(default)]
    pub(crate) management: Vec<String>,
    /// File that holds the token.
    pub(crate) token_file: PathBuf,
}

impl NamedCluster {
    /// Returns the addresses of management with their ports.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.management.iter().map(|address| with_port(address, DEFAULT_PORT)).collect()
    }
}

impl ClientFile {
    /// Whether `name` is probably a mistyped name of a cluster: a word that is neither a cluster in
    /// these files nor a known host. `addresses` are the addresses of management that the command
    /// derives from `name`. With a mistyped name, the command uses the token of the default
    /// cluster. The command must then not use the stored addresses of the default cluster.
    pub(crate) fn is_mistyped(&self, name: &str, addresses: &[String]) -> bool {
        let is_word = !name.contains(['/', ':', ',', '.']) && !self.clusters.contains_key(name);
        let [address] = addresses else { return false };
        let address = address.clone();
        is_word && within(LOOKUP_PATIENCE, move || skep_env::is_known_host(&address)) == Some(false)
    }

    /// Reads the `client.toml` files of the host and of the user. A missing file counts as empty.
    ///
    /// # Errors
    /// `Configuration` with the path, if a file cannot be read or is invalid.
    pub(crate) fn read() -> Result<Self> {
        let mut merged = Self::default();
        for directory in [Some(PathBuf::from(OF_HOST)), directory_of_user()].into_iter().flatten() {
            let path = directory.join(FILE);
            let text = match std::fs::read_to_string(&path) {
                Ok(text) => text,
                // If the user may not read the host's file, commands run without this file.
                Err(error)
                    if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
                        || error.kind() == ErrorKind::PermissionDenied =>
                {
                    continue;
                }
                Err(error) => return Err(wrong(&path, &error.to_string())),
            };
            merged.add(Self::parse(&text).map_err(|why| wrong(&path, &why))?);
        }
        Ok(merged)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let file: Self =
            toml::from_str(text).map_err(|error| error.to_string().trim().to_owned())?;
        for (name, cluster) in &file.clusters {
            if name.is_empty() || name.contains(['/', ':', ',']) {
                return Err(format!("cluster '{name}': a name must not contain / or : or a comma"));
            }
            if !cluster.token_file.is_absolute() {
                let shown = cluster.token_file.display();
                return Err(format!(
                    "cluster '{name}': token_file '{shown}' is not an absolute path"
                ));
            }
        }
        match &file.cluster {
            Some(name) if !file.clusters.contains_key(name) => Err(format!(
                "cluster = \"{name}\" has no matching entry [clusters.{name}] in this file"
            )),
            _ => Ok(file),
        }
    }

    /// Merges the entries of `other` into this file. An entry of `other` replaces the entry of this
    /// file with the same name.
    fn add(&mut self, other: Self) {
        self.cluster = other.cluster.or(self.cluster.take());
        self.clusters.extend(other.clusters);
    }

    /// Returns the cluster that has one of `addresses` among its addresses of management.
    pub(crate) fn at(&self, addresses: &[String]) -> Option<&NamedCluster> {
        let is_it = |it: &&NamedCluster| it.addresses().iter().any(|it| addresses.contains(it));
        self.clusters.values().find(is_it)
    }
}

fn directory_of_user() -> Option<PathBuf> {
    let configured = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
    // The XDG base directory specification requires programs to ignore a relative path.
    let configured = configured.filter(|path| path.is_absolute());
    let base = configured.or_else(|| Some(std::env::home_dir()?.join(".config")))?;
    base.is_absolute().then(|| base.join("skep"))
}

fn wrong(path: &Path, why: &str) -> Error {
    let what = format!("cannot use {}: {why}", path.display());
    Error::new(ErrorCode::Configuration, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = "cluster = \"work\"\n[clusters.work]\nmanagement = [\"10.0.0.1\"]\n\
                          token_file = \"/etc/skep/token\"\n[clusters.test]\n\
                          token_file = \"/etc/skep/test\"\n";

    #[test]
    fn clusters_are_found_by_name_and_by_address() {
        let mut file = ClientFile::parse(SAMPLE).unwrap();
        assert_eq!(file.cluster.as_deref(), Some("work"));
        assert_eq!(file.clusters["work"].addresses(), ["10.0.0.1:7400"]);
        assert!(file.at(&["10.0.0.1:7400".into()]).is_some());
        assert!(file.at(&["10.0.0.2:7400".into()]).is_none());
        // The user's file takes precedence.
        file.add(ClientFile::parse("[clusters.work]\ntoken_file = \"/home/a/token\"").unwrap());
        assert_eq!(file.cluster.as_deref(), Some("work"));
        assert_eq!(file.clusters["work"].token_file, Path::new("/home/a/token"));
        assert_eq!(file.clusters.len(), 2);
    }

    #[test]
    fn invalid_client_files_are_refused() {
        for (text, words) in [
            ("cluser = \"a\"", "cluser"),
            ("cluster = \"a\"", "no matching entry [clusters.a]"),
            ("[clusters.a]\nmanagement = [\"x\"]", "token_file"),
            ("[clusters.a]\ntoken_file = \"token\"", "not an absolute path"),
            ("[clusters.\"a/b\"]\ntoken_file = \"/token\"", "must not contain"),
        ] {
            let why = ClientFile::parse(text).unwrap_err();
            assert!(why.contains(words), "{text}: {why}");
        }
    }
}
