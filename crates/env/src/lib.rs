//! The seams to the operating system: the per-core event loop on io_uring, sockets, files, clock, randomness.
