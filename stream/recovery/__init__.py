"""Journal, commit, snapshots and recovery: what makes a state a function of the topics."""
