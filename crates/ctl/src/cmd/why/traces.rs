//! Gets the records of operations that the services of a cluster have stored.

use crate::access::Access;
use crate::view::problem_of_node;
use skep_rpc::CallOptions;
use skep_types::{ClusterMap, Error, ErrorCode, Node, NodeKind, Result, TargetId};
use skep_wire::limits::MAX_LISTED_TRACES;
use skep_wire::traces::{ListTraces, TraceRecord};
use std::time::Duration;

/// Time limit for all replies of one service together.
const PATIENCE: Duration = Duration::from_secs(2);
/// Maximum number of pages that are requested from one service. All records of a service fit into
/// fewer pages.
const MAX_PAGES: usize = 32;

/// Parses a trace id in the form that logs show: 32 hexadecimal digits. Leading zeros may be
/// missing.
pub(super) fn trace_id(text: &str) -> std::result::Result<u128, String> {
    let is_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    match u128::from_str_radix(text, 16) {
        Ok(trace) if is_digits && trace != 0 => Ok(trace),
        _ => Err("expected up to 32 hexadecimal digits, as in a log line after 'trace'".into()),
    }
}

/// The records that the services of a cluster have returned.
pub(super) struct Gathered {
    pub(super) records: Vec<TraceRecord>,
    /// Services that did not reply, each with the reason.
    pub(super) unreachable: Vec<String>,
}

/// Asks all services at the same time for their records. If `trace` is given, asks only for the
/// records with this trace id.
pub(super) async fn gather(access: &Access, map: &ClusterMap, trace: Option<u128>) -> Gathered {
    let services = map.nodes.iter().filter(|node| node.kind != NodeKind::Client);
    let asked: Vec<_> = services
        .map(|node| {
            let (access, node) = (access.clone(), node.clone());
            skep_env::spawn(
                async move { ask(&access, &node, trace).await.map_err(|it| (node, it)) },
            )
        })
        .collect();
    let (mut records, mut unreachable) = (Vec::new(), Vec::new());
    for answer in asked {
        match answer.await {
            Ok(found) => records.extend(found),
            Err((node, error)) => {
                unreachable.push(problem_of_node(&node, &error));
            }
        }
    }
    Gathered { records, unreachable }
}

async fn ask(access: &Access, node: &Node, trace: Option<u128>) -> Result<Vec<TraceRecord>> {
    let asking = async {
        let (_, connection) = access.connect(node, TargetId::default(), PATIENCE).await?;
        let options = CallOptions { time_left: Some(PATIENCE), ..CallOptions::default() };
        let (mut records, mut after) = (Vec::new(), 0);
        for _ in 0..MAX_PAGES {
            let request = ListTraces { trace, after, limit: MAX_LISTED_TRACES as u32 };
            let (page, _) = connection.call(&request, &options).await?;
            let is_last = page.records.len() < MAX_LISTED_TRACES;
            records.extend(page.records);
            after = page.next;
            if is_last {
                break;
            }
        }
        connection.close();
        Ok(records)
    };
    let late = || Error::new(ErrorCode::TimedOut, format!("no reply within {PATIENCE:?}"));
    skep_env::timeout(PATIENCE, asking).await.ok_or_else(late)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trace_ids_are_hexadecimal_digits_as_in_logs() {
        assert_eq!(
            trace_id("0123456789abcdef000000000000002a"),
            Ok(0x0123456789abcdef000000000000002a)
        );
        assert_eq!(trace_id("2A"), Ok(0x2a));
        for wrong in ["", "0", "+5", "0x2a", "-1", "t7", "123456789012345678901234567890123"] {
            assert!(trace_id(wrong).unwrap_err().contains("32 hexadecimal digits"), "{wrong}");
        }
    }
}
