"""Compares the topics of a pipeline with a simulation of each task's join, after each step of its journal."""

import json
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from stream.kafka.port import Broker
from stream.kafka.reading import OPEN_MS, read_partition
from stream.wire.records import Record, TopicPartition
from tests.golden.format_reader import (
    LEDGER,
    DeadLetter,
    Generation,
    counts,
    dead_letter,
    settings,
    whole_generations,
)
from tests.independent_audit import events
from tests.independent_audit.events import Context, header
from tests.independent_audit.join import Decision, Entry, Join, merge
from tests.independent_audit.log import NAMED, SETTLED, Log

OUTPUTS = ("predictions", "examples", "dead-letter")
FIXED = {
    "seed",
    "scale",
    "play",
    "reward",
    "feedback",
    "rewards",
    "reward_range",
    "propensity_min",
    "model",
    "dated_by",
    "open_classes",
}
"""The settings that cannot change."""
DEAD_LETTER_BYTES_MAX = 500_000
INELIGIBLE_SCORE = -1e305
USUAL = {"id", "action", "greedy", "propensity", "scores", "model_version", "context_offset"}
"""The members that every prediction has."""


class Difference(NamedTuple):
    """A difference between the topics and the documentation, and the record that shows it.

    The record is the wrong one. If an output is missing, it is the input record, or the step's record in the journal.
    """

    topic: str
    partition: int
    offset: int
    what: str
    expected: object
    got: object


def audit(broker: Broker, prefix: str) -> list[Difference]:
    """Audit a pipeline whose learners are stopped. Returns all differences, by partition and step."""
    found = broker.describe_topics([f"{prefix}contexts", f"{prefix}updates"])

    def read(name: str, partition: int) -> list[Record]:
        if prefix + name not in found and name == "updates":
            return []
        return list(read_partition(broker, TopicPartition(prefix + name, partition), open_ms=OPEN_MS))

    return audit_records(read, prefix, found[f"{prefix}contexts"].partitions)


def audit_records(read: Callable[[str, int], list[Record]], prefix: str, partitions: int) -> list[Difference]:
    """Audit the records that `read` returns for a topic, named without its prefix, and a partition."""
    log = Log(read("updates", 0))
    differences = [Difference(f"{prefix}updates", 0, *found) for found in log.differences]
    digests: dict[int, str] = {}
    for partition in range(partitions):
        task = _TaskAudit(partition, partitions, read, log, digests)
        differences += task.audit()
    return differences


class _TaskAudit:
    """The audit of one task, step by step."""

    def __init__(
        self,
        partition: int,
        partitions: int,
        read: Callable[[str, int], list[Record]],
        log: Log,
        digests: dict[int, str],
    ) -> None:
        self._partition = partition
        self._partitions = partitions
        self._journal = read("journal", partition)
        self._requests = read("control", 0)
        self._inputs = {name: deque(read(name, partition)) for name in ("contexts", "feedback")}
        self._outputs = {name: _by_step(read(name, partition)) for name in OUTPUTS}
        chunks = [(record.key, record.value) for record in read("snapshots", partition)]
        self._snapshots = {each.number: each for each in whole_generations(chunks) if each.slot != "import"}
        self._log = log
        self._digests = digests  # of the replicas, by version
        self._join = Join(self._decide)
        self._record: Record  # of this step in the journal
        self._previous: Mapping[str, Any] = {}  # members of the previous step
        self._wrote = 0  # the last step with updates
        self._predictions: dict[int, deque[Record]] = {}  # of this step, by offset of the context
        self._examples: list[Record] = []  # of this step
        self._ledger_errors: Counter[str] = Counter()  # already reported
        self._differences: list[Difference] = []

    def audit(self) -> list[Difference]:
        """Audit all steps in order, and then the records that belong to no step."""
        for record in self._journal:
            fields = _json(record)
            if not self._previous and "settings" not in fields:
                self._differ(record, "settings", "the settings in the first step", None)
                return self._differences
            self._audit_step(fields["number"], record, fields)
        for name, steps in self._outputs.items():
            for record in (record for records in steps.values() for record in records):
                is_of_the_feedback_program = name == "dead-letter" and header(record, "onebit-step") is None
                if not is_of_the_feedback_program or header(record, "onebit-topic") is None:
                    self._differ(record, f"record in {name}", "a step in the journal", record.headers)
        return self._differences

    def _audit_step(self, number: int, record: Record, fields: Mapping[str, Any]) -> None:
        """Apply the records of a step, and compare all that it published."""
        step = b"%d" % number
        self._record = record
        in_force = settings(fields["settings"]) if "settings" in fields else self._join.settings
        self._check_head(number, fields, in_force)
        predictions = self._outputs["predictions"].pop(step, [])
        self._predictions = _by_context(predictions)
        self._examples = self._outputs["examples"].pop(step, [])
        contexts, feedback = (self._applied(name, *fields[name]) for name in ("contexts", "feedback"))
        self._join.begin_step(number, in_force, self._partitions)
        self._join.names += fields.get("log", {}).get("names", [])
        for is_context, one in merge(contexts, feedback):
            (self._join.apply_context if is_context else self._join.apply_feedback)(one)
        self._check_ledger(counts(fields.get("ledger", {})))
        for one in (one for several in self._predictions.values() for one in several):
            self._differ(one, "prediction", None, _json(one))
        self._check_examples()
        self._check_dead_letters(self._outputs["dead-letter"].pop(step, []))
        self._check_model(number, fields, predictions)
        if number in self._snapshots:
            self._check_snapshot(self._snapshots[number], fields)
        self._previous = fields

    # The journal

    def _check_head(self, number: int, fields: Mapping[str, Any], in_force: Mapping[str, Any]) -> None:
        previous = self._previous
        self._check("version", b"1", header(self._record, "onebit-version"))
        self._check("number", previous.get("number", 0) + 1, number)
        self._check("partitions", self._partitions, fields["partitions"])
        is_new = "settings" in fields
        self._check("settings_from", number if is_new else previous.get("settings_from"), fields["settings_from"])
        if previous:
            old = self._join.settings
            changed = {name for name in {**old, **in_force} if in_force.get(name) != old.get(name)}
            self._check("changed settings", set(), changed & FIXED)
            self._check("settings that changed", is_new, bool(changed))
            self._check("requested settings", self._requested(old, fields), in_force)
        for name in ("contexts", "feedback"):
            self._check(f"begin of {name}", previous.get(name, (0, 0))[1], fields[name][0])

    def _requested(self, old: Mapping[str, Any], fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """The settings that the requests from the previous step's position on lead to.

        Whether a learner supports a policy is not documented in detail, so a refusal is not checked further.
        """
        begin, end = self._previous.get("control", 0), fields.get("control", 0)
        refused, ids, now = dict(fields.get("refused", [])), set(), dict(old)
        for record in self._requests:
            request = events.request(record)
            is_new = request is not None and request["id"] not in ids
            ids |= {request["id"]} if request is not None else set()
            if not begin <= record.offset < end:
                continue
            changes = request["changes"] if request is not None and is_new else {}
            starts_here = all(now.get(name) == change["from"] for name, change in changes.items())
            is_possible = is_new and starts_here and not changes.keys() & FIXED
            self._check("refused request", True, is_possible or record.offset in refused)
            if is_possible and record.offset not in refused:
                now |= {name: change["to"] for name, change in changes.items()}
        return {name: value for name, value in now.items() if value is not None or not name.startswith("parameters.")}

    def _applied(self, name: str, begin: int, end: int) -> list[Record]:
        """The records of a step from an input. The last one is before `end`."""
        records = []
        while self._inputs[name] and self._inputs[name][0].offset < end:
            records.append(self._inputs[name].popleft())
        if begin < end:
            self._check(f"end of {name}", records[-1].offset + 1 if records else None, end)
        self._check(f"range of {name}", True, begin <= end)
        return records

    def _check_ledger(self, got: Mapping[str, int]) -> None:
        """Compare the counts. A difference is reported at the first step that has it."""
        expected = self._join.ledger()
        if self._join.settings["play"] == "logged":  # whether a propensity is a weight depends on the learner
            expected["propensities_floored"] = got["propensities_floored"]
        errors = Counter({name: got[name] - expected.get(name, 0) for name in LEDGER})
        for name in LEDGER:
            if errors[name] != self._ledger_errors[name]:
                self._check(name, expected.get(name, 0), got[name])
        self._ledger_errors = errors

    # Predictions

    def _decide(self, record: Record, context: Context) -> Decision | None:
        """Check the prediction for a context, and return its decision."""
        if not self._predictions.get(record.offset):
            self._differ(record, "prediction", f"one in step {self._join.step}", None)
            return None
        prediction = self._predictions[record.offset].popleft()
        value = _json(prediction)
        if missing := USUAL - value.keys():
            self._differ(prediction, "members", USUAL, missing)
            return None
        for what, expected, got in self._prediction_checks(prediction, value, context):
            if expected != got:
                self._differ(prediction, what, expected, got)
        is_unmatched, played = self._is_unmatched(value, context), None
        if context.actions is not None:
            played = context.actions[value["action"]]
        return Decision(value["action"], value["propensity"], value.get("arm"), is_unmatched, played)

    def _prediction_checks(
        self, prediction: Record, value: Mapping[str, Any], context: Context
    ) -> Iterable[tuple[str, object, object]]:
        """The checks of a prediction: what is compared, the expected value and the value in the prediction."""
        in_force, scores = self._join.settings, value["scores"]
        names = self._join.class_names if context.actions is None else context.actions
        eligible = range(len(names) or in_force["n_classes"]) if context.eligible is None else context.eligible
        yield "id", (context.id, context.id.encode()), (value["id"], prediction.key)
        yield "version", b"1", header(prediction, "onebit-version")
        yield "number of scores", in_force["n_classes"], len(scores)
        yield "action is eligible", True, value["action"] in eligible
        yield "classes with a score", set(eligible), {n for n, one in enumerate(scores) if one != INELIGIBLE_SCORE}
        yield "score of greedy", max(scores), scores[value["greedy"]]
        yield "class", names[value["action"]] if names else None, value.get("class")
        yield "actions", context.actions, value.get("actions")
        yield "baseline", context.baseline, value.get("baseline")
        is_ruled = in_force["holdout_policy"] == "baseline" and context.baseline in eligible
        if is_ruled and value.get("arm") == "holdout":
            yield "action in the holdout", context.baseline, value["action"]
        if in_force["play"] == "logged" and context.logged is not None:
            yield "action", context.logged["action"], value["action"]
            yield "propensity", context.logged["propensity"], value["propensity"]
        else:
            yield "propensity is in (0, 1]", True, 0 < value["propensity"] <= 1
        if in_force["challengers"]:
            challenged = value["challenged"]
            learners = {in_force["learner"], *in_force["challengers"]}
            yield "challenged", learners, {challenged["champion"], *challenged["choices"]}
            yield "champion", in_force["champion"] or in_force["learner"], challenged["champion"]

    def _is_unmatched(self, value: Mapping[str, Any], context: Context) -> bool:
        """Whether a replay with `play` = `match` has no bit. An undocumented draw rejects some decisions."""
        in_force = self._join.settings
        if in_force["play"] != "match" or context.logged is None:
            return False
        if value["action"] != context.logged["action"]:
            return True
        found = [_json(one) for one in self._examples]
        return in_force["propensity_min"] > 0 and any(
            (one.get("id"), one.get("outcome")) == (context.id, "unmatched") for one in found
        )

    # Examples and dead letters

    def _check_examples(self) -> None:
        """Compare the examples of each id, in order."""
        got: dict[str, deque[Record]] = defaultdict(deque)
        for one in self._examples:
            got[str(_json(one).get("id"))].append(one)
        for expected in self._join.output.examples:
            if not got[expected["id"]]:
                self._check("example", expected, None)
                continue
            one = got[expected["id"]].popleft()
            value = _json(one)
            value.pop("drift", None)
            if (value, one.key, header(one, "onebit-version")) != (expected, expected["id"].encode(), b"1"):
                self._differ(one, "example", expected, value)
        for one in (one for several in got.values() for one in several):
            self._differ(one, "example", None, _json(one))

    def _check_dead_letters(self, records: Iterable[Record]) -> None:
        """Compare the dead letters of a step. Each has the position and the content of its record."""
        got: dict[tuple[str, int, int, str], deque[tuple[Record, DeadLetter]]] = defaultdict(deque)
        for one in records:
            try:
                letter = dead_letter(one.headers)
            except (KeyError, ValueError):
                self._differ(one, "dead letter", "headers of a dead letter", one.headers)
                continue
            got[letter.topic, letter.partition, letter.offset, letter.kind].append((one, letter))
        for record, kind in self._join.output.dead_letters:
            found = got[record.topic, record.partition, record.offset, kind]
            if not found:
                self._differ(record, "dead letter", f"one of the kind {kind} in step {self._join.step}", None)
                continue
            one, letter = found.popleft()
            parts = (record.key or b"")[:DEAD_LETTER_BYTES_MAX], (record.value or b"")[:DEAD_LETTER_BYTES_MAX]
            if (one.key or b"", one.value or b"") != parts or letter.own_count != len(record.headers):
                self._differ(one, "content of a dead letter", parts, (one.key, one.value))
        for one, letter in (one for several in got.values() for one in several):
            self._differ(one, "dead letter", None, letter)

    # The model

    def _check_model(self, number: int, fields: Mapping[str, Any], predictions: Sequence[Record]) -> None:
        before, after = self._previous.get("updates", 0), fields.get("updates", 0)
        versions = [_json(one).get("model_version", before) for one in predictions]
        if "log" in fields:
            self._check("model_version", {after} if versions else set(), set(versions))
            self._check_log(number, fields, predictions)
        elif number > 1 or "imported" not in fields:
            end = before + self._join.output.updates_max
            self._check("updates", (before, end), (min(before, after), max(after, end)))
            self._check("model_version", sorted([before, *versions, after]), [before, *versions, after])

    def _check_log(self, number: int, fields: Mapping[str, Any], predictions: Sequence[Record]) -> None:
        """Compare a step's members `log` and `replica` with the log of the shared model."""
        log, offset = fields["log"], fields["log"].get("offset", 0)
        values = [one.value or b"" for one in predictions]
        self._check("log.predictions", len(values), log.get("predictions", 0))
        if values:
            self._check("log.sha256", sha256(b"".join(values)).hexdigest(), log["sha256"])
        self._check("updates", self._log.version_at(offset), fields.get("updates", 0))
        self._check("log.names", self._log.names_at(offset, self._join.settings["n_classes"]), self._join.names)
        entries = self._log.of_step[self._partition, number]
        self._check("log.entries", len(entries), log.get("entries", 0))
        self._check("log.follows", self._wrote, log.get("follows", 0))
        if entries:
            self._check("follows in the log", self._wrote, self._log.follows[self._partition, number])
            self._wrote = number
        self._check("log.adds", sum(one["kind"] == NAMED for one in entries), len(log.get("adds", ())))
        learned = Counter((one["action"], one["reward"]) for one in entries if one["kind"] == SETTLED)
        examples = self._join.output.examples
        settings = self._join.settings
        settled = Counter(
            (one["action"], events.share(one["reward"], settings)) for one in examples if one["reward"] is not None
        )
        self._check("settled entries", settled, learned)
        if replica := fields.get("replica"):
            digest = self._digests.setdefault(fields.get("updates", 0), replica["sha256"])
            self._check("replica.sha256", digest, replica["sha256"])

    # Snapshots

    def _check_snapshot(self, snapshot: Generation, fields: Mapping[str, Any]) -> None:
        """Compare the snapshot after a step with the entries of the simulation, in order."""
        join, state = self._join, snapshot.state
        self._check("step of the snapshot", fields, fields | state["step"])
        self._check("stream_ms", join.stream_ms, state["stream_ms"])
        self._check("dated_ms", join.dated_ms, state["dated_ms"])
        for name in ("pending", "deferred", "shown"):
            entries: Mapping[str, Entry] = getattr(join, name)
            expected = [(one.id, -one.step if one.time_ms is None else one.time_ms) for one in entries.values()]
            self._check(f"{name} entries", expected, [(one["id"], one["decided_ms"]) for one in snapshot.of(name)])
        orphans = [(one.id, one.record and one.record.offset, one.time_ms) for one in join.orphans.values()]
        got = [(one["id"], one["offset"], one["kept_at_ms"]) for one in snapshot.of("orphans")]
        self._check("orphans", orphans, got)
        retained = [(one.id, one.state, one.reward, one.time_ms) for one in join.retained.values()]
        members = ("id", "outcome", "reward", "settled_at_ms")
        self._check("retained ids", retained, [tuple(map(one.get, members)) for one in snapshot.of("retained")])

    # Differences

    def _check(self, what: str, expected: object, got: object) -> None:
        """Compare a value that belongs to the step."""
        if expected != got:
            self._differ(self._record, what, expected, got)

    def _differ(self, record: Record, what: str, expected: object, got: object) -> None:
        self._differences.append(Difference(record.topic, record.partition, record.offset, what, expected, got))


def _by_step(records: Iterable[Record]) -> dict[bytes | None, list[Record]]:
    found = defaultdict(list)
    for record in records:
        found[header(record, "onebit-step")].append(record)
    return found


def _by_context(predictions: Iterable[Record]) -> dict[int, deque[Record]]:
    found: dict[int, deque[Record]] = defaultdict(deque)
    for record in predictions:
        found[_json(record).get("context_offset", -1)].append(record)
    return found


def _json(record: Record) -> dict[str, Any]:
    """The JSON object in a record's value. Empty if there is none."""
    try:
        value = json.loads(record.value or b"")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
