"""A model shared by many partitions: replicas that follow its log, and each task's view of a replica."""
