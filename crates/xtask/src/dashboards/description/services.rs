//! The dashboards about storage targets, about metadata targets, and about one target.

use super::{Panel, areas, heat, lines, query};

/// The panels of the dashboard about storage targets.
pub(super) const STORAGE: &[Panel] = &[
    lines(
        "Written",
        "Bps",
        "Bytes of file data that each target writes.",
        &[query(
            "sum by (target) (rate(skep_storage_received_bytes_total{CLUSTER}[RATE]))",
            "t{{target}}",
        )],
    ),
    lines(
        "Read",
        "Bps",
        "Bytes of file data that each target reads.",
        &[query(
            "sum by (target) (rate(skep_storage_sent_bytes_total{CLUSTER}[RATE]))",
            "t{{target}}",
        )],
    ),
    lines(
        "Mean latency",
        "s",
        "Mean time from the arrival of a request to its reply. A target above its peers is slow.",
        &[query(
            "sum by (target) (rate(skep_storage_operation_seconds_sum{CLUSTER}[RATE])) / \
             (sum by (target) (rate(skep_storage_operation_seconds_count{CLUSTER}[RATE])) > 0)",
            "t{{target}}",
        )],
    ),
    areas(
        "Time by stage",
        "s",
        "Time that requests spend in each stage, in each second, over all targets.",
        &[query(
            "sum by (stage) (rate(skep_storage_stage_seconds_sum{CLUSTER}[RATE]))",
            "{{stage}}",
        )],
    ),
    heat(
        "Latencies of writes",
        "Distribution of the durations of writes.",
        &[query(
            "sum by (le) (rate(skep_storage_operation_seconds_bucket{CLUSTER,\
             operation=\"write_chunk\"}[RATE]))",
            "{{le}}",
        )],
    ),
    heat(
        "Latencies of reads",
        "Distribution of the durations of reads.",
        &[query(
            "sum by (le) (rate(skep_storage_operation_seconds_bucket{CLUSTER,\
             operation=\"read_chunk\"}[RATE]))",
            "{{le}}",
        )],
    ),
    lines(
        "Operations by kind",
        "ops",
        "Completed requests of all storage targets.",
        &[query(
            "sum by (operation) (rate(skep_storage_operations_total{CLUSTER}[RATE]))",
            "{{operation}}",
        )],
    ),
    lines(
        "Waiting and running requests",
        "short",
        "Requests of each target that wait for their turn, and requests that are being executed.",
        &[
            query("sum by (target) (skep_storage_requests_queued{CLUSTER})", "t{{target}} waiting"),
            query("sum by (target) (skep_storage_requests_busy{CLUSTER})", "t{{target}} running"),
        ],
    ),
    lines(
        "Used space",
        "percentunit",
        "Used share of each target.",
        &[query(
            "1 - sum by (target) (skep_target_free_bytes{CLUSTER}) / sum by (target) \
             (skep_target_size_bytes{CLUSTER})",
            "t{{target}}",
        )],
    ),
    lines(
        "Disks: busy",
        "percentunit",
        "Share of time in which a disk of a storage service's host has requests.",
        &[query(
            "max by (skep_name, device) (rate(skep_host_disk_busy_seconds_total{CLUSTER,\
             skep_service=\"storage\"}[RATE]))",
            "{{skep_name}} {{device}}",
        )],
    ),
    lines(
        "Cache hits",
        "percentunit",
        "Share of the uses of the targets' caches that found the item. The share is 100 % if no \
         use was counted.",
        &[query(
            "1 - sum by (cache) (rate(skep_storage_cache_misses_total{CLUSTER}[RATE])) / \
             clamp_min(sum by (cache) (rate(skep_storage_cache_hits_total{CLUSTER}[RATE])) + \
             sum by (cache) (rate(skep_storage_cache_misses_total{CLUSTER}[RATE])), 1e-9)",
            "{{cache}}",
        )],
    ),
    lines(
        "Clean-up of chunk files",
        "short",
        "Directories that a running search for chunk files without an inode checks, and the \
         directories that are left. Zero if none is running.",
        &[
            query("sum by (target) (skep_storage_cleanup_directories{CLUSTER})", "t{{target}} all"),
            query(
                "sum by (target) (skep_storage_cleanup_directories_left{CLUSTER})",
                "t{{target}} left",
            ),
        ],
    ),
    lines(
        "Duration of starts",
        "s",
        "Time in which each target opened its store when its service started.",
        &[query(
            "sum by (target) (skep_storage_recovery_seconds_sum{CLUSTER}) / \
             (sum by (target) (skep_storage_recovery_seconds_count{CLUSTER}) > 0)",
            "t{{target}}",
        )],
    ),
    lines(
        "Unwritten page cache",
        "bytes",
        "Data in the page cache of a storage service's host that is not on the disks yet.",
        &[query(
            "max by (skep_name) (skep_host_memory_dirty_bytes{CLUSTER,skep_service=\"storage\"})",
            "{{skep_name}}",
        )],
    ),
];

/// The panels of the dashboard about metadata targets.
pub(super) const METADATA: &[Panel] = &[
    lines(
        "Operations by kind",
        "ops",
        "Completed requests of all metadata targets.",
        &[query(
            "sum by (operation) (rate(skep_metadata_operations_total{CLUSTER}[RATE]))",
            "{{operation}}",
        )],
    ),
    lines(
        "Operations by target",
        "ops",
        "Completed requests of each metadata target. Equal lines mean an even distribution.",
        &[query(
            "sum by (target) (rate(skep_metadata_operations_total{CLUSTER}[RATE]))",
            "t{{target}}",
        )],
    ),
    lines(
        "Mean latency by kind",
        "s",
        "Mean time from the arrival of a request to its reply.",
        &[query(
            "sum by (operation) (rate(skep_metadata_operation_seconds_sum{CLUSTER,\
             operation!~\"wait_notifications|await_log_sync\"}[RATE])) / (sum by (operation) \
             (rate(skep_metadata_operation_seconds_count{CLUSTER}[RATE])) > 0)",
            "{{operation}}",
        )],
    ),
    areas(
        "Time by stage",
        "s",
        "Time that requests spend in each stage, in each second, over all targets.",
        &[query(
            "sum by (stage) (rate(skep_metadata_stage_seconds_sum{CLUSTER,\
             operation!~\"wait_notifications|await_log_sync\"}[RATE]))",
            "{{stage}}",
        )],
    ),
    heat(
        "Syncs of the log",
        "Distribution of the durations of syncs. Each fsync of a program waits for one.",
        &[query(
            "sum by (le) (rate(skep_metadata_log_sync_seconds_bucket{CLUSTER}[RATE]))",
            "{{le}}",
        )],
    ),
    lines(
        "Log",
        "Bps",
        "Bytes that each target appends to its log.",
        &[query(
            "sum by (target) (rate(skep_metadata_log_bytes_total{CLUSTER}[RATE]))",
            "t{{target}}",
        )],
    ),
    lines(
        "Requests in a batch",
        "short",
        "Mean number of requests that a target handles together. This number grows with the load.",
        &[query(
            "sum by (target) (rate(skep_metadata_operations_total{CLUSTER}[RATE])) / sum by \
             (target) (rate(skep_metadata_batches_total{CLUSTER}[RATE]))",
            "t{{target}}",
        )],
    ),
    lines(
        "Waiting requests and unsynced records",
        "short",
        "Requests that wait for a batch, and records of the log that no completed sync covers.",
        &[
            query(
                "sum by (target) (skep_metadata_requests_queued{CLUSTER})",
                "t{{target}} requests",
            ),
            query(
                "sum by (target) (skep_metadata_log_unsynced_records{CLUSTER})",
                "t{{target}} records",
            ),
        ],
    ),
    lines(
        "Log since the last checkpoint",
        "bytes",
        "Bytes that a target reads again when it restarts.",
        &[query(
            "sum by (target) (skep_metadata_log_since_checkpoint_bytes{CLUSTER})",
            "t{{target}}",
        )],
    ),
    lines(
        "Checkpoints",
        "ops",
        "Completed checkpoints of the key-value stores.",
        &[query(
            "sum by (target) (rate(skep_metadata_checkpoint_seconds_count{CLUSTER}[RATE]))",
            "t{{target}}",
        )],
    ),
    lines(
        "Cache hits",
        "percentunit",
        "Share of the blocks of the key-value stores that were in the cache (setting \
         metadata.cache). The share is 100 % while no block is read.",
        &[query(
            "1 - sum by (cache) (rate(skep_metadata_cache_misses_total{CLUSTER}[RATE])) / \
             clamp_min(sum by (cache) (rate(skep_metadata_cache_hits_total{CLUSTER}[RATE])) + \
             sum by (cache) (rate(skep_metadata_cache_misses_total{CLUSTER}[RATE])), 1e-9)",
            "{{cache}}",
        )],
    ),
    lines(
        "Chunk files to remove",
        "short",
        "Chunk files whose removal a metadata target has not yet requested from storage.",
        &[query("sum by (target) (skep_metadata_removals_queued{CLUSTER})", "t{{target}}")],
    ),
    lines(
        "Recoveries",
        "short",
        "Recoveries of each target since its service started. A step up is a recovery.",
        &[query(
            "sum by (target, recovery) (skep_metadata_recovery_seconds_count{CLUSTER})",
            "t{{target}} {{recovery}}",
        )],
    ),
    lines(
        "Mean duration of recoveries",
        "s",
        "Mean duration since the services started, by kind. During a take-over, requests wait.",
        &[query(
            "sum by (recovery) (skep_metadata_recovery_seconds_sum{CLUSTER}) / \
             (sum by (recovery) (skep_metadata_recovery_seconds_count{CLUSTER}) > 0)",
            "{{recovery}}",
        )],
    ),
];

/// The panels of the dashboard about one target.
pub(super) const TARGET: &[Panel] = &[
    lines(
        "Operations by kind",
        "ops",
        "Completed requests of the target.",
        &[query(
            "sum by (operation) (rate(skep_storage_operations_total{CLUSTER,target=\"$target\"}\
             [RATE]) or rate(skep_metadata_operations_total{CLUSTER,target=\"$target\"}[RATE]))",
            "{{operation}}",
        )],
    ),
    lines(
        "Bytes of file data",
        "Bps",
        "Bytes that the target writes and reads.",
        &[
            query(
                "sum(rate(skep_storage_received_bytes_total{CLUSTER,target=\"$target\"}[RATE]) or \
                 rate(skep_metadata_received_bytes_total{CLUSTER,target=\"$target\"}[RATE]))",
                "written",
            ),
            query(
                "sum(rate(skep_storage_sent_bytes_total{CLUSTER,target=\"$target\"}[RATE]) or \
                 rate(skep_metadata_sent_bytes_total{CLUSTER,target=\"$target\"}[RATE]))",
                "read",
            ),
        ],
    ),
    heat(
        "Latencies",
        "Distribution of the durations of requests.",
        &[query(
            "sum by (le) (rate(skep_storage_operation_seconds_bucket{CLUSTER,\
             target=\"$target\"}[RATE]) or rate(skep_metadata_operation_seconds_bucket{CLUSTER,\
             target=\"$target\",operation!~\"wait_notifications|await_log_sync\"}[RATE]))",
            "{{le}}",
        )],
    ),
    areas(
        "Time by stage",
        "s",
        "Time that requests spend in each stage, in each second.",
        &[query(
            "sum by (stage) (rate(skep_storage_stage_seconds_sum{CLUSTER,target=\"$target\"}\
             [RATE]) or rate(skep_metadata_stage_seconds_sum{CLUSTER,target=\"$target\",\
             operation!~\"wait_notifications|await_log_sync\"}[RATE]))",
            "{{stage}}",
        )],
    ),
    lines(
        "Waiting and running requests",
        "short",
        "Requests that wait for their turn, and requests that are being executed.",
        &[
            query(
                "sum(skep_storage_requests_queued{CLUSTER,target=\"$target\"} or \
                 skep_metadata_requests_queued{CLUSTER,target=\"$target\"})",
                "waiting",
            ),
            query(
                "sum(skep_storage_requests_busy{CLUSTER,target=\"$target\"} or \
                 skep_metadata_requests_busy{CLUSTER,target=\"$target\"})",
                "running",
            ),
        ],
    ),
    lines(
        "Heaviest clients",
        "ops",
        "The five clients with the most requests to the target.",
        &[query(
            "topk(5, sum by (id) (rate(skep_load_operations_total{CLUSTER,target=\"$target\",\
             by=\"client\"}[RATE])))",
            "n{{id}}",
        )],
    ),
    lines(
        "Heaviest users",
        "ops",
        "The five users with the most requests to the target.",
        &[query(
            "topk(5, sum by (id) (rate(skep_load_operations_total{CLUSTER,target=\"$target\",\
             by=\"user\"}[RATE])))",
            "uid {{id}}",
        )],
    ),
    lines(
        "Free space",
        "bytes",
        "Bytes that the target can still store.",
        &[query("sum(skep_target_free_bytes{CLUSTER,target=\"$target\"})", "free")],
    ),
    lines(
        "Recoveries",
        "short",
        "Recoveries of the target since its service started. A step up is a recovery.",
        &[query(
            "sum by (recovery) (skep_storage_recovery_seconds_count{CLUSTER,target=\"$target\"} or \
             skep_metadata_recovery_seconds_count{CLUSTER,target=\"$target\"})",
            "{{recovery}}",
        )],
    ),
];
