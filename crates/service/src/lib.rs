//! The daemon kit: configuration, logging, readiness, signals, registration and heartbeats.
