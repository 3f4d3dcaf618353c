//! The leadership of a member of management: its beginning, its end, and its confirmation by a
//! majority.
//!
//! A member serves nodes only while it is the leader ([`Authority::check_leader`]). The leadership
//! of a member begins when a majority has confirmed the leadership and has stored the member's
//! `Start` command. The leadership ends when the member learns that another member leads. At
//! intervals, the leader asks the other members whether it is still the leader. If no majority has
//! confirmed the leadership for [`crate::limits::CONFIRMED_FOR`], the leader refuses all requests
//! of nodes until a majority confirms the leadership again, because another member may be the
//! leader.
//!
//! `skep_consensus` runs the elections, and [`crate::authority`] does the work of a leader.

use crate::authority::Authority;
use crate::leader_log::LeaderLog;
use crate::limits::{CONFIRM_INTERVAL, CONFIRM_LIMIT, FULL_DISK_PAUSE, TICK};
use crate::meter::LeadershipMetrics;
use skep_cluster::Command;
use skep_types::registration::ServerRegistration;
use skep_types::{ErrorCode, Result};
use std::rc::Rc;
use std::time::Duration;

/// Follows the elections until the process ends. `own` is the registration of this member.
/// `metrics` gets the state of the log, and the durations from an election of this member until a
/// majority has stored its `Start` command.
pub(crate) async fn keep(
    authority: Rc<Authority>,
    own: ServerRegistration,
    metrics: LeadershipMetrics,
) {
    let mut elected_at = None;
    let mut asked_at = Duration::ZERO;
    let mut was_leader = false;
    let mut log = LeaderLog::default();
    loop {
        let (is_elected, is_leading) = (authority.is_elected(), authority.is_leading());
        if !is_elected {
            elected_at = None;
        }
        if is_elected && !is_leading {
            let since = *elected_at.get_or_insert_with(skep_env::now);
            match begin(&authority, &own).await {
                Ok(()) => {
                    metrics.take_overs.record(skep_env::now().saturating_sub(since));
                    // Forget this election immediately, because this node may lose the next
                    // election and win the following election within one turn of this loop.
                    elected_at = None;
                }
                Err(error) => {
                    tracing::debug!(
                        "this node was elected as the leader of management, but cannot lead yet: \
                         {error:#}"
                    );
                    if error.code() == ErrorCode::NoSpace {
                        // The pause limits the number of log lines, because each attempt on a full
                        // disk logs an error.
                        skep_env::sleep(FULL_DISK_PAUSE).await;
                    }
                }
            }
        } else if is_leading && !is_elected {
            authority.end_lead();
            tracing::info!("this node no longer leads management, and follows the next leader");
        } else if is_leading && skep_env::now() >= asked_at + CONFIRM_INTERVAL {
            asked_at = skep_env::now();
            if authority.member().is_only_voter()
                || skep_env::timeout(CONFIRM_LIMIT, authority.member().confirm())
                    .await
                    .is_some_and(|confirmed| confirmed.is_ok())
            {
                authority.note_confirmed(asked_at);
            }
        }
        authority.publish_what_waits();
        let is_leader = authority.check_leader().is_ok();
        metrics.set(is_leader, &authority.member().status());
        if was_leader && !is_leader {
            // Wake the requests that wait at this member, so that their senders ask the new leader.
            authority.changed.notify();
        }
        was_leader = is_leader;
        let members = authority.member().voters();
        // Log the leader only if this node is a member. A node that was not yet added to the
        // members has no list of members, and needs no leader.
        if members.contains(&u64::from(own.node.raw()))
            && let Some(line) = log.observe(authority.known_leader(), skep_env::now())
        {
            line.write(own.node, members.len());
        }
        match authority.is_leading() {
            true => skep_env::sleep(TICK).await,
            false => drop(skep_env::timeout(TICK, authority.member().status_changed()).await),
        }
    }
}

/// Begins the leadership of this member after its election.
async fn begin(authority: &Authority, own: &ServerRegistration) -> Result<()> {
    // When the `Start` command is applied, a majority has stored this command, which confirms the
    // leadership. At this point, the member has also applied all commands of previous leaders.
    let asked_at = skep_env::now();
    // Take the number of starts from the outcome of the command, because the state may already
    // contain the start of another leader.
    let starts = authority.write(&Command::Start.into()).await?.starts;
    authority.begin_lead(starts, asked_at);
    match authority.propose(&Command::RegisterServer(own.clone()).into()).await {
        Ok(_) => {}
        Err(error) if error.code() == ErrorCode::NotLeader => return Err(error),
        Err(error) => tracing::error!(
            "management keeps its previous name and addresses, since this management node cannot \
             register its new name and addresses: {error}"
        ),
    }
    authority.note_host(own.node, &skep_service::host_name()).await?;
    authority.note_alive(own.node, &[]);
    authority.keep_addresses(own.node, &own.addresses).await
}
