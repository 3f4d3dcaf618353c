//! Messages that any kind of service handles. Their connection addresses the node, not a target.

use skep_types::codec::record;

record! {
    /// Changes the log level of a running service until it exits, or only queries it.
    pub struct SetLogLevel {
        /// `error`, `warn`, `info`, `debug` or `trace`, or a filter as in the setting `node.log`.
        /// An empty text restores the level of the settings. `None` leaves the level unchanged.
        pub level: Option<String>,
    }
}

record! {
    /// The log level of a process.
    pub struct LogLevel {
        /// The current level.
        pub current: String,
        /// The level of the settings. The service uses it after its next start.
        pub configured: String,
    }
}
