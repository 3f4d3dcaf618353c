//! Management's directory: identity, join token, command log and snapshot.

use crate::command_log::{CommandLog, LOG_FILE, SNAPSHOT_FILE};
use crate::settings::ManagementSettings;
use skep_cluster::ClusterState;
use skep_format::identity::DirectoryKind;
use skep_rpc::{JoinToken, Secret};
use skep_service::NodeDirectory;
use skep_service::directory::{TOKEN_FILE, write_token};
use skep_service::listen::{ADDRESS_FILE, IfTaken, advertised, listen};
use skep_store::identity::IDENTITY_FILE;
use skep_types::{ClusterId, Result};

/// Initialises a blank directory for a new cluster. Returns the token with which nodes join.
///
/// # Errors
/// `Configuration` if the directory is not blank, `Io` if management cannot listen on the address;
/// the context names the way out.
pub async fn initialise(settings: &ManagementSettings) -> Result<JoinToken> {
    let path = &settings.node.directory;
    let mut token = JoinToken {
        cluster: ClusterId::new(skep_env::random_bytes()),
        secret: Secret::generate(),
        addresses: vec!["unknown:0".into()],
    };
    let directory = NodeDirectory::initialise(path, DirectoryKind::Management, token.clone())?;
    let filled = fill(settings, &mut token).await;
    if filled.is_err() {
        // The next attempt would refuse a half-initialised directory, and would name the files that
        // cannot be removed here.
        let files = [IDENTITY_FILE, TOKEN_FILE, LOG_FILE, SNAPSHOT_FILE, ADDRESS_FILE];
        for file in files {
            let _ = std::fs::remove_file(path.join(file));
        }
    }
    drop(directory);
    filled.map(|()| token)
}

async fn fill(settings: &ManagementSettings, token: &mut JoinToken) -> Result<()> {
    let path = &settings.node.directory;
    CommandLog::create(path, &ClusterState::new(token.cluster))?;
    // Listens for a moment to choose the address: it becomes part of the token and stays the same.
    let listener = listen(&settings.node.listen, path, IfTaken::Fail).await?;
    token.addresses = advertised(&listener, &settings.node.advertise, None)?;
    write_token(path, token)
}
