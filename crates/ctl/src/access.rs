//! Finds the cluster that a command works on, and sends requests to its management service.
//!
//! The user names a cluster by one of: the data directory of `skep up`, the directory of a service,
//! a token file, or the address of management with `--token-file`. Without a name, the command uses
//! the cluster that is mounted at the path in its arguments, or `./skep-data`.

use crate::mounts::mounted_at;
use clap::Args;
use skep_rpc::{Channel, Connection, Identity, JoinToken, Management};
use skep_service::directory::{TOKEN_FILE, read_token};
use skep_types::{
    ClusterMap, Error, ErrorCode, InodeId, MapVersion, Node, NodeId, NodeKind, Result, TargetId,
};
use skep_wire::Request;
use skep_wire::management::GetMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

/// Time limit for a reply from management.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// The options that name a cluster.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ClusterArgs {
    /// The cluster: its data directory, or the address of its management service
    #[arg(long, value_name = "DATA-DIR|ADDRESS")]
    pub(crate) cluster: Option<String>,
    /// File that holds the cluster's token
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

/// A cluster: its token, and the address of management.
#[derive(Debug, Clone)]
pub(crate) struct Access {
    /// The token, with the addresses of management.
    pub(crate) token: JoinToken,
    /// The value of `--cluster` that names the same cluster for another process: an absolute path,
    /// or an address.
    pub(crate) name: String,
    /// The file that holds the token.
    pub(crate) token_file: PathBuf,
}

fn unknown(what: impl Into<String>) -> Error {
    Error::new(ErrorCode::Configuration, what)
}

impl ClusterArgs {
    /// Finds the cluster. `near` is the path in the command's arguments, if it has one.
    pub(crate) fn access(&self, near: Option<&Path>) -> Result<Access> {
        if let Some(name) = &self.cluster {
            return self.named(name);
        }
        if let Some(file) = &self.token_file {
            let token = token_in(file)?;
            let name = token.addresses.join(",");
            return Ok(Access { token, name, token_file: file.clone() });
        }
        let near = near.map_or_else(|| std::env::current_dir().ok(), |path| Some(path.to_owned()));
        if let Some(source) = near.and_then(|path| mounted_at(&path)) {
            return self.named(&source);
        }
        if Path::new("skep-data").is_dir() {
            return self.named("skep-data");
        }
        Err(unknown(
            "cannot find a cluster: no cluster is mounted here, and ./skep-data does not exist; \
             name its data directory or the address of its management with --cluster",
        ))
    }

    fn named(&self, name: &str) -> Result<Access> {
        let path = Path::new(name);
        if path.exists() {
            return from_path(path);
        }
        let Some(file) = &self.token_file else {
            let what = match name.contains(':') {
                true => format!(
                    "cannot connect to the cluster at {name}: its token is missing; name a file \
                     that holds it with --token-file (`skep cluster token` on the management host \
                     prints the token)"
                ),
                false => format!(
                    "cannot find a cluster at {name}: no such file or directory; \
                                  `skep up` starts a cluster on this host"
                ),
            };
            return Err(unknown(what));
        };
        let mut token = token_in(file)?;
        token.addresses = name.split(',').map(str::to_owned).collect();
        if let Some(wrong) = token.addresses.iter().find(|address| !is_address(address)) {
            return Err(unknown(format!(
                "invalid cluster '{wrong}': expected a directory, or an address as in host:port"
            )));
        }
        Ok(Access { token, name: name.to_owned(), token_file: file.clone() })
    }
}

/// Whether a text has the form `host:port`. The existence of the host is not checked.
fn is_address(text: &str) -> bool {
    let parts = text.rsplit_once(':');
    parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

/// Reads the token from a file that the user has named.
fn token_in(file: &Path) -> Result<JoinToken> {
    if !file.exists() {
        return Err(unknown(format!(
            "cannot read the token file {}: no such file; `skep cluster token` on the management \
             host prints the token",
            file.display()
        )));
    }
    read_token(file)
}

fn from_path(path: &Path) -> Result<Access> {
    let path = path.canonicalize().map_err(|error| Error::from(error).within(path.display()))?;
    let candidates =
        [path.join("management").join(TOKEN_FILE), path.join(TOKEN_FILE), path.clone()];
    let Some(file) = candidates.into_iter().find(|file| file.is_file()) else {
        return Err(unknown(format!(
            "cannot find a cluster in {}: it has no token; `skep up --data-dir {}` creates a \
             cluster",
            path.display(),
            path.display()
        )));
    };
    Ok(Access { token: read_token(&file)?, name: path.display().to_string(), token_file: file })
}

impl Access {
    /// Creates a client of management. Must be called inside an event loop.
    fn management(&self) -> Rc<Management> {
        Management::new(&self.token, NodeKind::Client)
    }

    /// Returns the identity that commands present to services.
    pub(crate) fn identity(&self) -> Identity {
        Identity {
            cluster: self.token.cluster,
            secret: self.token.secret.clone(),
            node: NodeId::default(),
            kind: NodeKind::Client,
        }
    }

    /// Connects to a target of a node, or, if the target id is 0, to the node itself. Also returns
    /// the address that accepted the connection.
    pub(crate) async fn connect(
        &self,
        node: &Node,
        target: TargetId,
        patience: Duration,
    ) -> Result<(String, Rc<Connection>)> {
        let identity = self.identity();
        let mut last = Error::new(ErrorCode::Disconnected, "the node has no address");
        for address in &node.addresses {
            let attempt = Connection::connect(address, &identity, target, Channel::NONE);
            match skep_env::timeout(patience, attempt).await {
                Some(Ok(connection)) => return Ok((address.clone(), connection)),
                Some(Err(error)) => last = error,
                None => {
                    let what = format!("{address}: no reply within {patience:?}");
                    last = Error::new(ErrorCode::Disconnected, what);
                }
            }
        }
        Err(if target.raw() == 0 { last } else { last.within(format_args!("target {target}")) })
    }

    /// Sends a request to management, and retries for [`PATIENCE`].
    ///
    /// # Errors
    /// The error code in the reply of management. A timeout or a lost connection gives an error
    /// with a hint how to fix it.
    pub(crate) async fn ask<R: Request>(&self, request: &R) -> Result<R::Reply> {
        self.ask_within(request, Some(PATIENCE)).await
    }

    async fn ask_within<R: Request>(
        &self,
        request: &R,
        patience: Option<Duration>,
    ) -> Result<R::Reply> {
        let hint = |error: Error| {
            let hint = match error.code() {
                ErrorCode::Disconnected | ErrorCode::TimedOut if Path::new(&self.name).exists() => {
                    "; check that it is running: `skep up` starts a cluster on this host"
                }
                ErrorCode::Disconnected | ErrorCode::TimedOut => {
                    "; check the address, and that management is running: on its host, `skep \
                     cluster token` prints the token with the address"
                }
                ErrorCode::AuthenticationFailed => {
                    "; `skep cluster token` on the management host prints the right token"
                }
                _ => return error,
            };
            Error::new(error.code(), format!("{}{hint}", error.context()))
        };
        self.management().call(request, patience).await.map_err(hint)
    }

    /// Sends a request to management once, without retries, and waits up to `patience` for the
    /// reply. For requests that management can answer only after a reply from another node.
    ///
    /// # Errors
    /// - The error code in the reply of management.
    /// - `TimedOut` if no reply arrives within `patience`.
    pub(crate) async fn ask_once<R: Request>(
        &self,
        request: &R,
        patience: Duration,
    ) -> Result<R::Reply> {
        self.management().call_once(request, patience).await
    }

    /// Gets the newest cluster map from management.
    pub(crate) async fn map(&self) -> Result<ClusterMap> {
        self.map_within(Some(PATIENCE)).await
    }

    /// Gets the newest cluster map from management. Retries for `patience` while management is
    /// unreachable; `None` means without a limit.
    pub(crate) async fn map_within(&self, patience: Option<Duration>) -> Result<ClusterMap> {
        let update = self.ask_within(&GetMap { known: MapVersion::new(0) }, patience).await?;
        let missing = || {
            Error::new(
                ErrorCode::Protocol,
                "cannot read the cluster map: management \
                                                          replied without a map",
            )
        };
        update.map.ok_or_else(missing)
    }
}

/// Returns the inode at a path in a mount, and a path on the same mount that is not a symbolic
/// link. Does not follow a symbolic link at the end of `path`.
///
/// # Errors
/// - The error of the system, with the path as context.
/// - `InvalidArgument` if the path is not in a mount of Skep.
pub(crate) fn entry_at(path: &Path) -> Result<(InodeId, PathBuf)> {
    let named = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => Error::new(ErrorCode::NotFound, error.to_string()),
        std::io::ErrorKind::PermissionDenied => {
            Error::new(ErrorCode::PermissionDenied, error.to_string())
        }
        _ => Error::from(error),
    };
    let metadata =
        std::fs::symlink_metadata(path).map_err(|it| named(it).within(path.display()))?;
    let place = match metadata.is_symlink() {
        true => path.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new(".")),
        false => path,
    };
    if mounted_at(place).is_none() {
        return Err(Error::new(
            ErrorCode::InvalidArgument,
            format!(
                "cannot use {}: it is not in a mount of Skep; `findmnt -t fuse.skep` lists the \
                 mounts of this host, `skep client list` the mounts of a cluster",
                path.display()
            ),
        ));
    }
    Ok((InodeId::new(metadata.ino()), place.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_host_and_a_port() {
        for right in ["10.0.0.1:7400", "[::1]:7400", "management.example:7400"] {
            assert!(is_address(right), "{right}");
        }
        for wrong in ["10.0.0.1", ":7400", "a:", "a:port", "a:70000", "a:7400,"] {
            assert!(!is_address(wrong), "{wrong}");
        }
    }

    #[test]
    fn missing_clusters_are_refused_with_the_way_out() {
        let named = |cluster: &str, token_file: Option<&str>| {
            let args = ClusterArgs {
                cluster: Some(cluster.into()),
                token_file: token_file.map(PathBuf::from),
            };
            args.access(None).unwrap_err().context().to_owned()
        };
        assert!(named("10.0.0.1:7400", None).contains("--token-file"));
        assert!(named("/nowhere", None).contains("no such file"));
        assert!(named("10.0.0.1:7400", Some("/nowhere")).contains("/nowhere"));
        let blank = tempfile::tempdir().unwrap();
        assert!(named(&blank.path().display().to_string(), None).contains("skep up"));
    }
}
