//! Messages to a running process, whatever it serves: on a connection that names no target.

use skep_types::codec::record;

record! {
    /// Changes what a service logs, until it ends, or only asks.
    pub struct SetLogLevel {
        /// `error`, `warn`, `info`, `debug` or `trace`, or a filter as in `node.log`; empty: as its
        /// settings have it. None: nothing is changed.
        pub level: Option<String>,
    }
}

record! {
    /// What a service logs.
    pub struct LogLevel {
        /// Now.
        pub current: String,
        /// At its next start.
        pub configured: String,
    }
}
