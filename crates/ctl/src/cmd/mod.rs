//! The commands. Each command has one file with its arguments, help, examples and run function. For
//! commands of the form `skep NOUN VERB`, the module of the noun lists the verbs.

mod advise;
mod bench;
mod client;
mod cluster;
mod completion;
mod config;
mod copy;
mod debug;
mod deploy;
mod down;
mod entry;
mod fsck;
mod group;
mod health;
mod lab;
mod lock;
mod man;
mod management;
mod metadata;
mod monitor;
pub(crate) mod mount;
mod node;
mod ondemand;
mod plan;
mod purge;
mod service;
mod service_user;
mod session;
mod stats;
mod storage;
mod study;
mod target;
mod token;
mod trace;
mod transaction;
mod tune;
pub(crate) mod umount;
mod up;
mod why;

use crate::access::block_on;
use crate::program::MOUNT_PROCESS;
use clap::{Command, Subcommand};
use skep_types::Result;
use std::process::ExitCode;

/// All commands of `skep`.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    Up(up::UpArgs),
    Down(down::DownArgs),
    Mount(mount::MountArgs),
    Umount(umount::UmountArgs),
    #[command(subcommand)]
    Node(node::NodeVerb),
    #[command(subcommand)]
    Client(client::ClientVerb),
    #[command(subcommand)]
    Session(session::SessionVerb),
    #[command(subcommand)]
    Lock(lock::LockVerb),
    #[command(subcommand)]
    Target(target::TargetVerb),
    #[command(subcommand)]
    Group(group::GroupVerb),
    #[command(subcommand)]
    Token(token::TokenVerb),
    #[command(subcommand)]
    Transaction(transaction::TransactionVerb),
    #[command(subcommand)]
    Health(health::HealthVerb),
    Fsck(fsck::FsckArgs),
    Stats(stats::StatsArgs),
    Why(why::WhyArgs),
    Trace(trace::TraceArgs),
    Advise(advise::AdviseArgs),
    #[command(subcommand)]
    Debug(debug::DebugVerb),
    #[command(subcommand)]
    Entry(entry::EntryVerb),
    #[command(subcommand)]
    Cluster(cluster::ClusterVerb),
    #[command(subcommand)]
    Config(config::ConfigVerb),
    Copy(copy::CopyArgs),
    Purge(purge::PurgeArgs),
    #[command(subcommand)]
    Bench(bench::BenchVerb),
    #[command(subcommand)]
    Lab(lab::LabVerb),
    #[command(subcommand)]
    Study(study::StudyVerb),
    #[command(subcommand)]
    Plan(plan::PlanVerb),
    #[command(subcommand)]
    Tune(tune::TuneVerb),
    #[command(subcommand)]
    Deploy(deploy::DeployVerb),
    #[command(subcommand)]
    Ondemand(ondemand::OndemandVerb),
    Management(management::ManagementArgs),
    Metadata(metadata::MetadataArgs),
    Storage(storage::StorageArgs),
    Monitor(monitor::MonitorArgs),
    Completion(completion::CompletionArgs),
    Man(man::ManArgs),
}

impl Verb {
    /// Returns the name that `ps` shows for a process that runs this command.
    pub(crate) fn process_name(&self) -> &'static str {
        match self {
            Self::Management(args) if args.is_service() => "skep-management",
            Self::Metadata(_) => "skep-metadata",
            Self::Storage(_) => "skep-storage",
            Self::Monitor(_) => "skep-monitor",
            Self::Mount(_) => MOUNT_PROCESS,
            Self::Up(_) => "skep-up",
            _ => "skep",
        }
    }

    /// Runs the command. `command` returns the definition of the whole command line, from which
    /// `man` and `completion` make their output.
    pub(crate) fn run(self, command: fn() -> Command) -> Result<ExitCode> {
        match self {
            Self::Up(args) => done(up::run(args)),
            Self::Down(args) => done(down::run(&args)),
            Self::Mount(args) => done(mount::run(&args)),
            Self::Umount(args) => done(umount::run(&args)),
            Self::Node(verb) => verb.run(),
            Self::Client(verb) => verb.run(),
            Self::Session(verb) => verb.run(),
            Self::Lock(verb) => verb.run(),
            Self::Target(verb) => verb.run(),
            Self::Group(verb) => verb.run(),
            Self::Token(verb) => verb.run(),
            Self::Transaction(verb) => verb.run(),
            Self::Health(verb) => verb.run(),
            Self::Fsck(args) => fsck::run(&args),
            Self::Stats(args) => done(stats::run(args)),
            Self::Why(args) => done(why::run(args)),
            Self::Trace(args) => done(trace::run(args)),
            Self::Advise(args) => done(advise::run(args)),
            Self::Debug(verb) => verb.run(),
            Self::Entry(verb) => verb.run(),
            Self::Cluster(verb) => verb.run(),
            Self::Config(verb) => verb.run(),
            Self::Copy(args) => done(copy::run(&args)),
            Self::Purge(args) => done(purge::run(&args)),
            Self::Bench(verb) => verb.run(),
            Self::Lab(verb) => verb.run(),
            Self::Study(verb) => verb.run(),
            Self::Plan(verb) => verb.run(),
            Self::Tune(verb) => verb.run(),
            Self::Deploy(verb) => verb.run(),
            Self::Ondemand(verb) => verb.run(),
            Self::Management(args) => done(management::run(args)),
            Self::Metadata(args) => done(metadata::run(&args)),
            Self::Storage(args) => done(storage::run(&args)),
            Self::Monitor(args) => done(monitor::run(&args)),
            Self::Completion(args) => done(completion::run(&args, command())),
            Self::Man(args) => done(man::run(&args, command())),
        }
    }
}

/// Returns success, or the error, as the result of a command that has no other exit codes.
fn done(result: Result<()>) -> Result<ExitCode> {
    result.map(|()| ExitCode::SUCCESS)
}
