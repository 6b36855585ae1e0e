"""Remedies for counts that should be 0, shared by the log, `verify` and the report."""

MISPLACED_REMEDY = (
    "records whose key belongs to another partition: their producer uses another partitioner; librdkafka's default is "
    "CRC32: set partitioner=murmur2_random"
)
"""Remedy for `Ledger.contexts_misplaced` and `Ledger.feedback_misplaced`."""
