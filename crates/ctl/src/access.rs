//! Finds the cluster that a command uses, and sends requests to the management service of this
//! cluster.
//!
//! The user names a cluster in one of these ways: by the data directory of `skep up`, the directory
//! of a service, a token file, the address of management, or a name in `client.toml`
//! ([`crate::client_file`]). Without `--cluster`, the command uses the first item in this list that
//! exists: the file of `--token-file`, the cluster that is mounted at the path in its arguments,
//! the environment variables, the cluster that is mounted at the working directory, `./skep-data`,
//! `client.toml`, the token of this host.

use crate::client_file::{ClientFile, TOKEN_OF_HOST};
use crate::learned_note;
use crate::mounts::mounted_at;
use crate::through_mount::refuse_other_cluster;
use clap::Args;
use skep_management::DEFAULT_PORT;
use skep_rpc::{Channel, Connection, Identity, JoinToken, Management, management_addresses};
use skep_service::advertise::with_port;
use skep_service::directory::{TOKEN_FILE, read_token};
use skep_service::{known_management, known_map};
use skep_types::{
    ClusterMap, Error, ErrorCode, MapVersion, Node, NodeId, NodeKind, Result, TargetId,
};
use skep_wire::Request;
use skep_wire::management::GetMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

/// Time limit for a reply from management.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Environment variable that replaces the option `--cluster`.
const CLUSTER_VARIABLE: &str = "SKEP_CLUSTER";
const TOKEN_VARIABLE: &str = "SKEP_TOKEN_FILE";

/// The options that name a cluster.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ClusterArgs {
    /// The cluster: its data directory, the address of its management service (port 7400 if none
    /// is given), or a name in client.toml [default: SKEP_CLUSTER, or the cluster of this host]
    #[arg(long, value_name = "DATA-DIR|ADDRESS|NAME")]
    pub(crate) cluster: Option<String>,
    /// File that holds the cluster's token [default: SKEP_TOKEN_FILE, the file that client.toml
    /// names, or /etc/skep/token]
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

/// A cluster: its token, and the address of management.
#[derive(Debug, Clone)]
pub(crate) struct Access {
    /// The token, with the addresses of management that the user or the token names.
    pub(crate) token: JoinToken,
    /// Further addresses of management, which this host has learned.
    learned: Vec<String>,
    /// Whether the option `--cluster` names addresses of management.
    names_addresses: bool,
    /// The value of `--cluster` that names the same cluster for another process: an absolute path,
    /// an address, or a name in `client.toml`.
    pub(crate) name: String,
    /// The file that holds the token.
    pub(crate) token_file: PathBuf,
}

fn unknown(what: impl Into<String>) -> Error {
    Error::new(ErrorCode::Configuration, what)
}

impl ClusterArgs {
    /// Whether an option names a cluster. Without such an option, a command with a path in a mount
    /// sends its requests through this mount, which needs no token.
    pub(crate) fn is_explicit(&self) -> bool {
        self.cluster.is_some() || self.token_file.is_some()
    }

    /// Finds the cluster. `near` is a path from the command's arguments. If `near` is in a mount,
    /// this mount must be of the cluster that the options name. Without such options, the cluster
    /// of this mount is used.
    pub(crate) fn access(&self, near: Option<&Path>) -> Result<Access> {
        self.access_or(near, ASK_ADMINISTRATOR)
    }

    /// Does the same as [`Self::access`]. `without_token` is advice for users who may not read the
    /// token, for example the form of the command that needs no token.
    pub(crate) fn access_or(
        &self,
        near: Option<&Path>,
        without_token: &'static str,
    ) -> Result<Access> {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let query = ClusterQuery {
            token_file: self.token_file.clone(),
            environment: (variable(CLUSTER_VARIABLE), variable(TOKEN_VARIABLE).map(PathBuf::from)),
            file: ClientFile::read()?,
            without_token,
        };
        let mut access = query.find(self.cluster.as_deref(), near)?;
        access.names_addresses &= self.cluster.is_some();
        if self.is_explicit()
            && let Some(near) = near
        {
            refuse_other_cluster(near, access.token.cluster)?;
        }
        if !query.file.is_mistyped(&access.name, &access.token.addresses) {
            access.learned = known_management::learned_addresses(access.token.cluster);
        }
        Ok(access)
    }

    /// Checks that the options, if any, name the cluster that is mounted at `path`. For commands
    /// that send all requests through the mount.
    ///
    /// # Errors
    /// - `InvalidArgument` if the mount is of another cluster.
    /// - The errors of [`Self::access`].
    pub(crate) fn check_mount(&self, path: &Path) -> Result<()> {
        match self.is_explicit() {
            true => self.access(Some(path)).map(drop),
            false => Ok(()),
        }
    }
}

/// The sources of the name of a cluster and of its token, except the option `--cluster`.
#[derive(Debug, Default)]
struct ClusterQuery {
    /// The value of `--token-file`.
    token_file: Option<PathBuf>,
    /// The cluster and the token file that environment variables name.
    environment: (Option<String>, Option<PathBuf>),
    /// The merged `client.toml` files of this user and this host.
    file: ClientFile,
    /// Advice for a user who may not read the token.
    without_token: &'static str,
}

impl ClusterQuery {
    /// Finds a cluster by the first of these sources that names one: the options, the mount of a
    /// path in the arguments, environment variables, the mount at the working directory, the data
    /// directory `./skep-data`, the settings of this user or host.
    fn find(&self, cluster: Option<&str>, near: Option<&Path>) -> Result<Access> {
        if let Some(name) = cluster {
            return self.named(name);
        }
        if let Some(token_file) = &self.token_file {
            return self.by_token(token_file);
        }
        if let Some(source) = near.and_then(mounted_at) {
            return self.named(&source);
        }
        match &self.environment {
            (Some(name), _) => return self.named(name),
            (None, Some(token_file)) => return self.by_token(token_file),
            (None, None) => {}
        }
        if let Some(source) = std::env::current_dir().ok().and_then(|path| mounted_at(&path)) {
            return self.named(&source);
        }
        if Path::new("skep-data").is_dir() {
            return self.named("skep-data");
        }
        self.of_host()
    }

    /// Returns the cluster that `client.toml` selects, or the cluster of [`TOKEN_OF_HOST`] if
    /// `client.toml` names no cluster.
    fn of_host(&self) -> Result<Access> {
        let names: Vec<_> = self.file.clusters.keys().map(String::as_str).collect();
        match (&self.file.cluster, &names[..]) {
            (Some(name), _) => self.named(name),
            (None, [only]) => self.named(only),
            (None, [_, ..]) => Err(unknown(format!(
                "cannot choose a cluster: client.toml has {}; name a cluster with --cluster, or \
                 set `cluster` in client.toml",
                names.join(", ")
            ))),
            (None, []) if may_exist(Path::new(TOKEN_OF_HOST)) => {
                self.by_token(Path::new(TOKEN_OF_HOST))
            }
            (None, []) => Err(unknown(format!(
                "cannot find a cluster: no cluster is mounted here, and neither ./skep-data nor \
                 /etc/skep/client.toml nor {TOKEN_OF_HOST} exists; name the token file of a \
                 cluster with --token-file or {TOKEN_VARIABLE}, or its data directory with \
                 --cluster or {CLUSTER_VARIABLE}{}",
                way_of_users(self.without_token, rustix::process::geteuid().is_root())
            ))),
        }
    }

    fn named(&self, name: &str) -> Result<Access> {
        if let Some(cluster) = self.file.clusters.get(name) {
            let token_file = self.token_file.clone();
            let token_file = token_file.unwrap_or_else(|| cluster.token_file.clone());
            let mut token = token_in(&token_file, self.without_token)?;
            if !cluster.management.is_empty() {
                token.addresses = cluster.addresses();
            }
            return Ok(Access::new(token, name, token_file));
        }
        let path = Path::new(name);
        if path.exists() {
            return from_path(path, self.without_token);
        }
        if name.contains('/') || name.starts_with('.') || name.is_empty() {
            return Err(unknown(format!(
                "cannot find a cluster at {name}: no such file or directory; `skep up` starts a \
                 cluster on this host"
            )));
        }
        let addresses: Vec<_> =
            name.split(',').map(|address| with_port(address, DEFAULT_PORT)).collect();
        if let Some(wrong) = addresses.iter().find(|address| !is_address(address)) {
            return Err(unknown(format!(
                "invalid cluster '{wrong}': expected a directory, a name in client.toml, or an \
                 address as in host or host:port"
            )));
        }
        let of_cluster = || self.file.at(&addresses).map(|cluster| cluster.token_file.clone());
        let of_host = || Some(PathBuf::from(TOKEN_OF_HOST)).filter(|file| may_exist(file));
        let of_environment = || self.environment.1.clone();
        let token_file = self.token_file.clone().or_else(of_cluster);
        let token_file = token_file.or_else(of_environment).or_else(of_host);
        let Some(token_file) = token_file else {
            let is_plain = !name.contains([':', ',', '.']);
            return Err(unknown(format!(
                "cannot connect to the cluster at {}: this host has no token of the cluster{}; \
                 `skep cluster token --cluster DIRECTORY` on the management host prints the \
                 token: save it in {TOKEN_OF_HOST}, or in a file that you name with --token-file \
                 or {TOKEN_VARIABLE}{}",
                addresses.join(","),
                // The user may have meant a directory and mistyped its name.
                if is_plain { ", and no file or directory has that name" } else { "" },
                way_of_users(self.without_token, rustix::process::geteuid().is_root())
            )));
        };
        let mut token = token_in(&token_file, self.without_token)?;
        token.addresses = addresses;
        Ok(Access { names_addresses: true, ..Access::new(token, name, token_file) })
    }

    fn by_token(&self, file: &Path) -> Result<Access> {
        let token = token_in(file, self.without_token)?;
        let name = token.addresses.join(",");
        Ok(Access::new(token, &name, file.to_owned()))
    }
}

/// Whether a text has the form `host:port`. The function does not check that the host exists.
fn is_address(text: &str) -> bool {
    let parts = text.rsplit_once(':');
    let is_plain = |host: &str| !host.is_empty() && !host.contains(char::is_whitespace);
    parts.is_some_and(|(host, port)| is_plain(host) && port.parse::<u16>().is_ok())
}

/// Whether a file exists, or may exist in a directory that this user may not enter.
fn may_exist(file: &Path) -> bool {
    file.exists() || is_closed(file)
}

/// Whether this user may not enter the directory of a file.
fn is_closed(file: &Path) -> bool {
    std::fs::metadata(file).is_err_and(|it| it.kind() == std::io::ErrorKind::PermissionDenied)
}

/// Advice for a user who may not read the token, if the command always needs the token.
const ASK_ADMINISTRATOR: &str = "ask an administrator to run this command; the commands for users, \
                                 such as `skep health df PATH` and `skep why PATH`, need a path in \
                                 a mount and no token";

/// Returns the end of an error message: the advice `without_token` for a user who may not read the
/// token. The end is empty for root, because root can read the token.
fn way_of_users(without_token: &str, is_root: bool) -> String {
    match is_root || without_token.is_empty() {
        true => String::new(),
        false => format!(". Without the token: {without_token}"),
    }
}

/// Returns the error for a token file that this user may not read. `without_token` is a hint for
/// this user.
fn not_readable(file: &Path, without_token: &str) -> Error {
    let what = format!(
        "cannot read the token file {}: only root or its owner may read this file; {without_token}",
        file.display()
    );
    Error::new(ErrorCode::PermissionDenied, what)
}

/// Reads the token from a file that an option, an environment variable or `client.toml` names.
fn token_in(file: &Path, without_token: &str) -> Result<JoinToken> {
    match std::fs::File::open(file).map(drop) {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            Err(not_readable(file, without_token))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(unknown(format!(
            "cannot read the token file {}: no such file; `skep cluster token --cluster DIRECTORY` \
             on the management host prints the token",
            file.display()
        ))),
        _ => read_token(file),
    }
}

fn from_path(path: &Path, without_token: &str) -> Result<Access> {
    let path = path.canonicalize().map_err(|error| {
        Error::from(error).within(format_args!("cannot look up {}", path.display()))
    })?;
    let candidates =
        [path.join("management").join(TOKEN_FILE), path.join(TOKEN_FILE), path.clone()];
    let found = candidates.iter().find(|file| file.is_file());
    // If no token file exists, use a path in a directory that this user may not enter, so that the
    // error names the missing permission.
    let Some(file) = found.or_else(|| candidates.iter().find(|file| is_closed(file))) else {
        return Err(unknown(format!(
            "cannot find a cluster in {}: this directory has no token; `skep up --data-dir {}` \
             creates a cluster",
            path.display(),
            path.display()
        )));
    };
    Ok(Access::new(token_in(file, without_token)?, &path.display().to_string(), file.clone()))
}

impl Access {
    pub(crate) fn new(token: JoinToken, name: &str, token_file: PathBuf) -> Self {
        let (learned, name) = (Vec::new(), name.to_owned());
        Self { token, learned, names_addresses: false, name, token_file }
    }

    /// Returns the token with all addresses at which management may answer. The addresses that the
    /// user or the token names come first, then the addresses that this host has learned.
    pub(crate) fn contacts(&self) -> JoinToken {
        let mut token = self.token.clone();
        let new = self.learned.iter().filter(|it| !self.token.addresses.contains(it));
        token.addresses.extend(new.cloned());
        token
    }

    /// Returns a copy of this value with `learned` as the addresses of management that this host
    /// has learned.
    pub(crate) fn with_learned(&self, learned: Vec<String>) -> Self {
        Self { learned, ..self.clone() }
    }

    /// Creates a client of the management service. The caller must run inside an event loop.
    fn management(&self) -> Rc<Management> {
        Management::new(&self.contacts(), NodeKind::Client)
    }

    /// Returns the client identity that this command presents to a server during a connect.
    pub(crate) fn identity(&self) -> Identity {
        Identity {
            cluster: self.token.cluster,
            secrets: self.token.secrets.clone(),
            node: NodeId::default(),
            kind: NodeKind::Client,
        }
    }

    /// Connects to a target of a node, or to the node itself if the target id is 0. Returns the
    /// connection and the address that accepted the connection.
    pub(crate) async fn connect(
        &self,
        node: &Node,
        target: TargetId,
        patience: Duration,
    ) -> Result<(String, Rc<Connection>)> {
        let identity = self.identity();
        let mut last =
            Error::new(ErrorCode::Disconnected, "the cluster map has no address of this node");
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

    /// Sends a request to management, and retries while management is unreachable, for up to
    /// [`PATIENCE`].
    ///
    /// # Errors
    /// The error that management sends as its reply. After a timeout or a lost connection, an error
    /// with a hint on how to fix the problem.
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
                    "; check that the cluster is running: `skep up` starts a cluster on this host"
                }
                ErrorCode::Disconnected | ErrorCode::TimedOut => {
                    "; start management on its host if management does not run, and otherwise \
                     check the address and the network. If the cluster has other management nodes, \
                     name one of them with --cluster ADDRESS"
                }
                ErrorCode::AuthenticationFailed
                    if !error.context().contains("skep cluster token") =>
                {
                    "; `skep cluster token --cluster DIRECTORY` on the management host prints the \
                     right token"
                }
                _ => return error,
            };
            Error::new(error.code(), format!("{}{hint}", error.context()))
        };
        let hint = |error| hint(with_token_file(error, &self.token_file));
        let management = self.management();
        let reply = management.call(request, patience).await.map_err(hint)?;
        if self.names_addresses {
            learned_note::print(&self.token.addresses, &management);
        }
        Ok(reply)
    }

    /// Sends a request to management once, without retries, and waits up to `patience` for the
    /// reply. This method is for requests that management answers only after the reply of another
    /// node.
    ///
    /// # Errors
    /// - The error that management sends as its reply.
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

    /// Gets the newest cluster map from management. Retries for up to `patience` while management
    /// is unreachable. `None` means that the retries have no time limit.
    pub(crate) async fn map_within(&self, patience: Option<Duration>) -> Result<ClusterMap> {
        let update = self.ask_within(&GetMap { known: MapVersion::new(0) }, patience).await?;
        let map = update.map.ok_or_else(|| {
            let what = "cannot read the cluster map: management replied without a map";
            Error::new(ErrorCode::Protocol, what)
        })?;
        let learned = management_addresses(&map);
        known_management::remember(self.token.cluster, &self.token.addresses, &learned);
        known_map::remember(&map);
        Ok(map)
    }
}

/// Whether `error` means that management did not answer, or that management has no leader.
pub(crate) fn is_silence(error: &Error) -> bool {
    let silence = [ErrorCode::Disconnected, ErrorCode::TimedOut, ErrorCode::NotLeader];
    silence.contains(&error.code())
}

/// Runs the future of a command on a new event loop until the future completes.
pub(crate) fn block_on<T: 'static>(future: impl Future<Output = Result<T>> + 'static) -> Result<T> {
    skep_env::block_on(future)
        .map_err(|error| Error::new(ErrorCode::Io, format!("cannot run the event loop: {error}")))?
}

/// Adds the path of the token file to the error of a service that refuses the token.
pub(crate) fn with_token_file(error: Error, token_file: &Path) -> Error {
    match error.code() {
        ErrorCode::AuthenticationFailed => {
            let what = format!("token file {}: {}", token_file.display(), error.context());
            Error::new(error.code(), what)
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client_file::NamedCluster;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn error_for_a_refused_token_names_the_token_file() {
        let of = |code| with_token_file(Error::new(code, "wrong"), Path::new("/etc/skep/a"));
        assert_eq!(of(ErrorCode::AuthenticationFailed).context(), "token file /etc/skep/a: wrong");
        assert_eq!(of(ErrorCode::TimedOut).context(), "wrong");
    }

    #[test]
    fn address_without_host_or_port_is_invalid() {
        for right in ["10.0.0.1:7400", "[::1]:7400", "management.example:7400"] {
            assert!(is_address(right), "{right}");
        }
        for wrong in ["10.0.0.1", ":7400", "a:", "a:port", "a:70000", "a:7400,"] {
            assert!(!is_address(wrong), "{wrong}");
        }
    }

    fn try_named(cluster: &str, token_file: Option<&Path>, file: &ClientFile) -> Result<Access> {
        let token_file = token_file.map(Path::to_owned);
        let query = ClusterQuery { token_file, file: file.clone(), ..ClusterQuery::default() };
        query.find(Some(cluster), None)
    }

    #[test]
    fn error_for_an_unknown_cluster_names_the_fix() {
        let refused = |cluster: &str, token_file: Option<&str>| {
            let file = ClientFile::default();
            let refused = try_named(cluster, token_file.map(Path::new), &file).unwrap_err();
            refused.context().to_owned()
        };
        assert!(refused("/nowhere", None).contains("no such file"));
        assert!(refused("10.0.0.1:7400", Some("/nowhere")).contains("/nowhere"));
        assert!(refused("a b", Some("/nowhere")).contains("host:port"));
        let closed = not_readable(Path::new("/etc/skep/token"), ASK_ADMINISTRATOR);
        let closed = closed.context().to_owned();
        let words = ["only root", "skep health df PATH"];
        assert!(words.iter().all(|word| closed.contains(word)), "{closed}");
        let blank = tempfile::tempdir().unwrap();
        assert!(refused(&blank.path().display().to_string(), None).contains("skep up"));
    }

    #[test]
    fn cluster_is_found_by_name_or_address_with_a_default_port() {
        let place = tempfile::tempdir().unwrap();
        let token_file = place.path().join("token");
        let text = format!("skep1-{}-{}@10.0.0.9:7400", "ab".repeat(16), "cd".repeat(32));
        std::fs::write(&token_file, text).unwrap();
        std::fs::set_permissions(&token_file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let cluster = NamedCluster {
            management: vec!["management.example".into(), "10.0.0.1:7777".into()],
            token_file: token_file.clone(),
        };
        let clusters = [("work".to_owned(), cluster)].into();
        let file = ClientFile { cluster: None, clusters };
        let addresses = |access: Access| access.token.addresses;
        let work = try_named("work", None, &file).unwrap();
        assert_eq!(work.name, "work");
        assert_eq!(addresses(work), ["management.example:7400", "10.0.0.1:7777"]);
        // If the user names only an address, the command uses the token file of the cluster in
        // `client.toml` that has this address.
        let by_address = try_named("management.example", None, &file).unwrap();
        assert_eq!(by_address.token_file, token_file);
        assert_eq!(addresses(by_address), ["management.example:7400"]);
        let v6 = try_named("::1", Some(&token_file), &file).unwrap();
        assert_eq!(addresses(v6), ["[::1]:7400"]);
        // If `client.toml` names only one cluster, this cluster is the default.
        let query = ClusterQuery { file, ..ClusterQuery::default() };
        assert_eq!(query.of_host().unwrap().name, "work");
        // Options take precedence over environment variables, and environment variables over
        // `client.toml`.
        let environment = (Some("10.0.0.3".to_owned()), Some(token_file));
        let query = ClusterQuery { environment, ..query };
        assert_eq!(query.find(None, Some(Path::new("/"))).unwrap().name, "10.0.0.3");
        assert_eq!(query.find(Some("work"), None).unwrap().name, "work");
        for (name, is_mistyped) in
            [("work", false), ("localhost", false), ("10.0.0.1", false), ("no_such_cluster", true)]
        {
            let Access { name, token, .. } = query.find(Some(name), None).unwrap();
            assert_eq!(query.file.is_mistyped(&name, &token.addresses), is_mistyped, "{name}");
        }
    }
}
