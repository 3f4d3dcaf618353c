//! `skep study plan`: prints a predefined plan of a study. The text output is the plan file. The
//! JSON output has all factors of each experiment, including the defaults that the file omits.

use crate::help::{Example, examples};
use crate::output::print;
use crate::values;
use serde::Serialize;
use skep_study::plan::{Calibration, Clients, Experiment, Factors, Lab, Level, Limit, Plan};
use skep_study::plans;
use skep_types::Result;
use std::time::Duration;

const EXAMPLES: &[Example] =
    &[("print a predefined plan, to adapt it to your system", "skep study plan scenario1")];

/// Print a predefined plan, to read or to edit
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct PlanArgs {
    /// Name of the plan
    #[arg(value_parser = values::plans())]
    name: String,
}

#[derive(Debug, Serialize)]
struct PlanReport {
    name: String,
    title: String,
    about: String,
    seed: u64,
    /// Number of runs in a block of the plan.
    block: u32,
    /// Minimum time between two blocks, in milliseconds. Null means the default for the measured
    /// system.
    shortest_wait_ms: Option<u64>,
    longest_wait_ms: Option<u64>,
    lab: Option<LabReport>,
    limit: LimitReport,
    calibration: CalibrationReport,
    experiments: Vec<ExperimentReport>,
}

/// The emulated cluster that the plan describes. A field is null if the shape of the lab determines
/// its value.
#[derive(Debug, Serialize)]
struct LabReport {
    shape: String,
    servers: Option<u16>,
    targets_per_server: Option<u16>,
    clients: Option<u16>,
    metadata_servers: Option<u16>,
    metadata_link: Option<String>,
    link: Option<String>,
    client_link: Option<String>,
    target_rate: Option<String>,
}

/// The rates of the hardware. Null means that the plan does not set the rate.
#[derive(Debug, Serialize)]
struct LimitReport {
    server_bytes_per_second: Option<u64>,
    client_bytes_per_second: Option<u64>,
    server_operations_per_second: Option<u64>,
}

#[derive(Debug, Serialize)]
struct CalibrationReport {
    data_bytes: Vec<u64>,
    hosts: Vec<u32>,
    repetitions: u32,
    tolerance: f64,
}

#[derive(Debug, Serialize)]
struct ExperimentReport {
    name: String,
    title: String,
    repetitions: u32,
    factors: FactorsReport,
}

#[derive(Debug, Serialize)]
struct FactorsReport {
    /// The amounts of data that a run can write, in bytes. Null stands for the amount that the
    /// calibration finds.
    data_bytes: Vec<Option<u64>>,
    /// Whether `data_bytes` is the amount of a whole application, of one client host or of one
    /// process.
    data_per: &'static str,
    /// The numbers of hosts and of processes. Empty if the experiment has pairs of hosts and
    /// processes in `clients`.
    hosts: Vec<Option<u32>>,
    processes: Vec<u32>,
    clients: Vec<ClientsReport>,
    /// The stripe counts: the numbers of targets over which a file can be striped. Null stands for
    /// the default of the file system.
    count: Vec<Option<u32>>,
    chooser: Vec<Option<String>>,
    transfer_bytes: Vec<u64>,
    access: Vec<&'static str>,
    operation: Vec<&'static str>,
    applications: Vec<u32>,
    targets: Vec<&'static str>,
    /// The numbers of servers that store the files. Null stands for all servers.
    servers: Vec<Option<u32>>,
    cache: Vec<&'static str>,
    /// The numbers of files of each process in operations on names.
    files: Vec<u32>,
}

/// A number of client hosts, and the number of processes on each host.
#[derive(Debug, Serialize)]
struct ClientsReport {
    hosts: u32,
    processes: u32,
}

pub(crate) fn run(args: &PlanArgs) -> Result<()> {
    let text = plans::text(&args.name)?;
    print(&report(Plan::parse(text)?), |_| text.to_owned())
}

fn report(plan: Plan) -> PlanReport {
    let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    PlanReport {
        name: plan.name,
        title: plan.title,
        about: plan.about,
        seed: plan.seed,
        block: plan.block,
        shortest_wait_ms: plan.wait.map(|(shortest, _)| milliseconds(shortest)),
        longest_wait_ms: plan.wait.map(|(_, longest)| milliseconds(longest)),
        lab: plan.lab.map(lab),
        limit: limit(plan.limit),
        calibration: calibration(plan.calibration),
        experiments: plan.experiments.into_iter().map(experiment).collect(),
    }
}

fn lab(lab: Lab) -> LabReport {
    LabReport {
        shape: lab.shape,
        servers: lab.servers,
        targets_per_server: lab.targets,
        clients: lab.clients,
        metadata_servers: lab.metadata_servers,
        metadata_link: lab.metadata_link,
        link: lab.link,
        client_link: lab.client_link,
        target_rate: lab.target_rate,
    }
}

fn limit(limit: Limit) -> LimitReport {
    let Limit { server_bytes_per_second, client_bytes_per_second, server_operations_per_second } =
        limit;
    LimitReport { server_bytes_per_second, client_bytes_per_second, server_operations_per_second }
}

fn calibration(calibration: Calibration) -> CalibrationReport {
    let Calibration { data_bytes, hosts, repetitions, tolerance } = calibration;
    CalibrationReport { data_bytes, hosts, repetitions, tolerance }
}

fn experiment(experiment: Experiment) -> ExperimentReport {
    let Experiment { name, title, repetitions, factors } = experiment;
    ExperimentReport { name, title, repetitions, factors: factors_report(factors) }
}

fn factors_report(factors: Factors) -> FactorsReport {
    let (hosts, processes) = match factors.clients.is_empty() {
        true => (factors.hosts, factors.processes),
        false => (Vec::new(), Vec::new()),
    };
    let clients = |Clients { hosts, processes }| ClientsReport { hosts, processes };
    FactorsReport {
        data_bytes: factors.data_bytes.into_iter().map(fixed).collect(),
        data_per: factors.data_per.word(),
        hosts: hosts.into_iter().map(fixed).collect(),
        processes,
        clients: factors.clients.into_iter().map(clients).collect(),
        count: factors.count,
        chooser: factors.chooser,
        transfer_bytes: factors.transfer_bytes,
        access: factors.access.into_iter().map(|it| it.word()).collect(),
        operation: factors.operation.into_iter().map(|it| it.word()).collect(),
        applications: factors.applications,
        targets: factors.targets.into_iter().map(|it| it.word()).collect(),
        servers: factors.servers,
        cache: factors.cache.into_iter().map(|it| it.word()).collect(),
        files: factors.files,
    }
}

fn fixed<T>(level: Level<T>) -> Option<T> {
    match level {
        Level::Fixed(value) => Some(value),
        Level::Calibrated => None,
    }
}
