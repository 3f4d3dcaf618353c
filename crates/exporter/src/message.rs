//! Replies to the message [`GetStatistics`] with a snapshot of all statistics, for `skep stats` and
//! the monitor. The module also replies to messages about records of operations
//! ([`crate::traces`]).

use crate::traces::{self, ReportedTraces};
use skep_metrics::{Registry, Snapshot, Value};
use skep_rpc::{Incoming, Outbox};
use skep_types::{NodeId, Result};
use skep_wire::Request;
use skep_wire::management::EmptyReply;
use skep_wire::node::{GetStatistics, Statistics, StatisticsSeries};
use skep_wire::traces::{ListTraces, ReportTraces, TraceList};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// The statistics of a process, with the address of its HTTP page.
#[derive(Debug)]
pub struct Figures {
    registry: Arc<Registry>,
    incarnation: u64,
    page: RefCell<String>,
    reported: RefCell<ReportedTraces>,
}

impl Figures {
    /// Creates the [`Figures`] of a process from its registry. Adds the statistics of the host and
    /// of this process to the registry.
    pub fn new(registry: Arc<Registry>) -> Rc<Self> {
        registry.add(Arc::new(crate::host::HostFigures));
        registry.add(Arc::new(crate::process::ProcessFigures));
        let incarnation = skep_env::random_u64();
        Rc::new(Self {
            registry,
            incarnation,
            page: RefCell::default(),
            reported: RefCell::default(),
        })
    }

    /// Returns the registry of the process.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Sets the address of the HTTP page. Replies contain this address.
    pub fn set_page(&self, address: String) {
        *self.page.borrow_mut() = address;
    }

    /// Returns the reply to a [`ListTraces`] request.
    pub fn traces(&self, request: &ListTraces) -> TraceList {
        let reported = self.reported.borrow();
        traces::list(request, self.registry.traces(), &reported, self.incarnation)
    }

    /// Returns the reply to a [`GetStatistics`] request.
    pub fn statistics(&self, request: &GetStatistics) -> Statistics {
        let moment_ns = u64::try_from(skep_env::now().as_nanos()).unwrap_or(u64::MAX);
        Statistics {
            moment_ns,
            incarnation: self.incarnation,
            page: self.page.borrow().clone(),
            series: series(&self.registry.snapshot(), &request.prefix),
        }
    }
}

fn series(snapshot: &Snapshot, prefix: &str) -> Vec<StatisticsSeries> {
    let chosen = snapshot.iter().filter(|series| series.definition.name.starts_with(prefix));
    chosen
        .map(|series| {
            let labels = series.labels.into_iter();
            let (value, buckets) = match series.value {
                Value::Number(number) => (number, Vec::new()),
                Value::Histogram(value) => {
                    let buckets = value.buckets.iter().enumerate();
                    let used = buckets.filter(|(_, count)| **count > 0);
                    let used = used.map(|(bucket, count)| (bucket as u16, *count)).collect();
                    (i64::try_from(value.sum_ns).unwrap_or(i64::MAX), used)
                }
            };
            StatisticsSeries {
                metric: series.definition.name.into(),
                labels: labels.map(|(name, value)| (name.to_owned(), value)).collect(),
                value,
                buckets,
            }
        })
        .collect()
}

/// Whether a message asks for statistics or records of the process.
pub fn is_figures_request(message: u16) -> bool {
    message == GetStatistics::ID || message == ListTraces::ID
}

/// Replies to a request for statistics or records. [`is_figures_request`] must return `true` for
/// the request.
pub fn answer(figures: &Figures, incoming: &Incoming, outbox: &Rc<Outbox>) {
    if incoming.header.message == ListTraces::ID {
        reply(incoming, outbox, |request| figures.traces(&request));
    } else {
        reply(incoming, outbox, |request| figures.statistics(&request));
    }
}

/// Stores the records in a [`ReportTraces`] request of the node `client`, and replies.
pub fn answer_report(figures: &Figures, client: NodeId, incoming: &Incoming, outbox: &Rc<Outbox>) {
    reply(incoming, outbox, |report: ReportTraces| {
        figures.reported.borrow_mut().add(client, report, figures.registry.traces());
        EmptyReply {}
    });
}

fn reply<R: Request>(incoming: &Incoming, outbox: &Rc<Outbox>, handle: impl FnOnce(R) -> R::Reply) {
    let request: Result<R> = R::from_bytes(&incoming.body);
    match request {
        Ok(request) => outbox.reply(&incoming.header, &handle(request)),
        Err(error) => outbox.refuse(&incoming.header, &error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_metrics::catalog;
    use skep_types::codec::Codec;
    use std::time::Duration;

    #[test]
    fn statistics_reply_has_only_series_with_the_requested_prefix() {
        let registry = Registry::new();
        let target = vec![("target", "7".to_owned())];
        registry.histogram(&catalog::LOG_SYNC, &target).record(Duration::from_millis(3));
        registry.counter(&catalog::LOG_BYTES, &target).add(99);
        let figures = Figures::new(registry);
        figures.set_page("127.0.0.1:7411".into());
        let reply = figures.statistics(&GetStatistics { prefix: "skep_metadata_log_".into() });
        assert_eq!(reply.page, "127.0.0.1:7411");
        let [bytes, sync] = &reply.series[..] else { panic!("{:?}", reply.series) };
        assert_eq!((bytes.metric.as_str(), bytes.value), ("skep_metadata_log_bytes", 99));
        assert_eq!(sync.value, 3_000_000);
        assert_eq!(sync.buckets.iter().map(|(_, count)| count).sum::<u64>(), 1);
        let all = figures.statistics(&GetStatistics { prefix: String::new() });
        assert!(all.series.iter().any(|it| it.metric == "skep_host_load1"));
        assert_eq!(Statistics::from_bytes(&all.to_bytes()).unwrap(), all);
    }
}
