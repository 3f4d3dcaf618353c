//! The table of all metrics. `cargo xtask docs` generates `docs/operations/metrics.md` from this
//! table.
//!
//! Names follow the conventions of Prometheus: units are base units, and the unit is at the end of
//! the name. The text form appends `_total` to the names of counters. Each label has a bounded
//! number of values: ids of targets of the node, kinds of operations, a limited number of silent
//! clients and alerts, and at most [`crate::MAX_ACCOUNTS`] accounts for each dimension and thread.

use crate::cache_use::CacheFamily;
use crate::definition::{Definition, Unit};
use crate::family::OperationFamily;

const TARGET: &[&str] = &["target"];
const DEVICE: &[&str] = &["device"];
const LOAD: &[&str] = &["service", "target", "by", "id"];
const LOAD_STAGE: &[&str] = &["service", "target", "by", "id", "stage"];
const ALERT_LABELS: &[&str] = &["rule", "severity", "object", "fault", "skep_cluster", "skep_name"];
const HOLDER: &[&str] = &["target", "client"];
const CACHE_OF_MOUNT: &[&str] = &["cache"];
const CACHE: &[&str] = &["target", "cache"];
const RECOVERY_OF_PROCESS: &[&str] = &["recovery"];
const REPLAY: &[&str] = &["result"];
const RECOVERY: &[&str] = &["target", "recovery"];
const BALANCE_LABELS: &[&str] = &["of", "skep_cluster"];

/// Declares the metrics of one table of operations.
///
/// `operations!(STORAGE, "storage", true, true, ["target"], "of storage targets")` declares
/// `STORAGE`, an [`OperationFamily`] with definitions such as `skep_storage_operations`. The
/// booleans state whether the table has accounts of load, and whether it belongs to a service.
macro_rules! operations {
    (
        $name:ident, $service:literal, $has_accounts:literal, $is_service:literal,
        [$($label:literal),*], $of:literal
    ) => {
        #[doc = concat!("Operations ", $of, ".")]
        pub static $name: OperationFamily = OperationFamily {
            service: $service,
            operations: &Definition::counter(
                concat!("skep_", $service, "_operations"),
                Unit::Count,
                &[$($label,)* "operation"],
                concat!("Operations ", $of, " that were completed, including failed operations."),
            ),
            errors: &Definition::counter(
                concat!("skep_", $service, "_operation_errors"),
                Unit::Count,
                &[$($label,)* "operation"],
                concat!(
                    "Operations ", $of, " whose reply was an error. A reply that a name or \
                     extended attribute does not exist does not count as an error."
                ),
            ),
            received_bytes: &Definition::counter(
                concat!("skep_", $service, "_received_bytes"),
                Unit::Bytes,
                &[$($label,)* "operation"],
                concat!("Bytes of file data that operations ", $of, " have received (writes)."),
            ),
            sent_bytes: &Definition::counter(
                concat!("skep_", $service, "_sent_bytes"),
                Unit::Bytes,
                &[$($label,)* "operation"],
                concat!("Bytes of file data that operations ", $of, " have sent (reads)."),
            ),
            duration: &Definition::histogram(
                concat!("skep_", $service, "_operation_seconds"),
                &[$($label,)* "operation"],
                concat!("Time of operations ", $of, " from the arrival of the request to the \
                         reply."),
            ),
            stage_duration: &Definition::histogram(
                concat!("skep_", $service, "_stage_seconds"),
                &[$($label,)* "operation", "stage"],
                concat!("Time of operations ", $of, " in each stage; stages without time are not \
                         counted."),
            ),
            queued: if $is_service { Some(&Definition::gauge(
                concat!("skep_", $service, "_requests_queued"),
                Unit::Count,
                &[$($label),*],
                concat!("Requests ", $of, " that have arrived and wait for their turn."),
            )) } else { None },
            busy: &Definition::gauge(
                concat!("skep_", $service, "_requests_busy"),
                Unit::Count,
                &[$($label),*],
                concat!("Requests ", $of, " that are being executed, or wait for disks, locks or \
                         other services."),
            ),
            connections: if $is_service { Some(&Definition::gauge(
                concat!("skep_", $service, "_connections"),
                Unit::Count,
                &[$($label),*],
                concat!("Open connections ", $of, "."),
            )) } else { None },
            has_accounts: $has_accounts,
        };
    };
}

operations!(STORAGE, "storage", true, true, ["target"], "of storage targets");
operations!(METADATA, "metadata", true, true, ["target"], "of metadata targets");
operations!(MANAGEMENT, "management", false, true, [], "of management");
operations!(MOUNT, "mount", false, false, [], "of the kernel at a mount");

macro_rules! definitions {
    ($($(#[doc = $doc:literal])* $name:ident = $definition:expr;)*) => {
        $($(#[doc = $doc])* pub static $name: Definition = $definition;)*

        /// All metrics that do not belong to a table of operations.
        static SINGLE: &[&Definition] = &[$(&$name,)*];
    };
}

definitions! {
    /// Number of operations, by the cause of the load.
    LOAD_OPERATIONS = Definition::counter("skep_load_operations", Unit::Count, LOAD,
        "Operations by cause: `by` is client, user, group, job or directory, and `id` its number. \
         The id `other` sums up all causes with too little load for a separate account. Only the \
         directories with the most load have accounts.");
    /// Bytes of file data that were read, by the cause of the load.
    LOAD_READ_BYTES = Definition::counter("skep_load_read_bytes", Unit::Bytes, LOAD,
        "Bytes of file data that were read, by cause.");
    /// Bytes of file data that were written, by the cause of the load.
    LOAD_WRITTEN_BYTES = Definition::counter("skep_load_written_bytes", Unit::Bytes, LOAD,
        "Bytes of file data that were written, by cause.");
    /// Sum of the durations of requests, by the cause of the load.
    LOAD_BUSY_SECONDS = Definition::counter("skep_load_busy_seconds", Unit::Seconds, LOAD,
        "Sum of the times from the arrival of a request to its reply, by cause.");
    /// Time that requests spent in each stage, by the cause of the load.
    LOAD_STAGE_SECONDS = Definition::counter("skep_load_stage_seconds", Unit::Seconds, LOAD_STAGE,
        "Sum of the times of requests in each stage, by client, by user and by job. Requests whose \
         purpose is to wait for an event do not count.");
    /// Time in which file data was transferred, by client.
    LOAD_MOVING_SECONDS = Definition::counter("skep_load_moving_seconds", Unit::Seconds, LOAD,
        "Time in which file data of a client's requests arrived or left. Simultaneous transfers of \
         the client count once.");

    /// Bytes that a metadata target has appended to its log.
    LOG_BYTES = Definition::counter("skep_metadata_log_bytes", Unit::Bytes, TARGET,
        "Bytes that a metadata target has appended to its log.");
    /// Records that a metadata target has appended to its log.
    LOG_RECORDS = Definition::counter("skep_metadata_log_records", Unit::Count, TARGET,
        "Records that a metadata target has appended to its log.");
    /// Duration of the syncs of a metadata target's log.
    LOG_SYNC = Definition::histogram("skep_metadata_log_sync_seconds", TARGET,
        "Duration of the syncs of a metadata target's log to its device.");
    /// Records of a metadata target's log that are not synced.
    LOG_UNSYNCED = Definition::gauge("skep_metadata_log_unsynced_records", Unit::Count, TARGET,
        "Records of a metadata target's log that no completed sync covers.");
    /// Duration of the checkpoints of a metadata target.
    CHECKPOINT = Definition::histogram("skep_metadata_checkpoint_seconds", TARGET,
        "Duration of the checkpoints of a metadata target's key-value store.");
    /// Bytes that a metadata target has appended to its log since its last completed checkpoint
    /// began.
    SINCE_CHECKPOINT = Definition::gauge("skep_metadata_log_since_checkpoint_bytes", Unit::Bytes,
        TARGET, "Bytes that a metadata target has appended to its log since its last completed \
         checkpoint began.");
    /// Batches of events that the thread of a metadata target has handled.
    BATCHES = Definition::counter("skep_metadata_batches", Unit::Count, TARGET,
        "Batches in which a metadata target has handled events.");
    /// Time in which the thread of a metadata target was not idle.
    WORKING_SECONDS = Definition::counter("skep_metadata_working_seconds", Unit::Seconds, TARGET,
        "Time in which the thread of a metadata target did not wait for requests, replies or \
         disks.");
    /// Time since the last request of a silent client. Other clients wait for this client.
    CLIENT_SILENT = Definition::gauge("skep_metadata_client_silent_seconds", Unit::Seconds, HOLDER,
        "Time since the last request of a client whose locks or open files make requests of other \
         clients wait. Has at most 16 clients, which were silent for half of their lease.");
    /// Requests that wait for a silent client.
    CLIENT_WAITS = Definition::gauge("skep_metadata_waits_for_client", Unit::Count, HOLDER,
        "Requests of other clients that wait for a lock or an acknowledgement of a client in \
         `skep_metadata_client_silent_seconds`.");
    /// Waits that the search for silent clients has not examined.
    WAITS_UNEXAMINED = Definition::gauge("skep_metadata_waits_unexamined", Unit::Count, TARGET,
        "Waits for locks that the last search for silent clients has not examined, since a search \
         examines a limited number of waits. `skep_metadata_waits_for_client` does not count these \
         waits.");
    /// Chunk files of removed files that a metadata target still has to remove from storage.
    REMOVALS_QUEUED = Definition::gauge("skep_metadata_removals_queued", Unit::Count, TARGET,
        "Chunk files of removed files that a metadata target has not yet asked storage to remove. \
         Counts the chunk files in memory, at most 262144; more may be in the store of the \
         target.");

    /// Requests to a metadata target that have no reply yet.
    METADATA_OPEN = Definition::gauge("skep_metadata_requests_open", Unit::Count, TARGET,
        "Requests to a metadata target that have no reply yet. Requests whose purpose is to wait \
         for an event do not count.");
    /// Start of the oldest request to a metadata target that has no reply yet.
    METADATA_OLDEST = Definition::gauge("skep_metadata_oldest_request_start_seconds",
        Unit::Seconds, TARGET,
        "Start of the oldest request to a metadata target without a reply, in seconds since the \
         boot of the host. Zero if no request is open.");
    /// Requests to a storage target that have no reply yet.
    STORAGE_OPEN = Definition::gauge("skep_storage_requests_open", Unit::Count, TARGET,
        "Requests to a storage target that have no reply yet, including the requests in its \
         queue.");
    /// Start of the oldest request to a storage target that has no reply yet.
    STORAGE_OLDEST = Definition::gauge("skep_storage_oldest_request_start_seconds",
        Unit::Seconds, TARGET,
        "Start of the oldest request to a storage target without a reply, in seconds since the \
         boot of the host. Zero if no request is open.");
    /// Directories that the running clean-up of a storage target checks.
    CLEANUP_DIRECTORIES = Definition::gauge("skep_storage_cleanup_directories", Unit::Count,
        TARGET, "Directories that the running clean-up of chunk files without an inode checks. \
        Zero if none is running.");
    /// Directories that the running clean-up of a storage target has not checked yet.
    CLEANUP_LEFT = Definition::gauge("skep_storage_cleanup_directories_left", Unit::Count,
        TARGET, "Directories that the running clean-up has not checked yet.");
    /// Regions of a storage target with data that is not on the disk yet.
    UNSYNCED_REGIONS = Definition::gauge("skep_storage_unsynced_regions", Unit::Count, TARGET,
        "Regions of 2 MiB of chunk files that have changed since the target last synced them to \
         the disk. A power loss may lose these changes. Not updated during a clean-up.");
    /// Chunk files in the quarantine of a storage target.
    QUARANTINED_FILES = Definition::gauge("skep_storage_quarantined_files", Unit::Count, TARGET,
        "Chunk files without an inode that the clean-up has moved to the quarantine and not yet \
         removed, at the end of the last clean-up. Absent before the first clean-up.");

    /// Hits of a mount's caches.
    MOUNT_CACHE_HITS = Definition::counter("skep_mount_cache_hits", Unit::Count, CACHE_OF_MOUNT,
        "Requests of the kernel that a mount answered from a cache: `attributes` of open files, \
         and of directories after changes by the mount itself; `absent_xattrs`: extended \
         attributes that an inode is known to lack; `opened_bytes`: bytes of small files from the \
         reply to the open; `pages`: opens of files whose pages the kernel could keep. The kernel \
         answers other requests from its own caches of names and attributes, which no metric \
         counts.");
    /// Misses of a mount's caches.
    MOUNT_CACHE_MISSES = Definition::counter("skep_mount_cache_misses", Unit::Count,
        CACHE_OF_MOUNT,
        "Requests of the kernel that a cache in `skep_mount_cache_hits_total` could not answer. \
         For `pages`: opens of files whose pages the kernel did not have, or had to drop.");
    /// Duration of a mount's recoveries.
    MOUNT_RECOVERY = Definition::histogram("skep_mount_recovery_seconds", RECOVERY_OF_PROCESS,
        "Duration of the recoveries of a mount: `session` reopened a lost session at a metadata \
         group and its files, `replay` repeated changes, opens and locks that a metadata target \
         had lost in a power loss, and `rejoin` registered the mount anew after an eviction.");
    /// Changes that a mount has repeated after a power loss of a metadata host.
    MOUNT_REPLAYED = Definition::counter("skep_mount_replayed_changes", Unit::Count, REPLAY,
        "Acknowledged changes that a power loss of a metadata host had reverted, by result: \
         `replayed` if the target has repeated the change, and `failed` if the target could not \
         repeat it. The log of the mount names the failed changes.");
    /// Duration of the recoveries of a management node.
    MANAGEMENT_RECOVERY = Definition::histogram("skep_management_recovery_seconds",
        RECOVERY_OF_PROCESS,
        "Duration of the recoveries of management: `take_over` lasted from the election of this \
         node as the leader until a majority of the members had stored its first command. A single \
         management node elects itself at each start.");
    /// Hits of the block cache of a metadata target's key-value store.
    METADATA_CACHE_HITS = Definition::counter("skep_metadata_cache_hits", Unit::Count, CACHE,
        "Blocks that a metadata target's key-value store took from its cache (setting \
         `metadata.cache`), by kind: `data`, `index` and `filter`. Counted while the target is \
         the primary of its group.");
    /// Misses of the block cache of a metadata target's key-value store.
    METADATA_CACHE_MISSES = Definition::counter("skep_metadata_cache_misses", Unit::Count, CACHE,
        "Blocks that a metadata target's key-value store read from its files, because its cache \
         did not have these blocks.");
    /// Duration of a metadata target's recoveries.
    METADATA_RECOVERY = Definition::histogram("skep_metadata_recovery_seconds", RECOVERY,
        "Duration of the recoveries of a metadata target: `log_replay` opened store and log at the \
         start, `take_over` lasted from the map that named the target the primary until the \
         leases of earlier primaries had ended, `catch_up` brought a member that did not serve up \
         to date, and `copy` received a whole store.");
    /// Hits of a storage target's caches.
    STORAGE_CACHE_HITS = Definition::counter("skep_storage_cache_hits", Unit::Count, CACHE,
        "Uses of a storage target's cache that had the item: `open_files`, the open chunk files, \
         and `region_pages`, the checksums of their regions.");
    /// Misses of a storage target's caches.
    STORAGE_CACHE_MISSES = Definition::counter("skep_storage_cache_misses", Unit::Count, CACHE,
        "Uses of a storage target's cache that did not have the item, so that the target opened \
         or created a chunk file, or read the page of a region.");
    /// Duration of a storage target's recoveries.
    STORAGE_RECOVERY = Definition::histogram("skep_storage_recovery_seconds", RECOVERY,
        "Duration of the recoveries of a storage target: `start` opened the target with its log \
         of dirty regions.");

    /// Size of a target's file system.
    TARGET_SIZE = Definition::gauge("skep_target_size_bytes", Unit::Bytes, TARGET,
        "Size of the file system of a target.");
    /// Free space of a target.
    TARGET_FREE = Definition::gauge("skep_target_free_bytes", Unit::Bytes, TARGET,
        "Bytes that Skep can still store on a target. The reserve of the target is not free.");
    /// Inodes of a target's file system.
    TARGET_INODES = Definition::gauge("skep_target_inodes", Unit::Count, TARGET,
        "Inodes of the file system of a target; zero if the file system has no limit.");
    /// Free inodes of a target's file system.
    TARGET_FREE_INODES = Definition::gauge("skep_target_free_inodes", Unit::Count, TARGET,
        "Free inodes of the file system of a target.");

    /// Kind, name and version of the process.
    NODE_INFO = Definition::gauge("skep_node_info", Unit::Count, &["kind", "name", "version"],
        "Always 1. The labels describe the process.");
    /// How evenly targets share work or space.
    BALANCE = Definition::gauge("skep_balance_ratio", Unit::Decimal, BALANCE_LABELS,
        "Mean value of the targets divided by the highest value; 1 if all targets have the same \
         value. The value is the requests of the last minute for metadata_work, and the used share \
         of the space for storage_space. Only the monitor has this metric.");
    /// Current alerts of the monitor.
    ALERT = Definition::gauge("skep_alert", Unit::Count, ALERT_LABELS,
        "Always 1, for each current alert of the monitor, at most 200. `fault` is the object of \
         the alert from which this alert follows, or else the object of this alert. The monitor's \
         page and `skep health check` show the facts and the remedy.");
    /// Version of the newest cluster map of the process.
    NODE_MAP_VERSION = Definition::gauge("skep_node_map_version", Unit::Count, &[],
        "Version of the newest cluster map of the process.");

    /// Requests that the process has sent to targets more than once.
    RETRIES = Definition::counter("skep_rpc_retries", Unit::Count, &[],
        "Requests to targets that the process has sent repeatedly, or could not send at its first \
         attempt.");
    /// Connections to targets that the process has opened.
    CONNECTS = Definition::counter("skep_rpc_connects", Unit::Count, &[],
        "Connections to targets that the process has opened.");
    /// Connections to targets that the process has closed because no request used them.
    IDLE_CLOSES = Definition::counter("skep_rpc_idle_closes", Unit::Count, &[],
        "Connections to targets that the process has closed because no request used them.");
    /// Idle connections that clients had opened, and that the process has closed.
    IDLE_PEERS = Definition::counter("skep_rpc_idle_peers_closed", Unit::Count, &[],
        "Idle connections, opened by clients, that the process has closed because the process had \
         almost as many connections as its limit of open files allows.");
    /// Open connections of the process.
    CONNECTIONS = Definition::gauge("skep_rpc_connections", Unit::Count, &[],
        "Connections between nodes of the cluster that the process has open, in both directions.");

    /// CPU time of the process.
    PROCESS_CPU = Definition::counter("process_cpu_seconds", Unit::Seconds, &[],
        "CPU time of the process, in user and kernel mode.");
    /// Resident memory of the process.
    PROCESS_RESIDENT = Definition::gauge("process_resident_memory_bytes", Unit::Bytes, &[],
        "Resident memory of the process.");
    /// Virtual memory of the process.
    PROCESS_VIRTUAL = Definition::gauge("process_virtual_memory_bytes", Unit::Bytes, &[],
        "Virtual memory of the process.");
    /// Open file descriptors of the process.
    PROCESS_FDS = Definition::gauge("process_open_fds", Unit::Count, &[],
        "Open file descriptors of the process.");
    /// Limit of open file descriptors of the process.
    PROCESS_MAX_FDS = Definition::gauge("process_max_fds", Unit::Count, &[],
        "Limit of open file descriptors of the process.");
    /// Number of threads of the process.
    PROCESS_THREADS = Definition::gauge("process_threads", Unit::Count, &[],
        "Threads of the process.");

    /// Load average of the host.
    HOST_LOAD1 = Definition::gauge("skep_host_load1", Unit::Decimal, &[],
        "Load average of the host over one minute.");
    /// CPU time of the host.
    HOST_CPU = Definition::counter("skep_host_cpu_seconds", Unit::Seconds, &["mode"],
        "CPU time of all CPUs of the host by mode.");
    /// Number of CPUs of the host.
    HOST_CPUS = Definition::gauge("skep_host_cpus", Unit::Count, &[],
        "Number of online CPUs of the host.");
    /// Total memory of the host.
    HOST_MEMORY = Definition::gauge("skep_host_memory_bytes", Unit::Bytes, &[],
        "Memory of the host.");
    /// Memory of the host that programs can use.
    HOST_MEMORY_AVAILABLE = Definition::gauge("skep_host_memory_available_bytes", Unit::Bytes, &[],
        "Memory of the host that programs can get without swapping.");
    /// Dirty page cache of the host.
    HOST_DIRTY = Definition::gauge("skep_host_memory_dirty_bytes", Unit::Bytes, &[],
        "Page cache of the host that is not written to the disks yet.");
    /// Dirty page cache of the host, as a share of the kernel's limit.
    HOST_DIRTY_RATIO = Definition::gauge("skep_host_memory_dirty_ratio", Unit::Decimal, &[],
        "Page cache of the host that is not written to the disks yet, divided by the limit of the \
         kernel. Above three quarters, the kernel makes programs wait that write files.");
    /// Time in which programs of the host were stalled.
    HOST_PRESSURE = Definition::counter("skep_host_pressure_seconds", Unit::Seconds,
        &["resource", "stalled"],
        "Time in which some or all running programs of the host waited for a resource: cpu, io or \
         memory (`/proc/pressure`).");
    /// Date and time of the host.
    HOST_CLOCK = Definition::gauge("skep_host_clock_seconds", Unit::Seconds, &[],
        "Date and time of the host, in seconds since 1970.");
    /// Whether a time service keeps the clock of the host.
    HOST_CLOCK_SYNCHRONISED = Definition::gauge("skep_host_clock_synchronised", Unit::Count, &[],
        "1 if a time service adjusts the clock of the host, according to the kernel; otherwise 0.");
    /// Time of the last backup of management's directory.
    MANAGEMENT_BACKUP = Definition::gauge("skep_management_last_backup_seconds", Unit::Seconds,
        &[],
        "Time of the last `skep cluster backup` of this directory of management, in seconds since \
         1970. Absent before the first backup.");
    /// Time at which management's directory was created.
    MANAGEMENT_CREATED = Definition::gauge("skep_management_created_seconds", Unit::Seconds, &[],
        "Time at which this directory of management was initialised or restored, in seconds since \
         1970.");
    /// Whether a management node leads.
    MANAGEMENT_LEADING = Definition::gauge("skep_management_leading", Unit::Count, &[],
        "1 if this node leads management and serves the other nodes; otherwise 0. The sum over all \
         management nodes is 0 while no node leads.");
    /// Term of management's log.
    MANAGEMENT_LOG_TERM = Definition::gauge("skep_management_log_term", Unit::Count, &[],
        "Newest term of management's replicated log that this node knows. Each election of a \
         leader begins a new term.");
    /// Number of the last stored entry of management's log.
    MANAGEMENT_LOG_LAST = Definition::gauge("skep_management_log_last_entry", Unit::Count, &[],
        "Number of the last entry of management's replicated log that this node has stored. A node \
         whose number stays behind that of the leader lacks changes of the cluster.");
    /// Number of the last applied entry of management's log.
    MANAGEMENT_LOG_APPLIED = Definition::gauge("skep_management_log_applied_entry", Unit::Count,
        &[],
        "Number of the last entry of management's replicated log that this node has applied. A \
         majority has stored this entry.");
    /// Number of reads from a disk.
    DISK_READS = Definition::counter("skep_host_disk_reads", Unit::Count, DEVICE,
        "Reads that a disk of the host has completed (r/s of iostat).");
    /// Bytes read from a disk.
    DISK_READ_BYTES = Definition::counter("skep_host_disk_read_bytes", Unit::Bytes, DEVICE,
        "Bytes read from a disk of the host (rkB/s of iostat).");
    /// Sum of the durations of all reads of a disk.
    DISK_READ_SECONDS = Definition::counter("skep_host_disk_read_seconds", Unit::Seconds, DEVICE,
        "Sum of the durations of all reads of a disk. This sum divided by the number of reads is \
         r_await of iostat.");
    /// Number of writes to a disk.
    DISK_WRITES = Definition::counter("skep_host_disk_writes", Unit::Count, DEVICE,
        "Writes that a disk of the host has completed (w/s of iostat).");
    /// Bytes written to a disk.
    DISK_WRITTEN_BYTES = Definition::counter("skep_host_disk_written_bytes", Unit::Bytes, DEVICE,
        "Bytes written to a disk of the host (wkB/s of iostat).");
    /// Sum of the durations of all writes of a disk.
    DISK_WRITE_SECONDS = Definition::counter("skep_host_disk_write_seconds", Unit::Seconds, DEVICE,
        "Sum of the durations of all writes of a disk. This sum divided by the number of writes is \
         w_await of iostat.");
    /// Number of flushes of a disk's cache.
    DISK_FLUSHES = Definition::counter("skep_host_disk_flushes", Unit::Count, DEVICE,
        "Flushes that a disk of the host has completed (f/s of iostat).");
    /// Sum of the durations of all flushes of a disk.
    DISK_FLUSH_SECONDS = Definition::counter("skep_host_disk_flush_seconds", Unit::Seconds, DEVICE,
        "Sum of the durations of all flushes of a disk.");
    /// Number of reads that the kernel merged with a queued read.
    DISK_READ_MERGES = Definition::counter("skep_host_disk_read_merges", Unit::Count, DEVICE,
        "Reads that the kernel merged with a queued read of the disk (rrqm/s of iostat).");
    /// Number of writes that the kernel merged with a queued write.
    DISK_WRITE_MERGES = Definition::counter("skep_host_disk_write_merges", Unit::Count, DEVICE,
        "Writes that the kernel merged with a queued write of the disk (wrqm/s of iostat).");
    /// Number of discards of a disk.
    DISK_DISCARDS = Definition::counter("skep_host_disk_discards", Unit::Count, DEVICE,
        "Discards that a disk of the host has completed (d/s of iostat).");
    /// Number of discards that the kernel merged with a queued discard.
    DISK_DISCARD_MERGES = Definition::counter("skep_host_disk_discard_merges", Unit::Count, DEVICE,
        "Discards that the kernel merged with a queued discard of the disk (drqm/s of iostat).");
    /// Bytes that a disk has discarded.
    DISK_DISCARDED_BYTES = Definition::counter("skep_host_disk_discarded_bytes", Unit::Bytes,
        DEVICE, "Bytes discarded on a disk of the host (dkB/s of iostat).");
    /// Sum of the durations of all discards of a disk.
    DISK_DISCARD_SECONDS = Definition::counter("skep_host_disk_discard_seconds", Unit::Seconds,
        DEVICE, "Sum of the durations of all discards of a disk. This sum divided by the number of \
         discards is d_await of iostat.");
    /// Number of requests that a disk is processing.
    DISK_IN_FLIGHT = Definition::gauge("skep_host_disk_in_flight", Unit::Count, DEVICE,
        "Requests in progress at a disk of the host.");
    /// Time in which a disk was busy.
    DISK_BUSY_SECONDS = Definition::counter("skep_host_disk_busy_seconds", Unit::Seconds, DEVICE,
        "Time in which a disk had requests (%util of iostat).");
    /// Sum of the times of requests, including the time in which they wait for the disk.
    DISK_QUEUE_SECONDS = Definition::counter("skep_host_disk_queue_seconds", Unit::Seconds, DEVICE,
        "Sum of the times for which requests waited for a disk or the disk processed requests \
         (aqu-sz of iostat).");
    /// Bytes received by a network interface.
    NETWORK_RECEIVED = Definition::counter("skep_host_network_received_bytes", Unit::Bytes, DEVICE,
        "Bytes that a network interface of the host has received.");
    /// Bytes sent by a network interface.
    NETWORK_SENT = Definition::counter("skep_host_network_sent_bytes", Unit::Bytes, DEVICE,
        "Bytes that a network interface of the host has sent.");
    /// Transfer errors of a network interface.
    NETWORK_ERRORS = Definition::counter("skep_host_network_errors", Unit::Count, DEVICE,
        "Errors and dropped packets of a network interface of the host.");
}

/// The caches of a mount.
pub static MOUNT_CACHE: CacheFamily =
    CacheFamily { hits: &MOUNT_CACHE_HITS, misses: &MOUNT_CACHE_MISSES };
/// The cache of a metadata target's key-value store.
pub static METADATA_CACHE: CacheFamily =
    CacheFamily { hits: &METADATA_CACHE_HITS, misses: &METADATA_CACHE_MISSES };
/// The caches of a storage target.
pub static STORAGE_CACHE: CacheFamily =
    CacheFamily { hits: &STORAGE_CACHE_HITS, misses: &STORAGE_CACHE_MISSES };

/// The tables of operations.
pub static FAMILIES: [&OperationFamily; 4] = [&STORAGE, &METADATA, &MANAGEMENT, &MOUNT];

/// Returns the definitions of all metrics, in the order of their names.
pub fn all() -> Vec<&'static Definition> {
    let mut all: Vec<_> = SINGLE.to_vec();
    for family in FAMILIES {
        all.extend([
            family.operations,
            family.errors,
            family.received_bytes,
            family.sent_bytes,
            family.duration,
            family.stage_duration,
            family.busy,
        ]);
        all.extend(family.queued.into_iter().chain(family.connections));
    }
    all.sort_by_key(|definition| definition.name);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::Kind;

    #[test]
    fn metric_names_are_unique_and_follow_the_conventions() {
        for pair in all().windows(2) {
            assert!(pair[0].name < pair[1].name, "{} appears twice", pair[1].name);
        }
        for definition in all() {
            let Definition { name, kind, unit, help, labels } = definition;
            let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            assert!(name.chars().all(is_allowed), "{name}");
            assert!(name.ends_with(unit.suffix()), "{name} ends with its unit");
            assert!(!name.ends_with("_total") && !name.ends_with("_info_bytes"), "{name}");
            assert!(help.ends_with('.') && !help.contains('\n'), "{name}: {help}");
            assert!(*kind != Kind::Histogram || *unit == crate::Unit::Seconds, "{name}");
            assert!(labels.iter().all(|label| *label != "le"), "{name}");
        }
    }
}
