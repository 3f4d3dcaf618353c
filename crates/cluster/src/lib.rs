//! Pure decisions: the cluster state machine, placement of files, striping arithmetic.
