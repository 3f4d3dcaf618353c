//! A service's own directory: its identity in the cluster, and the join token that lets it join.

use crate::former_secrets;
use skep_format::identity::{DirectoryKind, Identity};
use skep_rpc::{HeldSecret, JoinToken, MAX_SECRETS, Secrets};
use skep_store::atomic::replace_secret;
use skep_store::identity::Directory;
use skep_types::{Error, ErrorCode, NodeId, Result, TargetId};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Name of the file that contains the join token. Only its owner can read the file.
pub const TOKEN_FILE: &str = "join-token";

/// An open directory of a service.
#[derive(Debug)]
pub struct NodeDirectory {
    /// The directory, locked by this process.
    pub directory: Directory,
    /// The join token: the cluster's id, its secret, and the addresses of management.
    pub token: JoinToken,
}

impl NodeDirectory {
    /// Initialises a blank directory for a new node of the cluster to which `token` belongs.
    ///
    /// # Errors
    /// - `Exists` if the directory is initialised already.
    /// - `Configuration` if the directory is not blank.
    /// - Errors of the file system.
    pub fn initialise(path: &Path, kind: DirectoryKind, token: JoinToken) -> Result<Self> {
        let identity = Identity {
            kind,
            cluster: token.cluster,
            node_uuid: skep_env::random_u128(),
            node: NodeId::default(),
            target_uuid: 0,
            target: TargetId::default(),
        };
        let directory = Directory::initialise(path, identity)?;
        write_token(path, &token)?;
        Ok(Self { directory, token })
    }

    /// Opens the directory of a node.
    ///
    /// # Errors
    /// `Configuration`, with a hint on how to fix the problem, if the directory is blank, of
    /// another kind, in use by another process, or without a token of its cluster.
    pub fn open(path: &Path, kind: DirectoryKind) -> Result<Self> {
        let directory = Directory::open(path, kind, None)?;
        let file = path.join(TOKEN_FILE);
        let token = load_token(path)?;
        if token.cluster != directory.identity().cluster {
            return Err(Error::new(
                ErrorCode::Configuration,
                format!(
                    "cannot use the token in {}: the token is of cluster {}, but the directory \
                     belongs to cluster {}; use a token of the cluster of the directory",
                    file.display(),
                    token.cluster,
                    directory.identity().cluster
                ),
            ));
        }
        Ok(Self { directory, token })
    }
}

/// Writes a join token into a node's directory.
///
/// # Errors
/// Errors of the file system, with the path.
pub fn write_token(directory: &Path, token: &JoinToken) -> Result<()> {
    replace_secret(&directory.join(TOKEN_FILE), format!("{}\n", token.to_text()).as_bytes())
}

/// Reads the newest token of a node's directory, together with the previous secrets.
///
/// # Errors
/// `Configuration` with the path if a file cannot be read, is malformed, or can be read by other
/// users.
pub fn load_token(directory: &Path) -> Result<JoinToken> {
    let token = read_token(&directory.join(TOKEN_FILE))?;
    let former = former_secrets::read(directory)?.held;
    Ok(JoinToken { secrets: Secrets::new(token.secrets.newest(), former), ..token })
}

/// Reads a join token from a file. The first line is the newest token. Each further line is a
/// previous token. The process also accepts and offers the previous tokens, because some services
/// of the cluster may not have the newest token yet. Ignores empty lines.
///
/// # Errors
/// `Configuration` with the path if the file cannot be read, contains no token, contains more than
/// [`MAX_SECRETS`] tokens or tokens of several clusters, or can be read by other users.
pub fn read_token(file: &Path) -> Result<JoinToken> {
    let wrong = |problem: String| {
        Error::new(
            ErrorCode::Configuration,
            format!("cannot use the token in {}: {problem}", file.display()),
        )
    };
    let metadata = std::fs::metadata(file).map_err(|error| wrong(error.to_string()))?;
    // Pipes and terminals need no check of their permissions, because a pipe or a terminal does not
    // store the token.
    if metadata.is_file() && metadata.mode() & 0o077 != 0 {
        return Err(wrong(format!(
            "other users may read this file (mode {:o}), and the token gives all rights in the \
             cluster; run `chmod 600 {}`",
            metadata.mode() & 0o7777,
            file.display()
        )));
    }
    let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    tokens_in(&text).map_err(|error| wrong(error.context().to_owned()))
}

/// Parses the lines of a token file.
fn tokens_in(text: &str) -> Result<JoinToken> {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let newest: JoinToken = lines.next().unwrap_or_default().parse()?;
    let wrong = |problem: String| Err(Error::new(ErrorCode::Configuration, problem));
    let mut former = Vec::new();
    for line in lines {
        let token: JoinToken = line.parse()?;
        if token.cluster != newest.cluster {
            let (first, other) = (newest.cluster, token.cluster);
            return wrong(format!(
                "the file has tokens of the clusters {first} and {other}; each cluster needs its \
                 own token file"
            ));
        }
        if former.len() + 1 == MAX_SECRETS {
            return wrong(format!(
                "the file has more than {MAX_SECRETS} tokens; remove the lines of revoked tokens"
            ));
        }
        former.push(HeldSecret { secret: token.secrets.newest(), is_closed: false });
    }
    Ok(JoinToken { secrets: Secrets::new(newest.secrets.newest(), former), ..newest })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use skep_types::ClusterId;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    /// Returns a token for the cluster with the number `cluster`. This cluster has no running
    /// management service.
    pub(crate) fn token(cluster: u8) -> JoinToken {
        JoinToken {
            cluster: ClusterId::new([cluster; 16]),
            secrets: Secrets::generate(),
            addresses: vec!["127.0.0.1:1".into()],
        }
    }

    /// Initialises the directory of a service in `parent`, and returns its path.
    pub(crate) fn service(parent: &Path, token: &JoinToken) -> PathBuf {
        let path = parent.join("node");
        let kind = DirectoryKind::StorageNode;
        drop(NodeDirectory::initialise(&path, kind, token.clone()).unwrap());
        path
    }

    #[test]
    fn token_file_begins_with_the_newest_token_of_its_cluster() {
        let (newest, former, foreign) = (token(1), token(1), token(2));
        let text = |lines: &[&JoinToken]| -> String {
            lines.iter().map(|token| format!("{}\n\n", token.to_text())).collect()
        };
        let held = tokens_in(&text(&[&newest, &former])).unwrap().secrets.held();
        let secrets: Vec<_> = held.into_iter().map(|it| it.secret).collect();
        assert_eq!(secrets, [newest.secrets.newest(), former.secrets.newest()]);
        let refused = |text: &str| tokens_in(text).unwrap_err().context().to_owned();
        assert!(refused(&text(&[&newest, &foreign])).contains("clusters 0101"));
        assert!(refused(&text(&[&newest; MAX_SECRETS + 1])).contains("more than 4 tokens"));
        assert!(refused("\n").contains("invalid token"));
    }

    #[test]
    fn token_persists_and_a_foreign_token_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("node");
        let kind = DirectoryKind::StorageNode;
        let given = token(1);
        drop(NodeDirectory::initialise(&path, kind, given.clone()).unwrap());
        assert_eq!(NodeDirectory::open(&path, kind).unwrap().token, given);
        let other = token(2);
        write_token(&path, &other).unwrap();
        let error = NodeDirectory::open(&path, kind).unwrap_err();
        assert!(error.context().contains(&ClusterId::new([2; 16]).to_string()), "{error}");
        let file = path.join(TOKEN_FILE);
        for mode in [0o640, 0o604, 0o644] {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            let error = read_token(&file).unwrap_err();
            assert!(error.context().contains("chmod 600"), "{error}");
        }
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o400)).unwrap();
        assert_eq!(read_token(&file).unwrap(), other);
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&file, "nonsense").unwrap();
        let error = NodeDirectory::open(&path, kind).unwrap_err();
        assert!(error.context().contains("join-token"), "{error}");
    }
}
