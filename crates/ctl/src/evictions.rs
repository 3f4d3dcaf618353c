//! The recent evictions of clients, in the form in which commands list evictions.

use crate::access::Access;
use crate::output::{render, span, table, utc};
use serde::Serialize;
use skep_types::{ErrorCode, Eviction, EvictionCause, Result, Timestamp};
use skep_wire::management::{EvictionList, ListEvictions};

/// An eviction, as one entry of the printed list.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct EvictionLine {
    pub(crate) id: u32,
    /// Host and mount point of the evicted client.
    pub(crate) name: String,
    /// Time of the eviction in UTC, by the clock of management.
    pub(crate) evicted_at: String,
    /// The cause of the eviction: `lease-expired`, `administrator` or `silent`.
    pub(crate) cause: &'static str,
    /// The reason for the eviction, as text for people.
    pub(crate) reason: String,
    /// Time of the client's last heartbeat in UTC, by the clock of management.
    pub(crate) last_contact: String,
    /// Time between the last heartbeat and the eviction, in milliseconds.
    pub(crate) silent_ms: u64,
    /// Time since the eviction, in milliseconds.
    #[serde(skip)]
    pub(crate) age_ms: u64,
}

/// Asks management for the recent evictions. Returns the newest eviction first.
///
/// # Errors
/// Errors of management. A management leader of an older version does not support this request. In
/// this case the function returns an empty list, and no error.
pub(crate) async fn fetch(access: &Access) -> Result<Vec<EvictionLine>> {
    let EvictionList { now, evictions } = match access.ask(&ListEvictions {}).await {
        Err(error) if error.code() == ErrorCode::Unsupported => return Ok(Vec::new()),
        list => list?,
    };
    Ok(evictions.iter().rev().map(|eviction| line(eviction, now)).collect())
}

fn line(eviction: &Eviction, now: Timestamp) -> EvictionLine {
    let begin_ms = ms(eviction.time).saturating_sub_unsigned(eviction.silent_ms);
    let last_contact = Timestamp { seconds: begin_ms.div_euclid(1000), nanoseconds: 0 };
    EvictionLine {
        id: eviction.client.raw(),
        name: eviction.name.clone(),
        evicted_at: utc(eviction.time),
        cause: match eviction.cause {
            EvictionCause::LeaseExpired => "lease-expired",
            EvictionCause::Administrator => "administrator",
            EvictionCause::Silent => "silent",
        },
        reason: eviction.reason(),
        last_contact: utc(last_contact),
        silent_ms: eviction.silent_ms,
        age_ms: u64::try_from(ms(now) - ms(eviction.time)).unwrap_or(0),
    }
}

fn ms(time: Timestamp) -> i64 {
    time.seconds.saturating_mul(1000) + i64::from(time.nanoseconds / 1_000_000)
}

/// Returns evictions as a table.
pub(crate) fn as_table(lines: &[EvictionLine]) -> String {
    if lines.is_empty() {
        return "Management has no record of an eviction.".into();
    }
    let titles = ["ID", "CLIENT", "EVICTED", ">AGO", "LAST CONTACT", "REASON"];
    let mut shown = table(&titles);
    for line in lines {
        shown.add_row([
            &line.id.to_string(),
            &line.name,
            &line.evicted_at,
            &span(line.age_ms),
            &line.last_contact,
            &line.reason,
        ]);
    }
    render(&shown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::{GroupId, NodeId};

    #[test]
    fn listed_eviction_has_reason_and_last_contact() {
        let at = |seconds, nanoseconds| Timestamp { seconds, nanoseconds };
        let eviction = Eviction {
            client: NodeId::new(8),
            name: "cl2:/mnt/skep".into(),
            time: at(1_700_000_000, 200_000_000),
            cause: EvictionCause::LeaseExpired,
            group: GroupId::new(1),
            silent_ms: 5_300,
        };
        let line = line(&eviction, at(1_700_000_060, 200_000_000));
        assert_eq!(line.evicted_at, "2023-11-14T22:13:20Z");
        assert_eq!(line.last_contact, "2023-11-14T22:13:14Z");
        assert_eq!(line.age_ms, 60_000);
        assert!(line.reason.contains("metadata group g1"), "{}", line.reason);
        assert!(as_table(&[line]).contains("cl2:/mnt/skep"));
        // The eviction has a later time than `now`, because the clocks of two management leaders
        // may differ.
        assert_eq!(super::line(&eviction, at(1_699_999_999, 0)).age_ms, 0);
    }
}
