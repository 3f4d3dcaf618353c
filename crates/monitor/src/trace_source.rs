//! Asks a service for its records of operations that follow a position.
//!
//! `skep_exporter::traces` defines the records. `otlp` and `slow_operations` use them.

use crate::limits::SERVICE_PATIENCE;
use skep_rpc::{CallOptions, Channel, Connection, Identity};
use skep_types::{Error, ErrorCode, Node, Result, TargetId};
use skep_wire::limits::MAX_LISTED_TRACES;
use skep_wire::traces::{ListTraces, TraceList};
use std::rc::Rc;

/// The position of a reader in the records of a service: the last record that the reader has
/// received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    incarnation: u64,
    after: u64,
}

impl Position {
    /// Returns the position after the last record of a page.
    pub(crate) fn after(page: &TraceList) -> Self {
        Self { incarnation: page.incarnation, after: page.next }
    }
}

/// Connects to a service, and asks it for a page of the records that follow a position.
///
/// # Errors
/// Errors of the connection and of the service.
pub(crate) async fn ask(
    identity: &Identity,
    node: &Node,
    before: Option<Position>,
) -> Result<TraceList> {
    let mut last =
        Error::new(ErrorCode::Disconnected, "the cluster map has no address of this node");
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

/// Asks for a page of the records that follow a position. If the service has restarted, its
/// positions begin at zero again, so this function asks for the records from position zero on.
///
/// # Errors
/// Errors of the connection and of the service.
pub(crate) async fn page(
    connection: &Rc<Connection>,
    before: Option<Position>,
) -> Result<TraceList> {
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
