"""An audit of a pipeline's topics, written from the documentation alone. It imports only the reader of Kafka.

`events.py` decodes the records, `join.py` simulates the join of one task, and `audit.py` compares the simulation with
the topics after each step. The audit does not know which learners require labels, propensities or all classes, nor how
many features fit in a record of a shared model's log.
"""

from tests.independent_audit.audit import Difference, audit

__all__ = ["Difference", "audit"]
