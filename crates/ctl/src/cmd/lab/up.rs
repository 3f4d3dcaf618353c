//! `skep lab up`: makes an emulated cluster.

use super::status::shown;
use crate::cli::LabUpArgs;
use crate::output::{is_for_people, print};
use skep_lab::{Description, Status};
use skep_types::{Error, ErrorCode, Result};
use std::io::Write;
use std::path::Path;

pub(super) fn run(args: &LabUpArgs) -> Result<()> {
    let description = description(args)?;
    let mut tell = |step: &str| {
        if is_for_people() {
            // Whoever looked on may have gone away: that is no reason to stop halfway.
            let _ = writeln!(std::io::stderr(), "{step}");
        }
    };
    if args.is_dry_run {
        let plan = skep_lab::plan(&args.name, &description, args.is_forced, &mut tell)?;
        return print(&skep_lab::status(&plan)?, |it| format!("{}\nNothing was made.", shown(it)));
    }
    // Its own file, not the name it was called by: other processes start it again.
    let program = std::env::current_exe()?;
    let state = skep_lab::up(&args.name, &description, &program, args.is_forced, &mut tell)?;
    print(&skep_lab::status(&state)?, |it| format!("{}\n{}", shown(it), hints(it)))
}

/// What was asked for: a shape or a file, and what options say on top.
fn description(args: &LabUpArgs) -> Result<Description> {
    let mut description = match skep_lab::shape(&args.shape) {
        Some(shape) => shape.description,
        None if Path::new(&args.shape).exists() => Description::read(Path::new(&args.shape))?,
        None => {
            let names: Vec<_> = skep_lab::shapes().iter().map(|shape| shape.name).collect();
            let what = format!(
                "'{}' is neither a file nor a shape; there are {}",
                args.shape,
                names.join(", ")
            );
            return Err(Error::new(ErrorCode::Configuration, what));
        }
    };
    let counts = [
        (&mut description.servers, args.servers),
        (&mut description.targets, args.targets),
        (&mut description.clients, args.clients),
        (&mut description.metadata_targets, args.metadata_targets),
    ];
    for (count, asked) in counts {
        *count = asked.unwrap_or(*count);
    }
    description.link = args.link.or(description.link);
    description.client_link = args.client_link.or(description.client_link);
    description.target_rate = args.target_rate.or(description.target_rate);
    description.target_variability = args.target_variability.or(description.target_variability);
    description.seed = args.seed.unwrap_or(description.seed);
    description.delay = args.delay.or(description.delay);
    description.chooser = args.chooser.clone().or(description.chooser);
    description.in_memory = (description.in_memory || args.is_in_memory) && !args.is_on_disk;
    if let Some(directory) = &args.directory {
        let absolute = std::path::absolute(directory)
            .map_err(|error| Error::from(error).within(directory.display()))?;
        description.directory = Some(absolute);
    }
    Ok(description)
}

/// What can be done now.
fn hints(status: &Status) -> String {
    let option = match status.name.as_str() {
        skep_lab::DEFAULT_NAME => String::new(),
        name => format!(" --name {name}"),
    };
    format!(
        "Try:\n  skep lab run{option} -- sh -c 'dd if=/dev/zero of=$SKEP_LAB_HOST bs=1M count=64'\n  \
         skep lab status{option}\nRemove: skep lab down{option}"
    )
}
