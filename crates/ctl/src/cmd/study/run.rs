//! `skep study run`: carries out those runs of a plan that have no result yet.

use super::report;
use crate::cmd::bench::{listed, named};
use crate::help::{Example, examples};
use crate::output::{is_for_people, print, say_aside, span, utc};
use crate::values;
use serde::Serialize;
use skep_lab::State;
use skep_study::journal::{FILE, FORMAT, Journal};
use skep_study::plan::{Plan, System};
use skep_study::record::{LimitRecord, Record, StudyRecord};
use skep_study::report::describe_condition;
use skep_study::runner::{self, Control, End, Event, Place, Site, wait_of};
use skep_study::{lab, order, plans};
use skep_types::{Error, ErrorCode, Result};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

const EXAMPLES: &[Example] = &[
    ("run a short study in a lab that it starts and removes", "skep study run small"),
    ("run the study of scenario 1", "skep study run scenario1 --directory results"),
    ("resume an interrupted study", "skep study run scenario1 --directory results --resume"),
    (
        "run your own plan on a mounted file system",
        "skep study run ./mine.toml --mount /mnt/skep/study --hosts n1,n2,n3,n4",
    ),
    ("list the runs, and run nothing", "skep study run scenario1 --dry-run"),
];

/// Run a study or resume a study: in its own lab, in a running lab, or on any mounted file system.
/// Ctrl-C ends the study after the current run; no result is lost
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct RunArgs {
    /// Name of a predefined plan, or a file, as in ./mine.toml
    #[arg(value_name = "PLAN|FILE", value_parser = values::plans())]
    plan: String,
    /// Run in this lab; without --lab and --mount, the lab that the plan describes is started, and
    /// removed at the end
    #[arg(long, value_name = "NAME", conflicts_with = "mount")]
    lab: Option<String>,
    /// Directory on the file system to study, mounted on this host and on all client hosts
    #[arg(long, value_name = "DIR")]
    mount: Option<PathBuf>,
    /// Client hosts on which the file system is mounted; `localhost` is this host [default:
    /// localhost]
    #[arg(long, value_delimiter = ',', value_name = "NAMES", conflicts_with = "lab")]
    hosts: Vec<String>,
    /// File with one client host per line
    #[arg(long, value_name = "FILE", conflicts_with_all = ["hosts", "lab"])]
    host_file: Option<PathBuf>,
    /// Servers whose caches are dropped too
    #[arg(long, value_delimiter = ',', value_name = "NAMES", conflicts_with = "lab")]
    server_hosts: Vec<String>,
    /// Command prefix that runs a command on a host, with {host} for its name; this command must
    /// not prompt, and `skep` must be in the PATH of the host
    #[arg(long, default_value = "ssh -o BatchMode=yes {host}", value_name = "COMMAND")]
    enter: String,
    /// Name of the lab that is started for the study; studies at the same time need different names
    #[arg(
        long,
        default_value = OWN_LAB,
        value_name = "NAME",
        conflicts_with_all = ["lab", "mount"]
    )]
    lab_name: String,
    /// Start the lab even if this machine is too slow for its rates; runs limited by this machine
    /// are invalid
    #[arg(long = "force", conflicts_with_all = ["lab", "mount"])]
    is_forced: bool,
    /// Directory for the results [default: ./skep-study-PLAN]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Resume the study in the directory for the results
    #[arg(long = "resume")]
    is_resumed: bool,
    /// Check the plan and list its runs in their order; run nothing
    #[arg(long = "dry-run")]
    is_dry_run: bool,
}

/// Whether a signal has arrived. After a signal, the study ends at the end of its current run.
static STOP: AtomicBool = AtomicBool::new(false);
/// Default name of the lab that `skep` starts for a study.
const OWN_LAB: &str = "study";

/// The JSON output: a summary of a study that has ended.
#[derive(Debug, Serialize)]
struct StudySummary {
    directory: PathBuf,
    runs_done: usize,
    /// Number of runs among `runs_done` that are invalid. `--resume` repeats these runs.
    runs_invalid: usize,
    runs_planned: usize,
    /// Whether all planned runs are done and valid.
    is_finished: bool,
    /// Path of the report's HTML page.
    report: PathBuf,
}

/// The JSON output of `--dry-run`: the runs of a study.
#[derive(Debug, Serialize)]
struct PlannedStudy {
    name: String,
    title: String,
    runs: usize,
    /// Whether a calibration must first determine the data size and the number of hosts.
    needs_calibration: bool,
    /// The runs of each block, in the order in which the study will do the runs.
    blocks: Vec<Vec<PlannedRun>>,
}

#[derive(Debug, Serialize)]
struct PlannedRun {
    run: u32,
    experiment: String,
    repetition: u32,
    condition: String,
}

pub(crate) fn run(args: &RunArgs) -> Result<()> {
    let text = plans::find(&args.plan)?;
    let plan = Plan::parse(&text)
        .map_err(|error| error.within(format_args!("cannot use the plan {}", args.plan)))?;
    let directory = args.directory.clone();
    let directory = directory.unwrap_or_else(|| format!("skep-study-{}", plan.name).into());
    if args.is_dry_run {
        return show_planned(args, &plan);
    }
    stop_on_signals()?;
    // Checks the directory for the results before the start of a lab or a run.
    let begun = match args.is_resumed {
        true => Some(Journal::resume(&directory, &plan)?),
        false if directory.join(FILE).exists() => return Err(is_taken(&directory)),
        false => None,
    };
    let (place, own_lab) = place(args, &plan)?;
    let result = study(&text, &plan, &directory, place, begun);
    let removed = own_lab.map_or(Ok(()), |name| remove(&name));
    let end = match (result, &removed) {
        (Err(error), Err(left)) => return Err(with_removal_error(&error, left)),
        (result, _) => result?,
    };
    let written = report::write(&directory, false).map_err(|error| {
        error.within(
            "cannot write the report of the study; no result is lost, and `skep study report` \
             writes the report again",
        )
    })?;
    let ended = StudySummary {
        runs_done: end.done,
        runs_invalid: end.invalid,
        runs_planned: end.all,
        is_finished: end.done == end.all && end.invalid == 0,
        report: written.directory.join("index.html"),
        directory,
    };
    let mut line = format!("{} --directory {}", args.plan, ended.directory.display());
    if args.lab_name != OWN_LAB {
        line += &format!(" --lab-name {}", args.lab_name);
    }
    print(&ended, |ended| {
        let summary = report::as_text(&written);
        if ended.is_finished {
            return summary;
        }
        let why = match ended.runs_done == ended.runs_planned {
            true => "Repeat the invalid runs",
            false => "Resume",
        };
        format!("{summary}\n{why}: skep study run {line} --resume")
    })?;
    // If the study and the removal of its lab both failed, the error of the study was returned
    // above. If only the removal failed, this line returns the error of the removal.
    removed
}

/// Removes the lab that was started for a study.
fn remove(name: &str) -> Result<()> {
    print_progress(&format!("removing lab {name}"));
    let removed = skep_lab::down(name).map(drop);
    removed.map_err(|error| {
        error.within(format_args!(
            "cannot remove lab {name} (repeat with `skep lab down --name {name}`)"
        ))
    })
}

/// Adds the error of the removal of a study's lab to the text of the error of the study.
fn with_removal_error(error: &Error, left: &Error) -> Error {
    Error::new(error.code(), format!("{}; also, {}", error.context(), left.context()))
}

fn is_taken(directory: &Path) -> Error {
    Error::new(
        ErrorCode::Exists,
        format!(
            "cannot start a study in {}: this directory has a study already; continue that study \
             with --resume, or name another --directory",
            directory.display()
        ),
    )
}

fn print_progress(what: &str) {
    if is_for_people() {
        say_aside(what);
    }
}

/// Makes the first Ctrl-C or SIGTERM end the study after its current run, and the second signal
/// also interrupt this run. A signal that the parent of this process has set to be ignored has no
/// effect. The caller must call this function before any other thread starts.
fn stop_on_signals() -> Result<()> {
    let numbers = skep_env::Signals::not_ignored(&[libc::SIGINT, libc::SIGTERM]);
    // Blocks the signals in this thread and in all threads that this thread starts after this call.
    // The thread that `spawn_thread` starts below waits for the signals.
    drop(skep_env::Signals::take(&numbers)?);
    skep_env::spawn_thread("signals".into(), None, move || {
        // If waiting fails, the thread ends. The signals then stay blocked and have no effect.
        let _ = skep_env::block_on(async move {
            let signals = skep_env::Signals::take(&numbers)?;
            signals.next().await?;
            STOP.store(true, Ordering::Relaxed);
            print_progress(
                "the study stops after this run; press Ctrl-C a second time to stop the study now",
            );
            signals.next().await?;
            skep_bench::interrupt();
            std::io::Result::Ok(())
        });
    })?;
    Ok(())
}

/// Returns the system that the study measures, and the name of the lab if the command started a lab
/// for the study.
fn place(args: &RunArgs, plan: &Plan) -> Result<(Place, Option<String>)> {
    if let Some(name) = &args.lab {
        return Ok((lab::place(&State::load(name)?)?, None));
    }
    if let Some(mount) = &args.mount {
        return Ok((mounted(args, mount)?, None));
    }
    let Some(wanted) = &plan.lab else {
        return Err(Error::new(
            ErrorCode::Configuration,
            format!(
                "cannot run plan \"{}\": the plan describes no lab; name a file system with \
                 --mount (and its client hosts with --hosts), or a lab with --lab",
                plan.name
            ),
        ));
    };
    if !args.hosts.is_empty() || args.host_file.is_some() {
        let what = "cannot use --hosts without --mount; name the mounted file system with --mount";
        return Err(Error::new(ErrorCode::Configuration, what));
    }
    let description = lab::description(wanted)?;
    plan.check_system(&shape(&description))?;
    let program = std::env::current_exe()?;
    let mut report = |step: &str| print_progress(step);
    let state = skep_lab::up(&args.lab_name, &description, &program, args.is_forced, &mut report)
        .map_err(|error| match error.code() {
        ErrorCode::Exists => {
            error.within("cannot start the lab of the study (--lab NAME uses a running lab)")
        }
        _ => error,
    })?;
    match lab::place(&state) {
        Ok(place) => Ok((place, Some(state.name))),
        Err(error) => match remove(&state.name) {
            Err(left) => Err(with_removal_error(&error, &left)),
            Ok(()) => Err(error),
        },
    }
}

fn shape(description: &skep_lab::Description) -> System {
    let targets = vec![u32::from(description.targets); usize::from(description.servers)];
    System { hosts: u32::from(description.clients), targets_per_server: Some(targets) }
}

fn mounted(args: &RunArgs, mount: &Path) -> Result<Place> {
    let path = mount.canonicalize().map_err(|error| {
        let code = match error.kind() {
            std::io::ErrorKind::NotFound => ErrorCode::NotFound,
            _ => Error::from(std::io::Error::from(error.kind())).code(),
        };
        Error::new(code, format!("cannot use --mount {}: {error}", mount.display()))
    })?;
    let hosts = listed(&args.hosts, args.host_file.as_deref(), &args.enter)?;
    let is_again = |index: &usize| hosts[..*index].iter().any(|it| it.name == hosts[*index].name);
    if let Some(index) = (0..hosts.len()).find(is_again) {
        let what = format!("invalid --hosts: host {} is named twice", hosts[index].name);
        return Err(Error::new(ErrorCode::InvalidArgument, what));
    }
    Ok(Place {
        name: format!("mount {}", path.display()),
        hosts,
        server_hosts: named(&args.server_hosts, &args.enter),
        path: path.display().to_string(),
        path_here: path,
        is_emulated: false,
        limit: LimitRecord::default(),
    })
}

/// Carries out all missing runs of the study, and removes the files of the study at the end.
fn study(
    text: &str,
    plan: &Plan,
    directory: &Path,
    place: Place,
    begun: Option<(Journal, skep_study::journal::Contents)>,
) -> Result<End> {
    let started_at = match &begun {
        Some((_, contents)) => contents.study.started_at.clone(),
        None => utc(skep_env::wall_time()),
    };
    let digits: String = started_at.chars().filter(char::is_ascii_digit).collect();
    let mut site = Site::open(place, &format!("skep-study-{}-{digits}", plan.name))?;
    let header = StudyRecord {
        format: FORMAT,
        plan: text.to_owned(),
        started_at,
        skep_version: skep_service::PROGRAM_VERSION.to_owned(),
        place: site.place().name.clone(),
        hosts: site.place().hosts.iter().map(|host| host.name.clone()).collect(),
        targets_per_server: site.targets_per_server(),
        limit: Some(site.place().limit),
    };
    let result = plan.check_system(&site.system()).and_then(|()| {
        let (mut journal, records) = open(directory, &header, begun)?;
        let mut control = Control {
            stop: &STOP,
            tell: &mut show,
            time: &|| utc(skep_env::wall_time()),
            wait: wait_of(plan, site.place().is_emulated),
        };
        runner::run(plan, &mut journal, &records, &mut site, &mut control)
    });
    // If both a run and the removal of the files failed, the error of the run is returned.
    let cleared = site.clear();
    let end = result?;
    cleared.map(|()| end)
}

/// Creates the journal of a study, or resumes an existing journal. Returns an error if the existing
/// journal is about another system.
fn open(
    directory: &Path,
    header: &StudyRecord,
    begun: Option<(Journal, skep_study::journal::Contents)>,
) -> Result<(Journal, Vec<Record>)> {
    let Some((journal, contents)) = begun else {
        return Ok((Journal::create(directory, header)?, Vec::new()));
    };
    let before = &contents.study;
    if (&before.place, &before.hosts, &before.targets_per_server)
        != (&header.place, &header.hosts, &header.targets_per_server)
    {
        return Err(Error::new(
            ErrorCode::Configuration,
            format!(
                "cannot resume the study in {}: the study ran on {} with {} client hosts, and \
                 would continue on {} with {} client hosts, or its targets have changed; name \
                 another --directory",
                directory.display(),
                before.place,
                before.hosts.len(),
                header.place,
                header.hosts.len()
            ),
        ));
    }
    Ok((journal, contents.records))
}

/// Prints the progress of a study on standard error.
fn show(event: Event) {
    let text = match event {
        Event::Trial(what) => what,
        Event::Calibrated(found) => {
            format!(
                "the calibration has chosen {} bytes of data and {} hosts",
                found.data_bytes, found.hosts
            )
        }
        Event::Wait(time) => format!("waiting {}", span(time.as_millis() as u64)),
        Event::Run { done, all, condition, left } => {
            let left = left.map(|left| format!(", {} left", span(left.as_millis() as u64)));
            format!("run {} of {all}{}: {condition}", done + 1, left.unwrap_or_default())
        }
        Event::Measured { value, quantity, invalid_because } => {
            let but = invalid_because.map(|why| format!(" - invalid: {why}"));
            let (shown, unit) = (quantity.shown(value), quantity.unit());
            format!("    {shown:.1} {unit}{}", but.unwrap_or_default())
        }
    };
    print_progress(&text);
}

fn show_planned(args: &RunArgs, plan: &Plan) -> Result<()> {
    if let (None, None, Some(wanted)) = (&args.lab, &args.mount, &plan.lab) {
        plan.check_system(&shape(&lab::description(wanted)?))?;
    }
    let intended = |run: order::Run| PlannedRun {
        run: run.number,
        condition: describe_condition(&run.condition),
        experiment: run.experiment,
        repetition: run.repetition,
    };
    let blocks = order::blocks(plan);
    let intended = PlannedStudy {
        name: plan.name.clone(),
        title: plan.title.clone(),
        runs: order::list(plan).len(),
        needs_calibration: plan.needs_calibration(),
        blocks: blocks
            .into_iter()
            .map(|(_, runs)| runs.into_iter().map(intended).collect())
            .collect(),
    };
    print(&intended, |it| {
        let mut text = format!("{}: {} runs in {} blocks", it.title, it.runs, it.blocks.len());
        for (number, block) in it.blocks.iter().enumerate() {
            text.push_str(&format!("\nblock {}", number + 1));
            for run in block {
                text.push_str(&format!(
                    "\n  run {}: {}, repetition {}: {}",
                    run.run, run.experiment, run.repetition, run.condition
                ));
            }
        }
        text + "\nNo run was started."
    })
}
