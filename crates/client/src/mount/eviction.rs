//! Recovery from an eviction. If a client was silent for longer than its lease, management removes
//! it from the cluster map, and storage refuses its requests (docs/design/0006-fencing.md).
//!
//! After an eviction, the client joins the cluster with a new id, and its operations continue. Only
//! operations through handles for writing fail, since other clients may have changed the files of
//! these handles since the eviction.

use crate::client::{Client, Worker};
use crate::files::open_file::OpenFile;
use skep_rpc::CallOptions;
use skep_types::{ErrorCode, GroupId, NodeId, Result};
use skep_wire::Request;
use skep_wire::metadata::OpenMode;
use std::rc::Rc;
use std::sync::Arc;

impl Client {
    /// Joins the cluster again after management has removed `evicted`, an id of this mount, from
    /// the map. Returns as soon as any thread of the mount has joined again.
    pub(crate) async fn rejoin(&self, evicted: NodeId) {
        self.begin_to_rejoin(evicted);
        self.mount().member.wait_for_new_id(evicted).await;
    }

    /// Like [`Self::rejoin`], but returns before the client has joined. When this function returns,
    /// all handles for writing are fenced.
    pub(crate) fn begin_to_rejoin(&self, evicted: NodeId) {
        let mount = self.mount();
        if !mount.member.begin_rejoin(evicted) {
            return;
        }
        let lost = mount.handles.select(|file| file.mode == OpenMode::Write && !file.is_stale());
        for file in &lost {
            file.set_fenced();
            file.inode.forget_unreported();
        }
        let text = removal_text(evicted, lost.len());
        match lost.is_empty() {
            true => tracing::warn!("{text}"),
            false => tracing::error!("{text}"),
        }
        let (member, client) = (Arc::clone(&mount.member), self.clone());
        // A separate task registers the client again, since all threads wait for the new id, but a
        // caller may drop its own future.
        skep_env::spawn(async move {
            let began = skep_env::now();
            member.register_again().await;
            client.meter().rejoin.record(skep_env::now().saturating_sub(began));
            let joined = member.node();
            if joined != evicted {
                tracing::info!("this client has joined the cluster again, as {joined}");
            }
        })
        .detach();
    }
}

/// Returns the log line of a client that management has removed. `lost` is the number of files that
/// the client had open for writing.
fn removal_text(removed: NodeId, lost: usize) -> String {
    let files = match lost {
        0 => "no file was open for writing".to_owned(),
        1 => "1 file that was open for writing returns EIO until it is reopened".to_owned(),
        count => {
            format!("{count} files that were open for writing return EIO until they are reopened")
        }
    };
    format!(
        "this client ({removed}) is not in the cluster any more: an administrator has evicted the \
         client, the client did not reach the servers for longer than its lease, or management was \
         restored from a backup. The mount joins the cluster again; {files}. If no administrator \
         has evicted it, check the network of this host; `skep config set lease 60s` lets clients \
         survive longer interruptions"
    )
}

impl Worker {
    /// Sends a read-only request to a storage group. If this client was evicted, joins the cluster
    /// again and repeats the request.
    pub(crate) async fn call_storage<R: Request>(
        self: &Rc<Self>,
        group: GroupId,
        request: &R,
        options: CallOptions,
    ) -> Result<(R::Reply, usize)> {
        loop {
            let node = self.mount.node();
            match self.router.call(group, request, options.clone()).await {
                Err(error) if error.code() == ErrorCode::Evicted => {
                    Client(Rc::clone(self)).rejoin(node).await;
                }
                result => return result,
            }
        }
    }

    /// Sends a storage group a request that changes an open file. Fails if this client was evicted
    /// since the file was opened, even if the client has joined again with another id. The reason
    /// is that other clients may have changed the file since the eviction.
    pub(crate) async fn change_storage<R: Request>(
        self: &Rc<Self>,
        file: &OpenFile,
        group: GroupId,
        request: &R,
        options: CallOptions,
    ) -> Result<R::Reply> {
        // The client reads its id before it checks the handle. So a handle that passes the check
        // was opened with this id or a newer id.
        let node = self.mount.node();
        file.check_live()?;
        let options = CallOptions { only_as: Some(node), ..options };
        match self.router.call(group, request, options).await {
            Ok((reply, _)) => Ok(reply),
            Err(error) => {
                if error.code() == ErrorCode::Evicted {
                    Client(Rc::clone(self)).begin_to_rejoin(node);
                }
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_a_removed_client_names_causes_and_counts_files() {
        let text = |lost| removal_text(NodeId::new(12), lost);
        for words in ["(n12) is not in", "evicted", "restored from a backup", "no file was open"] {
            assert!(text(0).contains(words), "{}", text(0));
        }
        assert!(text(1).contains("1 file that was open for writing returns EIO"), "{}", text(1));
        assert!(text(3).contains("3 files"), "{}", text(3));
    }
}
