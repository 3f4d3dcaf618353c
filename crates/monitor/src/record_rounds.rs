//! Asks the services for their new records of operations, which the web page shows.
//!
//! This module stores the position up to which it has read the records of each service.
//! `slow_operations` stores the records.

use crate::collect::Connections;
use crate::limits::SERVICE_PATIENCE;
use crate::live::MonitorState;
use crate::trace_source::{Position, page};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// Interval at which the monitor asks the services for records. Mounts report their records every
/// two seconds.
const EVERY: Duration = Duration::from_secs(2);

/// Asks the services for new records until this future is dropped. Uses the connections of the
/// rounds.
pub(crate) async fn follow(connections: Connections, state: Rc<RefCell<MonitorState>>) {
    let mut positions: BTreeMap<u32, Position> = BTreeMap::new();
    // Retry: the monitor asks for new records every two seconds, without limit. The services store
    // the records in bounded ring buffers, so records that wait for the monitor use limited memory.
    loop {
        skep_env::sleep(EVERY).await;
        let open: Vec<_> =
            connections.borrow().iter().map(|(node, it)| (*node, Rc::clone(it))).collect();
        positions.retain(|node, _| open.iter().any(|(open, _)| open == node));
        for (node, connection) in open {
            let asking = page(&connection, positions.get(&node).copied());
            // If a service does not reply, the next round asks again for the records after the same
            // position.
            let Some(Ok(found)) = skep_env::timeout(SERVICE_PATIENCE, asking).await else {
                continue;
            };
            positions.insert(node, Position::after(&found));
            let now_us = crate::now_ms() * 1000;
            state.borrow_mut().slow_operations.add(found.records, now_us);
        }
    }
}
