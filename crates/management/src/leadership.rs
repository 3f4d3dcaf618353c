//! The leadership of a member of management: begins and ends it, and confirms it with a majority.
//!
//! A member serves nodes only while it leads ([`Authority::check_leader`]). Its lead begins when a
//! majority has confirmed it and has stored its `Start` command, and ends when another leader is
//! known. While it leads, the leader asks the majority at intervals whether it still leads. If the
//! majority has not answered for [`crate::limits::CONFIRMED_FOR`], the leader refuses all nodes
//! until the majority answers again, because another member may lead.
//!
//! This module owns neither elections (`skep_consensus`) nor the work of a leader
//! ([`crate::authority`]).

use crate::authority::Authority;
use crate::limits::{CONFIRM_INTERVAL, CONFIRM_LIMIT, FULL_DISK_PAUSE, TICK};
use skep_cluster::Command;
use skep_types::registration::ServerRegistration;
use skep_types::{ErrorCode, Result};
use std::rc::Rc;
use std::time::Duration;

/// Follows the elections until the process ends. `own` is the registration of this member.
pub(crate) async fn keep(authority: Rc<Authority>, own: ServerRegistration) {
    let mut asked_at = Duration::ZERO;
    let mut was_leader = false;
    loop {
        let (is_elected, is_leading) = (authority.is_elected(), authority.is_leading());
        if is_elected && !is_leading {
            match begin(&authority, &own).await {
                Ok(()) => tracing::info!("this node leads management"),
                Err(error) => {
                    tracing::debug!("cannot lead management yet: {error}");
                    if error.code() == ErrorCode::NoSpace {
                        // The pause limits the log, because each attempt logs the full disk.
                        skep_env::sleep(FULL_DISK_PAUSE).await;
                    }
                }
            }
        } else if is_leading && !is_elected {
            authority.end_lead();
            tracing::warn!("this node does not lead management any more");
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
        if was_leader && !is_leader {
            // Wake the requests that wait at this member.
            authority.changed.notify();
        }
        was_leader = is_leader;
        match authority.is_leading() {
            true => skep_env::sleep(TICK).await,
            false => drop(skep_env::timeout(TICK, authority.member().status_changed()).await),
        }
    }
}

/// Begins the lead of this member, which was elected.
async fn begin(authority: &Authority, own: &ServerRegistration) -> Result<()> {
    // When the command is applied, a majority has stored it, which confirms the leader, and all
    // commands of previous leaders are applied.
    let asked_at = skep_env::now();
    // The number of starts comes with the outcome, because the state may have the number of another
    // leader by now.
    let starts = authority.write(&Command::Start.into()).await?.starts;
    authority.begin_lead(starts, asked_at);
    match authority.propose(&Command::RegisterServer(own.clone()).into()).await {
        Ok(_) => {}
        Err(error) if error.code() == ErrorCode::NotLeader => return Err(error),
        Err(error) => tracing::error!("management keeps its former name and addresses: {error}"),
    }
    authority.note_host(own.node, &skep_service::host_name()).await?;
    authority.note_alive(own.node, &[]);
    authority.keep_addresses(own.node, &own.addresses).await
}
