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

from stream.wire.events import Example, Feedback, Logged, Outcome, Target

_CACHE_KIB = 32_000  # of pages that SQLite keeps in memory, for each of its sorts too

_TABLES = """
CREATE TABLE context (
    offset INTEGER PRIMARY KEY, append_ms INTEGER, step INTEGER, order_ms INTEGER, id TEXT, logged_action INTEGER,
    logged_propensity REAL
);
CREATE TABLE feedback (
    offset INTEGER PRIMARY KEY, append_ms INTEGER, step INTEGER, order_ms INTEGER, stream_ms INTEGER, id TEXT,
    reward INTEGER, action INTEGER
);
CREATE TABLE advance (ms INTEGER PRIMARY KEY, offset INTEGER);
CREATE TABLE dated (of INTEGER PRIMARY KEY, ms INTEGER, offset INTEGER, stream_ms INTEGER, is_early INTEGER);
CREATE TABLE prediction (
    offset INTEGER PRIMARY KEY, id TEXT, step INTEGER, context_offset INTEGER, action INTEGER, propensity REAL,
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


class Place(NamedTuple):
    """When a record was applied, to be compared with other places."""

    step: int
    order_ms: int  # the largest append time of the step's records of this input so far: by it both inputs are merged
    input: int
    offset: int


class ContextSeen(NamedTuple):
    """A context that can be read."""

    id: str
    place: Place
    logged: Logged | None  # what a log says, where it is looked at
    dead_letter: str | None  # the kind of its dead letter, if it has one

    @property
    def offset(self) -> int:
        """Where it stands."""
        return self.place.offset


class FeedbackSeen(NamedTuple):
    """A feedback that can be read."""

    id: str
    place: Place
    append_ms: int
    stream_ms: int  # when it was applied
    reward: int
    action: int | None  # the one that it names
    dead_letter: str | None
    dead_in: int | None  # the step that wrote it

    @property
    def offset(self) -> int:
        """Where it stands."""
        return self.place.offset


class Dated(NamedTuple):
    """When a decision was made, and since when the task knew it."""

    ms: int
    offset: int  # of the tick that says so; -1: the task knew it at once
    stream_ms: int  # when the tick was applied
    is_early: bool  # before an earlier step was dated: by the tick of another program, or because that one's is missing


class PredictionSeen(NamedTuple):
    """A prediction that can be read."""

    id: str
    offset: int
    step: int  # that published it
    context_offset: int
    action: int
    propensity: float | None  # None: a log's action, of which it is not known
    append_ms: int
    target: Target | None
    dated: Dated | None = None  # None: its time is not known yet


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


class Settlement(NamedTuple):
    """How a decision was settled."""

    step: int
    outcome: Outcome
    settled_at_ms: int
    prediction: PredictionSeen | None  # None: it is missing
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
        self._stream_ms = array("q", [0])  # after each step, and before the first one
        self._predictions_of: array[int] = array("q")  # by step
        self._dated_by = "step"  # the column of a prediction by which its time is found
        self._dated_ms = 0  # the latest time of a decision
        self._undated = 1  # the first step that has decided and is not dated
        self._early: set[int] = set()  # dated steps after that one
        self.latest_dated = 0  # of the steps
        self.examples = 0

    def add_step(self, contexts_end: int, feedback_end: int) -> None:
        """Take in the next step of the journal: the offsets at which it ended."""
        self._steps[CONTEXTS].append(contexts_end)
        self._steps[FEEDBACK].append(feedback_end)

    def step_of(self, of_input: int, offset: int) -> int:
        """The step that applied a record."""
        return bisect_right(self._steps[of_input], offset) + 1

    def feedback_end(self, step: int) -> int:
        """Where a step ended in the feedback."""
        return self._steps[FEEDBACK][step - 1] if step > 0 else 0

    def stream_ms(self, step: int) -> int:
        """Stream time after a step."""
        return self._stream_ms[max(0, min(step, len(self._stream_ms) - 1))]

    def advance_after(self, ms: int) -> tuple[int, int] | None:
        """The first stream time after this one, and the offset of the feedback record that has it; None: none yet."""
        found: tuple[int, int] | None = self._rows.execute(
            "SELECT ms, offset FROM advance WHERE ms > ? ORDER BY ms LIMIT 1", (ms,)
        ).fetchone()
        return found

    def add_predictions(self, seen: Iterable[PredictionSeen]) -> None:
        """Take in predictions, in the order of their offsets."""

        def rows() -> Iterator[tuple[Any, ...]]:
            for number, (event_id, offset, step, *rest, target, _) in enumerate(seen, start=1):
                if len(self._predictions_of) <= step:
                    self._predictions_of.extend([0] * (step + 1 - len(self._predictions_of)))
                self._predictions_of[step] += 1
                yield offset, event_id, step, *rest, *(target or (None, None)), number

        self._insert("prediction", 10, rows())
        self._predicted_up_to = array("q", accumulate(self._predictions_of))

    def add_contexts(self, seen: Iterable[tuple[int, int, str | None, Logged | None]]) -> None:
        """Take in offsets, append times, ids and logged decisions of contexts; None for one that cannot be read."""
        placed = self._placed(CONTEXTS, seen)
        self._insert("context", 7, ((*rest, *(logged or (None, None))) for *rest, logged in placed))

    def add_feedback(self, seen: Iterable[tuple[int, int, Feedback | int | None]]) -> None:
        """Take in what the feedback partition holds, when the predictions are taken in.

        Args:
            seen: offset, append time, and what it is: feedback, a tick of this step, or a record that cannot be read.
        """

        def rows() -> Iterator[tuple[Any, ...]]:
            stream_ms = 0
            for offset, append_ms, step, order_ms, event in self._placed(FEEDBACK, seen):
                self._stream_ms.extend([stream_ms] * (step - len(self._stream_ms)))
                if append_ms > stream_ms:
                    stream_ms = append_ms
                    self._rows.execute("INSERT INTO advance VALUES (?, ?)", (stream_ms, offset))
                if isinstance(event, int):
                    if event < step:
                        self._date(event, offset, append_ms, stream_ms)
                else:
                    said = (None, None, None) if event is None else (event.id, event.reward, event.action)
                    yield offset, append_ms, step, order_ms, stream_ms, *said
            self._stream_ms.extend([stream_ms] * (len(self._steps[FEEDBACK]) + 1 - len(self._stream_ms)))

        self._insert("feedback", 8, rows())

    def date_by_contexts(self) -> None:
        """Date decisions by their contexts, when these and the predictions are taken in, and not by ticks."""
        self._dated_by = "context_offset"
        self._rows.executescript("""
            DELETE FROM dated;
            INSERT INTO dated SELECT offset, max(append_ms) OVER (ORDER BY offset), -1, 0, 0 FROM context
            WHERE offset IN (SELECT context_offset FROM prediction);
        """)

    def undated(self) -> Iterator[int]:
        """The steps that have decided and are not dated yet, if it is by ticks."""
        for step in range(self._undated, len(self._predictions_of)):
            if self._predictions_of[step] and step not in self._early:
                yield step

    def _placed(self, of_input: int, seen: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Add to offsets and append times the step that applied the record, and the time by which that merged it."""
        last = order_ms = 0
        for offset, append_ms, *rest in seen:
            step = self.step_of(of_input, offset)
            order_ms = max(append_ms, order_ms) if step == last else append_ms
            last = step
            yield offset, append_ms, step, order_ms, *rest

    def _date(self, step: int, offset: int, append_ms: int, stream_ms: int) -> None:
        """Date the decisions of a step by a tick, if it has made some and no tick has dated them before."""
        predictions, early = self._predictions_of, self._early
        if not self._undated <= step < len(predictions) or not predictions[step] or step in early:
            return
        early.add(step)
        self.latest_dated = max(self.latest_dated, step)
        while self._undated in early or (self._undated < len(predictions) and not predictions[self._undated]):
            early.discard(self._undated)
            self._undated += 1
        self._dated_ms = max(self._dated_ms, append_ms)
        dated = (step, self._dated_ms, offset, stream_ms, step in early)
        self._rows.execute("INSERT INTO dated VALUES (?, ?, ?, ?, ?)", dated)

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
        return None if found is None or found[0] is None else _feedback(*found)

    def index_settlements(self) -> None:
        """Make `settlement` fast, which is asked only where settled ids were forgotten to make room."""
        for index in ("example (number)", "example (id, number)", "prediction (id, offset)", "prediction (number)"):
            name = re.sub(r"\W+", "_", index)
            self._rows.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {index}")

    def settlement(self, number: int) -> Settlement:
        """How a decision was settled, given by the number of its example; see `index_settlements`."""
        query = """
            SELECT e.step, e.outcome, e.settled_at_ms, e.id, f.step, f.order_ms, f.offset,
                (SELECT count(*) FROM example AS before WHERE before.id = e.id AND before.number < e.number)
            FROM example AS e LEFT JOIN feedback AS f ON f.offset = e.feedback_offset WHERE e.number = ?
        """
        step, outcome, settled_at_ms, event_id, *feedback, nth = self._rows.execute(query, (number,)).fetchone()
        query = f"""
            SELECT c.step, c.order_ms, c.offset, {_PREDICTION_COLUMNS} FROM {self._dated_predictions}
            LEFT JOIN context AS c ON c.offset = t.context_offset WHERE t.id = ? ORDER BY t.offset LIMIT 1 OFFSET ?
        """  # noqa: S608
        found = self._rows.execute(query, (event_id, nth)).fetchone() or (None,) * 3
        return Settlement(
            step, Outcome(outcome), settled_at_ms,
            _prediction(*found[3:]) if found[3:] else None,
            _place(CONTEXTS, *found[:3]),
            _place(FEEDBACK, *feedback),
        )  # fmt: skip

    def decision_place(self, number: int) -> Place | None:
        """When a decision was made, given by the number of its prediction; None when there is none."""
        query = """
            SELECT c.step, c.order_ms, c.offset FROM prediction AS p JOIN context AS c ON c.offset = p.context_offset
            WHERE p.number = ?
        """
        return _place(CONTEXTS, *(self._rows.execute(query, (number,)).fetchone() or (None,) * 3))

    def lives(self) -> Iterator[Life]:
        """The life of each event id, in the order of the ids."""
        streams: list[Iterator[tuple[str, int, Any]]] = [
            self._sorted(0, _context, _CONTEXT_COLUMNS, "context AS t", (CONTEXTS,)),
            self._sorted(1, _prediction, _PREDICTION_COLUMNS, self._dated_predictions),
            self._sorted(2, _example, "*", "example AS t"),
            self._sorted(3, _feedback, _FEEDBACK_COLUMNS, "feedback AS t", (FEEDBACK, FEEDBACK)),
        ]
        for event_id, found in groupby(merge(*streams, key=itemgetter(0)), key=itemgetter(0)):
            kinds: tuple[list[Any], ...] = ([], [], [], [])
            for _, kind, seen in found:
                kinds[kind].append(seen)
            yield Life(event_id, *kinds)

    def close(self) -> None:
        """Delete what was kept."""
        self._rows.close()

    @property
    def _dated_predictions(self) -> str:
        return f"prediction AS t LEFT JOIN dated AS d ON d.of = t.{self._dated_by}"

    def _insert(self, table: str, columns: int, rows: Iterable[tuple[Any, ...]]) -> None:
        statement = f"INSERT INTO {table} VALUES ({', '.join('?' * columns)})"  # noqa: S608
        self._rows.executemany(statement, rows)

    def _sorted(
        self, kind: int, make: Any, columns: str, table: str, parameters: tuple[int, ...] = ()
    ) -> Iterator[tuple[str, int, Any]]:
        query = f"SELECT {columns} FROM {table} WHERE t.id IS NOT NULL ORDER BY t.id, t.offset"  # noqa: S608
        for row in self._rows.execute(query, parameters):
            seen = make(*row)
            yield seen.id, kind, seen


_DEAD = "(SELECT kind FROM dead WHERE input = ? AND of = t.offset ORDER BY dead.offset LIMIT 1)"
_DEAD_IN = "(SELECT step FROM dead WHERE input = ? AND of = t.offset ORDER BY dead.offset LIMIT 1)"
_CONTEXT_COLUMNS = f"t.id, t.step, t.order_ms, t.offset, logged_action, logged_propensity, {_DEAD}"
_PREDICTION_COLUMNS = (
    "t.id, t.offset, t.step, t.context_offset, t.action, t.propensity, t.append_ms, t.target_action, "
    "t.target_propensity, d.ms, d.offset, d.stream_ms, d.is_early"
)
_FEEDBACK_COLUMNS = f"""
    t.id, t.step, t.order_ms, t.offset, t.append_ms, t.stream_ms, t.reward, t.action, {_DEAD}, {_DEAD_IN}
"""


def _place(of_input: int, step: int | None, order_ms: int, offset: int) -> Place | None:
    return None if step is None else Place(step, order_ms, of_input, offset)


def _context(
    event_id: str, step: int, order_ms: int, offset: int, action: int | None, propensity: float | None, *rest: Any
) -> ContextSeen:
    logged = None if action is None else Logged(action, propensity)
    return ContextSeen(event_id, Place(step, order_ms, CONTEXTS, offset), logged, *rest)


def _feedback(event_id: str, step: int, order_ms: int, offset: int, *rest: Any) -> FeedbackSeen:
    return FeedbackSeen(event_id, Place(step, order_ms, FEEDBACK, offset), *rest)


def _prediction(*row: Any) -> PredictionSeen:
    target, dated = Target._make(row[7:9]), Dated._make(row[9:])
    return PredictionSeen._make((*row[:7], *(None if one[0] is None else one for one in (target, dated))))


def _example(offset: int, event_id: str, step: int, number: int, outcome: str, *rest: Any) -> ExampleSeen:
    return ExampleSeen(event_id, offset, step, number, Outcome(outcome), *rest)
