//! The subcommands of `skep transaction`, and the requests to metadata groups that all subcommands
//! use.

mod list;
mod resolve;

use crate::access::{Access, PATIENCE};
use crate::cmd::done;
use clap::Subcommand;
use skep_rpc::{CallOptions, Channel, MapCell, Router};
use skep_types::{ClusterMap, Error, ErrorCode, GroupId, NodeId, Result, TargetKind};
use skep_wire::metadata::{
    CoordinatedEntry, ListCoordinated, ListTransactions, TransactionEntry, TransactionId,
};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

/// List and resolve transactions that wait for another metadata target
#[derive(Debug, Subcommand)]
pub(crate) enum TransactionVerb {
    List(list::ListArgs),
    Resolve(resolve::ResolveArgs),
}

impl TransactionVerb {
    /// Runs the chosen subcommand.
    pub(super) fn run(self) -> Result<ExitCode> {
        match self {
            Self::List(args) => done(list::run(args)),
            Self::Resolve(args) => done(resolve::run(args)),
        }
    }
}

/// Maximum number of metadata groups to which a command sends requests at the same time.
const MAX_ASKED: usize = 64;

/// The metadata groups of a cluster, and a router for requests to these groups.
pub(super) struct Groups {
    map: ClusterMap,
    router: Rc<Router>,
}

/// The transactions of all metadata groups that have replied.
#[derive(Debug, Default)]
struct Transactions {
    /// The transactions that are prepared at a group, with this group.
    prepared: Vec<(GroupId, TransactionEntry)>,
    /// The transactions that wait for the confirmation of a participant, from their coordinators.
    coordinated: Vec<CoordinatedEntry>,
    /// The groups whose prepared transactions are missing, with the error. They have not replied.
    silent: Vec<(GroupId, Error)>,
    /// The groups whose coordinated transactions are missing, with the error. They have not
    /// replied, or their service has an earlier version, which cannot list these transactions.
    unlisted: Vec<(GroupId, Error)>,
}

/// Returns the call options for each request.
fn options() -> CallOptions {
    CallOptions { time_left: Some(PATIENCE), ..CallOptions::default() }
}

impl Groups {
    async fn of(access: &Access) -> Result<Self> {
        Ok(Self::of_map(access, access.map().await?))
    }

    /// Returns the metadata groups in a cluster map.
    pub(super) fn of_map(access: &Access, map: ClusterMap) -> Self {
        let cell = MapCell::new(map.clone(), NodeId::default());
        let router = Router::new(access.identity(), Channel::random(), cell);
        Self { map, router }
    }

    fn ids(&self) -> Vec<GroupId> {
        let groups = self.map.groups.iter().filter(|group| group.kind == TargetKind::Metadata);
        groups.map(|group| group.id).collect()
    }

    /// Returns the transactions of all metadata groups. A group whose disks are lost does not
    /// reply, and the transactions that wait for this group are at the others.
    async fn transactions(&self) -> Transactions {
        let mut all = Transactions::default();
        for (group, listed) in self.of_each(PATIENCE, prepared).await {
            match listed {
                Ok(listed) => all.prepared.extend(listed.into_iter().map(|it| (group, it))),
                Err(error) => all.silent.push((group, error)),
            }
        }
        for (group, listed) in self.of_each(PATIENCE, coordinated).await {
            match listed {
                Ok(listed) => all.coordinated.extend(listed),
                Err(error) => all.unlisted.push((group, error)),
            }
        }
        all
    }

    /// Sends requests to all metadata groups, to at most [`MAX_ASKED`] at the same time, and
    /// returns the result for each group. Waits for each group up to `patience`. So many silent
    /// groups together delay the command only by one time limit.
    pub(super) async fn of_each<T, F>(
        &self,
        patience: Duration,
        ask: impl Fn(Rc<Router>, GroupId) -> F,
    ) -> Vec<(GroupId, Result<T>)>
    where
        T: 'static,
        F: Future<Output = Result<T>> + 'static,
    {
        let groups = self.ids();
        let mut results = Vec::with_capacity(groups.len());
        for some in groups.chunks(MAX_ASKED) {
            let asked = some.iter().map(|group| {
                let listing = ask(Rc::clone(&self.router), *group);
                (*group, skep_env::spawn(skep_env::timeout(patience, listing)))
            });
            let asked: Vec<_> = asked.collect();
            for (group, listing) in asked {
                let silent = || {
                    let what = format!("no reply within {patience:?}");
                    Err(within(group, &Error::new(ErrorCode::TimedOut, what)))
                };
                results.push((group, listing.await.unwrap_or_else(silent)));
            }
        }
        results
    }
}

/// Returns the transactions that the metadata group `group` coordinates and that wait for the
/// confirmation of another group.
///
/// # Errors
/// `Unsupported` if the service of the group has an earlier version, which cannot list them.
pub(super) async fn coordinated(
    router: Rc<Router>,
    group: GroupId,
) -> Result<Vec<CoordinatedEntry>> {
    let mut transactions = Vec::new();
    let mut after = Some(0);
    while let Some(request) = after.map(|after| ListCoordinated { after }) {
        let answer = router.call(group, &request, options()).await;
        let (page, _) = answer.map_err(|error| within(group, &error))?;
        transactions.extend(page.transactions);
        after = page.next;
    }
    Ok(transactions)
}

/// Returns the transactions that are prepared at the metadata group `group`.
async fn prepared(router: Rc<Router>, group: GroupId) -> Result<Vec<TransactionEntry>> {
    let mut transactions = Vec::new();
    let mut after = Some(TransactionId::default());
    while let Some(request) = after.map(|after| ListTransactions { after }) {
        let answer = router.call(group, &request, options()).await;
        let (page, _) = answer.map_err(|error| within(group, &error))?;
        transactions.extend(page.transactions);
        after = page.next;
    }
    Ok(transactions)
}

impl Transactions {
    /// Checks that all metadata groups have listed all their transactions.
    ///
    /// # Errors
    /// The error of the first group that has not replied, or else of the first group whose service
    /// has an earlier version.
    fn check_complete(&self) -> Result<()> {
        let mut missing = self.silent.iter().chain(&self.unlisted);
        missing.next().map_or(Ok(()), |(_, error)| Err(error.clone()))
    }
}

/// Adds the id of the metadata group, and a hint on how to fix the problem, to an error.
fn within(group: GroupId, error: &Error) -> Error {
    if error.code() == ErrorCode::Unsupported {
        let what = format!(
            "cannot list the transactions that metadata group {group} coordinates: its service has \
             an earlier version, which cannot list them; install this version there"
        );
        return Error::new(ErrorCode::Unsupported, what);
    }
    let what = format!(
        "cannot list the transactions of metadata group {group}: {}; `skep health check` lists \
         problems",
        error.context()
    );
    Error::new(error.code(), what)
}

/// Returns the name that commands print for a transaction: `COORDINATOR:NUMBER`.
fn name(transaction: TransactionId) -> String {
    format!("{}:{}", transaction.coordinator.raw(), transaction.number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_of_an_earlier_version_is_named_as_such() {
        let group = GroupId::new(3);
        let refused = Error::new(ErrorCode::Unsupported, "cannot execute message 94");
        let mut all = Transactions::default();
        assert_eq!(all.check_complete(), Ok(()));
        all.unlisted.push((group, within(group, &refused)));
        let error = all.check_complete().unwrap_err();
        assert_eq!(error.code(), ErrorCode::Unsupported);
        assert!(error.context().contains("has an earlier version"), "{error}");
        // A group that does not reply hides more transactions, so its error is the first.
        all.silent.push((group, within(group, &ErrorCode::TimedOut.into())));
        assert_eq!(all.check_complete().unwrap_err().code(), ErrorCode::TimedOut);
    }
}
