//! The requests of one thread that have no reply yet: their number, and the start of the oldest
//! request.
//!
//! A histogram contains a request only after the request has ended. Without this module, no metric
//! would show a request to a disk that never replies. The caller omits requests whose purpose is to
//! wait.

use crate::counter::Gauge;
use crate::switch::is_off;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The requests that have no reply yet. Only the thread that serves the requests uses this value.
/// Other threads read the gauges.
#[derive(Debug)]
pub struct OpenRequests {
    /// Id of the newest request.
    last: u64,
    /// The start time of each request by its id. Requests get rising ids in the order in which they
    /// arrive, so the first entry is the oldest.
    started: BTreeMap<u64, Duration>,
    count: Arc<Gauge>,
    oldest: Arc<Gauge>,
}

impl OpenRequests {
    /// Creates an empty set. The gauge `count` shows the number of requests. The gauge `oldest`
    /// shows the start of the oldest request in nanoseconds, or zero if there is no request.
    pub fn new(count: Arc<Gauge>, oldest: Arc<Gauge>) -> Self {
        Self { last: 0, started: BTreeMap::new(), count, oldest }
    }

    /// Adds a request that has arrived at `at`. Returns its id. If the statistics are off, adds
    /// nothing and returns zero.
    pub fn begin(&mut self, at: Duration) -> u64 {
        if is_off() {
            return 0;
        }
        self.last += 1;
        self.started.insert(self.last, at);
        self.show();
        self.last
    }

    /// Removes a request that has received its reply, or whose sender has disconnected.
    pub fn end(&mut self, number: u64) {
        if is_off() {
            return;
        }
        self.started.remove(&number);
        self.show();
    }

    fn show(&self) {
        let oldest = self.started.first_key_value().map_or(Duration::ZERO, |(_, at)| *at);
        self.count.set(i64::try_from(self.started.len()).unwrap_or(i64::MAX));
        self.oldest.set(i64::try_from(oldest.as_nanos()).unwrap_or(i64::MAX));
    }
}

impl Drop for OpenRequests {
    /// Removes the requests from the gauges, because their thread has ended and sends no replies.
    fn drop(&mut self) {
        self.started.clear();
        self.show();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_a_thread_that_has_ended_are_not_open() {
        let (count, oldest) = (Arc::new(Gauge::default()), Arc::new(Gauge::default()));
        let mut open = OpenRequests::new(Arc::clone(&count), Arc::clone(&oldest));
        open.begin(Duration::from_nanos(10));
        drop(open);
        assert_eq!((count.get(), oldest.get()), (0, 0));
    }

    #[test]
    fn gauges_show_the_oldest_request_without_a_reply() {
        let (count, oldest) = (Arc::new(Gauge::default()), Arc::new(Gauge::default()));
        let mut open = OpenRequests::new(Arc::clone(&count), Arc::clone(&oldest));
        let shown = || (count.get(), oldest.get());
        let at = Duration::from_nanos;
        let (first, second) = (open.begin(at(10)), open.begin(at(20)));
        assert_eq!(shown(), (2, 10));
        open.end(first);
        assert_eq!(shown(), (1, 20));
        open.end(first);
        let third = open.begin(at(30));
        assert_eq!(shown(), (2, 20));
        open.end(third);
        open.end(second);
        assert_eq!(shown(), (0, 0));
    }
}
