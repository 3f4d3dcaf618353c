//! The subcommands of `skep transaction`, and the requests to metadata groups that all subcommands
//! use.

mod list;
mod resolve;

use crate::access::{Access, PATIENCE};
use crate::cmd::done;
use clap::Subcommand;
use skep_rpc::{CallOptions, Channel, MapCell, Router};
use skep_types::{ClusterMap, Error, GroupId, NodeId, Result, TargetKind};
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
    /// The groups that have not replied, with the error. Their transactions are missing.
    silent: Vec<(GroupId, Error)>,
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

    pub(super) fn ids(&self) -> Vec<GroupId> {
        let groups = self.map.groups.iter().filter(|group| group.kind == TargetKind::Metadata);
        groups.map(|group| group.id).collect()
    }

    /// Returns the transactions of all metadata groups. A group whose disks are lost does not
    /// reply, and the transactions that wait for this group are at the others.
    async fn transactions(&self) -> Transactions {
        let mut all = Transactions::default();
        for group in self.ids() {
            if let Err(error) = self.add_transactions(group, &mut all).await {
                all.silent.push((group, error));
            }
        }
        all
    }

    async fn add_transactions(&self, group: GroupId, all: &mut Transactions) -> Result<()> {
        let prepared = self.prepared(group).await?;
        let coordinated = self.coordinated(group, PATIENCE).await?;
        all.prepared.extend(prepared.into_iter().map(|entry| (group, entry)));
        all.coordinated.extend(coordinated);
        Ok(())
    }

    /// Returns the transactions that the metadata group `group` coordinates and that wait for the
    /// confirmation of another group. Waits for each reply up to `patience`.
    pub(super) async fn coordinated(
        &self,
        group: GroupId,
        patience: Duration,
    ) -> Result<Vec<CoordinatedEntry>> {
        let options = || CallOptions { time_left: Some(patience), ..CallOptions::default() };
        let mut transactions = Vec::new();
        let mut after = Some(0);
        while let Some(request) = after.map(|after| ListCoordinated { after }) {
            let answer = self.router.call(group, &request, options()).await;
            let (page, _) = answer.map_err(|error| within(group, &error))?;
            transactions.extend(page.transactions);
            after = page.next;
        }
        Ok(transactions)
    }

    /// Returns the transactions that are prepared at the metadata group `group`.
    async fn prepared(&self, group: GroupId) -> Result<Vec<TransactionEntry>> {
        let mut transactions = Vec::new();
        let mut after = Some(TransactionId::default());
        while let Some(request) = after.map(|after| ListTransactions { after }) {
            let answer = self.router.call(group, &request, options()).await;
            let (page, _) = answer.map_err(|error| within(group, &error))?;
            transactions.extend(page.transactions);
            after = page.next;
        }
        Ok(transactions)
    }
}

impl Transactions {
    /// Checks that all metadata groups have replied.
    ///
    /// # Errors
    /// The error of the first group that has not replied.
    fn check_complete(&self) -> Result<()> {
        self.silent.first().map_or(Ok(()), |(_, error)| Err(error.clone()))
    }
}

/// Adds the id of the metadata group, and a hint on how to fix the problem, to an error.
fn within(group: GroupId, error: &Error) -> Error {
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
