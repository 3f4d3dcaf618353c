//! The subcommands of `skep transaction`, and the requests to metadata groups that all subcommands
//! use.

mod list;
mod resolve;

use crate::access::{Access, PATIENCE};
use crate::cmd::done;
use clap::Subcommand;
use skep_rpc::{CallOptions, Channel, MapCell, Router};
use skep_types::{ClusterMap, Error, GroupId, NodeId, Result, TargetKind};
use skep_wire::metadata::{ListTransactions, TransactionEntry, TransactionId};
use std::process::ExitCode;
use std::rc::Rc;

/// List and resolve transactions that wait for the decision of another metadata target
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
struct Groups {
    map: ClusterMap,
    router: Rc<Router>,
}

/// Returns the call options for each request.
fn options() -> CallOptions {
    CallOptions { time_left: Some(PATIENCE), ..CallOptions::default() }
}

impl Groups {
    async fn of(access: &Access) -> Result<Self> {
        let map = access.map().await?;
        let cell = MapCell::new(map.clone(), NodeId::default());
        let router = Router::new(access.identity(), Channel::random(), cell);
        Ok(Self { map, router })
    }

    fn ids(&self) -> Vec<GroupId> {
        let groups = self.map.groups.iter().filter(|group| group.kind == TargetKind::Metadata);
        groups.map(|group| group.id).collect()
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
