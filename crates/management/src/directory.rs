//! Management's directory: identity, join token, command log and snapshot.

use crate::command_log::{CommandLog, LOG_FILE, SNAPSHOT_FILE};
use crate::settings::ManagementSettings;
use skep_cluster::ClusterState;
use skep_format::identity::DirectoryKind;
use skep_rpc::{JoinToken, Secrets};
use skep_service::NodeDirectory;
use skep_service::advertise::{self, Advertised};
use skep_service::directory::{TOKEN_FILE, write_token};
use skep_service::listen::{ADDRESS_FILE, IfTaken, listen};
use skep_store::identity::IDENTITY_FILE;
use skep_types::{ClusterId, Result};

/// Initialises a blank directory for a new cluster. Returns the token that nodes need to join the
/// cluster, and the choice of the addresses in it.
///
/// `given` is a token that exists before the cluster: hosts that start at the same time as
/// management have it already. The cluster gets its id and its secret. `None` means that both are
/// random. In both cases `settings` name the addresses in the token.
///
/// # Errors
/// - `Configuration` if the directory is not blank.
/// - `Configuration` if this host has no obvious address for other hosts.
/// - `Io` if management cannot listen on the configured address.
/// - Errors of the file system.
///
/// The context contains a hint how to fix the problem.
pub async fn initialise(
    settings: &ManagementSettings,
    given: Option<JoinToken>,
) -> Result<(JoinToken, Advertised)> {
    let path = &settings.node.directory;
    let mut token = given.unwrap_or_else(|| JoinToken {
        cluster: ClusterId::new(skep_env::random_bytes()),
        secrets: Secrets::generate(),
        addresses: vec!["unknown:0".into()],
    });
    let directory = NodeDirectory::initialise(path, DirectoryKind::Management, token.clone())?;
    let filled = fill(settings, &mut token).await;
    if filled.is_err() {
        // Best effort: the next attempt refuses a half-initialised directory. Its error names a
        // file that could not be removed here.
        let files = [IDENTITY_FILE, TOKEN_FILE, LOG_FILE, SNAPSHOT_FILE, ADDRESS_FILE];
        for file in files {
            let _ = std::fs::remove_file(path.join(file));
        }
    }
    drop(directory);
    filled.map(|advertised| (token, advertised))
}

async fn fill(settings: &ManagementSettings, token: &mut JoinToken) -> Result<Advertised> {
    let path = &settings.node.directory;
    CommandLog::create(path, &ClusterState::new(token.cluster))?;
    // Listens briefly to choose the address, which becomes part of the token and must not change
    // later.
    let listener = listen(&settings.node.listen, path, IfTaken::Fail).await?;
    let advertised = advertise::of_management(&listener, &settings.node.advertise, &[])?;
    token.addresses.clone_from(&advertised.addresses);
    write_token(path, token)?;
    Ok(advertised)
}
