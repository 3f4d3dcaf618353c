//! `skep plan explain`: shows all limits of one system, and how the predicted rate and the cost of
//! the system follow from these limits.

use super::args::{DataArgs, SystemArgs, interval, rate};
use crate::help::{Example, examples};
use crate::output::{print, render, table};
use serde::Serialize;
use skep_plan::Parameters;
use skep_plan::calibration::Prediction;
use skep_plan::cost::Cost;
use skep_plan::system::{Operation, Workload};
use skep_types::Result;
use std::fmt::Write;

const EXAMPLES: &[Example] = &[
    (
        "explain why two servers saturate with eight clients",
        "skep plan explain --server i2.8xlarge --servers 2 --client c4.8xlarge --mtu 9001 \
         --clients 8",
    ),
    (
        "explain the rate of a shared file with one target on one server and three on the other",
        "skep plan explain --server four-raid6-10gbe --servers 2 --processes 8 --allocation 1,3 \
         --clients 8",
    ),
];

/// Explain the predicted rate and the cost of a system: every limit, and the lowest limit
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct ExplainArgs {
    /// Number of clients
    #[arg(long, default_value_t = 8, value_name = "NUMBER")]
    clients: u32,
    #[command(flatten)]
    system: SystemArgs,
    #[command(flatten)]
    data: DataArgs,
}

/// The JSON output: the explanation.
#[derive(Debug, Serialize)]
struct Explanation {
    operation: &'static str,
    unit: &'static str,
    prediction: Prediction,
    /// The calibrated parameters of the model.
    parameters: Parameters,
    /// Number of measured rates that determine the parameters.
    measured_points: usize,
    cost: Cost,
}

pub(crate) fn run(args: &ExplainArgs) -> Result<()> {
    let catalogue = args.data.catalogue()?;
    let system = args.system.system(&catalogue)?;
    let calibration = args.system.calibration(&args.data, &catalogue)?;
    let workload = args.system.workload(&catalogue, args.clients)?;
    let sequential = |operation| {
        let workload = Workload { operation, transfer_bytes: 1 << 20, ..workload.clone() };
        calibration.predict(&system, &workload).rate
    };
    let rates = (sequential(Operation::Read), sequential(Operation::Write));
    let explanation = Explanation {
        operation: workload.operation.word(),
        unit: workload.operation.unit(),
        prediction: calibration.predict(&system, &workload),
        parameters: calibration.parameters,
        measured_points: calibration.points,
        cost: Cost::of(&catalogue, &system, None, rates)?,
    };
    print(&explanation, as_text)
}

fn as_text(it: &Explanation) -> String {
    let Explanation { unit, prediction, parameters, .. } = it;
    let mut text = format!(
        "{} by {} clients: {} {unit} (90 % interval: {} {unit})\nLimited by: {}. The rate is {:.0} \
         % of the hardware's limit, {} {unit}.\n\n",
        it.operation,
        prediction.clients,
        rate(prediction.rate),
        interval(prediction),
        prediction.outcome.binds.words(),
        prediction.efficiency_percent,
        rate(prediction.outcome.hardware_limit),
    );
    let title = format!(">{unit}");
    let mut shown = table(&["Limit", &title, "Because"]);
    for limit in &prediction.outcome.limits {
        shown.add_row([limit.kind.words(), &rate(limit.rate), &limit.because]);
    }
    text += &render(&shown);
    let _ = writeln!(
        text,
        "\nParameters of the model (`skep plan calibrate` explains them): link {:.3}, disk {:.3}, \
         {:.0} us per request, saturation {:.2}, variability {:.3}; calibrated by {} measured \
         points",
        parameters.link,
        parameters.disk,
        parameters.request_us,
        parameters.saturation,
        parameters.variability,
        it.measured_points
    );
    for beyond in &prediction.extrapolates {
        let _ = writeln!(text, "Outside of the measured range: {beyond}");
    }
    if let Some(usd) = it.cost.usd_per_hour {
        let _ = writeln!(
            text,
            "Cost: {usd:.2} $/hr for {:.1} TB, {:.3} $/TB/hr, {:.2} $/(GB/s)/hr of writes",
            it.cost.capacity_tb,
            it.cost.usd_per_tb_hour.unwrap_or(f64::NAN),
            it.cost.usd_per_gb_s_write_hour.unwrap_or(f64::NAN),
        );
    }
    text
}
