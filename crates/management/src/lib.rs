//! Authority for the cluster map.
