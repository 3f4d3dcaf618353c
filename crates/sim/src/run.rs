//! One run: work under faults, then quiet, then the checks; and everything once more after all
//! targets have lost power.

use crate::checks::Stored;
use crate::knobs::{Knobs, Plant};
use crate::random::Random;
use crate::world::{Phase, World};
use skep_metadata::target::MetadataTarget;
use std::collections::BTreeSet;
use std::time::Duration;

/// What to run.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The seed.
    pub seed: u64,
    /// Operations of all clients; none: the usual number.
    pub steps: Option<u64>,
    /// Print everything that happens.
    pub trace: bool,
    /// Plant a bug.
    pub plant: Option<Plant>,
}

/// What came of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Hash over everything that happened.
    pub trace: u64,
    /// How much happened.
    pub events: u64,
    /// Operations that committed.
    pub commits: u64,
    /// Faults that happened.
    pub faults: u64,
    /// Simulated time.
    pub time: Duration,
    /// What is wrong.
    pub violation: Option<String>,
}

/// What is under way must have ended this long after the last fault. Leases are at most 2 s.
const PATIENCE: Duration = Duration::from_secs(60);
/// More than a run ever needs.
const MAX_EVENTS: u64 = 1_000_000;

/// Runs a seed.
pub fn run(options: &Options) -> Report {
    let mut random = Random::new(options.seed);
    let mut knobs = Knobs::draw(&mut random);
    knobs.steps = options.steps.unwrap_or(knobs.steps);
    knobs.plant = options.plant;
    if options.trace {
        println!("{knobs:#?}");
    }
    let mut world = World::new(knobs, random, options.trace);
    let result = live(&mut world);
    world.check(result);
    Report {
        seed: options.seed,
        trace: world.trace.hash(),
        events: world.trace.events(),
        commits: world.witness.commits,
        faults: world.faults,
        time: world.now,
        violation: world.violation,
    }
}

fn live(world: &mut World) -> Result<(), String> {
    while world.steps_left > 0 {
        step(world)?;
    }
    world.phase = Phase::Quiet;
    world.network.heal();
    wait(world, "operations end", |world| match world.clients.iter().find(|it| it.is_busy()) {
        Some(client) => Err(format!("client {client:?}")),
        None => Ok(()),
    })?;
    for client in 0..world.clients.len() {
        match world.random.below(3) {
            0 => {}
            1 => world.kill_client(client),
            _ => {
                world.say_goodbye(client);
            }
        }
    }
    settle(world)?;
    for target in 0..world.targets.len() {
        world.end_target(target, true);
    }
    settle(world)
}

/// Waits until nothing is left to be done, and checks everything.
fn settle(world: &mut World) -> Result<(), String> {
    wait(world, "everything is done", check)
}

fn check(world: &World) -> Result<(), String> {
    if let Some(target) = world.targets.iter().position(|it| !it.is_idle()) {
        return Err(format!("target {target} is not idle"));
    }
    let stored = Stored::read(world)?;
    let alive: BTreeSet<_> = world
        .clients
        .iter()
        .flat_map(|client| client.sessions.values().map(|session| session.id))
        .collect();
    let waits = world.targets.iter().filter_map(|it| it.running.as_ref());
    if waits.map(MetadataTarget::lock_waits).sum::<usize>() > 0 {
        return Err("somebody waits for a lock, and nobody asks for that".to_owned());
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
        return Err("nothing happens any more".to_owned());
    }
    if world.trace.events() > MAX_EVENTS {
        return Err(format!("{MAX_EVENTS} events, and no end"));
    }
    world.violation.clone().map_or(Ok(()), Err)
}

/// Lets time pass until a condition holds.
fn wait(
    world: &mut World,
    what: &str,
    condition: impl Fn(&World) -> Result<(), String>,
) -> Result<(), String> {
    let deadline = world.now + PATIENCE;
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
                return Err(format!("waited {PATIENCE:?} until {what}: {problem}"));
            }
            Err(_) => {}
        }
    }
}
