//! Collects the statistics of a cluster in rounds. In each round, the monitor asks management for
//! the cluster map, and asks all services in the map for their statistics.
//!
//! The monitor keeps a connection to each service open. A service that does not reply in time is
//! missing in the round. Its reply in the next round also covers the missed time.
//!
//! If clients have disappeared from the map, the monitor asks management for the newest evictions.

use crate::limits::{MAP_PATIENCE, SERVICE_PATIENCE};
use skep_rpc::{CallOptions, Channel, Connection, Identity, JoinToken, Management};
use skep_stats::{Round, ServiceFigures};
use skep_types::{
    ClusterId, ClusterMap, Error, ErrorCode, Eviction, MapVersion, Node, NodeId, NodeKind, Result,
    TargetId,
};
use skep_wire::management::{GetMap, ListEvictions};
use skep_wire::node::GetStatistics;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

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
    /// The reason why management did not reply. `None` means that management replied.
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
        let management = Management::new(token, NodeKind::Client);
        let connections = Rc::default();
        Self { management, identity, connections, map: None, has_lost_clients: false }
    }

    /// Returns the identity of the monitor in its connections to services.
    pub(crate) fn identity(&self) -> Identity {
        self.identity.clone()
    }

    /// Returns the connections that are open between two rounds.
    pub(crate) fn connections(&self) -> Connections {
        Rc::clone(&self.connections)
    }

    /// Asks management and all services. The services are asked concurrently.
    pub(crate) async fn collect(&mut self) -> Collected {
        let map_problem = match self.newest_map().await {
            Ok(map) => {
                let former = self.map.replace(map);
                let lost = former.zip(self.map.as_ref()).is_some_and(|(it, new)| lacks(new, &it));
                self.has_lost_clients |= lost;
                None
            }
            Err(error) => Some(error.context().to_owned()),
        };
        let evictions = match map_problem.is_none() && self.has_lost_clients {
            true => self.newest_evictions().await,
            false => None,
        };
        let id = Some(self.identity.cluster);
        let mut collected = Collected { id, map_problem, evictions, ..Collected::default() };
        let Some(map) = &self.map else { return collected };
        let services = map.nodes.iter().filter(|node| node.kind != NodeKind::Client);
        let asked: Vec<_> = services
            .map(|node| {
                let (connections, identity) = (Rc::clone(&self.connections), self.identity.clone());
                let node = node.clone();
                skep_env::spawn(async move {
                    let reply = ask(&connections, &identity, &node).await;
                    reply.map_err(|error| (node.id.raw(), error))
                })
            })
            .collect();
        for answer in asked {
            match answer.await {
                Ok(figures) => collected.round.push(figures),
                Err((node, error)) => {
                    collected.unreachable.insert(node, error.context().to_owned());
                }
            }
        }
        let is_member = |id: &u32| map.nodes.iter().any(|node| node.id.raw() == *id);
        self.connections.borrow_mut().retain(|id, _| is_member(id));
        collected.map = Some(map.clone());
        collected
    }

    async fn newest_map(&self) -> Result<ClusterMap> {
        let request = GetMap { known: MapVersion::new(0) };
        let asking = self.management.call_once(&request, MAP_PATIENCE);
        let late = || {
            Error::new(
                ErrorCode::TimedOut,
                format!("management has sent no cluster map within {MAP_PATIENCE:?}"),
            )
        };
        let update = skep_env::timeout(MAP_PATIENCE, asking).await.ok_or_else(late)??;
        update
            .map
            .ok_or_else(|| Error::new(ErrorCode::Protocol, "management replied without a map"))
    }

    /// Asks management for the newest evictions. `None` means that management does not reply, or
    /// does not support this request because its version is older.
    async fn newest_evictions(&mut self) -> Option<Vec<Eviction>> {
        let request = ListEvictions {};
        // Retry: the next round asks again if management does not reply, without limit.
        let asking = self.management.call_once(&request, SERVICE_PATIENCE);
        let reply = skep_env::timeout(SERVICE_PATIENCE, asking).await?;
        let is_unsupported =
            reply.as_ref().is_err_and(|error| error.code() == ErrorCode::Unsupported);
        self.has_lost_clients = reply.is_err() && !is_unsupported;
        reply.ok().map(|list| list.evictions)
    }
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
