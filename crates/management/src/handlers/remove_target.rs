//! `RemoveTarget`: removes a target that stores no data, or marks a target as lost. Management
//! refuses the removal while a service serves the target. Management marks a target as lost only if
//! its service reports the target as down, or has been silent for minutes. Servers send the request
//! too: after a restore of management, they report targets that were marked as lost before.

use crate::authority::Authority;
use crate::limits::SILENCE_OF_LOST;
use crate::map_log;
use skep_cluster::{Command, RequestId};
use skep_types::map::{Condition, Consistency, Reachability};
use skep_types::{ClusterMap, Error, ErrorCode, Result, Target};
use skep_wire::management::{EmptyReply, RemoveTarget};
use std::time::Duration;

pub(super) async fn handle(
    authority: &Authority,
    id: RequestId,
    request: RemoveTarget,
) -> Result<EmptyReply> {
    let target_id = request.target;
    let command = match request.is_lost {
        true => Command::GiveUpTarget { target: target_id },
        false => Command::RemoveTarget { target: target_id },
    };
    authority.check(&command)?;
    let map = authority.map();
    let Some(target) = map.target(target_id) else { return Ok(EmptyReply {}) };
    let is_served =
        target.reachability == Reachability::Online && target.health.condition != Condition::Down;
    match request.is_lost {
        // The target is marked as lost already, so this request is a retry and changes nothing.
        true if target.consistency == Consistency::Bad => {}
        true => refuse_present(target, &map, authority.silence(target.node))?,
        false if is_served => return Err(still_served(target, &map)),
        false => {}
    }
    if !request.is_dry_run {
        let outcome = authority.command(id, command).await?;
        match request.is_lost {
            // After a restore of management, many servers may report one lost target.
            true if !outcome.changed => {}
            true => map_log::lost_line(&map, target_id).write(),
            false => {
                tracing::info!("target {target_id} ({}) is removed from the cluster", target.path);
            }
        }
    }
    Ok(EmptyReply {})
}

fn name_of<'a>(target: &Target, map: &'a ClusterMap) -> &'a str {
    map.node(target.node).map_or("its service", |node| node.name.as_str())
}

fn still_served(target: &Target, map: &ClusterMap) -> Error {
    let (id, node) = (target.id, name_of(target, map));
    let what = format!(
        "cannot remove target {id}: {node} serves this target; remove {} from the setting \
         `targets` of {node} and restart {node}, or stop {node}",
        target.path
    );
    Error::new(ErrorCode::InUse, what)
}

/// Returns an error if the target is probably intact, because its service serves the target or may
/// only be restarting. Management must not mark such a target as lost.
fn refuse_present(target: &Target, map: &ClusterMap, silence: Duration) -> Result<()> {
    let (id, node) = (target.id, name_of(target, map));
    let what = match (target.reachability, target.health.condition) {
        (Reachability::Online, Condition::Down) => return Ok(()),
        (Reachability::Online, _) => format!(
            "cannot mark target {id} as lost: {node} serves this target; if the disk of the target \
             has failed, stop {node}, and start it without the disk"
        ),
        _ if silence >= SILENCE_OF_LOST => return Ok(()),
        _ => format!(
            "cannot mark target {id} as lost: {node} has been silent for only {} s and may come \
             back with the data of the target; wait until this node has been silent for {} s, or \
             start {node}, which reports a target as down if the target's disk is gone",
            silence.as_secs(),
            SILENCE_OF_LOST.as_secs()
        ),
    };
    Err(Error::new(ErrorCode::InUse, what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::map::TargetHealth;
    use skep_types::{ClusterId, NodeId, TargetId, TargetKind};

    #[test]
    fn only_a_down_or_long_silent_target_can_be_marked_as_lost() {
        let map = ClusterMap::empty(ClusterId::new([1; 16]));
        let mut target = Target {
            reachability: Reachability::Online,
            ..Target::new(TargetId::new(4), TargetKind::Storage, NodeId::new(2), "/disk")
        };
        let mut refused = |reachability, condition, seconds| {
            target.reachability = reachability;
            target.health = TargetHealth::new(condition, "");
            let result = refuse_present(&target, &map, Duration::from_secs(seconds));
            result.err().map(|error| error.context().to_owned()).unwrap_or_default()
        };
        assert_eq!(refused(Reachability::Online, Condition::Down, 0), "");
        for condition in [Condition::Serving, Condition::ReadOnly, Condition::Hung] {
            assert!(refused(Reachability::Online, condition, 900).contains("serves this target"));
        }
        for silent in [Reachability::ProbablyOffline, Reachability::Offline] {
            // `condition` is the condition of the target in the last heartbeat.
            for condition in [Condition::Serving, Condition::Down] {
                assert!(refused(silent, condition, 299).contains("only 299 s"));
                assert_eq!(refused(silent, condition, 300), "");
            }
        }
    }
}
