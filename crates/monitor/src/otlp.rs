//! Exports records of operations as traces to OpenTelemetry collectors, in OTLP over HTTP with
//! JSON.
//!
//! The services store the records in bounded ring buffers (`skep_exporter::traces`), so this module
//! has no queue. If the collector cannot accept a batch at the moment, the monitor sends the batch
//! again. If the collector refuses a batch permanently, the monitor drops the batch.

mod spans;

use crate::back_off::BackOff;
use crate::http_client::{HttpRequest, Url, send};
use crate::limits::{MAX_EXPORTED_RECORDS, SERVICE_PATIENCE};
use crate::live::MonitorState;
use crate::of_cluster;
use crate::settings::OtlpSettings;
use crate::trace_source::{Position, ask};
use skep_rpc::{Identity, JoinToken};
use skep_types::{Error, ErrorCode, Node, NodeId, NodeKind, Result};
use skep_wire::limits::MAX_LISTED_TRACES;
use skep_wire::traces::TraceRecord;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// Exports the records of all services of a cluster.
pub(crate) struct Exporter {
    url: Url,
    interval: Duration,
    identity: Identity,
    positions: BTreeMap<NodeId, Position>,
}

/// The outcome of sending a batch.
#[derive(Debug, PartialEq, Eq)]
enum Sent {
    Accepted,
    /// The collector has refused the batch permanently.
    Refused(String),
    /// The collector cannot accept the batch at the moment.
    Failed(String),
}

impl Exporter {
    /// Returns the exporter for the collector in the settings. `None` means that the settings have
    /// no address.
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

    /// Exports records until this future is dropped. `name` is the name of the cluster for the log,
    /// or `None` if the monitor watches only one cluster.
    pub(crate) async fn run(mut self, name: Option<String>, state: Rc<RefCell<MonitorState>>) {
        let mut back_off = BackOff::default();
        let mut problem = String::new();
        let mut turn = 0_usize;
        // Retry: the monitor sends a batch of records again after growing pauses, without limit.
        // The services store the records in bounded ring buffers, so records that wait use limited
        // memory.
        loop {
            skep_env::sleep(self.interval).await;
            if !back_off.is_due(skep_env::now()) {
                continue;
            }
            let services: Vec<Node> = {
                let state = state.borrow();
                let nodes = state.collected.map.iter().flat_map(|map| &map.nodes);
                nodes.filter(|node| node.kind != NodeKind::Client).cloned().collect()
            };
            turn = turn.wrapping_add(1);
            let (records, positions) = self.new_records(&in_turn(services, turn)).await;
            let outcome = match records.is_empty() {
                true => Sent::Accepted,
                false => self.send(&records).await,
            };
            if matches!(outcome, Sent::Failed(_)) {
                back_off.failed(skep_env::now(), self.interval);
            } else {
                back_off.succeeded();
                self.positions = positions;
            }
            let newest = match outcome {
                Sent::Accepted => String::new(),
                Sent::Refused(why) => format!("{why}; the monitor drops these records"),
                Sent::Failed(why) => format!("{why}; the monitor sends these records again later"),
            };
            if newest != problem {
                let line = self.line(name.as_deref(), &newest);
                match newest.is_empty() {
                    true => tracing::info!("{line}"),
                    false => tracing::warn!("{line}"),
                }
                problem = newest;
            }
        }
    }

    /// Returns the log line about a new problem, or about the end of the previous problem if
    /// `problem` is empty.
    fn line(&self, name: Option<&str>, problem: &str) -> String {
        let (of_cluster, address) = (of_cluster(name), &self.url.address);
        match problem {
            "" => format!("the collector of traces at {address} accepts traces{of_cluster} again"),
            why => format!("cannot export traces{of_cluster} to {address}: {why}"),
        }
    }

    /// Returns at most `MAX_EXPORTED_RECORDS` records that were not exported yet, and the positions
    /// after these records. Omits services that do not reply. Asks the services in their order, so
    /// the last ones may have to wait for another export.
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
            positions.insert(node.id, Position::after(&page));
            records.extend(page.records);
        }
        (records, positions)
    }

    async fn send(&self, records: &[TraceRecord]) -> Sent {
        let body = spans::request(records).to_string();
        match send(&HttpRequest::of_json(&self.url, &body)).await {
            Ok((200..=299, _)) => Sent::Accepted,
            // The collector, or a service behind it, is busy. OTLP requires that the sender sends
            // the batch again.
            Ok((code @ (429 | 502..=504), _)) => {
                Sent::Failed(format!("the collector replied {code}"))
            }
            Ok((code, reply)) => {
                let reason: String = String::from_utf8_lossy(&reply).chars().take(200).collect();
                Sent::Refused(format!("the collector replied {code}: {}", reason.escape_debug()))
            }
            Err(problem) => Sent::Failed(problem),
        }
    }
}

/// Returns the services in the order in which export number `turn` asks them. Each export begins
/// with another service. So if the first services always have enough records for a whole export,
/// the records of the other services are exported too.
fn in_turn<T>(mut services: Vec<T>, turn: usize) -> Vec<T> {
    let first = turn % services.len().max(1);
    services.rotate_left(first);
    services
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_service_is_the_first_of_an_export_in_turn() {
        let orders: Vec<_> = (0..4).map(|turn| in_turn(vec![1, 2, 3], turn)).collect();
        assert_eq!(orders, [[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 2, 3]]);
        assert!(in_turn(Vec::<u32>::new(), 5).is_empty());
    }
}
