//! Messages that any kind of service handles. These messages arrive on a connection that addresses
//! the node, not a target.

use skep_types::TargetId;
use skep_types::codec::record;

record! {
    /// Changes the log level of a running service until the service exits, or only asks for the
    /// current level.
    pub struct SetLogLevel {
        /// `error`, `warn`, `info`, `debug` or `trace`, or a filter as in the setting `node.log`.
        /// An empty text restores the level of the settings. `None` leaves the level unchanged.
        pub level: Option<String>,
    }
}

record! {
    /// The log level of a process.
    pub struct LogLevel {
        /// The current log level.
        pub current: String,
        /// The log level in the settings of the service, which the service uses after its next
        /// start.
        pub configured: String,
    }
}

record! {
    /// Adds a target to a running metadata or storage service. The service initialises a blank
    /// directory, registers the target with management, serves it, and serves it again after each
    /// later start. A retry for a target that the service serves changes nothing.
    pub struct AddTarget {
        /// Absolute path of the target's directory on the host of the service.
        pub path: String,
    }
}

record! {
    /// Reply to [`AddTarget`].
    pub struct AddTargetReply {
        /// The id of the target.
        pub target: TargetId,
        /// Facts that an administrator should check, such as a target on the root file system.
        pub warnings: Vec<String>,
    }
}

record! {
    /// Stops serving a target that [`AddTarget`] has added. The service also does not serve the
    /// target after any later start. The service refuses to stop a target that is listed in its
    /// settings.
    pub struct StopTarget {
        /// The target.
        pub target: TargetId,
        /// Whether the service only checks that it would accept the request.
        pub is_dry_run: bool,
    }
}

record! {
    /// Requests the measured values of a process: operations, bytes, latencies, load by cause, and
    /// values of its host.
    pub struct GetStatistics {
        /// Return only series whose metric begins with this text. Empty means all series.
        pub prefix: String,
    }
}

record! {
    /// The measured values of a process at one moment.
    pub struct Statistics {
        /// Moment of the measurement, in nanoseconds since the boot of the host. The difference of
        /// the moments of two replies is the time between the two measurements.
        pub moment_ns: u64,
        /// Random id of the process, drawn at its start. If the id has changed, the process has
        /// restarted, and all its counters have started from zero.
        pub incarnation: u64,
        /// Address of the process's HTTP page with the same values. Empty means that the process
        /// has no such page.
        pub page: String,
        /// The series, in the order of their metrics' names.
        pub series: Vec<StatisticsSeries>,
    }
}

record! {
    /// A series: one metric with one combination of labels (docs/operations/metrics.md).
    pub struct StatisticsSeries {
        /// Name of the metric, without the suffix `_total`.
        pub metric: String,
        /// Names and values of the labels.
        pub labels: Vec<(String, String)>,
        /// Value of a counter or a gauge: a count, bytes, nanoseconds, or millionths for metrics
        /// with decimal places. For a histogram, the value is the sum of all durations in
        /// nanoseconds.
        pub value: i64,
        /// Buckets of a histogram that are not empty: the index of the bucket, and the number of
        /// durations in it. Bucket 0 ends at 1,024 ns. Above bucket 0, each doubling of the
        /// duration has four buckets of equal width, up to bucket 104. Bucket 105 has no upper
        /// bound.
        pub buckets: Vec<(u16, u64)>,
    }
}
