//! Collects the statistics of a cluster in rounds. In each round, the monitor asks management for
//! the cluster map, and asks all services in the map for their statistics. It sends these requests
//! concurrently, so a round does not become longer while management does not reply. The services
//! come from the map of an earlier round. Only the first round must wait for a map.
//!
//! The monitor keeps a connection to each service open. A service that does not reply in time is
//! missing in the round. Its reply in the next round also covers the missed time. A map that
//! arrives after the end of a round is the map of the next round.
//!
//! If clients have disappeared from the map, the monitor asks management for the newest evictions.

use crate::limits::{MAP_PATIENCE, SERVICE_PATIENCE};
use skep_env::Task;
use skep_rpc::{CallOptions, Channel, Connection, Identity, JoinToken, Management};
use skep_stats::{Round, ServiceFigures};
use skep_types::{
    ClusterId, ClusterMap, Error, ErrorCode, Eviction, MapVersion, Node, NodeId, NodeKind, Result,
    TargetId, Timestamp, utc,
};
use skep_wire::management::{GetMap, ListEvictions};
use skep_wire::node::GetStatistics;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// Prefix of the names of the requested metrics.
const PREFIX: &str = "skep_";

/// The open connections to services, by node id.
pub(crate) type Connections = Rc<RefCell<BTreeMap<u32, Rc<Connection>>>>;

/// The connections of the monitor to the services of a cluster.
#[derive(Debug)]
pub(crate) struct Collector {
    management: Rc<Management>,
    identity: Identity,
    connections: Connections,
    map: Option<ClusterMap>,
    /// The request for the cluster map that had no reply when the last round ended. `None` means
    /// that the last request has ended.
    asked_map: Option<Task<Result<ClusterMap>>>,
    /// The error of the last request for the cluster map that has ended. `None` means that
    /// management replied to this request.
    map_error: Option<Error>,
    /// Time of the last map from management. `None` means that no map has arrived.
    map_arrived_at: Option<Timestamp>,
    /// Time of the start of this collector.
    started_at: Timestamp,
    /// Whether clients have disappeared from the map since management last listed its evictions.
    has_lost_clients: bool,
}

/// The replies of one round.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    /// The id of the cluster in its token, which is known before the first map has arrived.
    pub(crate) id: Option<ClusterId>,
    /// The newest cluster map. While management does not reply, this is the map of an earlier
    /// round.
    pub(crate) map: Option<ClusterMap>,
    /// The reason why management did not reply, with the time of its last reply. `None` means that
    /// management replied, or that the time limit of the request for the map is not over.
    pub(crate) map_problem: Option<String>,
    /// The replies of the services.
    pub(crate) round: Round,
    /// The services that did not reply, each with the reason, by node id.
    pub(crate) unreachable: BTreeMap<u32, String>,
    /// The newest evictions of clients. `None` means that no client has disappeared from the map,
    /// or that management has sent no list.
    pub(crate) evictions: Option<Vec<Eviction>>,
}

impl Collector {
    pub(crate) fn new(token: &JoinToken) -> Self {
        let identity = Identity {
            cluster: token.cluster,
            secrets: token.secrets.clone(),
            node: NodeId::default(),
            kind: NodeKind::Client,
        };
        Self {
            management: Management::new(token, NodeKind::Client),
            identity,
            connections: Rc::default(),
            map: None,
            asked_map: None,
            map_error: None,
            map_arrived_at: None,
            started_at: skep_env::wall_time(),
            has_lost_clients: false,
        }
    }

    /// Returns the identity of the monitor in its connections to services.
    pub(crate) fn identity(&self) -> Identity {
        self.identity.clone()
    }

    /// Returns the connections that are open between two rounds.
    pub(crate) fn connections(&self) -> Connections {
        Rc::clone(&self.connections)
    }

    /// Asks management and all services concurrently. The first call, and each call until a map has
    /// arrived, asks the services after management, because only the map has their addresses.
    pub(crate) async fn collect(&mut self) -> Collected {
        let has_map = self.map.is_some();
        let patience = if has_map { SERVICE_PATIENCE } else { MAP_PATIENCE };
        let deadline = skep_env::now() + patience;
        let asked_map = self.asked_map.take();
        let asked_map =
            asked_map.unwrap_or_else(|| skep_env::spawn(newest_map(Rc::clone(&self.management))));
        let mut asked = self.ask_services();
        let evictions = self.await_map(asked_map, deadline).await;
        if !has_map {
            asked = self.ask_services();
        }
        let id = Some(self.identity.cluster);
        let map_problem = self.map_problem();
        let mut collected = Collected { id, map_problem, evictions, ..Collected::default() };
        for answer in asked {
            match answer.await {
                Ok(figures) => collected.round.push(figures),
                Err((node, error)) => {
                    collected.unreachable.insert(node, error.context().to_owned());
                }
            }
        }
        let Some(map) = &self.map else { return collected };
        // The services came from the earlier map, and the newest map may lack some of them.
        let is_member = |id: &u32| map.nodes.iter().any(|node| node.id.raw() == *id);
        collected.round.retain(|figures| is_member(&figures.node));
        collected.unreachable.retain(|id, _| is_member(id));
        self.connections.borrow_mut().retain(|id, _| is_member(id));
        collected.map = Some(map.clone());
        collected
    }

    /// Starts a request for statistics to each service of the map. Each task returns the reply, or
    /// the node id of the service with the error.
    fn ask_services(&self) -> Vec<Task<Result<ServiceFigures, (u32, Error)>>> {
        let nodes = self.map.iter().flat_map(|map| &map.nodes);
        let services = nodes.filter(|node| node.kind != NodeKind::Client);
        services
            .map(|node| {
                let (connections, identity) = (Rc::clone(&self.connections), self.identity.clone());
                let node = node.clone();
                skep_env::spawn(async move {
                    let reply = ask(&connections, &identity, &node).await;
                    reply.map_err(|error| (node.id.raw(), error))
                })
            })
            .collect()
    }

    /// Waits until `deadline` for the map of the request `asked`. If the map arrives later, the
    /// next round gets it. Returns the newest evictions, if clients have disappeared from the map.
    async fn await_map(
        &mut self,
        mut asked: Task<Result<ClusterMap>>,
        deadline: Duration,
    ) -> Option<Vec<Eviction>> {
        let left = deadline.saturating_sub(skep_env::now());
        let Some(reply) = skep_env::timeout(left, &mut asked).await else {
            self.asked_map = Some(asked);
            return None;
        };
        match reply {
            Ok(map) => {
                let former = self.map.replace(map);
                let lost = former.zip(self.map.as_ref()).is_some_and(|(it, new)| lacks(new, &it));
                self.has_lost_clients |= lost;
                self.map_error = None;
                self.map_arrived_at = Some(skep_env::wall_time());
            }
            Err(error) => {
                self.map_error = Some(error);
                return None;
            }
        }
        match self.has_lost_clients {
            true => self.newest_evictions(deadline).await,
            false => None,
        }
    }

    /// Returns the reason why management does not reply, and since when. The text does not change
    /// while the outage lasts.
    fn map_problem(&self) -> Option<String> {
        let error = self.map_error.as_ref()?;
        let since = match self.map_arrived_at {
            Some(time) => format!("the last reply arrived at {}", utc(time)),
            None => {
                format!("no reply since the monitor began to ask at {}", utc(self.started_at))
            }
        };
        Some(format!("{}; {since}", error.context()))
    }

    /// Asks management for the newest evictions. `None` means that management does not reply before
    /// `deadline`, or does not support this request because its version is older.
    async fn newest_evictions(&mut self, deadline: Duration) -> Option<Vec<Eviction>> {
        let request = ListEvictions {};
        let left = deadline.saturating_sub(skep_env::now());
        // Retry: the next round asks again if management does not reply, without limit.
        let asking = self.management.call_once(&request, left);
        let reply = skep_env::timeout(left, asking).await?;
        let is_unsupported =
            reply.as_ref().is_err_and(|error| error.code() == ErrorCode::Unsupported);
        self.has_lost_clients = reply.is_err() && !is_unsupported;
        reply.ok().map(|list| list.evictions)
    }
}

/// Asks management for the cluster map.
async fn newest_map(management: Rc<Management>) -> Result<ClusterMap> {
    let request = GetMap { known: MapVersion::new(0) };
    let asking = management.call_once(&request, MAP_PATIENCE);
    let late = || {
        Error::new(
            ErrorCode::TimedOut,
            format!("management has sent no cluster map within {MAP_PATIENCE:?}"),
        )
    };
    let update = skep_env::timeout(MAP_PATIENCE, asking).await.ok_or_else(late)??;
    update.map.ok_or_else(|| Error::new(ErrorCode::Protocol, "management replied without a map"))
}

/// Whether a client of the map `former` is missing in the map `new`.
fn lacks(new: &ClusterMap, former: &ClusterMap) -> bool {
    let mut clients = former.nodes.iter().filter(|node| node.kind == NodeKind::Client);
    new.version != former.version && clients.any(|client| new.node(client.id).is_none())
}

async fn ask(
    connections: &RefCell<BTreeMap<u32, Rc<Connection>>>,
    identity: &Identity,
    node: &Node,
) -> Result<ServiceFigures> {
    let asking = async {
        let open = connections.borrow().get(&node.id.raw()).cloned();
        let connection = match open.filter(|open| !open.is_closed()) {
            Some(open) => open,
            None => connect(identity, node).await?,
        };
        let options = CallOptions { time_left: Some(SERVICE_PATIENCE), ..CallOptions::default() };
        let request = GetStatistics { prefix: PREFIX.into() };
        let reply = connection.call(&request, &options).await;
        connections.borrow_mut().insert(node.id.raw(), connection);
        reply
    };
    let late = || Error::new(ErrorCode::TimedOut, format!("no reply within {SERVICE_PATIENCE:?}"));
    let reply = skep_env::timeout(SERVICE_PATIENCE, asking).await.ok_or_else(late).flatten();
    match reply {
        Ok((statistics, _)) => {
            Ok(ServiceFigures { node: node.id.raw(), name: node.name.clone(), statistics })
        }
        Err(error) => {
            // The service may have moved to another address, so the next round opens a new
            // connection.
            if let Some(connection) = connections.borrow_mut().remove(&node.id.raw()) {
                connection.close();
            }
            Err(error)
        }
    }
}

async fn connect(identity: &Identity, node: &Node) -> Result<Rc<Connection>> {
    let mut last =
        Error::new(ErrorCode::Disconnected, "the cluster map has no address of this node");
    for address in &node.addresses {
        match Connection::connect(address, identity, TargetId::default(), Channel::NONE).await {
            Ok(connection) => return Ok(connection),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests;
