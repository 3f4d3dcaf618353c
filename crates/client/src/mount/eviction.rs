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
        let files = match lost.len() {
            0 => "no file was open for writing".to_owned(),
            1 => "1 file that was open for writing returns EIO until it is reopened".to_owned(),
            count => format!(
                "{count} files that were open for writing return EIO until they are reopened"
            ),
        };
        tracing::error!(
            "management evicted this client ({evicted}), since it did not reach the servers for \
             longer than its lease, or an administrator asked for it; the mount joins the cluster \
             again; {files}; check the network of this host; `skep config set lease 60s` makes \
             clients outlast longer interruptions"
        );
        let (member, client) = (Arc::clone(&mount.member), self.clone());
        // A separate task registers the client again, since all threads wait for the new id, but a
        // caller may drop its own future.
        skep_env::spawn(async move {
            let began = skep_env::now();
            member.register_again().await;
            client.meter().rejoin.record(skep_env::now().saturating_sub(began));
        })
        .detach();
    }
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

    /// Sends a request that changes an open file to a storage group. Fails if this client was
    /// evicted since the file was opened, even if the client has joined again with another id. The
    /// reason is that other clients may have changed the file since the eviction.
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
