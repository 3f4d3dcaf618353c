//! The time that requests usually spend in each stage: the mean over all targets of a kind since
//! the start of their services.

use super::StageNumber;
use crate::ServiceFigures;
use skep_metrics::Stage;
use skep_types::TargetKind;
use skep_wire::node::StatisticsSeries;
use std::collections::BTreeMap;

/// Minimum number of requests from which a mean is computed.
const FEWEST: u64 = 16;

/// The number and the total time of the requests of one kind.
#[derive(Debug, Clone, Default)]
struct Sum {
    requests: u64,
    stages_ns: [f64; Stage::ALL.len()],
}

/// The usual time of requests, by kind of target, kind of request and stage.
#[derive(Debug, Clone, Default)]
pub struct Usual(BTreeMap<(&'static str, String), Sum>);

fn service(kind: TargetKind) -> &'static str {
    match kind {
        TargetKind::Metadata => "metadata",
        TargetKind::Storage => "storage",
    }
}

impl Usual {
    /// Computes the means from the replies of all services.
    pub fn of<'a>(round: impl IntoIterator<Item = &'a ServiceFigures>) -> Self {
        let mut all = Self::default();
        for series in round.into_iter().flat_map(|it| &it.statistics.series) {
            all.add(series);
        }
        all
    }

    fn add(&mut self, series: &StatisticsSeries) {
        let rest = series.metric.strip_prefix("skep_").unwrap_or_default();
        let kinds = [TargetKind::Metadata, TargetKind::Storage].map(service);
        let found = kinds.iter().find_map(|it| Some((*it, rest.strip_prefix(*it)?)));
        let label = |wanted: &str| {
            series.labels.iter().find(|(name, _)| name == wanted).map(|(_, value)| value)
        };
        let (Some((service, figure)), Some(operation)) = (found, label("operation")) else {
            return;
        };
        let sum = self.0.entry((service, operation.clone())).or_default();
        match figure {
            "_operation_seconds" => {
                sum.requests += series.buckets.iter().map(|(_, count)| count).sum::<u64>();
            }
            "_stage_seconds" => {
                let stage = label("stage");
                let at = Stage::ALL.iter().position(|it| Some(it.name()) == stage.map(|it| &**it));
                if let Some(at) = at {
                    sum.stages_ns[at] += series.value as f64;
                }
            }
            _ => {}
        }
    }

    /// Returns the mean time of requests of a kind in a stage, in microseconds. `None` if there
    /// were too few such requests.
    pub(super) fn us(&self, kind: TargetKind, request: &str, stage: StageNumber) -> Option<f64> {
        let sum = self.0.get(&(service(kind), request.to_owned()))?;
        (sum.requests >= FEWEST).then(|| sum.stages_ns[stage] / 1e3 / sum.requests as f64)
    }
}
