//! The description of all dashboards: their panels, and the queries of each panel.
//!
//! In a query, `RATE` stands for the interval of a rate, and `CLUSTER` for the matcher of the
//! chosen cluster. The generator ([`super`]) replaces both words. A test checks that
//! `docs/operations/metrics.md` contains every metric of the queries.

mod causes;
mod services;

use causes::{CAUSES, NETWORK};
use services::{METADATA, STORAGE, TARGET};

/// The form in which a panel shows its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// One number.
    Number,
    /// Lines over time.
    Lines,
    /// Stacked areas over time.
    Areas,
    /// The distribution of durations over time.
    Heat,
    /// A table with one row for each storage target of each cluster, and one column for each
    /// query. The queries group by [`ROW`].
    Table,
}

/// The labels that identify a row of a table.
pub(super) const ROW: [&str; 3] = ["target", "skep_name", "skep_cluster"];

/// One query of a panel.
#[derive(Debug, Clone, Copy)]
pub(super) struct Query {
    /// The expression in the query language of Prometheus.
    pub(super) expression: &'static str,
    /// The text next to a line. In the legend, `{{label}}` stands for the value of a label. In a
    /// table, the title of the column.
    pub(super) legend: &'static str,
    /// The unit of the column in a table, by its name in Grafana. In other panels, `None`: all
    /// queries have the unit of the panel.
    pub(super) unit: Option<&'static str>,
}

/// One panel of a dashboard.
#[derive(Debug, Clone, Copy)]
pub(super) struct Panel {
    pub(super) title: &'static str,
    /// One sentence that explains the values in the panel.
    pub(super) help: &'static str,
    pub(super) form: Form,
    /// The unit of the values, by its name in Grafana.
    pub(super) unit: &'static str,
    pub(super) queries: &'static [Query],
}

/// One dashboard.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dashboard {
    /// The name of the dashboard's file, which is also the end of the dashboard's id.
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) help: &'static str,
    /// Whether the user selects a target in the dashboard.
    pub(super) has_target: bool,
    pub(super) panels: &'static [Panel],
}

const fn query(expression: &'static str, legend: &'static str) -> Query {
    Query { expression, legend, unit: None }
}

const fn column(legend: &'static str, unit: &'static str, expression: &'static str) -> Query {
    Query { expression, legend, unit: Some(unit) }
}

const fn lines(
    title: &'static str,
    unit: &'static str,
    help: &'static str,
    queries: &'static [Query],
) -> Panel {
    Panel { title, help, form: Form::Lines, unit, queries }
}

const fn areas(
    title: &'static str,
    unit: &'static str,
    help: &'static str,
    queries: &'static [Query],
) -> Panel {
    Panel { title, help, form: Form::Areas, unit, queries }
}

const fn number(
    title: &'static str,
    unit: &'static str,
    help: &'static str,
    queries: &'static [Query],
) -> Panel {
    Panel { title, help, form: Form::Number, unit, queries }
}

const fn heat(title: &'static str, help: &'static str, queries: &'static [Query]) -> Panel {
    Panel { title, help, form: Form::Heat, unit: "s", queries }
}

/// All dashboards.
pub(super) const DASHBOARDS: &[Dashboard] = &[
    Dashboard {
        name: "overview",
        title: "Skep: overview",
        help: "Services, capacity, throughput and latency of a cluster.",
        has_target: false,
        panels: OVERVIEW,
    },
    Dashboard {
        name: "storage",
        title: "Skep: storage",
        help: "Storage targets and the disks of their hosts.",
        has_target: false,
        panels: STORAGE,
    },
    Dashboard {
        name: "metadata",
        title: "Skep: metadata",
        help: "Metadata targets, their logs and their requests.",
        has_target: false,
        panels: METADATA,
    },
    Dashboard {
        name: "clients-and-jobs",
        title: "Skep: clients and jobs",
        help: "The clients, users, groups and jobs that cause the load.",
        has_target: false,
        panels: CAUSES,
    },
    Dashboard {
        name: "network",
        title: "Skep: network",
        help: "Interfaces of the hosts, connections, and the time in which data arrive.",
        has_target: false,
        panels: NETWORK,
    },
    Dashboard {
        name: "target",
        title: "Skep: one target",
        help: "One storage or metadata target in detail.",
        has_target: true,
        panels: TARGET,
    },
];

const OVERVIEW: &[Panel] = &[
    number(
        "Services that reply",
        "short",
        "Services of each kind whose page Prometheus can read.",
        &[query("sum by (skep_service) (up{job=\"skep\",CLUSTER})", "{{skep_service}}")],
    ),
    number(
        "Services that do not reply",
        "short",
        "Services of the cluster map whose page Prometheus cannot read.",
        &[query("count(up{job=\"skep\",CLUSTER} == 0) or vector(0)", "")],
    ),
    number(
        "Free space",
        "bytes",
        "Bytes that storage targets can still store. Targets on one file system share its space.",
        &[query("sum(skep_target_free_bytes{CLUSTER,skep_service=\"storage\"})", "")],
    ),
    number(
        "Fullest target",
        "percentunit",
        "Used share of the fullest target.",
        &[query("max(1 - skep_target_free_bytes{CLUSTER} / skep_target_size_bytes{CLUSTER})", "")],
    ),
    number(
        "Alerts",
        "short",
        "Alerts of the monitor that hold. The monitor's page shows their reasons and remedies.",
        &[query("count(skep_alert{CLUSTER} == 1) or vector(0)", "")],
    ),
    number(
        "Time since the last backup",
        "s",
        "Time since `skep cluster backup`, or since management was created if there was none.",
        &[query(
            "min(time() - skep_management_last_backup_seconds{CLUSTER}) or \
             max(time() - skep_management_created_seconds{CLUSTER})",
            "",
        )],
    ),
    number(
        "Clocks without a time service",
        "short",
        "Services on hosts whose clock no time service adjusts, according to the kernel.",
        &[query("count(skep_host_clock_synchronised{CLUSTER} == 0) or vector(0)", "")],
    ),
    number(
        "Chunk files to remove",
        "short",
        "Chunk files whose removal metadata has not yet requested from storage.",
        &[query("sum(skep_metadata_removals_queued{CLUSTER})", "")],
    ),
    Panel {
        title: "Storage targets",
        help: "Space and load of each storage target. A click on a title sorts the rows.",
        form: Form::Table,
        unit: "short",
        queries: STORAGE_TARGETS,
    },
    lines(
        "Throughput",
        "Bps",
        "Bytes of file data that storage targets read and write.",
        &[
            query("sum(rate(skep_storage_received_bytes_total{CLUSTER}[RATE]))", "written"),
            query("sum(rate(skep_storage_sent_bytes_total{CLUSTER}[RATE]))", "read"),
        ],
    ),
    lines(
        "Operations",
        "ops",
        "Completed requests of each kind of service.",
        &[
            query("sum(rate(skep_metadata_operations_total{CLUSTER}[RATE]))", "metadata"),
            query("sum(rate(skep_storage_operations_total{CLUSTER}[RATE]))", "storage"),
            query("sum(rate(skep_management_operations_total{CLUSTER}[RATE]))", "management"),
        ],
    ),
    lines(
        "Latency of 99 in 100 requests",
        "s",
        "Of a hundred requests, 99 take at most this time in the service.",
        &[
            query(
                "histogram_quantile(0.99, sum by (le) (rate(skep_metadata_operation_seconds_bucket\
                 {CLUSTER,operation!~\"wait_notifications|await_log_sync\"}[RATE])))",
                "metadata",
            ),
            query(
                "histogram_quantile(0.99, sum by (le) (rate(skep_storage_operation_seconds_bucket\
                 {CLUSTER}[RATE])))",
                "storage",
            ),
        ],
    ),
    lines(
        "Waiting requests",
        "short",
        "Requests that have arrived and wait for their turn.",
        &[
            query("sum(skep_metadata_requests_queued{CLUSTER})", "metadata"),
            query("sum(skep_storage_requests_queued{CLUSTER})", "storage"),
        ],
    ),
    lines(
        "Processor",
        "percentunit",
        "Used share of the CPU time of each service's host.",
        &[query(
            "1 - sum by (skep_name, instance) (rate(skep_host_cpu_seconds_total{CLUSTER,\
             mode=~\"idle|iowait\"}[RATE])) / sum by (skep_name, instance) \
             (rate(skep_host_cpu_seconds_total{CLUSTER}[RATE]))",
            "{{skep_name}}",
        )],
    ),
    lines(
        "Failed operations",
        "ops",
        "Replies with an error. Many errors are normal, such as a name that does not exist.",
        &[
            query("sum(rate(skep_metadata_operation_errors_total{CLUSTER}[RATE]))", "metadata"),
            query("sum(rate(skep_storage_operation_errors_total{CLUSTER}[RATE]))", "storage"),
        ],
    ),
    lines(
        "Balance",
        "percentunit",
        "Mean of the targets divided by the highest value of a target: 100 % is even. A value is \
         missing while there are too few requests, files or bytes for a comparison.",
        &[query("skep_balance_ratio{CLUSTER}", "{{of}}")],
    ),
    lines(
        "Difference of clocks",
        "s",
        "Difference between the clock of each service's host and the clock of Prometheus's host.",
        &[query(
            "abs(skep_host_clock_seconds{CLUSTER} - timestamp(skep_host_clock_seconds{CLUSTER}))",
            "{{skep_name}}",
        )],
    ),
    lines(
        "Unwritten page cache",
        "percentunit",
        "Unwritten data in the page cache of each service's host, divided by the kernel's limit. \
         Above three quarters, programs that write files wait.",
        &[query("skep_host_memory_dirty_ratio{CLUSTER}", "{{skep_name}}")],
    ),
    lines(
        "Recoveries",
        "short",
        "Recoveries since the start of each service, by kind. A step up is a recovery.",
        &[
            query(
                "sum by (recovery) (skep_management_recovery_seconds_count{CLUSTER})",
                "management {{recovery}}",
            ),
            query(
                "sum by (recovery) (skep_metadata_recovery_seconds_count{CLUSTER})",
                "metadata {{recovery}}",
            ),
            query(
                "sum by (recovery) (skep_storage_recovery_seconds_count{CLUSTER})",
                "storage {{recovery}}",
            ),
        ],
    ),
    lines(
        "Leader of management",
        "short",
        "1 for the management node that leads, and 0 for the others. While no node leads, new \
         mounts and changes of the cluster wait.",
        &[query("skep_management_leading{CLUSTER}", "{{skep_name}}")],
    ),
    lines(
        "Elections of management",
        "short",
        "Newest term of management's log. A step up is an election of a leader.",
        &[query(
            "max by (skep_cluster) (skep_management_log_term{CLUSTER})",
            "term {{skep_cluster}}",
        )],
    ),
    lines(
        "Missing log entries of management nodes",
        "short",
        "Entries of management's log that each node lacks. A node that stays behind has no copy \
         of the newest changes.",
        &[query(
            "max by (skep_cluster) (skep_management_log_last_entry{CLUSTER}) - on (skep_cluster) \
             group_right () skep_management_log_last_entry{CLUSTER}",
            "{{skep_name}}",
        )],
    ),
];

/// The columns of the table of storage targets.
const STORAGE_TARGETS: &[Query] = &[
    column(
        "Used",
        "percentunit",
        "1 - sum by (target, skep_name, skep_cluster) \
         (skep_target_free_bytes{CLUSTER,skep_service=\"storage\"}) / \
         sum by (target, skep_name, skep_cluster) \
         (skep_target_size_bytes{CLUSTER,skep_service=\"storage\"})",
    ),
    column(
        "Free",
        "bytes",
        "sum by (target, skep_name, skep_cluster) \
         (skep_target_free_bytes{CLUSTER,skep_service=\"storage\"})",
    ),
    column(
        "Written",
        "Bps",
        "sum by (target, skep_name, skep_cluster) \
         (rate(skep_storage_received_bytes_total{CLUSTER}[RATE]))",
    ),
    column(
        "Read",
        "Bps",
        "sum by (target, skep_name, skep_cluster) \
         (rate(skep_storage_sent_bytes_total{CLUSTER}[RATE]))",
    ),
    column(
        "Operations",
        "ops",
        "sum by (target, skep_name, skep_cluster) \
         (rate(skep_storage_operations_total{CLUSTER}[RATE]))",
    ),
    column(
        "Waiting requests",
        "short",
        "sum by (target, skep_name, skep_cluster) (skep_storage_requests_queued{CLUSTER})",
    ),
];
