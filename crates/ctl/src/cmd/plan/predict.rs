//! `skep plan predict`: predicts the rates of one system for several numbers of clients.

use super::args::{DataArgs, SystemArgs, interval, rate};
use crate::help::{Example, examples};
use crate::output::{print, render, table};
use serde::Serialize;
use skep_plan::calibration::Prediction;
use skep_plan::model::LimitKind;
use skep_types::Result;

const EXAMPLES: &[Example] = &[
    (
        "predict the rates of eight servers on AWS, with 1 to 32 clients",
        "skep plan predict --server c3.8xlarge --servers 8 --client c4.8xlarge --mtu 9001",
    ),
    (
        "predict the rate of random writes on Azure with attached disks",
        "skep plan predict --server DS14_v2 --servers 4 --disk P30 --disks 10 --processes 32 \
         --operation random-write --clients 8",
    ),
];

/// Predict the rates of a system by number of clients
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct PredictArgs {
    /// Numbers of clients
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32", value_name = "NUMBERS")]
    clients: Vec<u32>,
    #[command(flatten)]
    system: SystemArgs,
    #[command(flatten)]
    data: DataArgs,
}

/// A predicted rate for one number of clients, as JSON.
#[derive(Debug, Serialize)]
struct RateLine {
    clients: u32,
    operation: &'static str,
    unit: &'static str,
    rate: f64,
    low: f64,
    high: f64,
    binds: LimitKind,
    efficiency_percent: f64,
    extrapolates: Vec<String>,
    #[serde(skip)]
    prediction: Prediction,
}

pub(crate) fn run(args: &PredictArgs) -> Result<()> {
    let catalogue = args.data.catalogue()?;
    let system = args.system.system(&catalogue)?;
    let calibration = args.system.calibration(&args.data, &catalogue)?;
    let mut lines = Vec::new();
    for clients in &args.clients {
        let workload = args.system.workload(&catalogue, *clients)?;
        let prediction = calibration.predict(&system, &workload);
        lines.push(RateLine {
            clients: *clients,
            operation: workload.operation.word(),
            unit: workload.operation.unit(),
            rate: prediction.rate,
            low: prediction.low,
            high: prediction.high,
            binds: prediction.outcome.binds,
            efficiency_percent: prediction.efficiency_percent,
            extrapolates: prediction.extrapolates.clone(),
            prediction,
        });
    }
    print(&lines, |lines| as_text(lines))
}

fn as_text(lines: &[RateLine]) -> String {
    let unit = lines.first().map_or("", |it| it.unit);
    let title = format!(">{unit}");
    let mut shown =
        table(&[">Clients", &title, "90 % interval", ">% of the limit", "Binds", "Extrapolates"]);
    for it in lines {
        let beyond =
            if it.extrapolates.is_empty() { "-".into() } else { it.extrapolates.join(", ") };
        shown.add_row([
            it.clients.to_string(),
            rate(it.rate),
            interval(&it.prediction),
            format!("{:.0}", it.efficiency_percent),
            it.binds.words().to_owned(),
            beyond,
        ]);
    }
    render(&shown)
}
