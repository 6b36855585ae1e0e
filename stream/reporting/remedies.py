"""What to do about a count that should be 0, said in the same words in the log, by `verify` and in the report."""

MISPLACED_REMEDY = (
    "records whose key belongs to another partition: their producer uses another partitioner; librdkafka's default is "
    "CRC32: set partitioner=murmur2_random"
)
"""Of `Ledger.contexts_misplaced` and `Ledger.feedback_misplaced`."""
