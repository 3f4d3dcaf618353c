//! Gets the statistics of all services, as nearly as possible at the same moment.

use super::moment::Moment;
use crate::access::{Access, is_silence};
use crate::cmd::health::last_map;
use crate::view::problem_of_node;
use skep_rpc::CallOptions;
use skep_stats::{Round, ServiceFigures};
use skep_types::{ClusterMap, Error, ErrorCode, Node, NodeId, NodeKind, Result, TargetId};
use skep_wire::node::GetStatistics;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Duration;

/// Time limit for the reply of a service. A service that needs longer is shown as missing, so that
/// the statistics of all other services are not late.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time limit for the cluster map of management, if the command has an earlier map.
const MAP_PATIENCE: Duration = Duration::from_secs(1);
/// Prefix of the names of the metrics that the command requests from services. Empty means all
/// metrics. `skep debug bundle` also needs the metrics of the processes, which are few.
const PREFIX: &str = "";

/// The statistics that the services of a cluster have returned.
pub(crate) struct Fetched {
    pub(crate) map: ClusterMap,
    pub(crate) round: Round,
    /// Time at which the services counted.
    pub(super) moment: Moment,
    /// Services that did not reply, each with the reason.
    pub(crate) unreachable: Vec<String>,
    /// The nodes of the services in `unreachable`.
    silent: BTreeSet<NodeId>,
    /// Whether `map` is the last map of this host, because management does not answer.
    has_last_map: bool,
}

/// Asks all services for their statistics at the same time.
///
/// # Errors
/// Errors of the request to management, which lists the services.
pub(crate) async fn fetch(access: &Access) -> Result<Fetched> {
    Ok(fetch_from(access, access.map().await?, BTreeSet::new(), Vec::new()).await)
}

/// Asks the services of `map`, the last cluster map of this host, at the same time. Skips
/// management and the nodes in `silent`, because they do not answer. `error` is the error of the
/// request to management. It becomes the first entry of [`Fetched::unreachable`].
pub(crate) async fn fetch_by_last_map(
    access: &Access,
    map: ClusterMap,
    mut silent: BTreeSet<NodeId>,
    error: &Error,
) -> Fetched {
    let management = map.nodes.iter().filter(|node| node.kind == NodeKind::Management);
    silent.extend(management.map(|node| node.id));
    let fetched = fetch_from(access, map, silent, vec![missing_management(error)]).await;
    Fetched { has_last_map: true, ..fetched }
}

/// Asks the services of one cluster, once or repeatedly. While management does not reply, asks the
/// services of the last cluster map, because they work without management.
#[derive(Debug)]
pub(crate) struct Fetcher {
    access: Access,
    /// The cluster map of the last call.
    map: RefCell<Option<ClusterMap>>,
}

impl Fetcher {
    pub(crate) fn new(access: Access) -> Self {
        Self { access, map: RefCell::default() }
    }

    /// Asks all services for their statistics at the same time. If management does not reply,
    /// [`Fetched::unreachable`] begins with the reason.
    ///
    /// # Errors
    /// Errors of the request to management, if management replies with an error, if this host has
    /// no cluster map, or if no service replies either.
    pub(crate) async fn fetch(&self) -> Result<Fetched> {
        let last = self.map.borrow().clone();
        let late = || {
            let what = format!("no cluster map within {MAP_PATIENCE:?}");
            Err(Error::new(ErrorCode::TimedOut, what))
        };
        let asked = match last {
            Some(_) => {
                let asking = self.access.map_within(Some(MAP_PATIENCE));
                skep_env::timeout(MAP_PATIENCE, asking).await.unwrap_or_else(late)
            }
            None => self.access.map().await,
        };
        let (map, silence) = match asked {
            Err(error) if is_silence(&error) => {
                let of_host = || last_map::find(&self.access).map(|it| it.map);
                let Some(map) = last.or_else(of_host) else { return Err(error) };
                (map, Some(error))
            }
            asked => (asked?, None),
        };
        *self.map.borrow_mut() = Some(map.clone());
        let mut fetched = fetch_from(&self.access, map, BTreeSet::new(), Vec::new()).await;
        if let Some(error) = silence {
            if fetched.round.is_empty() {
                return Err(error);
            }
            fetched.unreachable.insert(0, missing_management(&error));
        }
        Ok(fetched)
    }
}

/// Returns the entry of [`Fetched::unreachable`] about management, which has sent no cluster map.
fn missing_management(error: &Error) -> String {
    format!("management, so these are the services of the last cluster map: {}", error.context())
}

/// Asks again all services that have replied in the earlier round `before`. Skips the services that
/// did not reply in the earlier round, because their counts cannot be compared with earlier counts.
/// A request to these services would also delay each round. If `before` has the last map of this
/// host, asks the services of the same map, and sends no request to management.
///
/// # Errors
/// Errors of the request to management, which lists the services.
pub(crate) async fn fetch_again(access: &Access, before: &Fetched) -> Result<Fetched> {
    let has_last_map = before.has_last_map;
    let map = if has_last_map { before.map.clone() } else { access.map().await? };
    let fetched = fetch_from(access, map, before.silent.clone(), before.unreachable.clone()).await;
    Ok(Fetched { has_last_map, ..fetched })
}

/// Asks the services of `map` for their statistics, except for the nodes in `silent`. `unreachable`
/// has the reasons why these nodes are not asked.
async fn fetch_from(
    access: &Access,
    map: ClusterMap,
    mut silent: BTreeSet<NodeId>,
    mut unreachable: Vec<String>,
) -> Fetched {
    let is_asked = |node: &&Node| node.kind != NodeKind::Client && !silent.contains(&node.id);
    let services = map.nodes.iter().filter(is_asked);
    let began = skep_env::now();
    let asked: Vec<_> = services
        .map(|node| {
            let (access, node) = (access.clone(), node.clone());
            skep_env::spawn(async move { ask(&access, &node).await.map_err(|it| (node, it)) })
        })
        .collect();
    let mut round = Round::new();
    for answer in asked {
        match answer.await {
            Ok(figures) => round.push(figures),
            Err((node, error)) => {
                unreachable.push(problem_of_node(&node, &error));
                silent.insert(node.id);
            }
        }
    }
    let moment = Moment::since(began);
    Fetched { map, round, moment, unreachable, silent, has_last_map: false }
}

/// Returns an error if a report is empty because no service has replied. `unreachable` lists the
/// services that did not reply. `is_empty` is true if the report has no statistics.
///
/// # Errors
/// `Disconnected` if the report is empty and a service did not reply.
pub(crate) fn check_reached(unreachable: &[String], is_empty: bool) -> Result<()> {
    match (unreachable, is_empty) {
        ([first, ..], true) => Err(Error::new(
            ErrorCode::Disconnected,
            format!(
                "cannot get statistics from any service: {first}; `skep health check` lists \
                 problems with their remedies"
            ),
        )),
        _ => Ok(()),
    }
}

async fn ask(access: &Access, node: &Node) -> Result<ServiceFigures> {
    let asking = async {
        let (_, connection) = access.connect(node, TargetId::default(), PATIENCE).await?;
        let options = CallOptions { time_left: Some(PATIENCE), ..CallOptions::default() };
        let request = GetStatistics { prefix: PREFIX.into() };
        let reply = connection.call(&request, &options).await;
        connection.close();
        reply
    };
    let late = || Error::new(ErrorCode::TimedOut, format!("no reply within {PATIENCE:?}"));
    let (statistics, _) = skep_env::timeout(PATIENCE, asking).await.ok_or_else(late)??;
    Ok(ServiceFigures { node: node.id.raw(), name: node.name.clone(), statistics })
}
