//! Runs a plan: first measures the links from hosts to services, then the links between services.

use super::outcome::{Outcome, Pair, PairPath, Sample, Total};
use super::plan::{Assignment, Key, Leg, Measured, Plan, Server};
use super::work::identity;
use crate::launcher::{Fleet, Host, Job, LinkMeasure, PhaseRecord, Setup, Step};
use crate::limits::{ASK_PATIENCE, INTERRUPT_LOOK};
use crate::progress::{Measurement, Progress, is_interrupted};
use crate::storage::outliers::Rules;
use skep_rpc::{CallOptions, Channel, Connection, Identity};
use skep_types::{Error, ErrorCode, NodeId, Result};
use skep_wire::benchmark::{MeasureLink, MeasureLinkReply};
use std::rc::Rc;
use std::time::Duration;

/// Measures the links from hosts to services, with `processes_per_host` processes on each host. If
/// the plan does not request links from hosts, returns an outcome without measurements. `token` is
/// the text of the cluster's join token.
///
/// # Errors
/// The errors of [`crate::io::run`].
pub fn from_hosts(
    plan: &Plan,
    hosts: &[Host],
    processes_per_host: u32,
    (servers, token): (&[Server], &str),
    progress: &mut dyn FnMut(Progress),
) -> Result<Outcome> {
    let processes = crate::launcher::processes(hosts, processes_per_host)?;
    plan.check()?;
    if servers.is_empty() {
        return Err(Error::new(
            ErrorCode::NotFound,
            "cannot measure the network: the plan names no service of this cluster",
        ));
    }
    let mut outcome = Outcome::new(plan.clone(), servers.to_vec());
    let between = phases_between(plan, servers);
    if !plan.from_hosts {
        progress(Progress::Planned { phases: between });
        return Ok(outcome);
    }
    let assignment = Assignment {
        plan: plan.clone(),
        hosts: hosts.iter().map(|host| host.name.clone()).collect(),
        servers: servers.to_vec(),
        token: Key(token.to_owned()),
    };
    let from_hosts = assignment.legs().len() as u64 * u64::from(plan.repetitions);
    progress(Progress::Planned { phases: from_hosts + between });
    let mut fleet = Fleet::start(&Setup {
        job: Job::Net(assignment.clone()),
        hosts,
        server_hosts: &[],
        processes_per_host,
        path: None,
        patience: Duration::from_secs(plan.patience_s.into()),
    })?;
    outcome.hosts = fleet.records();
    outcome.processes = processes;
    let result = measure_hosts(&mut fleet, &assignment, &mut outcome, progress);
    outcome.failure = fleet.conclude(result, !outcome.samples.is_empty())?;
    outcome.judge(Rules::default());
    Ok(outcome)
}

/// Returns the number of phases in which links between services are measured, in all repetitions
/// together.
fn phases_between(plan: &Plan, servers: &[Server]) -> u64 {
    if !plan.between_servers {
        return 0;
    }
    let others = |from: &Server| servers.iter().filter(|to| to.node != from.node).count();
    let pairs: usize = servers.iter().filter(|it| it.is_source()).map(others).sum();
    let measured = plan.measured().len();
    (pairs * measured) as u64 * u64::from(plan.repetitions)
}

fn measure_hosts(
    fleet: &mut Fleet,
    assignment: &Assignment,
    outcome: &mut Outcome,
    progress: &mut dyn FnMut(Progress),
) -> Result<()> {
    let hosts = assignment.hosts.len() as u64;
    for repetition in 1..=assignment.plan.repetitions {
        for (name, leg) in assignment.legs() {
            let link = assignment.plan.link(leg.measured);
            let each = u64::from(link.streams) * u64::from(link.messages);
            let of_host = u64::from(outcome.processes) / hosts.max(1);
            let links = match leg.pair {
                Some(_) => of_host,
                None => of_host * hosts * assignment.servers.len() as u64,
            };
            let total = each * u64::from(link.message_bytes) * links;
            let record = fleet.phase(&Step { phase: name, repetition, total }, progress)?;
            let known = (outcome.samples.len(), outcome.totals.len());
            take(&record, leg, assignment, outcome);
            tell(outcome, known, progress);
        }
    }
    Ok(())
}

/// Reports the new samples and totals. `known` is the number of samples and the number of totals
/// that were reported before.
fn tell(outcome: &Outcome, known: (usize, usize), progress: &mut dyn FnMut(Progress)) {
    for sample in &outcome.samples[known.0..] {
        let (between, sample) = (outcome.pairs[sample.pair].clone(), sample.clone());
        progress(Progress::measured(Measurement::Link { between, sample }));
    }
    for total in &outcome.totals[known.1..] {
        progress(Progress::measured(Measurement::Total(total.clone())));
    }
}

/// Stores the results of a phase in `outcome`, each with its pair.
fn take(record: &PhaseRecord, leg: Leg, assignment: &Assignment, outcome: &mut Outcome) {
    for host in &assignment.hosts {
        for server in &assignment.servers {
            let of_host = record.processes.iter().filter(|process| process.host == *host);
            let links = of_host.flat_map(|process| &process.measure.links);
            let parts: Vec<LinkMeasure> =
                links.filter(|link| link.node == server.node).cloned().collect();
            if parts.is_empty() {
                continue;
            }
            let pair = outcome.place_of(pair_to(host.clone(), None, "host", server));
            let probed = parts.iter().find_map(|part| part.path.clone());
            outcome.paths.extend(probed.map(|probed| PairPath { pair, probed }));
            let mut sample = Sample::new(pair, leg.measured, record.repetition, &parts);
            let used = record.hosts.iter().find(|used| used.name == *host);
            sample.from_cpu_busy = used.and_then(|used| used.cpu_busy);
            outcome.samples.push(sample);
        }
    }
    if leg.pair.is_none() {
        let links = record.processes.iter().flat_map(|process| process.measure.links.clone());
        let links: Vec<LinkMeasure> = links.collect();
        let all = Sample::new(0, leg.measured, record.repetition, &links);
        outcome.totals.push(Total {
            measured: leg.measured,
            repetition: record.repetition,
            bytes: all.bytes,
            seconds: all.seconds,
            bandwidth_mib_per_s: all.bandwidth_mib_per_s.unwrap_or(0.0),
            start_skew_s: record.start_skew_s,
        });
    }
}

fn pair_to(from: String, from_node: Option<u32>, from_kind: &str, server: &Server) -> Pair {
    Pair {
        from,
        from_node,
        from_kind: from_kind.to_owned(),
        to: server.name.clone(),
        to_node: server.node,
        to_kind: server.kind.clone(),
    }
}

/// If the plan requests links between services, makes services measure the links to other services,
/// one pair at a time. Adds the results to the outcome. If a measurement fails, the outcome still
/// contains the results so far.
///
/// # Errors
/// The reason for the failure, if the outcome contains no measurement.
pub async fn between_servers(
    mut outcome: Outcome,
    token: &str,
    progress: &mut dyn FnMut(Progress),
) -> Result<Outcome> {
    if !outcome.plan.between_servers || outcome.failure.is_some() {
        return Ok(outcome);
    }
    let identity = identity(token)?;
    let result = measure_servers(&mut outcome, &identity, progress).await;
    outcome.judge(Rules::default());
    match result {
        Err(error) if outcome.samples.is_empty() => Err(error),
        Err(error) => Ok(Outcome { failure: Some(error.context().to_owned()), ..outcome }),
        Ok(()) => Ok(outcome),
    }
}

async fn measure_servers(
    outcome: &mut Outcome,
    identity: &Identity,
    progress: &mut dyn FnMut(Progress),
) -> Result<()> {
    let (plan, servers) = (outcome.plan.clone(), outcome.servers.clone());
    let mut sources = Vec::new();
    for server in servers.iter().filter(|server| server.is_source()) {
        sources.push((server, connect(identity, server).await?));
    }
    for repetition in 1..=plan.repetitions {
        for measured in plan.measured() {
            for (from, connection) in &sources {
                for to in servers.iter().filter(|to| to.node != from.node) {
                    let phase = format!("{} {} {}", measured.name(), from.name, to.name);
                    progress(Progress::Phase { phase, repetition });
                    let reply = ask(connection, &plan, measured, to).await.map_err(|error| {
                        error.within(format_args!(
                            "cannot measure the link from {} to {}",
                            from.name, to.name
                        ))
                    })?;
                    let pair = pair_to(from.name.clone(), Some(from.node), &from.kind, to);
                    let place = outcome.place_of(pair);
                    let part = [measure_of(to, &reply)];
                    let known = (outcome.samples.len(), outcome.totals.len());
                    outcome.samples.push(Sample::new(place, measured, repetition, &part));
                    tell(outcome, known, progress);
                }
            }
        }
    }
    Ok(())
}

/// Connects to the thread of a service that measures links. In a storage service, the connection
/// leads to the thread of one target.
async fn connect(identity: &Identity, server: &Server) -> Result<Rc<Connection>> {
    let mut last =
        Error::new(ErrorCode::Disconnected, "the service has no address in the cluster map");
    let target = server.target_ids().first().copied().unwrap_or_default();
    for address in &server.addresses {
        match Connection::connect(address, identity, target, Channel::NONE).await {
            Ok(connection) => return Ok(connection),
            Err(error) => last = error,
        }
    }
    Err(last.within(&server.name))
}

/// Makes a service measure a link, and returns the result. Ends early if the user interrupts this
/// run.
async fn ask(
    connection: &Rc<Connection>,
    plan: &Plan,
    measured: Measured,
    to: &Server,
) -> Result<MeasureLinkReply> {
    let link = plan.link(measured);
    let request = MeasureLink {
        node: NodeId::new(to.node),
        target: to.target_ids().first().copied().unwrap_or_default(),
        streams: link.streams,
        messages: link.messages,
        message_bytes: link.message_bytes,
        is_receiving: link.is_receiving,
    };
    let patience = Duration::from_secs(plan.patience_s.into()).max(ASK_PATIENCE);
    let options = CallOptions { time_left: Some(patience), ..CallOptions::default() };
    let mut answer = std::pin::pin!(connection.call(&request, &options));
    loop {
        if let Some(answer) = skep_env::timeout(INTERRUPT_LOOK, answer.as_mut()).await {
            return answer.map(|(reply, _)| reply);
        }
        if is_interrupted() {
            return Err(Error::new(ErrorCode::Interrupted, "interrupted"));
        }
    }
}

fn measure_of(to: &Server, reply: &MeasureLinkReply) -> LinkMeasure {
    let seconds = |nanoseconds: u64| nanoseconds as f64 / 1e9;
    let streams = reply.streams.iter().map(|(begin, end)| (seconds(*begin), seconds(*end)));
    LinkMeasure {
        node: to.node,
        address: reply.address.clone(),
        bytes: reply.bytes,
        streams: streams.collect(),
        round_trips_us: reply.round_trips_ns.iter().map(|trip| *trip as f64 / 1e3).collect(),
        path: None,
    }
}
