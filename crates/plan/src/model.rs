//! The model. The model predicts the rate of a workload on a system, from the parameters.
//!
//! Clients demand data, and servers supply it. Each side has several limits, and the smallest limit
//! is decisive. If demand and supply are about equal, neither side is fully used. For this reason,
//! the rate is a smooth minimum of demand and supply. A job ends when its slowest server ends, so
//! each of many servers attains a slightly lower rate than a single server would.
//! `docs/design/0013-planning-model.md` explains the reasons for these rules.

use crate::parameter::Parameters;
use crate::system::{Operation, System, Workload};
use serde::Serialize;
use statrs::distribution::{ContinuousCDF, Normal};

/// Maximum size of a request in bytes. A client sends a larger transfer as several requests at the
/// same time.
const REQUEST_BYTES: f64 = 1_048_576.0;
/// Processor time of a server for each MB of data, in core seconds. `docs/benchmarks.md` has the
/// time of a whole machine on which clients and servers run. This value is half of the measured
/// time.
const CORE_SECONDS_PER_MB: f64 = 0.0006;
/// Processor time of a server for a small read or write, in core seconds, from
/// `docs/benchmarks.md`.
const CORE_SECONDS_PER_BLOCK: f64 = 45e-6;
/// Processor time of a metadata server for creating a file, in core seconds, from
/// `docs/benchmarks.md`.
const CORE_SECONDS_PER_CREATE: f64 = 60e-6;
/// Processor time of a metadata server for a request for attributes, in core seconds, from
/// `docs/benchmarks.md`.
const CORE_SECONDS_PER_STAT: f64 = 20e-6;
/// Number of requests that a client sends one after the other to create a file: lookup, create and
/// close.
const REQUESTS_PER_CREATE: f64 = 3.0;

/// The maximum rate that one part of a system, such as its disks, allows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Limit {
    /// The part of the system that sets the limit.
    pub kind: LimitKind,
    /// The maximum rate of all clients together that this part allows.
    pub rate: f64,
    /// The calculation of the rate, as text for users.
    pub because: String,
}

/// The parts of a system that can limit its rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitKind {
    /// The network of the clients.
    ClientNetwork,
    /// The processes of the clients. Each process waits for the reply to its request before it
    /// sends the next request.
    ClientRequests,
    /// The network of the servers.
    ServerNetwork,
    /// The disks of the servers.
    Disks,
    /// The provider's limit for the disks of a virtual server.
    VmLimit,
    /// The processors of the servers.
    Processor,
    /// The processors of the metadata servers.
    Metadata,
}

impl LimitKind {
    /// Returns the text for the limit that users see.
    pub fn words(self) -> &'static str {
        match self {
            Self::ClientNetwork => "client network",
            Self::ClientRequests => "client requests",
            Self::ServerNetwork => "server network",
            Self::Disks => "disks",
            Self::VmLimit => "VM limit",
            Self::Processor => "processor",
            Self::Metadata => "metadata",
        }
    }

    fn is_of_clients(self) -> bool {
        matches!(self, Self::ClientNetwork | Self::ClientRequests)
    }
}

/// The result of the model: the rate, and the limits that keep the rate from being higher.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// The predicted rate, in MB/s or operations per second.
    pub rate: f64,
    /// The part of the system that sets the smallest limit.
    pub binds: LimitKind,
    /// All limits in ascending order.
    pub limits: Vec<Limit>,
    /// The smallest limit of the servers if links and disks attained their full rates. Does not
    /// include the processors, except for operations on metadata, for which servers have no other
    /// limit.
    pub hardware_limit: f64,
}

/// Predicts the rate of a workload on a system.
pub fn rate(parameters: &Parameters, system: &System, workload: &Workload) -> Outcome {
    let mut limits = demand(parameters, system, workload);
    limits.extend(supply(parameters, system, workload));
    let smallest = |of_clients: bool| {
        let of_side = limits.iter().filter(|it| it.kind.is_of_clients() == of_clients);
        of_side.map(|it| it.rate).fold(f64::INFINITY, f64::min)
    };
    let servers = f64::from(system.load(workload).servers);
    let slowest = (1.0 - parameters.variability * expected_maximum(servers)).max(0.1);
    let rate = smooth_minimum(smallest(true), smallest(false) * slowest, parameters.saturation);
    limits.sort_by(|one, other| one.rate.total_cmp(&other.rate));
    let perfect = Parameters { link: 1.0, disk: 1.0, ..*parameters };
    let hardware = supply(&perfect, system, workload).into_iter();
    let hardware = hardware.filter(|it| it.kind != LimitKind::Processor).map(|it| it.rate);
    Outcome {
        rate,
        binds: limits[0].kind,
        limits,
        hardware_limit: hardware.fold(f64::INFINITY, f64::min),
    }
}

/// Returns the limits that the clients set.
fn demand(parameters: &Parameters, system: &System, workload: &Workload) -> Vec<Limit> {
    let clients = f64::from(workload.clients);
    let processes = clients * f64::from(workload.processes);
    let link = system.payload_mb_s(workload.client_gbit_s) * parameters.link;
    let request_s = parameters.request_us * 1e-6;
    let at_link =
        format!("{clients} clients x {link:.0} MB/s of a {} Gbit/s link", workload.client_gbit_s);
    let waits = format!("{processes} processes, {:.0} us per request", parameters.request_us);
    let limit = |kind, rate, because| Limit { kind, rate, because };
    match workload.operation {
        Operation::Write | Operation::Read => {
            let piece_mb = (workload.transfer_bytes as f64).min(REQUEST_BYTES) / 1e6;
            let of_process = piece_mb / (piece_mb / link + request_s);
            let because = format!("{waits}: {of_process:.0} MB/s each");
            vec![
                limit(LimitKind::ClientNetwork, clients * link, at_link),
                limit(LimitKind::ClientRequests, processes * of_process, because),
            ]
        }
        Operation::RandomWrite | Operation::RandomRead => {
            let size_mb = workload.transfer_bytes as f64 / 1e6;
            let of_process = 1.0 / (size_mb / link + request_s);
            let because = format!("{waits}: {of_process:.0} per s each");
            vec![
                limit(LimitKind::ClientNetwork, clients * link / size_mb, at_link),
                limit(LimitKind::ClientRequests, processes * of_process, because),
            ]
        }
        Operation::Create | Operation::Stat => {
            let requests = requests_of(workload.operation);
            let because = format!("{waits}, {requests} requests one after the other");
            vec![limit(LimitKind::ClientRequests, processes / (requests * request_s), because)]
        }
    }
}

fn requests_of(operation: Operation) -> f64 {
    if operation == Operation::Create { REQUESTS_PER_CREATE } else { 1.0 }
}

/// Returns the limits that the servers set.
fn supply(parameters: &Parameters, system: &System, workload: &Workload) -> Vec<Limit> {
    let operation = workload.operation;
    let load = system.load(workload);
    let servers = f64::from(load.servers);
    let evenly = 1.0 / load.largest_share;
    let limit = |kind, rate, because| Limit { kind, rate, because };
    if matches!(operation, Operation::Create | Operation::Stat) {
        let core_s = match operation {
            Operation::Create => CORE_SECONDS_PER_CREATE,
            _ => CORE_SECONDS_PER_STAT,
        };
        let cores = f64::from(system.servers) * f64::from(system.cores);
        let because = format!("{cores} cores, {:.0} us each", core_s * 1e6);
        return vec![limit(LimitKind::Metadata, cores / core_s, because)];
    }
    let is_sequential = operation.is_sequential();
    let unit = operation.unit();
    let link = system.payload_mb_s(system.network_gbit_s) * parameters.link;
    let per_operation = if is_sequential { 1.0 } else { workload.transfer_bytes as f64 / 1e6 };
    let disk = system.disk_rate(operation) * parameters.disk;
    let core_s = if is_sequential { CORE_SECONDS_PER_MB } else { CORE_SECONDS_PER_BLOCK };
    let of_server = f64::from(system.cores) / core_s;
    let uneven = match servers * load.largest_share > 1.001 {
        true => format!(", {:.0} % of the data on one server", load.largest_share * 100.0),
        false => String::new(),
    };
    let on_servers = |of_one: f64| format!("{servers} servers x {of_one:.0} {unit}{uneven}");
    let mut limits = vec![
        limit(
            LimitKind::ServerNetwork,
            evenly * link / per_operation,
            on_servers(link / per_operation),
        ),
        limit(
            LimitKind::Disks,
            f64::from(load.disks) * disk,
            format!("{} disks x {disk:.0} {unit}", load.disks),
        ),
        limit(LimitKind::Processor, evenly * of_server, on_servers(of_server)),
    ];
    let of_vm = if is_sequential { system.limit_mb_s } else { system.limit_iops };
    limits.extend(of_vm.map(|it| {
        let of_one = it * parameters.disk;
        limit(LimitKind::VmLimit, evenly * of_one, on_servers(of_one))
    }));
    limits
}

/// Returns a smooth minimum of two rates. With a larger `saturation`, the result is nearer to the
/// exact minimum.
fn smooth_minimum(demand: f64, supply: f64, saturation: f64) -> f64 {
    let (least, most) = (demand.min(supply), demand.max(supply));
    if most.is_infinite() {
        return least;
    }
    least * (1.0 + (least / most).powf(saturation)).powf(-1.0 / saturation)
}

/// Returns the expected maximum of `count` independent normal deviations, in standard deviations
/// (Blom's approximation).
fn expected_maximum(count: f64) -> f64 {
    Normal::standard().inverse_cdf((count - 0.375) / (count + 0.25))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Catalogue;
    use crate::system::Spread;

    fn system(server: &str, servers: u32) -> System {
        System::of(&Catalogue::built_in(), server, servers, None).unwrap()
    }

    fn workload(operation: Operation, clients: u32, processes: u32) -> Workload {
        Workload {
            operation,
            clients,
            processes,
            client_gbit_s: 10.0,
            transfer_bytes: if operation.is_sequential() { 1 << 20 } else { 4096 },
            spread: Spread::Files { targets: None },
        }
    }

    #[test]
    fn rate_rises_with_clients_until_the_servers_saturate() {
        let system = system("i2.8xlarge", 2);
        let rate =
            |clients| rate(&Parameters::prior(), &system, &workload(Operation::Write, clients, 1));
        assert_eq!(rate(1).binds, LimitKind::ClientRequests);
        assert_eq!(rate(64).binds, LimitKind::ServerNetwork);
        let mut last = 0.0;
        for clients in 1..100 {
            let next = rate(clients).rate;
            assert!(next > last, "{clients} clients: {next} after {last}");
            assert!(next <= rate(clients).limits[0].rate, "{clients}");
            last = next;
        }
    }

    #[test]
    fn rate_of_an_uneven_allocation_is_set_by_its_largest_share() {
        let system = system("four-raid6-10gbe", 2);
        let rate = |min, max| {
            let spread = Spread::Allocation { min, max };
            let workload = Workload { spread, ..workload(Operation::Write, 64, 8) };
            rate(&Parameters { variability: 1e-9, ..Parameters::prior() }, &system, &workload).rate
        };
        let ratio = rate(1, 3) / rate(2, 2);
        assert!((ratio - 2.0 / 3.0).abs() < 0.01, "{ratio}");
        assert!((rate(0, 1) / rate(2, 2) - 0.5).abs() < 0.01);
    }

    #[test]
    fn random_io_and_metadata_rates_have_separate_limits() {
        let system = system("d2.8xlarge", 2);
        let binds =
            |operation| rate(&Parameters::prior(), &system, &workload(operation, 99, 99)).binds;
        assert_eq!(binds(Operation::RandomRead), LimitKind::Disks);
        assert_eq!(binds(Operation::Create), LimitKind::Metadata);
        let one = rate(&Parameters::prior(), &system, &workload(Operation::Stat, 1, 1));
        assert_eq!(one.binds, LimitKind::ClientRequests);
    }

    #[test]
    fn slowest_of_many_servers_is_slower_than_slowest_of_few() {
        let values = [1.0, 2.0, 8.0, 20.0].map(expected_maximum);
        assert!(values[0].abs() < 1e-9 && (values[2] - 1.42).abs() < 0.02, "{values:?}");
        assert!(values.windows(2).all(|it| it[0] < it[1]));
    }

    #[test]
    fn smooth_minimum_is_at_most_the_smaller_value() {
        assert!((smooth_minimum(100.0, 100.0, 2.0) - 70.71).abs() < 0.01);
        assert!((smooth_minimum(100.0, 1e9, 3.0) - 100.0).abs() < 0.01);
        assert_eq!(smooth_minimum(100.0, f64::INFINITY, 3.0), 100.0);
    }
}
