//! The command line: what can be typed. What it does is in `cmd`.

pub(crate) mod bench;
mod lab;
mod study;
mod values;

pub(crate) use lab::{LabRunArgs, LabUpArgs, LabVerb};
pub(crate) use study::{StudyRunArgs, StudyVerb};

use crate::access::ClusterArgs;
use crate::cmd::mount::retry::Retry;
use clap::{Args, Parser, Subcommand, ValueEnum};
use rustix::process::Pid;
use skep_service::ByteSize;
use std::path::PathBuf;

/// A parallel file system: many clients, many servers, one POSIX namespace.
#[derive(Debug, Parser)]
#[command(name = "skep", version, propagate_version = true, max_term_width = 100)]
pub(crate) struct Cli {
    /// How to print: for people, or for programs
    #[arg(long, value_enum, global = true, default_value = "table", value_name = "FORMAT")]
    pub(crate) output: OutputFormat,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// Everything that `skep` can do.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Start a whole cluster on this host, mount it, and keep it running
    Up(UpArgs),
    /// Stop a cluster that `skep up` started
    Down(DownArgs),
    /// Mount a cluster on a directory
    Mount(MountArgs),
    /// Unmount a directory
    Umount(UmountArgs),
    /// Look at nodes
    #[command(subcommand)]
    Node(NodeVerb),
    /// Look at clients, the mounts of the cluster, and remove them
    #[command(subcommand)]
    Client(ClientVerb),
    /// Look at the sessions of clients at metadata targets
    #[command(subcommand)]
    Session(SessionVerb),
    /// Look at what applications have locked
    #[command(subcommand)]
    Lock(LockVerb),
    /// Look at targets
    #[command(subcommand)]
    Target(TargetVerb),
    /// Look at groups: which targets hold the same data
    #[command(subcommand)]
    Group(GroupVerb),
    /// See whether the cluster is well
    #[command(subcommand)]
    Health(HealthVerb),
    /// Look at files and directories
    #[command(subcommand)]
    Entry(EntryVerb),
    /// Administer the cluster as a whole
    #[command(subcommand)]
    Cluster(ClusterVerb),
    /// Settings of the whole cluster: changed here, in effect everywhere at once
    #[command(subcommand)]
    Config(ConfigVerb),
    /// Measure: what applications get, and what the parts of a cluster can do
    #[command(subcommand)]
    Bench(bench::BenchVerb),
    /// Emulated clusters on this host: limited links, limited targets, many clients
    #[command(subcommand)]
    Lab(LabVerb),
    /// Find out what a storage system does under many conditions
    #[command(subcommand)]
    Study(StudyVerb),
    /// Run the management service
    Management(ServiceArgs),
    /// Run a metadata service
    Metadata(ServiceArgs),
    /// Run a storage service
    Storage(ServiceArgs),
    /// Print a completion script for a shell
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write a manual page for each command, and that of mount.skep
    Man {
        /// Where to: a directory of manuals, in which man1 and man8 are made if they don't exist
        #[arg(long)]
        dir: PathBuf,
        /// Pages of docs/commands instead
        #[arg(long = "markdown", hide = true)]
        is_markdown: bool,
    },
}

/// Transport of a mount unless told otherwise.
pub(crate) const DEFAULT_TRANSPORT: &str = "auto";
/// What a mount logs unless told otherwise.
pub(crate) const DEFAULT_LOG: &str = "info";

/// How commands print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// For people
    Table,
    /// For programs: one value; errors too
    Json,
    /// For programs: one line for each thing in a list; errors too
    Ndjson,
}

#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    /// Where the cluster keeps its data
    #[arg(long, default_value = "./skep-data")]
    pub(crate) data_dir: PathBuf,
    /// Where it is mounted; made if it doesn't exist
    #[arg(long, default_value = "./skep-mnt")]
    pub(crate) mount_point: PathBuf,
    /// Metadata services, with one target each [default: 2, or as the cluster was made]
    #[arg(long)]
    pub(crate) metadata_targets: Option<u16>,
    /// Storage services [default: 2, or as the cluster was made]
    #[arg(long)]
    pub(crate) storage_services: Option<u16>,
    /// Storage targets of each storage service [default: 4, or as the cluster was made]
    #[arg(long)]
    pub(crate) targets_per_service: Option<u16>,
    /// Start the services, but don't mount
    #[arg(long)]
    pub(crate) no_mount: bool,
    /// Leave the cluster running in the background
    #[arg(long)]
    pub(crate) detach: bool,
    /// Transport between kernel and mount
    #[arg(long, default_value = DEFAULT_TRANSPORT, value_parser = values::transports())]
    pub(crate) transport: String,
    /// A setting for all services of a kind, as in `metadata:metadata.sync=always`, for one, as in
    /// `storage-2:node.domain=rack-2`, or for `all`; may be repeated
    #[arg(long = "set", value_name = "SERVICE:KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// This is the process that stays in the background.
    #[arg(long, hide = true)]
    pub(crate) in_background: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DownArgs {
    /// Where the cluster keeps its data
    #[arg(long, default_value = "./skep-data")]
    pub(crate) data_dir: PathBuf,
}

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct MountArgs {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// The directory to mount on
    pub(crate) directory: PathBuf,
    /// Options as `mount -o` has them, with a comma between them: ro, nosuid, noexec, ...; all are
    /// in the long help (`--help`)
    #[arg(short, long, value_name = "OPTIONS")]
    pub(crate) options: Vec<String>,
    /// Ignore options that don't exist
    #[arg(short = 's', long = "sloppy")]
    pub(crate) is_sloppy: bool,
    /// Check the command and the way to the cluster, but don't mount
    #[arg(long = "dry-run")]
    pub(crate) is_dry_run: bool,
    /// What `mount -f` means: look at what was typed alone. The command line has it not.
    #[arg(skip)]
    pub(crate) is_fake: bool,
    /// Say nothing when it is mounted
    #[arg(short = 'q', long = "quiet")]
    pub(crate) is_quiet: bool,
    /// Go on in the background once it is mounted; otherwise Ctrl-C unmounts
    #[arg(long)]
    pub(crate) detach: bool,
    /// This is the process that stays in the background.
    #[arg(long, hide = true)]
    pub(crate) in_background: bool,
    /// Who has called the helper: mount(8). When it ends, nobody waits for the mount any more.
    #[arg(skip)]
    pub(crate) caller: Option<Pid>,
    /// How long to try while management can't be reached; 15 seconds unless set
    #[arg(long, value_name = "SECONDS|forever")]
    pub(crate) retry: Option<Retry>,
    /// Transport between kernel and mount
    #[arg(long, default_value = DEFAULT_TRANSPORT, value_parser = values::transports())]
    pub(crate) transport: String,
    /// Let programs say by the variable SKEP_PATTERN how the files that they make are striped
    #[arg(long = "job-patterns")]
    pub(crate) has_job_patterns: bool,
    /// What is logged: a level, or a filter such as `info,skep_client=debug`
    #[arg(long, default_value = DEFAULT_LOG, value_parser = values::levels())]
    pub(crate) log: String,
    /// Size at which a log file gets the ending `.old` and a new one is begun; 0: never. Of a mount
    /// in the background, 16 MiB unless set
    #[arg(long)]
    pub(crate) log_limit: Option<ByteSize>,
    /// Where a mount in the background logs to. Unless set: the logs of a cluster in a local
    /// directory, /var/log/skep for root, ~/.local/state/skep for others
    #[arg(long)]
    pub(crate) log_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct UmountArgs {
    /// The directory
    pub(crate) directory: PathBuf,
    /// Detach it even while it is in use
    #[arg(long)]
    pub(crate) lazy: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NodeVerb {
    /// List all nodes
    List(ClusterArgs),
    /// Show what running services and mounts log, or change it until they end
    LogLevel {
        #[command(flatten)]
        query: ClusterArgs,
        /// A service or mount by name or id, `all` services, or all `mounts`
        node: String,
        /// A level, a filter such as `info,skep_storage=debug`, or `default` for what its settings
        /// say
        #[arg(value_parser = values::levels_and_default())]
        level: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum ClientVerb {
    /// List all mounts: host, process, place, since when, last heard, sessions, open files
    ///
    /// `skep client evict` takes away what a mount holds that holds others up.
    List(ClusterArgs),
    /// List the files that clients have open
    Files {
        #[command(flatten)]
        query: ClusterArgs,
        /// Only those of one client, by id or name
        client: Option<String>,
    },
    /// Remove clients from the cluster: what they have open and locked is given back at once
    ///
    /// Their programs get EIO for what they have open for writing, and for all through which they
    /// hold locks. A mount that is alive joins again by itself, as a client with another id. A
    /// client that is alive is evicted with --force only.
    Evict {
        #[command(flatten)]
        query: ClusterArgs,
        /// Evict a client even if it is alive
        #[arg(long = "force")]
        is_forced: bool,
        /// Show who would be evicted and what they hold, but change nothing
        #[arg(long = "dry-run")]
        is_dry_run: bool,
        /// The clients, by id or name
        #[arg(required = true, value_name = "CLIENT")]
        clients: Vec<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum SessionVerb {
    /// List the sessions at all metadata targets: client, lease, last heard, open files
    List {
        #[command(flatten)]
        query: ClusterArgs,
        /// Only those of one client, by id or name
        #[arg(long)]
        client: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum LockVerb {
    /// List what is locked and who waits, in one file or in all
    ///
    /// If whoever holds a lock can't be ended, `skep client evict` takes away what its mount holds.
    List {
        #[command(flatten)]
        query: ClusterArgs,
        /// A path in a mount; without one, all files
        path: Option<PathBuf>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum TargetVerb {
    /// List all targets
    List(ClusterArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum GroupVerb {
    /// List all groups with their members: which part each has, and whether it is there
    List(ClusterArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum HealthVerb {
    /// Show the space on all targets
    Df(ClusterArgs),
    /// Connect to every server, and explain what is wrong
    Check(ClusterArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum EntryVerb {
    /// Show everything that is known of a file or directory
    Info {
        #[command(flatten)]
        query: ClusterArgs,
        /// Show chunk files, times and open sessions too
        #[arg(long)]
        verbose: bool,
        /// A path in a mount
        path: PathBuf,
    },
    /// Set the stripe pattern of new files in directories, or of files that were never written
    Set {
        #[command(flatten)]
        asked: PatternArgs,
        /// A directory inherits the cluster's settings again
        #[arg(long = "inherit", conflicts_with = "asked-pattern")]
        is_inherited: bool,
        /// Paths in a mount
        #[arg(required = true)]
        paths: Vec<PathBuf>,
    },
    /// Make a file with a stripe pattern of its own
    Create {
        #[command(flatten)]
        asked: PatternArgs,
        /// Permission bits, octal, from which the umask is taken away
        #[arg(long, default_value = "666", value_name = "MODE")]
        permissions: String,
        /// A path in a mount that doesn't exist
        path: PathBuf,
    },
    /// Show on which targets the bytes of a file lie
    Map {
        /// Cut a range of the file into pieces, from this byte on: a number, or one with KiB, ...
        #[arg(long)]
        offset: Option<ByteSize>,
        /// ... and so long [default: to the end of the file]
        #[arg(long)]
        length: Option<ByteSize>,
        /// A path in a mount
        path: PathBuf,
    },
    /// Show which clients have a file open, and what they have locked in it
    Who {
        #[command(flatten)]
        query: ClusterArgs,
        /// A path in a mount
        path: PathBuf,
    },
}

/// A stripe pattern that is asked for.
#[derive(Debug, Default, Args)]
#[group(id = "asked-pattern", multiple = true)]
pub(crate) struct PatternArgs {
    /// Number of targets, or `all`
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["targets", "groups"])]
    pub(crate) num_targets: Option<String>,
    /// Bytes that go to one target before the next: a power of two from 64KiB to 1GiB
    #[arg(long, value_name = "SIZE")]
    pub(crate) chunk_size: Option<String>,
    /// How targets are chosen
    #[arg(
        long,
        conflicts_with_all = ["targets", "groups"],
        value_parser = values::choosers(),
    )]
    pub(crate) chooser: Option<String>,
    /// Exactly these targets, in the order of the stripe: ids with commas between them
    #[arg(long, value_delimiter = ',', value_name = "IDS", conflicts_with = "groups")]
    pub(crate) targets: Vec<String>,
    /// Exactly these groups, in the order of the stripe: ids with commas between them
    #[arg(long, value_delimiter = ',', value_name = "IDS")]
    pub(crate) groups: Vec<String>,
    /// All of it as one text, as the attribute user.skep.pattern has it; needed for several
    /// components, as in `count=1/from=16MiB,count=all`; `inline/from=4KiB` puts the first bytes
    /// into metadata
    #[arg(long, conflicts_with_all = ["num_targets", "chunk_size", "chooser", "targets", "groups"])]
    pub(crate) pattern: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ClusterVerb {
    /// Divide the namespace over the metadata targets, once, before the first mount
    Format(ClusterArgs),
    /// Print the token with which nodes join and clients mount; whoever has it is trusted
    Token(ClusterArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigVerb {
    /// List all settings with value, default, range and meaning
    List(ClusterArgs),
    /// Show one setting, or all of them
    Get {
        #[command(flatten)]
        query: ClusterArgs,
        /// The setting
        #[arg(value_parser = values::settings())]
        name: Option<String>,
    },
    /// Change a setting. Services and clients follow at once, without a restart
    Set {
        #[command(flatten)]
        query: ClusterArgs,
        /// Check the value and show what would change, but change nothing
        #[arg(long = "dry-run")]
        is_dry_run: bool,
        /// The setting
        #[arg(value_parser = values::settings())]
        name: String,
        /// Its value: a time as in `500 ms` or `5s`, a size as in `1MiB`, a number, a word, or
        /// `default` for what a new cluster has
        value: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ServiceArgs {
    /// Configuration file
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Short for --set node.directory=DIR
    #[arg(long, value_name = "DIR")]
    pub(crate) directory: Option<String>,
    /// Short for --set node.listen=ADDRESS
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) listen: Option<String>,
    /// Short for --set node.domain=NAME: its failure domain, such as a rack; `none` for none
    #[arg(long, value_name = "NAME")]
    pub(crate) domain: Option<String>,
    /// Directory of a target; may be repeated
    #[arg(long, value_name = "DIR")]
    pub(crate) target: Vec<String>,
    /// A setting; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Make blank directories those of a new node (of a new cluster, for management), and end
    #[arg(long)]
    pub(crate) init: bool,
    /// With --init: the token of the cluster to join (`skep cluster token`)
    #[arg(long)]
    pub(crate) token: Option<String>,
    /// With --init: a file that holds the token
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    pub(crate) token_file: Option<PathBuf>,
    /// Print the settings in effect and where each came from, and end
    #[arg(long)]
    pub(crate) print_config: bool,
    /// Print a commented configuration file with all defaults, and end
    #[arg(long)]
    pub(crate) print_sample: bool,
    /// Print the page of the manual, and end
    #[arg(long, hide = true)]
    pub(crate) print_manual: bool,
}
