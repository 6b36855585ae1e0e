"""One model over many partitions: its log, replicas that follow it, and what a task adds of its own."""
