//! One run: a phase with faults, then a quiet phase, then the checks. After the checks, all targets
//! lose power, and the run repeats the checks.

use crate::checks::StoredState;
use crate::judged::Judged;
use crate::knobs::{Knobs, PlantedBug};
use crate::random::Random;
use crate::world::{Phase, World};
use skep_metadata::target::MetadataTarget;
use std::collections::BTreeSet;
use std::time::Duration;

/// The options of a run.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The seed of the run's random numbers.
    pub seed: u64,
    /// Total number of operations of all clients. `None` means the default number.
    pub steps: Option<u64>,
    /// Whether to print all events.
    pub trace: bool,
    /// The bug to plant. `None` means no bug.
    pub plant: Option<PlantedBug>,
}

/// The report of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The seed of the run's random numbers.
    pub seed: u64,
    /// Hash of all events of the run. Two runs of one seed must have the same hash.
    pub trace: u64,
    /// Number of simulated events.
    pub events: u64,
    /// Number of committed operations.
    pub commits: u64,
    /// Number of injected faults.
    pub faults: u64,
    /// Whether the reference model became incomplete. With an incomplete model, the run checked
    /// only the stores.
    pub is_blind: bool,
    /// Number of complete listings that the checker received, and number of listings that the
    /// checker skipped.
    pub listings: Judged,
    /// Number of file sizes at the end of the run that the checker received, and number of sizes
    /// that the checker skipped.
    pub sizes: Judged,
    /// Number of sizes in the memory of clients that the checker received, and number of sizes that
    /// the checker skipped.
    pub known_sizes: Judged,
    /// Simulated duration of the run.
    pub time: Duration,
    /// The first violation that the run found. `None` means that the run found no violation.
    pub violation: Option<String>,
}

/// The seed XOR this number determines whether targets have backup members. So this choice does not
/// depend on the other random choices of the run.
const BACKUPS_DRAW: u64 = 0x6261_636B_7570;
/// Share of runs in which targets have backup members, in percent.
const BACKUPS_PERCENT: u64 = 35;
/// The seed XOR this number determines whether clients replay lost changes.
const REPLAYS_DRAW: u64 = 0x7265_706C_6179;
/// Share of the runs without backups in which clients replay lost changes, in percent.
const REPLAYS_PERCENT: u64 = 60;
/// The seed XOR this number determines whether targets stage transactions.
const STAGING_DRAW: u64 = 0x7374_6167_6564;
/// Share of runs in which targets stage transactions, in percent.
const STAGING_PERCENT: u64 = 50;
/// Time limit for finishing all work after the last fault. Leases are at most 2 s long.
const FINISH_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum share of runs whose reference model may become incomplete, in percent.
pub const MOST_BLIND_PERCENT: u64 = 3;
/// Maximum share of listings that the witness may skip, in percent.
pub const MOST_LISTINGS_SKIPPED_PERCENT: u64 = 3;
/// Maximum share of files whose size the checker may skip, in percent. Most of the skipped files
/// were truncated, or are open, or belong to a run with power losses.
pub const MOST_SIZES_SKIPPED_PERCENT: u64 = 65;
/// Maximum number of events of a run. A correct run always needs fewer events.
const MAX_EVENTS: u64 = 1_000_000;
/// Maximum number of events of a run with a planted bug. Some bugs stop a group for ever, without a
/// violation.
const MAX_PLANTED_EVENTS: u64 = 60_000;

/// Runs one seed with the given options.
pub fn run(options: &Options) -> Report {
    let mut random = Random::new(options.seed);
    let mut knobs = Knobs::draw(&mut random);
    knobs.steps = options.steps.unwrap_or(knobs.steps);
    knobs.plant = options.plant;
    // Use a separate random generator, so that this choice does not change the other random numbers
    // of a seed.
    let has_backups = Random::new(options.seed ^ BACKUPS_DRAW).percent(BACKUPS_PERCENT);
    knobs.has_backups = options.plant.map_or(has_backups, PlantedBug::needs_backups);
    let replays = Random::new(options.seed ^ REPLAYS_DRAW).percent(REPLAYS_PERCENT);
    let replays = options.plant.map_or(replays, PlantedBug::needs_replays);
    knobs.replays = replays && !knobs.has_backups;
    let is_staging = Random::new(options.seed ^ STAGING_DRAW).percent(STAGING_PERCENT);
    knobs.is_staging = options.plant.map_or(is_staging, PlantedBug::needs_staging);
    if options.trace {
        println!("{knobs:#?}");
    }
    let mut world = World::new(knobs, random, options.trace);
    let result = run_phases(&mut world);
    world.check(result);
    let stored = StoredState::read(&world);
    let sizes = stored.map(|it| it.judged_sizes(&world)).unwrap_or_default();
    Report {
        seed: options.seed,
        trace: world.trace.hash(),
        events: world.trace.events(),
        commits: world.witness.commits,
        faults: world.faults,
        is_blind: world.witness.is_blind,
        listings: world.witness.listings,
        sizes,
        known_sizes: world.known_sizes,
        time: world.now,
        violation: world.violation,
    }
}

fn run_phases(world: &mut World) -> Result<(), String> {
    while world.steps_left > 0 {
        step(world)?;
    }
    world.phase = Phase::Quiet;
    world.network.heal();
    wait(world, "operations have ended", |world| {
        match world.clients.iter().find(|it| it.is_busy()) {
            Some(client) => Err(format!("client {client:?}")),
            None => Ok(()),
        }
    })?;
    for client in 0..world.clients.len() {
        match world.random.below(3) {
            0 => {}
            1 => world.kill_client(client),
            _ => {
                world.unmount_client(client);
            }
        }
    }
    wait_until_finished(world)?;
    for target in 0..world.targets.len() {
        world.end_target(target, true);
    }
    wait_until_finished(world)
}

/// Processes events until all work is finished and all checks pass.
fn wait_until_finished(world: &mut World) -> Result<(), String> {
    wait(world, "all work is finished", check)
}

fn check(world: &World) -> Result<(), String> {
    if let Some(target) = world.targets.iter().position(|it| !it.is_idle()) {
        return Err(format!("target {target} is not idle"));
    }
    if let Some(id) = world.witness.owed() {
        return Err(format!("the lost change {id:?} is neither replayed nor reported"));
    }
    let stored = StoredState::read(world)?;
    let alive: BTreeSet<_> = world
        .clients
        .iter()
        .flat_map(|client| client.sessions.values().map(|session| session.id))
        .collect();
    let waits = world.targets.iter().filter_map(|it| it.running.as_ref());
    if waits.map(MetadataTarget::lock_waits).sum::<usize>() > 0 {
        return Err("a target has a lock wait that no client requested".to_owned());
    }
    stored.check_leaks(&alive, &world.storages)?;
    stored.check_tree()?;
    stored.check_counts()?;
    if !world.witness.is_blind {
        stored.check_model(&world.witness.model)?;
    }
    stored.check_sizes(world)
}

fn step(world: &mut World) -> Result<(), String> {
    if !world.step() {
        return Err("the event queue is empty".to_owned());
    }
    let most = if world.knobs.plant.is_some() { MAX_PLANTED_EVENTS } else { MAX_EVENTS };
    if world.trace.events() > most {
        return Err(format!("the run did not end after {most} events"));
    }
    world.violation.clone().map_or(Ok(()), Err)
}

/// Processes events until `condition` returns `Ok`.
fn wait(
    world: &mut World,
    what: &str,
    condition: impl Fn(&World) -> Result<(), String>,
) -> Result<(), String> {
    let deadline = world.now + FINISH_TIMEOUT;
    let mut next_look = world.now;
    loop {
        step(world)?;
        if world.now < next_look {
            continue;
        }
        next_look = world.now + Duration::from_millis(50);
        match condition(world) {
            Ok(()) => return Ok(()),
            Err(problem) if world.now > deadline => {
                return Err(format!("waited {FINISH_TIMEOUT:?} until {what}: {problem}"));
            }
            Err(_) => {}
        }
    }
}
