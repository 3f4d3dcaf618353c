//! `skep lab shapes`: lists the predefined shapes of labs.

use crate::help::{Example, examples};
use crate::output::{print, render, table};
use skep_lab::{Description, Rate};
use skep_types::Result;

const EXAMPLES: &[Example] = &[("list all predefined shapes", "skep lab shapes")];

/// List the predefined shapes of labs
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct ShapesArgs {}

/// A shape as JSON, with rates as numbers.
#[derive(Debug, serde::Serialize)]
struct ShapeLine {
    name: &'static str,
    about: &'static str,
    servers: u16,
    targets_per_server: u16,
    clients: u16,
    link_bytes_per_second: Option<u64>,
    target_bytes_per_second: Option<u64>,
    variability_percent: u32,
    is_in_memory: bool,
}

pub(crate) fn run(_: ShapesArgs) -> Result<()> {
    let lines: Vec<_> = skep_lab::shapes().into_iter().map(line).collect();
    print(&lines, |lines| {
        let mut shown = table(&["Shape", ">Servers", ">Targets", ">Clients", "Limit", "Purpose"]);
        for line in lines {
            let mbytes = |rate: u64| format!("{} MB/s", rate as f64 / 1e6);
            let limit = match (line.link_bytes_per_second, line.target_bytes_per_second) {
                (Some(link), _) => format!("link {}", mbytes(link)),
                (None, Some(target)) => format!("target {}", mbytes(target)),
                (None, None) => "none".into(),
            };
            let targets = line.servers * line.targets_per_server;
            let numbers = [line.servers, targets, line.clients].map(|number| number.to_string());
            let [servers, targets, clients] = numbers;
            shown.add_row([line.name, &servers, &targets, &clients, &limit, line.about]);
        }
        render(&shown)
    })
}

fn line(shape: skep_lab::Shape) -> ShapeLine {
    let Description { servers, targets, clients, link, target_rate, in_memory, .. } =
        shape.description;
    ShapeLine {
        name: shape.name,
        about: shape.about,
        servers,
        targets_per_server: targets,
        clients,
        link_bytes_per_second: link.map(Rate::bytes_per_second),
        target_bytes_per_second: target_rate.map(Rate::bytes_per_second),
        variability_percent: shape.description.target_variability.map_or(0, |it| it.0),
        is_in_memory: in_memory,
    }
}
