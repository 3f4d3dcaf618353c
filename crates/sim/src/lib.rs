//! Seeded deterministic simulation of the metadata core, with checkers.
