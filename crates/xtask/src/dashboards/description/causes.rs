//! The dashboards about the causes of load, and about the network.

use super::{Panel, lines, query};

/// The panels of the dashboard about load by clients, users, groups and jobs.
pub(super) const CAUSES: &[Panel] = &[
    lines(
        "Clients: operations",
        "ops",
        "The ten clients with the most requests, by node id (`skep client list`).",
        &[query(
            "topk(10, sum by (id) (rate(skep_load_operations_total{CLUSTER,by=\"client\"}[RATE])))",
            "n{{id}}",
        )],
    ),
    lines(
        "Clients: bytes",
        "Bps",
        "The ten clients that write most, and the ten that read most.",
        &[
            query(
                "topk(10, sum by (id) (rate(skep_load_written_bytes_total{CLUSTER,by=\"client\"}\
                 [RATE])))",
                "n{{id}} written",
            ),
            query(
                "topk(10, sum by (id) (rate(skep_load_read_bytes_total{CLUSTER,by=\"client\"}\
                 [RATE])))",
                "n{{id}} read",
            ),
        ],
    ),
    lines(
        "Users: operations",
        "ops",
        "The ten users with the most requests, by user id.",
        &[query(
            "topk(10, sum by (id) (rate(skep_load_operations_total{CLUSTER,by=\"user\"}[RATE])))",
            "uid {{id}}",
        )],
    ),
    lines(
        "Users: bytes",
        "Bps",
        "The ten users that write most, and the ten that read most.",
        &[
            query(
                "topk(10, sum by (id) (rate(skep_load_written_bytes_total{CLUSTER,by=\"user\"}\
                 [RATE])))",
                "uid {{id}} written",
            ),
            query(
                "topk(10, sum by (id) (rate(skep_load_read_bytes_total{CLUSTER,by=\"user\"}\
                 [RATE])))",
                "uid {{id}} read",
            ),
        ],
    ),
    lines(
        "Jobs: operations",
        "ops",
        "The ten jobs with the most requests, on mounts with the option job_accounting.",
        &[query(
            "topk(10, sum by (id) (rate(skep_load_operations_total{CLUSTER,by=\"job\"}[RATE])))",
            "job {{id}}",
        )],
    ),
    lines(
        "Jobs: bytes",
        "Bps",
        "The ten jobs that write most, and the ten that read most.",
        &[
            query(
                "topk(10, sum by (id) (rate(skep_load_written_bytes_total{CLUSTER,by=\"job\"}\
                 [RATE])))",
                "job {{id}} written",
            ),
            query(
                "topk(10, sum by (id) (rate(skep_load_read_bytes_total{CLUSTER,by=\"job\"}\
                 [RATE])))",
                "job {{id}} read",
            ),
        ],
    ),
    lines(
        "Groups: operations",
        "ops",
        "The ten groups of users with the most requests, by group id.",
        &[query(
            "topk(10, sum by (id) (rate(skep_load_operations_total{CLUSTER,by=\"group\"}[RATE])))",
            "gid {{id}}",
        )],
    ),
    lines(
        "Users: time in services",
        "s",
        "Time that the requests of a user spend in services, in each second. This time is the mean \
         number of requests in progress.",
        &[query(
            "topk(10, sum by (id, service) (rate(skep_load_busy_seconds_total{CLUSTER,by=\"user\"}\
             [RATE])))",
            "uid {{id}} {{service}}",
        )],
    ),
    lines(
        "Mounts: requests served from caches",
        "percentunit",
        "Share of the requests that the caches of mounts answered. Pages: opens of files whose \
         pages the kernel kept from an earlier open. Only mounts with the option metrics.",
        &[query(
            "sum by (cache) (rate(skep_mount_cache_hits_total{CLUSTER}[RATE])) / (sum by (cache) \
             (rate(skep_mount_cache_hits_total{CLUSTER}[RATE])) + sum by (cache) \
             (rate(skep_mount_cache_misses_total{CLUSTER}[RATE])) > 0)",
            "{{cache}}",
        )],
    ),
    lines(
        "Mounts: opens of files that were not in the cache",
        "ops",
        "The ten hosts whose mounts open most files without pages in the cache.",
        &[query(
            "topk(10, sum by (skep_name) (rate(skep_mount_cache_misses_total{CLUSTER,\
             cache=\"pages\"}[RATE])))",
            "{{skep_name}}",
        )],
    ),
];

/// The panels of the dashboard about the network.
pub(super) const NETWORK: &[Panel] = &[
    lines(
        "Received",
        "Bps",
        "Bytes that each network interface of a host receives.",
        &[query(
            "max by (skep_name, device) (rate(skep_host_network_received_bytes_total{CLUSTER}\
             [RATE]))",
            "{{skep_name}} {{device}}",
        )],
    ),
    lines(
        "Sent",
        "Bps",
        "Bytes that each network interface of a host sends.",
        &[query(
            "max by (skep_name, device) (rate(skep_host_network_sent_bytes_total{CLUSTER}[RATE]))",
            "{{skep_name}} {{device}}",
        )],
    ),
    lines(
        "Errors and dropped packets",
        "pps",
        "Packets that interfaces lose. Any loss slows all requests of the host.",
        &[query(
            "max by (skep_name, device) (rate(skep_host_network_errors_total{CLUSTER}[RATE]))",
            "{{skep_name}} {{device}}",
        )],
    ),
    lines(
        "Mean time until the data of a write have arrived",
        "s",
        "Time from the header of a write until its data are received. A target above its peers has \
         a slow link; if all targets are slow, so is a link of the clients.",
        &[query(
            "sum by (target) (rate(skep_storage_stage_seconds_sum{CLUSTER,stage=\"network\"}\
             [RATE])) / (sum by (target) (rate(skep_storage_stage_seconds_count{CLUSTER,\
             stage=\"network\"}[RATE])) > 0)",
            "t{{target}}",
        )],
    ),
    lines(
        "Connections",
        "short",
        "Open connections of each target.",
        &[
            query("sum by (target) (skep_storage_connections{CLUSTER})", "t{{target}} storage"),
            query("sum by (target) (skep_metadata_connections{CLUSTER})", "t{{target}} metadata"),
            query("sum(skep_management_connections{CLUSTER})", "management"),
        ],
    ),
    lines(
        "Heartbeats",
        "ops",
        "Heartbeats of services and clients that management receives.",
        &[query(
            "sum(rate(skep_management_operations_total{CLUSTER,operation=\"heartbeat\"}[RATE]))",
            "heartbeats",
        )],
    ),
];
