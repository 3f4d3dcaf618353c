//! Checks commands on a copy of the state, proposes the commands to the replicated log, and
//! publishes their effects.

use super::Authority;
use crate::limits::COMMAND_LIMIT;
use crate::machine::Applied;
use crate::map_log;
use skep_cluster::state::check_report;
use skep_cluster::versions::starts_of;
use skep_cluster::{Command, Outcome, Proposal, RequestId};
use skep_consensus::{MemberStatus, ProposeError};
use skep_types::codec::Codec;
use skep_types::{
    Error, ErrorCode, Eviction, EvictionCause, Group, GroupId, NodeId, Result, TargetId, TargetKind,
};
use skep_wire::management::{EmptyReply, Heartbeat};

impl Authority {
    /// Returns the outcome that a command would have now, without changing the state.
    pub(crate) fn check(&self, command: &Command) -> Result<Outcome> {
        self.member.with_state(|it| it.state.clone()).apply(command)
    }

    /// Executes the command of a request. See [`Self::propose`].
    pub(crate) async fn command(&self, id: RequestId, command: Command) -> Result<Outcome> {
        self.propose(&Proposal { id, command }).await
    }

    /// Executes a command. If a request is proposed several times, the cluster executes its command
    /// only once. If the command changes the state, a majority of the members has synced the
    /// command when this function returns. A command that changes nothing causes no sync.
    ///
    /// # Errors
    /// - The error of the state machine if it refuses the command.
    /// - `NotLeader` if another member leads.
    /// - `TimedOut` if no majority stores the command in time. Management may still execute the
    ///   command after such a call has returned.
    /// - `NoSpace` if the disk of this member is full.
    pub(crate) async fn propose(&self, proposal: &Proposal) -> Result<Outcome> {
        self.check_leader()?;
        if !self.would_change(proposal) {
            // The state of this member is current only if this member still leads. So wait until a
            // majority confirms the leadership.
            self.confirm().await?;
            let result = self.member.with_state(|it| it.state.clone()).execute(proposal);
            if !result.as_ref().is_ok_and(|outcome| outcome.changed) {
                return result;
            }
        }
        let result = self.write(proposal).await?.result;
        self.publish_changes();
        result
    }

    fn would_change(&self, proposal: &Proposal) -> bool {
        let result = self.member.with_state(|it| it.state.clone()).execute(proposal);
        result.is_ok_and(|outcome| outcome.changed)
    }

    /// Waits until a majority has confirmed that this member leads.
    pub(crate) async fn confirm(&self) -> Result<()> {
        self.within_limit(self.member.confirm()).await
    }

    /// Returns a group as recorded in management's state, after a majority has confirmed that this
    /// member leads. The published map may be older, because a new leader first collects
    /// heartbeats.
    pub(crate) async fn confirmed_group(&self, group: GroupId) -> Result<Option<Group>> {
        self.confirm().await?;
        Ok(self.member.with_state(|it| it.state.map().group(group).cloned()))
    }

    /// Proposes a command, and waits until it is applied.
    pub(crate) async fn write(&self, proposal: &Proposal) -> Result<Applied> {
        let written = self.within_limit(self.member.propose(proposal.to_bytes())).await;
        let written = written.inspect_err(|error| match error.code() {
            ErrorCode::NotLeader => {}
            _ => tracing::error!(
                "management cannot store a change ({}): {error}; the sender of the change gets \
                 this error",
                proposal.command
            ),
        });
        Applied::from_outcome(&written?)
    }

    /// Converts the error of a call to the replicated log.
    pub(crate) fn converted<T>(&self, result: std::result::Result<T, ProposeError>) -> Result<T> {
        result.map_err(|error| match error {
            ProposeError::NotLeader { .. } => self.not_leader(&self.map()),
            ProposeError::Refused(error) => error,
            // This member cannot determine whether management executes the command. The sender
            // retries its request, and the next leader executes the request.
            ProposeError::Unknown(error) => {
                let what =
                    format!("{error}; management may still execute the change after this error");
                Error::new(ErrorCode::TimedOut, what)
            }
        })
    }

    /// Waits at most [`COMMAND_LIMIT`] for a call to the replicated log, and converts its error.
    pub(crate) async fn within_limit<T>(
        &self,
        call: impl Future<Output = std::result::Result<T, ProposeError>>,
    ) -> Result<T> {
        match skep_env::timeout(COMMAND_LIMIT, call).await {
            Some(result) => self.converted(result),
            None => {
                let what = format!(
                    "no majority of the management nodes has answered within {COMMAND_LIMIT:?}; \
                     management may still execute the change later. `skep management status` shows \
                     the management nodes"
                );
                Err(Error::new(ErrorCode::TimedOut, what))
            }
        }
    }

    /// Stores the addresses of a member in the replicated log, if they have changed.
    pub(crate) async fn keep_addresses(&self, node: NodeId, addresses: &[String]) -> Result<()> {
        let id = u64::from(node.raw());
        let members = self.member.status().members;
        let is_other = |it: &MemberStatus| it.id == id && it.addresses != addresses;
        match members.iter().any(is_other) {
            true => self.within_limit(self.member.set_addresses(id, addresses.to_vec())).await,
            false => Ok(()),
        }
    }

    /// Records the name of the host on which a server runs. The name is empty if the server has
    /// sent no name.
    pub(crate) async fn note_host(&self, node: NodeId, host: &str) -> Result<()> {
        let is_known = self.member.with_state(|it| {
            it.state.hosts().iter().any(|(id, known)| *id == node && known == host)
        });
        if host.is_empty() || is_known {
            return Ok(());
        }
        self.propose(&Command::NoteHost { node, host: host.to_owned() }.into()).await.map(drop)
    }

    /// Returns a storage target in no group to its former group, if both are newer than the backup
    /// from which management was restored. A `group` of zero is unknown.
    pub(crate) async fn return_to_group(&self, target: TargetId, group: GroupId) -> Result<()> {
        let is_alone = self.member.with_state(|it| {
            let map = it.state.map();
            let found = map.target(target).filter(|found| found.kind == TargetKind::Storage);
            found.is_some() && map.group_of(target).is_none()
        });
        if group.raw() == 0 || !is_alone {
            return Ok(());
        }
        let command = Command::ReturnToGroup { target, group };
        if self.propose(&command.into()).await?.changed {
            tracing::info!(
                "target {target} returns to group {group}: both are newer than the backup from \
                 which management was restored"
            );
        }
        Ok(())
    }

    /// Whether a node votes in the replicated log.
    pub(crate) fn is_voter(&self, node: NodeId) -> bool {
        self.member.voters().contains(&u64::from(node.raw()))
    }

    /// Whether a node is a member of the replicated log.
    pub(crate) fn is_member(&self, node: NodeId) -> bool {
        let id = u64::from(node.raw());
        self.member.status().members.iter().any(|member| member.id == id)
    }

    /// Handles a node that has a newer map than management, or a map with an id that management has
    /// not assigned. Such a node shows that management's directory was restored from an older
    /// backup. So new ids and map versions continue above all numbers that were assigned after the
    /// backup was made.
    pub(crate) async fn continue_above(&self, heartbeat: &Heartbeat) -> Result<()> {
        let Heartbeat { node, known, newest_node, .. } = heartbeat;
        let version = self.map().version;
        let newest = self.member.with_state(|it| it.state.map().newest_node);
        if *known <= version && *newest_node <= newest {
            return Ok(());
        }
        // A leader that collects heartbeats has not published a map yet, so `version` is the
        // version of an older map. The maps of this leader will have higher versions than the
        // node's map if this leader's number of starts is higher than the number in the node's
        // version.
        let starts = self.inner.borrow().lead.as_ref().map_or(0, |lead| lead.starts);
        if starts_of(*known) < starts && *newest_node <= newest {
            return Ok(());
        }
        check_report(*node, *known, *newest_node)?;
        let proposal = Command::ContinueAbove { version: *known }.into();
        self.check_leader()?;
        let applied = self.write(&proposal).await?;
        applied.result?;
        if let Some(lead) = &mut self.inner.borrow_mut().lead {
            lead.starts = lead.starts.max(applied.starts);
        }
        self.publish_changes();
        tracing::warn!(
            "node {node} has cluster map {known} with node ids up to {newest_node}, and management \
             had only cluster map {version} with ids up to {newest}, so the directory of \
             management is an old backup. New node ids and map versions begin above all ids and \
             versions that were assigned after the backup was made"
        );
        Ok(())
    }

    /// Removes a client that has sent `Leave`.
    pub(crate) async fn remove_client(&self, id: RequestId, node: NodeId) -> Result<()> {
        self.command(id, Command::RemoveClient { node }).await?;
        self.forget(node);
        Ok(())
    }

    /// Removes a client that has not sent `Leave`, records the eviction, and logs it. `by` is the
    /// metadata group that has asked for the eviction. Zero means that an administrator or
    /// management itself has asked.
    pub(crate) async fn evict(
        &self,
        id: RequestId,
        client: NodeId,
        cause: EvictionCause,
        by: GroupId,
    ) -> Result<EmptyReply> {
        let name = self.map().node(client).map(|node| node.name.clone()).unwrap_or_default();
        let silent_ms = u64::try_from(self.silence(client).as_millis()).unwrap_or(u64::MAX);
        let time = skep_env::wall_time();
        let eviction = Eviction { client, name, time, cause, group: by, silent_ms };
        let outcome = self.command(id, Command::EvictClient(eviction.clone())).await?;
        self.forget(client);
        // Several metadata groups may ask for the eviction of one client, so log only the first
        // eviction.
        if outcome.changed {
            map_log::eviction_line(&eviction, self.map().policy.lease_ms).write();
        }
        Ok(EmptyReply {})
    }

    /// Removes a server without targets from the cluster.
    pub(crate) async fn remove_server(&self, id: RequestId, node: NodeId) -> Result<()> {
        self.command(id, Command::RemoveServer { node }).await?;
        self.forget(node);
        Ok(())
    }
}
