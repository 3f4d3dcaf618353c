//! One file for each verb, and the table that finds them.

mod bench;
mod client;
mod cluster;
mod completion;
mod config;
mod down;
mod entry;
mod group;
mod health;
mod lab;
mod lock;
mod man;
mod management;
mod metadata;
pub(crate) mod mount;
mod node;
mod service;
mod session;
mod storage;
mod study;
mod target;
pub(crate) mod umount;
mod up;

use crate::cli::{
    Cli, ClientVerb, ClusterVerb, ConfigVerb, EntryVerb, GroupVerb, HealthVerb, LockVerb, NodeVerb,
    SessionVerb, StudyVerb, TargetVerb, Verb,
};
use skep_types::{Error, ErrorCode, Result};
use std::future::Future;
use std::process::ExitCode;

/// Carries out what was typed.
pub(crate) fn run(cli: Cli) -> Result<ExitCode> {
    let done = |result: Result<()>| result.map(|()| ExitCode::SUCCESS);
    match cli.verb {
        Verb::Up(args) => done(up::run(args)),
        Verb::Down(args) => done(down::run(&args)),
        Verb::Mount(args) => done(mount::run(&args)),
        Verb::Umount(args) => done(umount::run(&args)),
        Verb::Node(NodeVerb::List(args)) => done(node::list::run(args)),
        Verb::Node(NodeVerb::LogLevel { query, node, level }) => {
            node::log_level::run(query, &node, level.as_deref())
        }
        Verb::Client(ClientVerb::List(query)) => done(client::list::run(query)),
        Verb::Client(ClientVerb::Files { query, client }) => {
            done(client::files::run(query, client))
        }
        Verb::Client(ClientVerb::Evict { query, clients, is_forced, is_dry_run }) => {
            done(client::evict::run(query, clients, is_forced, is_dry_run))
        }
        Verb::Session(SessionVerb::List { query, client }) => {
            done(session::list::run(query, client))
        }
        Verb::Lock(LockVerb::List { query, path }) => done(lock::list::run(query, path.as_deref())),
        Verb::Entry(EntryVerb::Who { query, path }) => done(entry::who::run(query, &path)),
        Verb::Target(TargetVerb::List(args)) => done(target::list::run(args)),
        Verb::Group(GroupVerb::List(args)) => done(group::list::run(args)),
        Verb::Health(HealthVerb::Df(args)) => done(health::df::run(args)),
        Verb::Health(HealthVerb::Check(args)) => health::check::run(args),
        Verb::Entry(EntryVerb::Info { query, verbose, path }) => {
            done(entry::info::run(query, verbose, path))
        }
        Verb::Entry(EntryVerb::Set { asked, is_inherited, paths }) => {
            done(entry::set::run(&asked, is_inherited, &paths))
        }
        Verb::Entry(EntryVerb::Create { asked, permissions, path }) => {
            done(entry::create::run(&asked, &permissions, &path))
        }
        Verb::Entry(EntryVerb::Map { offset, length, path }) => {
            done(entry::map::run(&path, offset, length))
        }
        Verb::Cluster(ClusterVerb::Format(args)) => done(cluster::format::run(args)),
        Verb::Cluster(ClusterVerb::Token(args)) => done(cluster::token::run(&args)),
        Verb::Config(ConfigVerb::List(query)) => done(config::list::run(query, None)),
        Verb::Config(ConfigVerb::Get { query, name }) => {
            done(config::list::run(query, name.as_deref()))
        }
        Verb::Config(ConfigVerb::Set { query, is_dry_run, name, value }) => {
            done(config::set::run(query, &name, &value, is_dry_run))
        }
        Verb::Bench(verb) => bench::run(verb),
        Verb::Lab(verb) => lab::run(verb),
        Verb::Study(StudyVerb::Plans) => done(study::plans::run()),
        Verb::Study(StudyVerb::Plan { name }) => done(study::plan::run(&name)),
        Verb::Study(StudyVerb::Run(args)) => done(study::run::run(&args)),
        Verb::Study(StudyVerb::Report { directory, includes_invalid }) => {
            done(study::report::run(&directory, includes_invalid))
        }
        Verb::Management(args) => done(management::run(&args)),
        Verb::Metadata(args) => done(metadata::run(&args)),
        Verb::Storage(args) => done(storage::run(&args)),
        Verb::Man { dir, is_markdown } => done(man::run(&dir, is_markdown)),
        Verb::Completion { shell } => done(completion::run(shell)),
    }
}

/// Runs a command's future on an event loop.
fn block_on<T: 'static>(future: impl Future<Output = Result<T>> + 'static) -> Result<T> {
    skep_env::block_on(future)
        .map_err(|error| Error::new(ErrorCode::Io, format!("event loop: {error}")))?
}
