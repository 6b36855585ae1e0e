"""What the topics of one partition say, kept so that it can be looked at id by id.

A partition may hold more records than fit into memory. So what the audit needs of each record goes into a temporary
SQLite database, which SQLite keeps in memory as long as it is small and on disk when it is not, and comes back sorted
by event id: the audit then judges the life of one id after the other.
"""

import re
import sqlite3
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Any, NamedTuple

from stream.joining.task import Reading
from stream.wire.events import Example, Logged, Outcome, Target

_CACHE_KIB = 32_000  # of pages that SQLite keeps in memory, for each of its sorts too

_TABLES = """
CREATE TABLE context (
    offset INTEGER PRIMARY KEY, append_ms INTEGER, id TEXT, logged_action INTEGER, logged_propensity REAL
);
CREATE TABLE feedback (offset INTEGER PRIMARY KEY, append_ms INTEGER, id TEXT, reward INTEGER, action INTEGER);
CREATE TABLE prediction (
    offset INTEGER PRIMARY KEY, id TEXT, context_offset INTEGER, action INTEGER, propensity REAL, decided_at_ms INTEGER,
    append_ms INTEGER, target_action INTEGER, target_propensity REAL, number INTEGER
);
CREATE TABLE example (
    offset INTEGER PRIMARY KEY, id TEXT, step INTEGER, number INTEGER, outcome TEXT, action INTEGER, propensity REAL,
    reward INTEGER, delay_ms INTEGER, settled_at_ms INTEGER, feedback_offset INTEGER
);
CREATE TABLE dead (offset INTEGER PRIMARY KEY, input INTEGER, of INTEGER, kind TEXT, step INTEGER);
"""

CONTEXTS, FEEDBACK = 0, 1
"""The two inputs, in the order in which records of the same time are applied."""


class ContextSeen(NamedTuple):
    """A context that can be read."""

    id: str
    offset: int
    append_ms: int
    logged: Logged | None  # what a log says, where it is looked at
    dead_letter: str | None  # the kind of its dead letter, if it has one


class FeedbackSeen(NamedTuple):
    """A feedback that can be read."""

    id: str
    offset: int
    append_ms: int
    reward: int
    action: int | None  # the one that it names
    dead_letter: str | None
    dead_in: int | None  # the step that wrote it


class PredictionSeen(NamedTuple):
    """A prediction that can be read."""

    id: str
    offset: int
    context_offset: int
    action: int
    propensity: float | None  # None: a log's action, of which it is not known
    decided_at_ms: int
    append_ms: int
    target: Target | None


class ExampleSeen(NamedTuple):
    """An example that can be read."""

    id: str
    offset: int
    step: int
    number: int  # of examples up to this one: they stand in the order in which decisions were settled
    outcome: Outcome
    action: int
    propensity: float | None
    reward: int | None
    delay_ms: int | None
    settled_at_ms: int
    feedback_offset: int | None


class Life(NamedTuple):
    """All records of one event id, each kind in the order of its offsets."""

    id: str
    contexts: list[ContextSeen]
    predictions: list[PredictionSeen]
    examples: list[ExampleSeen]
    feedback: list[FeedbackSeen]


class Place(NamedTuple):
    """When a record was applied, to be compared with other places."""

    step: int  # how many steps came before
    append_ms: int
    input: int
    offset: int

    @property
    def number(self) -> int:
        """The step's number, which is 1 for the first."""
        return self.step + 1


class Settlement(NamedTuple):
    """How a decision was settled."""

    step: int
    outcome: Outcome
    settled_at_ms: int
    decided_at_ms: int
    context: Place | None
    feedback: Place | None  # None: expired, or unmatched


class Unused(NamedTuple):
    """A record of an input that could not be read, or a dead letter of it that is missing or stands alone."""

    offset: int
    dead_letter: str | None


class Evidence:
    """The records of one partition, as the audit needs them."""

    def __init__(self) -> None:
        self._rows = sqlite3.connect("")  # a temporary file, deleted by SQLite, and not written as long as it fits
        self._rows.executescript(
            f"PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -{_CACHE_KIB};{_TABLES}"
        )
        self._steps = (array("q"), array("q"))  # where each step ended, in each input
        self._readings: list[tuple[int, Reading]] = []  # from each step on that read otherwise than the one before
        self._predictions_of: array[int] = array("q")  # by step
        self.examples = 0

    def add_step(self, contexts_end: int, feedback_end: int, reading: Reading) -> None:
        """Take in the next step of the journal: the offsets at which it ended, and how it read its records."""
        self._steps[CONTEXTS].append(contexts_end)
        self._steps[FEEDBACK].append(feedback_end)
        if not self._readings or self._readings[-1][1] != reading:
            self._readings.append((len(self._steps[CONTEXTS]) - 1, reading))

    def reading_of(self, step: int) -> Reading:
        """How a step, given by how many came before it, read its records."""
        return next(reading for first, reading in reversed(self._readings) if first <= step)

    def place(self, of_input: int, offset: int, append_ms: int) -> Place:
        """When a record was applied: in which step, and where in it."""
        return Place(bisect_right(self._steps[of_input], offset), append_ms, of_input, offset)

    def add_contexts(self, seen: Iterable[tuple[int, int, str | None, Logged | None]]) -> None:
        """Take in offsets, append times, ids and logged decisions of contexts; None for one that cannot be read."""
        self._insert("context", 5, ((*rest, *(logged or (None, None))) for *rest, logged in seen))

    def add_feedback(self, seen: Iterable[tuple[int, int, str | None, int | None, int | None]]) -> None:
        """Take in offsets, append times, ids, bits and actions of feedback; None for one that cannot be read."""
        self._insert("feedback", 5, seen)

    def add_predictions(self, seen: Iterable[tuple[PredictionSeen, int]]) -> None:
        """Take in predictions, each with the step that published it; steps never go down."""

        def rows() -> Iterator[tuple[Any, ...]]:
            for number, ((event_id, offset, *rest, target), step) in enumerate(seen, start=1):
                if len(self._predictions_of) <= step:
                    self._predictions_of.extend([0] * (step + 1 - len(self._predictions_of)))
                self._predictions_of[step] += 1
                yield offset, event_id, *rest, *(target or (None, None)), number

        self._insert("prediction", 10, rows())
        self._predicted_up_to = array("q", accumulate(self._predictions_of))

    def predictions_up_to(self, step: int) -> int:
        """How many predictions the steps up to one have published."""
        found = self._predicted_up_to
        return found[min(step, len(found) - 1)] if found and step >= 0 else 0

    def latencies_ms(self) -> Iterator[tuple[int, int]]:
        """How long after its context a prediction was appended, in ms, and how many were after so long."""
        query = """
            SELECT p.append_ms - c.append_ms, count(*) FROM prediction AS p JOIN context AS c ON c.offset = p.context_offset
            GROUP BY 1
        """  # noqa: E501
        yield from self._rows.execute(query)

    def add_examples(self, seen: Iterable[tuple[int, int, Example, int | None]]) -> None:
        """Take in examples with their offset, their step, and the offset of their feedback."""

        def rows() -> Iterator[tuple[Any, ...]]:
            for offset, step, example, feedback_offset in seen:
                self.examples += 1
                event_id, outcome, *rest, _ = example
                yield (offset, event_id, step, self.examples, outcome, *rest, feedback_offset)

        self._insert("example", 11, rows())

    def add_dead_letters(self, seen: Iterable[tuple[int, int, int, str, int]]) -> None:
        """Take in dead letters: their offset, of which input they are, of which offset in it, their kind and step."""
        self._insert("dead", 5, seen)
        self._rows.execute("CREATE INDEX dead_of ON dead (input, of)")

    def dead_letters_again(self) -> list[int]:
        """The offsets of dead letters of records that have an earlier one."""
        query = """
            SELECT offset FROM dead AS later
            WHERE EXISTS (SELECT 1 FROM dead AS d WHERE (d.input, d.of) = (later.input, later.of) AND d.offset < later.offset)
        """  # noqa: E501
        return [offset for (offset,) in self._rows.execute(query)]

    def unreadable(self, of_input: int) -> Iterator[Unused]:
        """The records of an input that cannot be read, with the kinds of their dead letters."""
        table = ("context", "feedback")[of_input]
        query = f"SELECT t.offset, {_DEAD} FROM {table} AS t WHERE t.id IS NULL"  # noqa: S608
        return map(Unused._make, self._rows.execute(query, (of_input,)))

    def predicted_for(self, context_offset: int) -> str | None:
        """Which event a prediction that names a context is of; None when there is none. Only faults ask this: it is slow."""  # noqa: E501
        query = "SELECT id FROM prediction WHERE context_offset = ?"
        found = self._rows.execute(query, (context_offset,)).fetchone()
        return None if found is None else found[0]

    def feedback_at(self, offset: int) -> FeedbackSeen | None:
        """The feedback at an offset; None when there is none that was applied and can be read."""
        query = f"SELECT {_FEEDBACK_COLUMNS} FROM feedback AS t WHERE t.offset = ?"  # noqa: S608
        found = self._rows.execute(query, (FEEDBACK, FEEDBACK, offset)).fetchone()
        return None if found is None or found[0] is None else FeedbackSeen(*found)

    def index_settlements(self) -> None:
        """Make `settlement` fast, which is asked only where settled ids were forgotten to make room."""
        for index in ("example (number)", "example (id, number)", "prediction (id, offset)", "prediction (number)"):
            name = re.sub(r"\W+", "_", index)
            self._rows.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {index}")

    def settlement(self, number: int) -> Settlement:
        """How a decision was settled, given by the number of its example; see `index_settlements`."""
        query = """
            SELECT e.step, e.outcome, e.settled_at_ms, e.id, f.offset, f.append_ms,
                (SELECT count(*) FROM example AS before WHERE before.id = e.id AND before.number < e.number)
            FROM example AS e LEFT JOIN feedback AS f ON f.offset = e.feedback_offset WHERE e.number = ?
        """
        step, outcome, settled_at_ms, event_id, *feedback, nth = self._rows.execute(query, (number,)).fetchone()
        query = """
            SELECT p.decided_at_ms, c.offset, c.append_ms FROM prediction AS p
            LEFT JOIN context AS c ON c.offset = p.context_offset WHERE p.id = ? ORDER BY p.offset LIMIT 1 OFFSET ?
        """
        decided_at_ms, *context = self._rows.execute(query, (event_id, nth)).fetchone() or (0, None, None)
        return Settlement(
            step, Outcome(outcome), settled_at_ms, decided_at_ms,
            None if context[0] is None else self.place(CONTEXTS, *context),
            None if feedback[0] is None else self.place(FEEDBACK, *feedback),
        )  # fmt: skip

    def decision_place(self, number: int) -> Place | None:
        """When a decision was made, given by the number of its prediction; None when there is none."""
        query = """
            SELECT c.offset, c.append_ms FROM prediction AS p JOIN context AS c ON c.offset = p.context_offset
            WHERE p.number = ?
        """
        found = self._rows.execute(query, (number,)).fetchone()
        return None if found is None else self.place(CONTEXTS, *found)

    def lives(self) -> Iterator[Life]:
        """The life of each event id, in the order of the ids."""
        streams: list[Iterator[tuple[str, int, Any]]] = [
            self._sorted(0, _context, _CONTEXT_COLUMNS, "context", (CONTEXTS,)),
            self._sorted(1, _prediction, _PREDICTION_COLUMNS, "prediction"),
            self._sorted(2, _example, "*", "example"),
            self._sorted(
                3,
                FeedbackSeen,
                _FEEDBACK_COLUMNS,
                "feedback",
                (FEEDBACK, FEEDBACK),
            ),
        ]
        for event_id, found in groupby(merge(*streams, key=itemgetter(0)), key=itemgetter(0)):
            kinds: tuple[list[Any], ...] = ([], [], [], [])
            for _, kind, seen in found:
                kinds[kind].append(seen)
            yield Life(event_id, *kinds)

    def close(self) -> None:
        """Delete what was kept."""
        self._rows.close()

    def _insert(self, table: str, columns: int, rows: Iterable[tuple[Any, ...]]) -> None:
        statement = f"INSERT INTO {table} VALUES ({', '.join('?' * columns)})"  # noqa: S608
        self._rows.executemany(statement, rows)

    def _sorted(
        self, kind: int, make: Any, columns: str, table: str, parameters: tuple[int, ...] = ()
    ) -> Iterator[tuple[str, int, Any]]:
        query = f"SELECT {columns} FROM {table} AS t WHERE t.id IS NOT NULL ORDER BY t.id, t.offset"  # noqa: S608
        for row in self._rows.execute(query, parameters):
            seen = make(*row)
            yield seen.id, kind, seen


_DEAD = "(SELECT kind FROM dead WHERE input = ? AND of = t.offset ORDER BY dead.offset LIMIT 1)"
_DEAD_IN = "(SELECT step FROM dead WHERE input = ? AND of = t.offset ORDER BY dead.offset LIMIT 1)"
_CONTEXT_COLUMNS = f"t.id, t.offset, t.append_ms, logged_action, logged_propensity, {_DEAD}"
_PREDICTION_COLUMNS = (
    "t.id, t.offset, context_offset, action, propensity, decided_at_ms, append_ms, target_action, target_propensity"
)
_FEEDBACK_COLUMNS = f"t.id, t.offset, t.append_ms, t.reward, t.action, {_DEAD}, {_DEAD_IN}"


def _context(
    event_id: str, offset: int, append_ms: int, action: int | None, propensity: float | None, dead_letter: str | None
) -> ContextSeen:
    return ContextSeen(event_id, offset, append_ms, None if action is None else Logged(action, propensity), dead_letter)


def _prediction(
    event_id: str,
    offset: int,
    context_offset: int,
    action: int,
    propensity: float | None,
    decided_at_ms: int,
    append_ms: int,
    target_action: int | None,
    target_propensity: float,
) -> PredictionSeen:
    target = None if target_action is None else Target(target_action, target_propensity)
    return PredictionSeen(event_id, offset, context_offset, action, propensity, decided_at_ms, append_ms, target)


def _example(offset: int, event_id: str, step: int, number: int, outcome: str, *rest: Any) -> ExampleSeen:
    return ExampleSeen(event_id, offset, step, number, Outcome(outcome), *rest)
