//! The work of one process on a host in a network benchmark. The process measures links to
//! services.

use super::plan::{Assignment, Leg, Measured, Server};
use crate::launcher::{Control, Engine, LinkMeasure, Measure, ProbedPath, STOPPED, Seat, Step};
use crate::limits::NET_SPIN;
use skep_env::PathMtu;
use skep_rpc::link_benchmark::{self, LinkResult};
use skep_rpc::{Identity, JoinToken};
use skep_types::{Error, ErrorCode, NodeId, NodeKind, Result};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::Arc;

/// The engine of one process in a network benchmark.
pub(crate) struct NetEngine {
    assignment: Assignment,
    seat: Seat,
    /// The probed paths to services, by node id. The process reports these paths with its next
    /// measurements.
    paths: BTreeMap<u32, ProbedPath>,
    /// The results of all probes, by the address of the host. `None` means that there is no result.
    probed: BTreeMap<IpAddr, Option<PathMtu>>,
}

/// Probes the path to a service. Returns `None` if this host has no path to the service through a
/// network, or if the probe has failed. The measurement then reports why the service cannot be
/// reached.
///
/// `probed` contains the results so far. The benchmark probes a host with several services only
/// once. The host's kernel reports by ICMP messages which packets have arrived, and limits the rate
/// of these messages.
fn probe(server: &Server, probed: &mut BTreeMap<IpAddr, Option<PathMtu>>) -> Option<ProbedPath> {
    let address = server.addresses.first()?;
    let peer = address.to_socket_addrs().ok()?.next()?;
    let found = probed.entry(peer.ip());
    let found = *found.or_insert_with(|| skep_env::probe_path(peer).ok().flatten());
    let found = found?;
    Some(ProbedPath {
        address: address.clone(),
        interface_mtu: found.interface,
        arriving_bytes: found.arriving,
        is_reported: found.is_reported,
    })
}

/// Returns a hint for the error of a measurement. The hint is empty if packets of all sizes arrive,
/// or if nothing is known about the path to the service.
fn hint(server: &Server, path: Option<&ProbedPath>) -> String {
    let Some(ProbedPath { interface_mtu, arriving_bytes: Some(arriving), .. }) = path else {
        return String::new();
    };
    if arriving >= interface_mtu {
        return String::new();
    }
    format!(
        "; packets of {interface_mtu} bytes, the MTU of this host's interface, do not arrive at \
         {}, but packets of {arriving} bytes do: give all hosts and switches on the path the same \
         MTU",
        server.name
    )
}

/// Returns the identity that a benchmark presents to services.
pub(super) fn identity(token: &str) -> Result<Identity> {
    let token: JoinToken = token.parse()?;
    Ok(Identity {
        cluster: token.cluster,
        secrets: token.secrets,
        node: NodeId::default(),
        kind: NodeKind::Client,
    })
}

/// Converts the result of one link to the form that the process reports.
fn measure_of(server: &Server, result: &LinkResult) -> LinkMeasure {
    let streams = result.streams.iter();
    LinkMeasure {
        node: server.node,
        address: result.address.clone(),
        bytes: result.bytes,
        streams: streams.map(|(begin, end)| (begin.as_secs_f64(), end.as_secs_f64())).collect(),
        round_trips_us: result.round_trips.iter().map(|trip| trip.as_secs_f64() * 1e6).collect(),
        path: None,
    }
}

impl NetEngine {
    pub(crate) fn new(assignment: Assignment, seat: Seat) -> Self {
        Self { assignment, seat, paths: BTreeMap::new(), probed: BTreeMap::new() }
    }

    fn leg(&self, step: &Step) -> std::result::Result<Leg, String> {
        let found = self.assignment.legs().into_iter().find(|(name, _)| *name == step.phase);
        found.map(|(_, leg)| leg).ok_or_else(|| step.unknown())
    }

    /// Returns the services to which this process measures links in the phase `leg`.
    fn servers(&self, leg: Leg) -> Vec<Server> {
        let hosts = self.assignment.hosts.len();
        let rank = self.seat.rank as usize;
        let Some((host, server)) = leg.pair else { return self.assignment.servers.clone() };
        // On each host, only one process measures round trips.
        let is_one = leg.measured != Measured::RoundTrip || rank < hosts;
        let is_mine = rank % hosts == host && is_one;
        is_mine.then(|| self.assignment.servers[server].clone()).into_iter().collect()
    }

    /// Measures the links to all `servers` at the same time.
    fn measure(
        &self,
        servers: Vec<Server>,
        measured: Measured,
        control: &Arc<Control>,
    ) -> Result<Vec<LinkMeasure>> {
        let plan = self.assignment.plan.link(measured);
        let identity = identity(&self.assignment.token.0)?;
        let control = Arc::clone(control);
        let all = async move {
            skep_env::set_spin(NET_SPIN);
            let start = |server: Server| {
                let (identity, control) = (identity.clone(), Arc::clone(&control));
                skep_env::spawn(async move {
                    let told = Cell::new(0);
                    let goes_on = |moved: u64| {
                        control.move_on(moved - told.replace(moved));
                        !control.is_aborted()
                    };
                    let (addresses, targets) = (&server.addresses, server.target_ids());
                    let measured =
                        link_benchmark::measure(&identity, addresses, &targets, plan, goes_on);
                    let result = measured.await.map_err(|error| error.within(&server.name))?;
                    Ok::<_, Error>(measure_of(&server, &result))
                })
            };
            let tasks: Vec<_> = servers.into_iter().map(start).collect();
            let mut links = Vec::new();
            for task in tasks {
                links.push(task.await?);
            }
            Ok(links)
        };
        skep_env::block_on(all).map_err(|error| {
            Error::new(ErrorCode::Io, format!("cannot run the event loop: {error}"))
        })?
    }
}

impl Engine for NetEngine {
    /// Before the first measurement of a link, the first process of each host probes the path.
    fn prepare(&mut self, step: &Step) -> std::result::Result<(), String> {
        let leg = self.leg(step)?;
        let is_first = (self.seat.rank as usize) < self.assignment.hosts.len();
        if is_first && step.repetition == 1 && leg.measured == Measured::Send {
            for server in self.servers(leg) {
                let path = probe(&server, &mut self.probed);
                self.paths.extend(path.map(|path| (server.node, path)));
            }
        }
        Ok(())
    }

    fn perform(
        &mut self,
        step: &Step,
        measure: &mut Measure,
        control: &Arc<Control>,
    ) -> std::result::Result<(), String> {
        let leg = self.leg(step)?;
        let servers = self.servers(leg);
        if servers.is_empty() {
            return Ok(());
        }
        let hints: Vec<_> = servers.iter().map(|it| hint(it, self.paths.get(&it.node))).collect();
        let mut links =
            self.measure(servers, leg.measured, control).map_err(|error| match error.code() {
                ErrorCode::Interrupted => STOPPED.into(),
                _ => format!("{}{}", error.context(), hints.concat()),
            })?;
        for link in &mut links {
            link.path = self.paths.remove(&link.node);
        }
        measure.bytes = links.iter().map(|link| link.bytes).sum();
        let trips = links.iter().map(|link| link.round_trips_us.len() as u64).sum::<u64>();
        let message = u64::from(self.assignment.plan.message_bytes.max(1));
        measure.operations = if trips > 0 { trips } else { measure.bytes / message };
        measure.links = links;
        Ok(())
    }

    fn clean(&mut self, _: &[u32]) {}
}
