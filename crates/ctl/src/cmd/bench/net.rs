//! `skep bench net`: measures the network between hosts and services, and between services.

use super::args::{HostArgs, ResultArgs, parse_size};
use super::results::Size;
use super::witness::Witness;
use super::{end_on_signals, hosts};
use crate::access::ClusterArgs;
use crate::help::{Example, examples};
use crate::output::{render, table};
use crate::view::node_named;
use skep_bench::net::{Measured, Outcome, Pair, Plan, Server};
use skep_bench::statistics::median;
use skep_bench::storage::outliers::Verdict;
use skep_cluster::state::kind_word;
use skep_lab::{Role, State};
use skep_types::{ClusterMap, Error, ErrorCode, Node, NodeKind, Result, TargetKind};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;

const EXAMPLES: &[Example] = &[
    ("measure links from this host to all services, and between services", "skep bench net"),
    (
        "measure links from three hosts to two services, one link after the other, five times",
        "skep bench net --hosts a,b,c --services storage-1,storage-2 --only-from-hosts \
                 --repetitions 5",
    ),
    (
        "measure links from all hosts of a lab to all services at the same time",
        "skep bench net --lab lab --all-at-once --messages 256 --output json",
    ),
];

/// Measure the network between hosts and services, and between services
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct NetArgs {
    #[command(flatten)]
    query: ClusterArgs,
    #[command(flatten)]
    place: HostArgs,
    /// Only these services: names or ids separated by commas [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    services: Vec<String>,
    /// Measure only from hosts to services [default: also between services]
    #[arg(long, conflicts_with = "only_between_services")]
    only_from_hosts: bool,
    /// Measure only between services [default: also from hosts to services]
    #[arg(long)]
    only_between_services: bool,
    /// Measure all hosts with all services at the same time, instead of pair by pair
    #[arg(long)]
    all_at_once: bool,
    /// Bytes of data per message, up to 4 MiB
    #[arg(long, default_value = "1m", value_name = "SIZE", value_parser = parse_size)]
    message_size: u64,
    /// Messages per stream
    #[arg(long, default_value_t = 32, value_name = "NUMBER")]
    messages: u32,
    /// Connections from each process to each service; each has one message in flight
    #[arg(long, default_value_t = 4, value_name = "NUMBER")]
    streams: u16,
    /// Number of empty messages whose round trips are measured separately; 0: none
    #[arg(long, default_value_t = 200, value_name = "NUMBER")]
    round_trips: u32,
    /// Number of repetitions
    #[arg(long, default_value_t = 3, value_name = "NUMBER")]
    repetitions: u32,
    #[command(flatten)]
    results: ResultArgs,
}

pub(crate) fn run(args: &NetArgs) -> Result<ExitCode> {
    let query = &args.query;
    let plan = plan(args)?;
    let hosts = hosts(&args.place)?;
    let query = match &args.place.lab {
        None => query.clone(),
        Some(name) => enter_lab(&State::load(name)?)?,
    };
    let access = query.access(None)?;
    end_on_signals()?;
    let wanted = args.services.clone();
    let token = access.token.to_text();
    let servers = crate::cmd::block_on(async move { chosen(&access.map().await?, &wanted) })?;
    let processes = args.place.processes_per_host.unwrap_or(1);
    let to = (servers.as_slice(), token.as_str());
    let size = size(&plan, hosts.len(), servers.len(), processes);
    let witness = Witness::new(&args.place);
    let mut witness = witness.keep(&args.results, ("net", &plan), size)?;
    let mut see = |progress| witness.see(progress);
    let result = skep_bench::net::from_hosts(&plan, &hosts, processes, to, &mut see);
    let (result, witness) = crate::cmd::block_on(async move {
        let mut see = |progress| witness.see(progress);
        let result = match result {
            Ok(outcome) => skep_bench::net::between_servers(outcome, &token, &mut see).await,
            failed => failed,
        };
        Ok((result, witness))
    })?;
    witness.report(result, |it| it.failure.as_deref(), as_table)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns an upper bound for the number and size of the results. Each pair of a sender and a
/// service has one result for each measured quantity. A result has one record for each stream, and
/// one more record for each 16 round trips.
fn size(plan: &Plan, hosts: usize, servers: usize, processes: u32) -> Size {
    let pairs = (hosts + servers) as u64 * servers as u64 + 1;
    let each = u64::from(plan.streams) + u64::from(plan.round_trips) / 16 + 1;
    Size {
        lines: pairs * Measured::ALL.len() as u64 * u64::from(plan.repetitions),
        parts: each * u64::from(processes),
        samples: 0,
        is_reported: false,
    }
}

fn plan(args: &NetArgs) -> Result<Plan> {
    let plan = Plan {
        message_bytes: u32::try_from(args.message_size).unwrap_or(u32::MAX),
        messages: args.messages,
        streams: args.streams,
        round_trips: args.round_trips,
        repetitions: args.repetitions,
        from_hosts: !args.only_between_services,
        between_servers: !args.only_from_hosts,
        all_at_once: args.all_at_once,
        patience_s: args.place.patience,
    };
    plan.check().map(|()| plan)
}

/// Moves this process into the network namespace of the lab's first client, because only processes
/// in a lab's namespaces reach its network. Returns the options that name the lab's cluster. The
/// caller must call this function before any thread starts.
fn enter_lab(lab: &State) -> Result<ClusterArgs> {
    let none = || {
        let what = format!(
            "cannot use lab '{}': the lab has no client host; `skep lab status` shows its hosts",
            lab.name
        );
        Error::new(ErrorCode::NotFound, what)
    };
    let client = lab.hosts_of(Role::Client).next().ok_or_else(none)?;
    let path = Path::new(skep_lab::NAMESPACES).join(&client.namespace);
    let entered = std::fs::File::open(&path).and_then(|file| {
        let kind = rustix::thread::LinkNameSpaceType::Network;
        Ok(rustix::thread::move_into_link_name_space(file.as_fd(), Some(kind))?)
    });
    entered.map_err(|error| {
        Error::from(error)
            .within(format_args!("cannot enter the network namespace {}", path.display()))
    })?;
    Ok(ClusterArgs { cluster: Some(lab.cluster.clone()), token_file: Some(lab.token_file.clone()) })
}

/// Returns the services that `wanted` names, or all services if `wanted` is empty.
fn chosen(map: &ClusterMap, wanted: &[String]) -> Result<Vec<Server>> {
    let mut nodes: Vec<&Node> = Vec::new();
    if wanted.is_empty() {
        nodes.extend(map.nodes.iter().filter(|node| node.kind != NodeKind::Client));
    }
    for name in wanted {
        let node = node_named(map, name)?;
        if node.kind == NodeKind::Client {
            let what = format!(
                "cannot measure the network to {name}: this node is a mount, and mounts accept no \
                 connections; name its host with --hosts"
            );
            return Err(Error::new(ErrorCode::InvalidArgument, what));
        }
        nodes.push(node);
    }
    nodes.sort_by_key(|node| node.id);
    nodes.dedup_by_key(|node| node.id);
    let targets = |node: &Node| {
        let of = map.targets.iter().filter(|it| it.node == node.id);
        let mut ids: Vec<u32> =
            of.filter(|it| it.kind == TargetKind::Storage).map(|it| it.id.raw()).collect();
        ids.sort_unstable();
        ids
    };
    let server = |node: &&Node| Server {
        node: node.id.raw(),
        name: node.name.clone(),
        kind: kind_word(node.kind).to_owned(),
        version: node.version.clone(),
        addresses: node.addresses.clone(),
        targets: targets(node),
    };
    Ok(nodes.iter().map(server).collect())
}

fn name_of(pair: &Pair) -> [String; 2] {
    [pair.from.clone(), pair.to.clone()]
}

fn as_table(outcome: &Outcome) -> String {
    let titles = ["FROM", "TO", ">SEND MiB/s", ">RECEIVE MiB/s", ">ROUND TRIP us", ">SAMPLES"];
    let mut shown = table(&titles);
    for (place, pair) in outcome.pairs.iter().enumerate() {
        let values = |measured| outcome.values(place, measured);
        let cell = |measured| {
            median(&values(measured)).map_or_else(|| "-".into(), |value| format!("{value:.1}"))
        };
        let samples = Measured::ALL.map(|measured| values(measured).len());
        let cells = Measured::ALL.map(cell).into_iter();
        let samples = samples.into_iter().max().unwrap_or(0).to_string();
        shown.add_row(name_of(pair).into_iter().chain(cells).chain([samples]));
    }
    let mut text = format!("{}\n{}", about(outcome), render(&shown));
    if !outcome.totals.is_empty() {
        let mut totals =
            table(&["ALL AT ONCE", ">REPETITION", ">MiB/s", ">SECONDS", ">START SKEW"]);
        for total in &outcome.totals {
            totals.add_row([
                total.measured.name().to_owned(),
                total.repetition.to_string(),
                format!("{:.1}", total.bandwidth_mib_per_s),
                format!("{:.4}", total.seconds),
                format!("{:.4}", total.start_skew_s),
            ]);
        }
        text += &format!("\n{}", render(&totals));
    }
    text + &outliers(outcome) + &paths(outcome)
}

/// Returns a text about the probed network paths from hosts to services. The text lists each path
/// on which packets of the MTU of the host's interface do not arrive.
fn paths(outcome: &Outcome) -> String {
    let (mut small, mut unknown) = (String::new(), Vec::new());
    for path in &outcome.paths {
        let [from, to] = name_of(&outcome.pairs[path.pair]);
        let probed = &path.probed;
        let Some(arriving) = probed.arriving_bytes else {
            unknown.push(format!("{from} to {to}"));
            continue;
        };
        if path.is_too_small() {
            let rest = match probed.is_reported {
                true => "a router reports that larger packets do not fit",
                false => "larger packets are lost without a report, so connections may hang",
            };
            small += &format!(
                "\n{from} to {to} ({}): the interface has an MTU of {} bytes, packets of \
                 {arriving} bytes arrive, {rest}",
                probed.address, probed.interface_mtu
            );
        }
    }
    let mut text = match (small.is_empty(), outcome.paths.len() == unknown.len()) {
        (true, true) => String::new(),
        (true, false) => "Packets as large as the MTU of the hosts' interfaces arrive.\n".into(),
        (false, _) => format!(
            "Paths with a smaller MTU than the host's interface:{small}\nGive all hosts and \
             switches on these paths the same MTU.\n"
        ),
    };
    if !unknown.is_empty() {
        text += &format!(
            "MTU of the path unknown: {}. These services' hosts answer no test packets; a firewall \
             may drop them.\n",
            unknown.join(", ")
        );
    }
    text
}

fn about(outcome: &Outcome) -> String {
    let plan = &outcome.plan;
    let how = match plan.all_at_once {
        true => "all hosts at the same time",
        false => "one pair after the other",
    };
    let (number, unit) = skep_types::size::whole(plan.message_bytes.into());
    format!(
        "{} streams of {} messages of {number} {unit} each, {} round trips, {} times; {how}. \
         Medians:\n",
        plan.streams, plan.messages, plan.round_trips, plan.repetitions,
    )
}

/// Returns a text that lists the pairs of hosts and services that are slower than other pairs of
/// the same kind.
fn outliers(outcome: &Outcome) -> String {
    let mut text = String::new();
    let mut unclear = Vec::new();
    for judged in outcome.outliers() {
        let [from, to] = name_of(&outcome.pairs[judged.pair]);
        let (what, compared) = (judged.measured.name(), &judged.compared);
        if compared.verdict != Verdict::Slow {
            unclear.push(format!("{from} to {to} ({what})"));
            continue;
        }
        text += &format!(
            "\n{from} to {to}, {what}: {:.0} % below the median of the other pairs, with a \
             confidence of {:.1} %",
            compared.slower_by * 100.0,
            compared.confidence * 100.0,
        );
    }
    text = match text.is_empty() {
        true => "\nNo pair is certainly slower than the other pairs of the same kind.\n".into(),
        false => format!("\nPairs that are slower than the other pairs of the same kind:{text}\n"),
    };
    if !unclear.is_empty() {
        text += &format!(
            "Unclear: {}. These pairs seem slower, but with so few measurements the difference may \
             be chance; raise --repetitions.\n",
            unclear.join(", ")
        );
    }
    text
}
