"""Audits a shared model. The log is compared with the journals, and the replicas' digests are compared with each other.

    log        each step has the number of entries stated in its journal record, and no step is missing
    journals   no step made its decisions at a version beyond its own record in the log, and every task knows the
               names of open classes in log order
    replicas   replicas at the same version are bit-identical

The model is not recomputed here; see `stream.verifying.reapply`. If retention has deleted the log's first records, the
audit starts at the oldest snapshot of the model after which all records are retained.
"""

from array import array
from typing import NamedTuple

import numpy as np
from msgspec.structs import asdict

from stream.kafka.port import Broker
from stream.kafka.reading import OPEN_MS, read_partition
from stream.measures.latencies import Behind, ReplicaReport
from stream.recovery.chunks import read_snapshots
from stream.recovery.recover import pipeline_settings
from stream.recovery.state import ModelSnapshot, decode_model
from stream.recovery.steps import JournalStep, ReplicaDigest, read_journal
from stream.verifying.audit import FAULTS_SHOWN_MAX
from stream.verifying.starts import first_model
from stream.wire.records import Record, TopicPartition
from stream.wire.topics import Topics
from stream.wire.updates import Update, UpdatesError, decode_update


class StepReport(NamedTuple):
    """A step's report on the replica that made its decisions."""

    partition: int
    step: int
    version: int
    append_ms: int
    replica: ReplicaDigest

    def __str__(self) -> str:
        """Return the report as text."""
        return f"{self.replica.instance} in step {self.step} of partition {self.partition}: {self.replica.sha256[:16]}"


class LogFinding(NamedTuple):
    """The result of auditing a shared model."""

    version: int  # number of entries in the log
    replicas: tuple[ReplicaReport, ...]  # the last report from each process
    behind: Behind | None  # statistics over the steps that wrote to the log; None if there are none
    faults: tuple[str, ...]
    warnings: tuple[str, ...]
    exact_from: int = 0  # version of the snapshot at which the audit started; 0 if it read the whole log

    @property
    def ok(self) -> bool:
        """Whether the audit found no faults."""
        return not self.faults

    def as_json(self) -> dict[str, object]:
        """Return the finding as plain values."""
        return {
            "model": "shared",
            "model_version": self.version,
            "replicas": [asdict(replica) for replica in self.replicas],
            "model_log": {
                "ok": self.ok,
                "faults": self.faults,
                "warnings": self.warnings,
                "exact_from": self.exact_from,
                "behind": None if self.behind is None else asdict(self.behind),
            },
        }


def shares_model(broker: Broker, topics: Topics, partitions: int) -> bool:
    """Return whether a pipeline's tasks share a model. If the pipeline has not started, return False.

    Raises:
        JournalError: the journal or the snapshots cannot be read.
    """
    return pipeline_settings(broker, topics, partitions).settings.get("model") == "shared"


def audit_log(broker: Broker, topics: Topics, partitions: int) -> LogFinding:
    """Compare a shared model's log with its tasks' journals.

    Raises:
        JournalError: a journal cannot be read.
    """
    audit = _LogAudit(topics)
    for partition in range(partitions):
        audit.read_journal(broker, partition)
    audit.read_log(broker)
    audit.compare_reports()
    return LogFinding(
        audit.version, audit.replicas(), audit.behind(), tuple(audit.faults), tuple(audit.warnings), audit.first
    )


class _Steps:
    """The steps in a journal, starting with the first retained step, and their entries in the log."""

    def __init__(self) -> None:
        self.first = 1
        self.entries = array("q")  # number of entries, according to the journal
        self.found = array("q")  # number of entries in the log
        self.versions = array("q")
        self.names: list[str] = []  # open classes that the task knows, in the order of its steps
        self.seen = 0  # number of the last step found in the log so far
        self.parts = 0  # number of parts of that step

    def add(self, step: JournalStep) -> None:
        if not self.entries:
            self.first = step.number
        self.entries.append(0 if step.log is None else step.log.entries)
        self.found.append(0)
        self.versions.append(step.updates)
        self.names += () if step.log is None else step.log.names


class _LogAudit:
    """Reads the journals and then the log."""

    def __init__(self, topics: Topics) -> None:
        self.version = 0
        self.first = 0  # version at which the audit starts
        self.faults: list[str] = []
        self.warnings: list[str] = []
        self._topics = topics
        self._steps: dict[int, _Steps] = {}
        self._reports: list[StepReport] = []
        self._behind = array("q")
        self._names: dict[str, None] = {}  # open classes, in log order

    def read_journal(self, broker: Broker, partition: int) -> None:
        steps = self._steps[partition] = _Steps()
        wrote = 0
        for record, entry in read_journal(broker, TopicPartition(self._topics.journal, partition), open_ms=OPEN_MS):
            steps.add(entry)
            place = f"step {entry.number} of {self._topics.journal}/{partition}"
            if entry.log is None:
                self._fault(f"{place} has no position in the shared model's log")
                continue
            if steps.first == 1 and entry.log.follows != wrote:
                self._fault(f"{place}: expected step {wrote} as the previous step in the log; got {entry.log.follows}")
            wrote = entry.wrote
            if entry.replica is not None:
                self._reports.append(
                    StepReport(partition, entry.number, entry.updates, record.append_ms, entry.replica)
                )

    def read_log(self, broker: Broker) -> None:
        tp = TopicPartition(self._topics.updates, 0)
        beginning = broker.beginnings([tp])[tp]
        start = first_model(broker, self._topics)
        if start is None and beginning > 0:
            self._fault(
                f"{tp.topic} begins at offset {beginning}: earlier records were deleted, and no snapshot of the model "
                "is followed by retained records only, so the model cannot be rebuilt"
            )
            return
        ends = broker.ends([tp])[tp]
        if start is not None:
            self._start_from(start)
        elif (imported := read_snapshots(broker, self._topics, None).imported) is not None:
            self._names.update(dict.fromkeys(decode_model(imported).classes))
        for record in read_partition(broker, tp, None if start is None else start.offset, OPEN_MS):
            try:
                update = decode_update(record)
            except UpdatesError as error:
                self._fault(str(error))
                return
            if update is None:
                self.warnings.append(f"{tp.topic} offset {record.offset} is not from a learner: it has no version")
            else:
                self._take(record, update)
        stable = broker.ends([tp])[tp].stable
        if stable < ends.high_watermark:
            self.warnings.append(
                f"{tp.topic} can be read only up to offset {stable}, where an open transaction begins; later records "
                "were not checked"
            )
        names = list(self._names)
        for partition, steps in self._steps.items():
            if steps.first == 1 and steps.names != names[: len(steps.names)]:
                self._fault(
                    f"the journal of partition {partition} has the classes {steps.names}; {tp.topic} names {names}"
                )
            self._check_entries(partition, steps, is_whole=stable >= ends.high_watermark)

    def _start_from(self, start: ModelSnapshot) -> None:
        """Begin with the version, the classes and the tasks' positions in a snapshot of the model."""
        self.version = self.first = start.version
        self._names.update(dict.fromkeys(start.classes))
        for partition, place in start.places.items():
            if partition in self._steps:
                self._steps[partition].seen, self._steps[partition].parts = place.step, place.parts

    def _check_entries(self, partition: int, steps: _Steps, *, is_whole: bool) -> None:
        """Check that the number of log entries from each step equals the number in the step's journal record.

        If a step before the last step found in the log is missing, it has already been reported.
        """
        for number, (expected, found) in enumerate(zip(steps.entries, steps.found, strict=True), steps.first):
            if number > steps.seen and expected:
                if is_whole:
                    self._fault(
                        f"step {number} of partition {partition} wrote to the log, but the log ends before that step"
                    )
                return
            if found not in (0, expected):
                self._fault(
                    f"step {number} of partition {partition} wrote {expected} entries according to its journal; "
                    f"{self._topics.updates} has {found}"
                )

    def _take(self, record: Record, update: Update) -> None:
        """Add a record. A duplicate written by a mirror is counted only once."""
        place = f"{record.topic} offset {record.offset}"
        steps = self._steps.get(update.partition)
        if steps is None:
            self._fault(f"{place} is from partition {update.partition}, which this pipeline does not have")
            return
        if (update.step, update.part) < (steps.seen, steps.parts):
            return
        if update.step != steps.seen:
            if update.follows != steps.seen or update.part != 0:
                self._fault(
                    f"{place}: step {update.step}, part {update.part}, of partition {update.partition} follows step "
                    f"{update.follows}; expected it to follow step {steps.seen}, the previous step in the log"
                )
            steps.seen, steps.parts = update.step, 0
        elif update.part != steps.parts:
            self._fault(
                f"{place}: expected part {steps.parts} of step {update.step} of partition {update.partition}; got part "
                f"{update.part}"
            )
        index = update.step - steps.first
        if 0 <= index < len(steps.entries):  # otherwise, the learner made this step after its journal was read
            if steps.parts == 0:
                behind = self.version - steps.versions[index]
                if behind < 0:
                    self._fault(
                        f"{place}: step {update.step} of partition {update.partition} made its decisions at a version "
                        f"that is {-behind} entries beyond this record"
                    )
                self._behind.append(max(behind, 0))
            steps.found[index] += update.entries.kinds.size
        steps.parts = update.part + 1
        self._names.update(dict.fromkeys(update.classes))
        self.version += update.entries.kinds.size

    def compare_reports(self) -> None:
        firsts: dict[int, StepReport] = {}
        for report in sorted(self._reports, key=lambda report: report.version):
            first = firsts.setdefault(report.version, report)
            if report.replica.sha256 != first.replica.sha256:
                self._fault(
                    f"the replicas at version {report.version} differ: {first}; {report}. All learners must use the "
                    "same processor type and the same versions of Onebit, Python and numpy"
                )

    def behind(self) -> Behind | None:
        if not self._behind:
            return None
        return Behind(*np.quantile(self._behind, (0.5, 0.99, 1.0), method="inverted_cdf").tolist())

    def replicas(self) -> tuple[ReplicaReport, ...]:
        ordered = sorted(self._reports, key=lambda report: (report.append_ms, report.version))
        latest = {report.replica.instance: report for report in ordered}
        return tuple(
            ReplicaReport(instance, report.version, report.replica.sha256)
            for instance, report in sorted(latest.items())
        )

    def _fault(self, message: str) -> None:
        if len(self.faults) < FAULTS_SHOWN_MAX:
            self.faults.append(message)
