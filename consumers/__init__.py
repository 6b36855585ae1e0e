"""The consumer programs: the learner and the monitor."""
