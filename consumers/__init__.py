"""Programs that read the topics: the learner, the monitor, and the verification."""
