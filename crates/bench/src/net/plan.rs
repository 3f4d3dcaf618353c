//! The plan of a network benchmark. The plan determines the links that a run measures, and the
//! messages that the run sends over each link.

use crate::limits::{DEFAULT_PATIENCE_S, MAX_REPETITIONS};
use serde::{Deserialize, Serialize};
use skep_rpc::link_benchmark::LinkPlan;
use skep_types::{Error, ErrorCode, Result, TargetId};
use std::fmt;

/// The options of a network benchmark.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Plan {
    /// Number of bytes of data in each message.
    pub message_bytes: u32,
    /// Number of messages of each stream.
    pub messages: u32,
    /// Number of connections from each process to each service. Each connection has one message in
    /// flight.
    pub streams: u16,
    /// Number of empty messages for which the run measures each round trip. Zero means that the
    /// benchmark measures no round trips.
    pub round_trips: u32,
    /// Number of repetitions.
    pub repetitions: u32,
    /// Whether to measure the links from hosts to services.
    pub from_hosts: bool,
    /// Whether to measure the links between services.
    pub between_servers: bool,
    /// Whether all hosts send to all services at the same time. `false` means that only one pair at
    /// a time uses the network. A run always measures round trips for one pair at a time.
    pub all_at_once: bool,
    /// Time limit for a host or service to answer, in seconds.
    pub patience_s: u32,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            message_bytes: 1 << 20,
            messages: 32,
            streams: 4,
            round_trips: 200,
            repetitions: 3,
            from_hosts: true,
            between_servers: true,
            all_at_once: false,
            patience_s: DEFAULT_PATIENCE_S,
        }
    }
}

/// A quantity that is measured for a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measured {
    /// Bandwidth of data from the end that has opened the connection to the other end.
    Send,
    /// Bandwidth of data to the end that has opened the connection.
    Receive,
    /// Time from sending a request to receiving its reply, measured at the end that has opened the
    /// connection.
    RoundTrip,
}

impl Measured {
    /// All quantities, in the order in which a run measures them.
    pub const ALL: [Self; 3] = [Self::Send, Self::Receive, Self::RoundTrip];

    /// Returns the name of the quantity in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Receive => "receive",
            Self::RoundTrip => "round_trip",
        }
    }
}

/// A service at one end of a measured link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Server {
    /// Node id of the service.
    pub node: u32,
    /// Name of the service.
    pub name: String,
    /// Kind of the service: `storage`, `metadata` or `management`.
    pub kind: String,
    /// Version of the service's program.
    pub version: String,
    /// Addresses at which the service can be reached.
    pub addresses: Vec<String>,
    /// Ids of the storage targets that the service serves. The benchmark sends messages to the
    /// threads of these targets, and assigns the streams to the targets in turn. If the list is
    /// empty, messages go to the service itself.
    pub targets: Vec<u32>,
}

impl Server {
    /// Returns the ids of the service's targets in the type that messages contain.
    pub(crate) fn target_ids(&self) -> Vec<TargetId> {
        self.targets.iter().copied().map(TargetId::new).collect()
    }

    /// Whether the service can open connections to other services and measure these links.
    pub(crate) fn is_source(&self) -> bool {
        self.kind != "management"
    }
}

impl Plan {
    /// Returns the plan for the measurement of one link. `measured` is the quantity to measure.
    pub(crate) fn link(&self, measured: Measured) -> LinkPlan {
        let is_receiving = measured == Measured::Receive;
        match measured {
            Measured::RoundTrip => {
                LinkPlan { streams: 1, messages: self.round_trips, message_bytes: 0, is_receiving }
            }
            _ => LinkPlan {
                streams: self.streams,
                messages: self.messages,
                message_bytes: self.message_bytes,
                is_receiving,
            },
        }
    }

    /// Returns the quantities that are measured for each pair of ends, in order.
    pub(crate) fn measured(&self) -> Vec<Measured> {
        let mut all = vec![Measured::Send, Measured::Receive];
        if self.round_trips > 0 {
            all.push(Measured::RoundTrip);
        }
        all
    }

    /// Checks all values of the plan that can be checked without contacting the services.
    ///
    /// # Errors
    /// `InvalidArgument`, with a text that lists every mistake in the plan.
    pub fn check(&self) -> Result<()> {
        let mut problems = Vec::new();
        let mut must = |holds: bool, what: &str| {
            if !holds {
                problems.push(what.to_owned());
            }
        };
        must(
            self.from_hosts || self.between_servers,
            "the plan measures nothing: enable links from hosts or between services",
        );
        must(self.message_bytes > 0, "the message size must not be 0");
        must(
            (1..=MAX_REPETITIONS).contains(&self.repetitions),
            &format!(
                "invalid number of repetitions (--repetitions): expected 1 to {MAX_REPETITIONS}"
            ),
        );
        must(
            self.patience_s > 0,
            "invalid limit of 0 s for the time without progress: expected at least 1 s",
        );
        for measured in self.measured() {
            if let Err(error) = self.link(measured).check() {
                problems.push(error.context().to_owned());
            }
        }
        problems.dedup();
        if problems.is_empty() {
            return Ok(());
        }
        Err(Error::new(ErrorCode::InvalidArgument, problems.join("; ")))
    }
}

/// The text of a cluster's join token. No output may contain this text.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Key(pub(crate) String);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// The data that a process on a host needs to measure links.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Assignment {
    pub(crate) plan: Plan,
    /// Names of all hosts. The process with rank `n` runs on the host with the index `n` modulo the
    /// number of hosts.
    pub(crate) hosts: Vec<String>,
    pub(crate) servers: Vec<Server>,
    pub(crate) token: Key,
}

/// A phase in which processes on hosts measure links. The fields contain the measured quantity, and
/// the pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Leg {
    pub(crate) measured: Measured,
    /// The indices of a host and a service. `None` means all hosts and all services at the same
    /// time.
    pub(crate) pair: Option<(usize, usize)>,
}

impl Assignment {
    /// Returns all phases of a repetition, each with its name.
    pub(crate) fn legs(&self) -> Vec<(String, Leg)> {
        let mut legs = Vec::new();
        for measured in self.plan.measured() {
            if self.plan.all_at_once && measured != Measured::RoundTrip {
                let name = format!("{} from all hosts", measured.name());
                legs.push((name, Leg { measured, pair: None }));
                continue;
            }
            for (host, host_name) in self.hosts.iter().enumerate() {
                for (place, server) in self.servers.iter().enumerate() {
                    let Server { name, node, .. } = server;
                    let name = format!("{} {host_name} {name} ({node})", measured.name());
                    legs.push((name, Leg { measured, pair: Some((host, place)) }));
                }
            }
        }
        legs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(node: u32, targets: &[u32]) -> Server {
        Server {
            node,
            name: "same".into(),
            kind: "storage".into(),
            version: String::new(),
            addresses: Vec::new(),
            targets: targets.into(),
        }
    }

    #[test]
    fn invalid_network_plans_are_refused() {
        let problem = |change: fn(&mut Plan)| {
            let mut plan = Plan::default();
            change(&mut plan);
            plan.check().err().map(|error| error.context().to_owned()).unwrap_or_default()
        };
        assert_eq!(problem(|_| ()), "");
        assert!(problem(|plan| plan.message_bytes = 0).contains("message size"));
        assert!(problem(|plan| plan.message_bytes = 5 << 20).contains("at most 4194304"));
        assert!(problem(|plan| plan.streams = 65).contains("streams 65: expected 1 to 64"));
        assert!(problem(|plan| plan.round_trips = 10_001).contains("round trips"));
        assert!(problem(|plan| plan.repetitions = 0).contains("repetitions"));
        let nothing = |plan: &mut Plan| (plan.from_hosts, plan.between_servers) = (false, false);
        assert!(problem(nothing).contains("nothing"));
    }

    #[test]
    fn each_phase_of_each_pair_of_nodes_has_a_unique_name() {
        let mut assignment = Assignment {
            plan: Plan::default(),
            hosts: vec!["a".into(), "b".into()],
            servers: vec![server(3, &[7, 8]), server(4, &[]), server(5, &[9])],
            token: Key("secret".into()),
        };
        let mut names: Vec<_> = assignment.legs().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), 2 * 3 * 3);
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 18);
        assignment.plan.all_at_once = true;
        assert_eq!(assignment.legs().len(), 2 + 2 * 3);
        assignment.plan.round_trips = 0;
        assert_eq!(assignment.legs().len(), 2);
        assert!(!format!("{assignment:?}").contains("secret"));
    }
}
