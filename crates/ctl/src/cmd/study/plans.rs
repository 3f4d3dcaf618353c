//! `skep study plans`: lists the predefined plans of studies.

use crate::help::{Example, examples};
use crate::output::{print, render, table};
use serde::Serialize;
use skep_study::{order, plans};
use skep_types::Result;

const EXAMPLES: &[Example] = &[("list all predefined plans", "skep study plans")];

/// List the predefined plans
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct PlansArgs {}

#[derive(Debug, Serialize)]
struct PlanSummary {
    name: String,
    title: String,
    about: String,
    /// Name of the shape of the lab in which the plan runs, if the plan describes a lab.
    lab: Option<String>,
    experiments: Vec<ExperimentSummary>,
    runs: usize,
}

#[derive(Debug, Serialize)]
struct ExperimentSummary {
    name: String,
    title: String,
}

pub(crate) fn run(_: PlansArgs) -> Result<()> {
    let ready: Vec<PlanSummary> = plans::all()
        .into_iter()
        .map(|plan| PlanSummary {
            runs: order::list(&plan).len(),
            lab: plan.lab.map(|lab| lab.shape),
            experiments: plan
                .experiments
                .into_iter()
                .map(|it| ExperimentSummary { name: it.name, title: it.title })
                .collect(),
            name: plan.name,
            title: plan.title,
            about: plan.about,
        })
        .collect();
    print(&ready, |ready| {
        let mut shown = table(&["Name", ">Runs", "Lab", "About"]);
        for plan in ready {
            let lab = plan.lab.clone().unwrap_or_else(|| "-".into());
            shown.add_row([plan.name.clone(), plan.runs.to_string(), lab, plan.title.clone()]);
        }
        render(&shown)
    })
}
