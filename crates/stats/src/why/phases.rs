//! Phases: the shares of each target and stage in the time of all requests.

use super::comparison::{Comparison, log_syncs, of_kind, stage};
use super::evidence::{Evidence, Times};
use super::names;
use super::scope::Scope;
use serde::{Deserialize, Serialize};
use skep_metrics::Stage;
use skep_types::{ClusterMap, TargetKind};

/// Kind of the requests that wait for a lock of a program.
const WAIT_LOCK: &str = "wait_lock";
/// A report omits phases with a smaller share of the whole time than this share.
const SMALLEST_SHARE: f64 = 0.01;
/// Maximum number of phases in a report.
const MAX_PHASES: usize = 12;

/// The share of one target and one stage in the time of all requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Share in the time of all requests in the scope, between 0 and 1.
    pub share: f64,
    /// The target at which the time was spent.
    pub target: u32,
    /// Name of the stage, as in the metrics. The name `lock` means the wait for locks of programs.
    pub stage: String,
    /// Description of the phase in words.
    pub what: String,
    /// Total time of all requests in this phase, in seconds.
    pub seconds: f64,
    /// Mean time of a request in this phase, in milliseconds. For log syncs, the mean time of a
    /// sync.
    pub each_ms: f64,
    /// The value of `each_ms` at the median of the target's peers. `None` means that no peer
    /// handled requests of the same kinds.
    pub peers_ms: Option<f64>,
}

/// Returns the text that describes a stage at the target with this name. `copies` are the names of
/// the other targets that serve its group.
pub(crate) fn words(what: Stage, kind: TargetKind, target: &str, copies: &[String]) -> String {
    match (what, kind) {
        (Stage::Waiting, _) => format!("in the queue of {target}"),
        (Stage::Processing, _) => format!("in the thread of {target}"),
        (Stage::Disk, _) => format!("waiting for the disk of {target}"),
        (Stage::LogSync, _) => format!("waiting for the log sync of {target}"),
        (Stage::Others, TargetKind::Metadata) => {
            format!("waiting for other targets, clients or transactions, at {target}")
        }
        (Stage::Others, TargetKind::Storage) => {
            format!("waiting for other requests for the same bytes, at {target}")
        }
        (Stage::Network, _) => format!("data in the network to or from {target}"),
        (Stage::Copies, _) => {
            let noun = if copies.len() == 1 { "copy" } else { "copies" };
            let names = copies.join(", ");
            let names = if names.is_empty() { names } else { format!(" ({names})") };
            format!("waiting for the other {noun} of the metadata{names}, at {target}")
        }
    }
}

/// Returns the phases of the requests in a scope, the longest first, and the times of all these
/// requests.
pub(super) fn phases(evidence: &Evidence, map: &ClusterMap, scope: &Scope) -> (Vec<Phase>, Times) {
    let Scope { targets, focus } = scope;
    let mut all = Times::default();
    let mut found = Vec::new();
    for kind in [TargetKind::Metadata, TargetKind::Storage] {
        let of_kind = of_kind(evidence, map, kind);
        let chosen =
            of_kind.iter().filter(|(id, _)| targets.as_ref().is_none_or(|it| it.contains(id)));
        for (id, target) in chosen {
            let mut times = target.times_of(focus).unwrap_or_default();
            all.add(&times);
            let name = names::target(map, *id);
            if focus.is_empty()
                && let Some(locks) = target.kinds.get(WAIT_LOCK)
            {
                let ns = locks.of(Stage::Others);
                times.stages_ns[Stage::Others as usize] -= ns;
                let what = format!("waiting for locks that other programs hold, at {name}");
                found.push(phase(*id, "lock", what, (ns, locks.requests), None));
            }
            for what in Stage::ALL {
                let compared = match what {
                    Stage::LogSync => log_syncs(&of_kind, *id),
                    _ => stage(&of_kind, *id, what),
                };
                let words = words(what, kind, &name, &names::copies(map, *id));
                let measured = (times.of(what), times.requests);
                found.push(phase(*id, what.name(), words, measured, compared));
            }
        }
    }
    let whole = all.all_ns();
    for phase in &mut found {
        phase.share = phase.seconds * 1e9 / whole.max(1) as f64;
    }
    found.retain(|phase| phase.share >= SMALLEST_SHARE);
    found.sort_by(|a, b| b.share.total_cmp(&a.share));
    found.truncate(MAX_PHASES);
    (found, all)
}

fn phase(
    target: u32,
    stage: &str,
    what: String,
    (ns, requests): (u64, u64),
    compared: Option<Comparison>,
) -> Phase {
    let ms = |ns: u64| ns as f64 / 1e6;
    Phase {
        share: 0.0,
        target,
        stage: stage.to_owned(),
        what,
        seconds: ns as f64 / 1e9,
        each_ms: ms(compared.map_or(ns.checked_div(requests).unwrap_or(0), |it| it.own_ns)),
        peers_ms: compared.map(|it| ms(it.peers_ns)),
    }
}
