//! Local durable primitives: target directories and their identity, atomic replacement, log segments.
