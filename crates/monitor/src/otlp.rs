//! Exports records of operations as traces to OpenTelemetry collectors, in OTLP over HTTP with
//! JSON.
//!
//! The module does not own the records (`skep_exporter::traces`). It has no queue, since records
//! wait in the bounded rings of the services. A batch that the collector could not take is sent
//! again, and a batch that the collector refuses is dropped.

mod spans;

use crate::http_client::{HttpRequest, Url, send};
use crate::limits::{MAX_EXPORTED_RECORDS, SERVICE_PATIENCE};
use crate::live::MonitorState;
use crate::settings::OtlpSettings;
use skep_rpc::{CallOptions, Channel, Connection, Identity, JoinToken};
use skep_types::{Error, ErrorCode, Node, NodeId, NodeKind, Result, TargetId};
use skep_wire::limits::MAX_LISTED_TRACES;
use skep_wire::traces::{ListTraces, TraceList, TraceRecord};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// The last record of a service that was exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Position {
    incarnation: u64,
    after: u64,
}

/// Exports the records of all services of a cluster.
pub(crate) struct Exporter {
    url: Url,
    interval: Duration,
    identity: Identity,
    positions: BTreeMap<NodeId, Position>,
}

/// The outcome of a batch.
#[derive(Debug, PartialEq, Eq)]
enum Sent {
    Accepted,
    /// The collector refuses the batch permanently.
    Refused(String),
    /// The collector cannot take the batch now.
    Failed(String),
}

impl Exporter {
    /// Returns the exporter that the settings describe, or `None` if the settings have no address.
    ///
    /// # Errors
    /// `Configuration` if the address is invalid.
    pub(crate) fn of(settings: &OtlpSettings, token: &JoinToken) -> Result<Option<Self>> {
        if settings.url.is_empty() {
            return Ok(None);
        }
        let url = Url::parse(&settings.url)
            .map_err(|problem| Error::new(ErrorCode::Configuration, problem))?;
        let identity = Identity {
            cluster: token.cluster,
            secrets: token.secrets.clone(),
            node: NodeId::default(),
            kind: NodeKind::Client,
        };
        let positions = BTreeMap::new();
        Ok(Some(Self { url, interval: settings.interval.0, identity, positions }))
    }

    /// Exports until the future is dropped.
    pub(crate) async fn run(mut self, state: Rc<RefCell<MonitorState>>) {
        let mut problem = String::new();
        // Retry: batches of records. Every `interval`, without limit; services keep the records in
        // bounded rings.
        loop {
            skep_env::sleep(self.interval).await;
            let services: Vec<Node> = {
                let state = state.borrow();
                let nodes = state.collected.map.iter().flat_map(|map| &map.nodes);
                nodes.filter(|node| node.kind != NodeKind::Client).cloned().collect()
            };
            let (records, positions) = self.new_records(&services).await;
            let outcome = match records.is_empty() {
                true => Sent::Accepted,
                false => self.send(&records).await,
            };
            if !matches!(outcome, Sent::Failed(_)) {
                self.positions = positions;
            }
            let newest = match outcome {
                Sent::Accepted => String::new(),
                Sent::Refused(why) => format!("{why}; these records were dropped"),
                Sent::Failed(why) => format!("{why}; the next attempt sends them again"),
            };
            if newest != problem {
                match newest.as_str() {
                    "" => tracing::info!("the collector of traces accepts records again"),
                    why => tracing::warn!("cannot export traces to {}: {why}", self.url.address),
                }
                problem = newest;
            }
        }
    }

    /// Returns at most `MAX_EXPORTED_RECORDS` records that were not exported yet, and the positions
    /// after these records. Services that do not reply are left out.
    async fn new_records(
        &self,
        services: &[Node],
    ) -> (Vec<TraceRecord>, BTreeMap<NodeId, Position>) {
        let (mut records, mut positions) = (Vec::new(), BTreeMap::new());
        for node in services {
            let before = self.positions.get(&node.id).copied();
            if let Some(before) = before {
                positions.insert(node.id, before);
            }
            if records.len() + MAX_LISTED_TRACES > MAX_EXPORTED_RECORDS {
                continue;
            }
            let asking = ask(&self.identity, node, before);
            let Some(Ok(page)) = skep_env::timeout(SERVICE_PATIENCE, asking).await else {
                continue;
            };
            positions.insert(node.id, Position { incarnation: page.incarnation, after: page.next });
            records.extend(page.records);
        }
        (records, positions)
    }

    async fn send(&self, records: &[TraceRecord]) -> Sent {
        let body = spans::request(records).to_string();
        let request = HttpRequest {
            method: "POST",
            url: &self.url,
            authorization: "",
            content_type: "application/json",
            body: body.as_bytes(),
        };
        match send(&request).await {
            Ok((200..=299, _)) => Sent::Accepted,
            // The collector or an upstream service is busy. OTLP requires that the batch is sent
            // again.
            Ok((code @ (429 | 502..=504), _)) => Sent::Failed(format!("it replied {code}")),
            Ok((code, reply)) => {
                let reason: String = String::from_utf8_lossy(&reply).chars().take(200).collect();
                Sent::Refused(format!("it replied {code}: {}", reason.escape_debug()))
            }
            Err(problem) => Sent::Failed(problem),
        }
    }
}

/// Asks a service for a page of records after a position. If the service has restarted, its
/// positions begin at zero again.
async fn ask(identity: &Identity, node: &Node, before: Option<Position>) -> Result<TraceList> {
    let mut last = Error::new(ErrorCode::Disconnected, "the node has no address");
    for address in &node.addresses {
        match Connection::connect(address, identity, TargetId::default(), Channel::NONE).await {
            Ok(connection) => {
                let page = page(&connection, before).await;
                connection.close();
                return page;
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn page(connection: &Rc<Connection>, before: Option<Position>) -> Result<TraceList> {
    let options = CallOptions { time_left: Some(SERVICE_PATIENCE), ..CallOptions::default() };
    let limit = MAX_LISTED_TRACES as u32;
    let after = before.map_or(0, |position| position.after);
    let request = ListTraces { trace: None, after, limit };
    let (page, _) = connection.call(&request, &options).await?;
    if before.is_none_or(|position| position.incarnation == page.incarnation) {
        return Ok(page);
    }
    let request = ListTraces { trace: None, after: 0, limit };
    Ok(connection.call(&request, &options).await?.0)
}
