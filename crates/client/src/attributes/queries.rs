//! Answers queries that administration tools send through a mount, for users without the cluster's
//! token. The queries return the clients that use a file, and the directories above an inode.
//!
//! Before each query, the kernel checks that the user may read the file or directory. The names of
//! the extended attributes that return the results are defined in `skep_fuse`.

use crate::client::Client;
use skep_types::codec::{Codec, record};
use skep_types::{Error, ErrorCode, InodeId, NodeId, Result, SessionId};
use skep_wire::file_locks::{FileUse, ListLocks};
use skep_wire::management::{ClientEntry, ListClients};
use skep_wire::metadata::GetEntryInfo;
use std::collections::BTreeMap;
use std::time::Duration;

/// Maximum size of a query's result in bytes. The kernel limits the value of an extended attribute
/// to 64 KiB.
const MAX_ANSWER_BYTES: usize = 60_000;
/// Maximum number of directories above an inode in the result of a query.
const MAX_DEPTH: usize = 4096;
/// Time limit for one request to management for the names of the clients' hosts. A result without
/// these names is still useful while management is unreachable.
const HOSTS_PATIENCE: Duration = Duration::from_secs(2);

record! {
    /// A page of the clients that have a file open or locked.
    #[derive(Default)]
    pub struct FileUsers {
        /// The number of opens, the locks and the lock waits of each session that uses the file.
        pub uses: Vec<FileUse>,
        /// The clients that own these sessions. Empty while management is unreachable.
        pub clients: Vec<ClientEntry>,
        /// The value of `after` for the next page. `None` means that this is the last page.
        pub next: Option<(SessionId, InodeId)>,
    }
}

/// Answers queries about files and directories.
pub trait Queries {
    /// Returns one encoded page ([`FileUsers`]) of the clients that use a regular file. The page
    /// begins after the position `after`, which is the value of `next` in the previous page. For
    /// the first page, both numbers of `after` are zero.
    ///
    /// # Errors
    /// Returns the errors of a request to metadata.
    fn file_users(
        &self,
        inode: InodeId,
        after: (SessionId, InodeId),
    ) -> impl Future<Output = Result<Vec<u8>>>;

    /// Returns the encoded ids of the directories above an inode, up to the root. Does not return
    /// the names of the directories, since a program needs the permission to list a directory to
    /// find the names of its entries.
    ///
    /// # Errors
    /// - `NotFound` if the inode does not exist or has no name.
    /// - `TooLarge` if there are more than 4,096 directories above the inode.
    fn ancestors(&self, inode: InodeId) -> impl Future<Output = Result<Vec<u8>>>;
}

impl Queries for Client {
    async fn file_users(&self, inode: InodeId, after: (SessionId, InodeId)) -> Result<Vec<u8>> {
        let (after_session, after_inode) = after;
        let request = ListLocks { inode, after_session, after_inode, only_locked: false };
        let page = self.ask(inode, &request).await?;
        let known = self.clients_of(&page.uses).await;
        Ok(page_of(page.uses, &known, page.next).to_bytes())
    }

    async fn ancestors(&self, inode: InodeId) -> Result<Vec<u8>> {
        let mut above = Vec::new();
        let mut at = inode;
        while at != InodeId::ROOT {
            let info = self.ask(at, &GetEntryInfo { inode: at }).await?;
            if info.attributes.links == 0 {
                return Err(ErrorCode::NotFound.into());
            }
            if above.len() == MAX_DEPTH {
                let what = format!(
                    "cannot list the directories above inode {inode}: the path has more than \
                     {MAX_DEPTH} directories"
                );
                return Err(Error::new(ErrorCode::TooLarge, what));
            }
            above.push(info.parent);
            at = info.parent;
        }
        Ok(above.to_bytes())
    }
}

impl Client {
    /// Returns the hosts and mount points of the clients that use a file. If management does not
    /// reply in time, the result lacks some of these clients.
    async fn clients_of(&self, uses: &[FileUse]) -> BTreeMap<NodeId, ClientEntry> {
        let mut known = BTreeMap::new();
        let management = self.mount().member.management();
        for used in uses {
            if known.contains_key(&used.client) || used.client.raw() == 0 {
                continue;
            }
            // The reply contains this client and many clients with the next higher ids, so most of
            // the following elements of `uses` need no further request.
            let request = ListClients { after: NodeId::new(used.client.raw() - 1) };
            let Ok(page) = management.call(&request, Some(HOSTS_PATIENCE)).await else { break };
            known.extend(page.clients.into_iter().map(|client| (client.node, client)));
        }
        known
    }
}

/// Returns a page with the first elements of `uses` and their clients. The page has as many
/// elements as fit into [`MAX_ANSWER_BYTES`], but at least one if `uses` is not empty.
fn page_of(
    uses: Vec<FileUse>,
    known: &BTreeMap<NodeId, ClientEntry>,
    next: Option<(SessionId, InodeId)>,
) -> FileUsers {
    let mut answer = FileUsers { next, ..FileUsers::default() };
    let mut len = answer.to_bytes().len();
    for used in uses {
        let is_new = !answer.clients.iter().any(|client| client.node == used.client);
        let client = known.get(&used.client).filter(|_| is_new);
        len += used.to_bytes().len() + client.map_or(0, |client| client.to_bytes().len());
        if let Some(last) = answer.uses.last().filter(|_| len > MAX_ANSWER_BYTES) {
            answer.next = Some((last.session, last.inode));
            return answer;
        }
        answer.clients.extend(client.cloned());
        answer.uses.push(used);
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::Timestamp;

    #[test]
    fn page_of_open_files_and_locks_fits_into_one_xattr() {
        let client = |node| ClientEntry {
            node: NodeId::new(node),
            host: "h".repeat(200),
            mount_point: "m".repeat(1000),
            pid: 1,
            registered: Timestamp { seconds: 1, nanoseconds: 0 },
            silent_ms: None,
        };
        let used = |number: u32| FileUse {
            session: SessionId::new(u64::from(number)),
            client: NodeId::new(number),
            inode: InodeId::new(9),
            readers: 1,
            writers: 0,
            held: Vec::new(),
            held_count: 0,
            waiting: Vec::new(),
            waiting_count: 0,
            longest_wait_ms: 0,
        };
        let known = (1..=200).map(|node| (NodeId::new(node), client(node))).collect();
        let mut left: Vec<FileUse> = (1..=200).map(used).collect();
        let (mut seen, mut pages) = (Vec::new(), 0);
        loop {
            let page = page_of(left.clone(), &known, None);
            assert!(
                page.to_bytes().len() <= MAX_ANSWER_BYTES + 100,
                "the page fits into one xattr"
            );
            assert_eq!(page.uses.len(), page.clients.len());
            seen.extend(page.uses.iter().map(|used| used.client.raw()));
            pages += 1;
            let Some((session, _)) = page.next else { break };
            left.retain(|used| used.session > session);
        }
        assert_eq!(seen, (1..=200).collect::<Vec<u32>>());
        assert!(pages > 2, "{pages} pages");
    }
}
