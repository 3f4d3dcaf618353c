//! The table of all cluster settings: names, ranges, meanings, and the fields of the cluster map.

use super::{Field, Setting, Unit, small};
use crate::limits::{
    MAX_CLEANUP_INTERVAL_MS, MAX_COPY_RATE, MAX_FREE_BYTES, MAX_FREE_PERCENT, MAX_LEASE_MS,
    MAX_LOG_KEPT, MAX_METADATA_COPIES, MAX_METADATA_LEASE_MS, MAX_STRIPE_FROM,
    MAX_TAKE_OVER_AFTER_MS, MIN_CLEANUP_INTERVAL_MS, MIN_COPY_RATE, MIN_HEARTBEAT_MS, MIN_LEASE_MS,
    MIN_METADATA_LEASE_MS, MIN_TAKE_OVER_AFTER_MS,
};
use skep_types::NEWEST_FEATURE_LEVEL;
use skep_types::map::UserPatterns;
use skep_types::pattern::{
    Chooser, MAX_CHUNK_BYTES, MAX_INLINE_BYTES, MAX_STRIPE_WIDTH, MIN_CHUNK_BYTES,
};

/// The values of the setting `chooser`, each with its number.
const CHOOSERS: &[(&str, u64)] = &[
    (Chooser::ALL[0].1, Chooser::ALL[0].0 as u64),
    (Chooser::ALL[1].1, Chooser::ALL[1].0 as u64),
    (Chooser::ALL[2].1, Chooser::ALL[2].0 as u64),
    (Chooser::ALL[3].1, Chooser::ALL[3].0 as u64),
    (Chooser::ALL[4].1, Chooser::ALL[4].0 as u64),
    (Chooser::ALL[5].1, Chooser::ALL[5].0 as u64),
];

/// The values of `user-patterns`, each with its number.
const USER_PATTERNS: &[(&str, u64)] = &[
    ("no", UserPatterns::No as u64),
    ("sizes", UserPatterns::Sizes as u64),
    ("targets", UserPatterns::Targets as u64),
];

/// Converts a number of targets to 16 bits. The number must be within the range of its setting.
fn width(value: u64) -> u16 {
    u16::try_from(value).expect("the setting's range fits into 16 bits")
}

/// Converts a percentage to 8 bits. The percentage must be within the range of its setting.
fn percent(value: u64) -> u8 {
    u8::try_from(value).expect("the setting's range fits into 8 bits")
}

/// All settings in display order.
pub const SETTINGS: &[Setting] = &[
    Setting {
        name: "lease",
        unit: Unit::Milliseconds,
        min: MIN_LEASE_MS as u64,
        max: MAX_LEASE_MS as u64,
        is_power_of_two: false,
        meaning: "time after which a silent client loses its sessions and open files, and a silent \
                  node counts as offline; a dead client blocks other clients for this time",
        field: Field::Policy {
            get: |policy| u64::from(policy.lease_ms),
            put: |policy, value| policy.lease_ms = small(value),
        },
    },
    Setting {
        name: "heartbeat",
        unit: Unit::Milliseconds,
        min: MIN_HEARTBEAT_MS as u64,
        max: MAX_LEASE_MS as u64 / 2,
        is_power_of_two: false,
        meaning: "interval at which nodes send heartbeats to management; at most half of the lease",
        field: Field::Policy {
            get: |policy| u64::from(policy.heartbeat_ms),
            put: |policy, value| policy.heartbeat_ms = small(value),
        },
    },
    Setting {
        name: "chunk-size",
        unit: Unit::Bytes,
        min: MIN_CHUNK_BYTES,
        max: MAX_CHUNK_BYTES,
        is_power_of_two: true,
        meaning: "chunk size of new files, unless their directory has a pattern",
        field: Field::Policy {
            get: |policy| policy.default_chunk_bytes,
            put: |policy, value| policy.default_chunk_bytes = value,
        },
    },
    Setting {
        name: "stripe-width",
        unit: Unit::Targets,
        min: 1,
        max: MAX_STRIPE_WIDTH as u64,
        is_power_of_two: false,
        meaning: "number of storage targets over which a new file is striped after its first \
                  `stripe-from` bytes, unless its directory has a pattern; fewer targets if the \
                  cluster has fewer",
        field: Field::Policy {
            get: |policy| u64::from(policy.default_width),
            put: |policy, value| policy.default_width = width(value),
        },
    },
    Setting {
        name: "stripe-from",
        unit: Unit::Bytes,
        min: 0,
        max: MAX_STRIPE_FROM,
        is_power_of_two: false,
        meaning: "number of first bytes of a new file that are on one target; a small file then \
                  needs only one chunk file; 0: files are striped from the start; a pattern of the \
                  directory takes precedence",
        field: Field::Policy {
            get: |policy| policy.stripe_from,
            put: |policy, value| policy.stripe_from = value,
        },
    },
    Setting {
        name: "inline-bytes",
        unit: Unit::Bytes,
        min: 0,
        max: MAX_INLINE_BYTES,
        is_power_of_two: false,
        meaning: "number of first bytes of a new file that metadata stores with the inode: a \
                  multiple of 4 KiB; files up to this size then need no chunk file; 0: no bytes; a \
                  pattern of the directory takes precedence",
        field: Field::Policy {
            get: |policy| policy.inline_bytes,
            put: |policy, value| policy.inline_bytes = value,
        },
    },
    Setting {
        name: "chooser",
        unit: Unit::Choice(CHOOSERS),
        min: 1,
        max: 6,
        is_power_of_two: false,
        meaning: "policy that chooses the targets of new files, unless their directory has a \
                  pattern; use `balanced` except to compare policies",
        field: Field::Policy {
            get: |policy| policy.default_chooser as u64,
            put: |policy, value| {
                let named = Chooser::ALL.iter().find(|(chooser, _)| *chooser as u64 == value);
                policy.default_chooser = named.map_or(Chooser::Balanced, |(chooser, _)| *chooser);
            },
        },
    },
    Setting {
        name: "user-patterns",
        unit: Unit::Choice(USER_PATTERNS),
        min: 1,
        max: 3,
        is_power_of_two: false,
        meaning: "fields of stripe patterns that users other than root may set on their own files \
                  and directories; no: none; sizes: number of targets, chunk size and chooser; \
                  targets: also a list of targets",
        field: Field::Policy {
            get: |policy| policy.user_patterns as u64,
            put: |policy, value| {
                policy.user_patterns = match value {
                    1 => UserPatterns::No,
                    2 => UserPatterns::Sizes,
                    _ => UserPatterns::Targets,
                }
            },
        },
    },
    Setting {
        name: "user-stripe-width-max",
        unit: Unit::Targets,
        min: 1,
        max: MAX_STRIPE_WIDTH as u64,
        is_power_of_two: false,
        meaning: "largest number of targets in a pattern that users other than root set",
        field: Field::Policy {
            get: |policy| u64::from(policy.user_max_width),
            put: |policy, value| policy.user_max_width = width(value),
        },
    },
    Setting {
        name: "user-chunk-size-min",
        unit: Unit::Bytes,
        min: MIN_CHUNK_BYTES,
        max: MAX_CHUNK_BYTES,
        is_power_of_two: true,
        meaning: "smallest chunk size in a pattern that users other than root set",
        field: Field::Policy {
            get: |policy| policy.user_min_chunk_bytes,
            put: |policy, value| policy.user_min_chunk_bytes = value,
        },
    },
    Setting {
        name: "user-chunk-size-max",
        unit: Unit::Bytes,
        min: MIN_CHUNK_BYTES,
        max: MAX_CHUNK_BYTES,
        is_power_of_two: true,
        meaning: "largest chunk size in a pattern that users other than root set",
        field: Field::Policy {
            get: |policy| policy.user_max_chunk_bytes,
            put: |policy, value| policy.user_max_chunk_bytes = value,
        },
    },
    Setting {
        name: "low-percent",
        unit: Unit::Percent,
        min: 0,
        max: MAX_FREE_PERCENT as u64,
        is_power_of_two: false,
        meaning: "a target is low on space if its free bytes are below this percentage of its \
                  total bytes and below `low-free`; its free inodes have a similar limit; new \
                  files go to other targets while those have space, and health checks warn; 0 \
                  switches this off",
        field: Field::Policy {
            get: |policy| u64::from(policy.low_percent),
            put: |policy, value| policy.low_percent = percent(value),
        },
    },
    Setting {
        name: "low-free",
        unit: Unit::Bytes,
        min: 0,
        max: MAX_FREE_BYTES,
        is_power_of_two: false,
        meaning: "a target with this number of free bytes or more is not low on space, even if \
                  this is below `low-percent`; 0: only free inodes count",
        field: Field::Policy {
            get: |policy| policy.low_free_bytes,
            put: |policy, value| policy.low_free_bytes = value,
        },
    },
    Setting {
        name: "emergency-percent",
        unit: Unit::Percent,
        min: 0,
        max: MAX_FREE_PERCENT as u64,
        is_power_of_two: false,
        meaning: "a target is almost full if its free bytes are below this percentage of its total \
                  bytes and below `emergency-free`; its free inodes have a similar limit; new \
                  files go to this target only if no other target has space, and health checks \
                  report a critical problem; 0 switches this off",
        field: Field::Policy {
            get: |policy| u64::from(policy.emergency_percent),
            put: |policy, value| policy.emergency_percent = percent(value),
        },
    },
    Setting {
        name: "emergency-free",
        unit: Unit::Bytes,
        min: 0,
        max: MAX_FREE_BYTES,
        is_power_of_two: false,
        meaning: "a target with this number of free bytes or more is not almost full, even if this \
                  is below `emergency-percent`; 0: only free inodes count",
        field: Field::Policy {
            get: |policy| policy.emergency_free_bytes,
            put: |policy, value| policy.emergency_free_bytes = value,
        },
    },
    Setting {
        name: "cleanup-interval",
        unit: Unit::Milliseconds,
        min: MIN_CLEANUP_INTERVAL_MS as u64,
        max: MAX_CLEANUP_INTERVAL_MS as u64,
        is_power_of_two: false,
        meaning: "interval at which storage looks for chunk files without an inode, and smallest \
                  age at which storage removes such a chunk file",
        field: Field::Policy {
            get: |policy| u64::from(policy.cleanup_interval_ms),
            put: |policy, value| policy.cleanup_interval_ms = small(value),
        },
    },
    Setting {
        name: "cleanup-limit",
        unit: Unit::Files,
        min: 0,
        max: u32::MAX as u64,
        is_power_of_two: false,
        meaning: "maximum number of chunk files without an inode that one search of a storage \
                  target removes; if a search finds more, it removes none and reports a problem, \
                  since metadata may be an old backup; 0 switches the removal off",
        field: Field::Policy {
            get: |policy| u64::from(policy.cleanup_limit),
            put: |policy, value| policy.cleanup_limit = small(value),
        },
    },
    Setting {
        name: "metadata-copies",
        unit: Unit::Targets,
        min: 1,
        max: MAX_METADATA_COPIES as u64,
        is_power_of_two: false,
        meaning: "number of metadata targets in a group; 1: each new metadata target immediately \
                  serves a separate group; more: new metadata targets wait until `skep group \
                  create` puts them into a group",
        field: Field::Policy {
            get: |policy| u64::from(policy.metadata_copies),
            put: |policy, value| policy.metadata_copies = width(value),
        },
    },
    Setting {
        name: "metadata-copy-rate",
        unit: Unit::Bytes,
        min: MIN_COPY_RATE,
        max: MAX_COPY_RATE,
        is_power_of_two: false,
        meaning: "maximum number of bytes per second that the primary of a metadata group sends to \
                  a member that needs a copy of the store; a lower rate slows down other \
                  operations less",
        field: Field::Policy {
            get: |policy| policy.metadata_copy_rate,
            put: |policy, value| policy.metadata_copy_rate = value,
        },
    },
    Setting {
        name: "metadata-log-kept",
        unit: Unit::Bytes,
        min: 0,
        max: MAX_LOG_KEPT,
        is_power_of_two: false,
        meaning: "maximum number of bytes of old log that a metadata target keeps on disk for \
                  members of its group that are away; a member that lacks more gets a copy of the \
                  store when it returns",
        field: Field::Policy {
            get: |policy| policy.metadata_log_kept,
            put: |policy, value| policy.metadata_log_kept = value,
        },
    },
    Setting {
        name: "metadata-lease",
        unit: Unit::Milliseconds,
        min: MIN_METADATA_LEASE_MS as u64,
        max: MAX_METADATA_LEASE_MS as u64,
        is_power_of_two: false,
        meaning: "maximum time for which the primary of a metadata group serves after its last \
                  contact with the other members; after this time it continues without the silent \
                  members",
        field: Field::Policy {
            get: |policy| u64::from(policy.metadata_lease_ms),
            put: |policy, value| policy.metadata_lease_ms = small(value),
        },
    },
    Setting {
        name: "metadata-take-over-after",
        unit: Unit::Milliseconds,
        min: MIN_TAKE_OVER_AFTER_MS as u64,
        max: MAX_TAKE_OVER_AFTER_MS as u64,
        is_power_of_two: false,
        meaning: "time without contact to the primary after which another member of a metadata \
                  group takes over",
        field: Field::Policy {
            get: |policy| u64::from(policy.metadata_take_over_after_ms),
            put: |policy, value| policy.metadata_take_over_after_ms = small(value),
        },
    },
    Setting {
        name: "feature-level",
        unit: Unit::Level,
        min: 1,
        max: NEWEST_FEATURE_LEVEL as u64,
        is_power_of_two: false,
        meaning: "version of the record formats on disk; raise this level when every service and \
                  client runs the new program: the level can never be lowered again",
        field: Field::FeatureLevel,
    },
];
