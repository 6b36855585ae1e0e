"""`onebit tail` and `onebit dead-letters requeue` on an embedded pipeline's topics."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from onebit.cli import tail
from stream.errors import ExitCode
from stream.kafka.port import Broker
from stream.wire.codec import tick_headers
from tests.cli.conftest import Onebit
from tests.pipeline import TOPICS, Pipeline, run_until_idle, small_task


@pytest.fixture
def pipeline(on_broker: Callable[[Broker], None]) -> Pipeline:
    """A pipeline in which `a` is matched, `b` is pending, and a third context is malformed."""
    made = Pipeline(small_task())
    made.context("a", 1)
    made.context("b", 1)
    made.send(TOPICS.contexts, b"?", key=b"c")
    learner = made.learner()
    run_until_idle(learner)
    made.clock.now_ms += 500
    made.answer("a", 1)
    run_until_idle(learner)
    learner.close()

    on_broker(made.broker)
    return made


def places(reported: str) -> list[str]:
    return [line.split(" ")[1] for line in reported.splitlines()]


def test_tail_with_an_id_prints_the_records_of_this_event_in_all_topics(onebit: Onebit, pipeline: Pipeline) -> None:
    reported = onebit("tail", "--id", "a")
    assert places(reported.out) == ["contexts/0@0", "predictions/0@0", "feedback/0@1", "examples/0@0"]
    assert 'outcome="matched"' in reported.out.splitlines()[-1]


def test_tail_with_an_unknown_id_says_so(onebit: Onebit, pipeline: Pipeline) -> None:
    found, none = onebit("tail", "--id", "a"), onebit("tail", "--id", "nosuch")
    assert (none.code, none.out) == (ExitCode.OK, "")
    assert "'nosuch'" in none.err
    assert "no record" not in found.err


def test_newest_records_are_printed_in_order(onebit: Onebit, pipeline: Pipeline) -> None:
    assert places(onebit("tail", "--last", "2").out) == ["feedback/0@1", "examples/0@0"]
    assert places(onebit("tail").out) == [
        "contexts/0@0", "contexts/0@1", "contexts/0@2", "predictions/0@0", "predictions/0@1", "dead-letter/0@0",
        "feedback/0@1", "examples/0@0",
    ]  # fmt: skip


def test_ticks_are_hidden(onebit: Onebit, pipeline: Pipeline) -> None:
    assert places(onebit("tail", "feedback", "--since", "0").out) == ["feedback/0@1"]


def test_newest_feedback_is_found_despite_many_later_ticks(onebit: Onebit, pipeline: Pipeline) -> None:
    for step in range(100):
        pipeline.broker.producer().send(TOPICS.feedback, 0, None, None, tick_headers(step))
    assert places(onebit("tail", "feedback", "--last", "1").out) == ["feedback/0@1"]


@pytest.mark.parametrize("since", ["1200", "1970-01-01T00:00:01.2"])
def test_records_since_a_time_are_printed(onebit: Onebit, pipeline: Pipeline, since: str) -> None:
    assert places(onebit("tail", "--since", since).out) == ["feedback/0@1", "examples/0@0"]
    assert onebit("tail", "--since", "5m").out == ""  # the pipeline's virtual clock is set to 1970
    assert datetime.now(UTC).year > 1970


def test_single_topic_is_printed_as_json(onebit: Onebit, pipeline: Pipeline) -> None:
    [line] = onebit("tail", "dead-letter", "--json").out.splitlines()
    assert {name: json.loads(line)[name] for name in ("topic", "offset", "key", "value")} == {
        "topic": TOPICS.dead_letter, "offset": 0, "key": "c", "value": "?",
    }  # fmt: skip


def test_tail_follows_new_records(onebit: Onebit, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    show, shown = tail._show, list[str]()

    def show_and_write(record: Any, topics: Any, *, json: bool) -> None:
        shown.append(record.key.decode())
        if len(shown) == 2:
            raise KeyboardInterrupt
        pipeline.context("next", 1)
        show(record, topics, json=json)

    monkeypatch.setattr(tail, "_show", show_and_write)
    assert onebit("tail", "contexts", "--last", "1", "--follow").code == ExitCode.INTERRUPTED
    assert shown == ["c", "next"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("prediction",), "TOPIC: expected one of contexts, predictions, feedback, examples, dead-letter, journal, "
         "snapshots; did you mean predictions?"),
        (("--since", "noon"), "--since: expected a duration such as 5m, or a time; expected a time such as"),
    ],
)  # fmt: skip
def test_invalid_tail_arguments_are_rejected(
    onebit: Onebit, pipeline: Pipeline, arguments: tuple[str, ...], message: str
) -> None:
    raised = onebit("tail", *arguments)
    assert raised.code == ExitCode.USAGE
    assert message in raised.err


def test_dead_letters_with_the_given_reason_are_requeued_after_a_dry_run(onebit: Onebit, pipeline: Pipeline) -> None:
    why = "dead-letter/0@0 contexts/0@2 malformed: value: expected JSON"
    none = onebit("dead-letters", "requeue", "--reason", "orphan")
    assert none.out == "0 written back to their topics, 0 skipped\n"
    dry = onebit("dead-letters", "requeue", "--reason", "expected JSON", "--dry-run").out.splitlines()
    assert dry[0].startswith(why)
    assert dry[0].endswith(": would be written to its topic again")
    assert dry[1] == "1 would be written back to their topics, 0 skipped"
    assert len(pipeline.records(TOPICS.contexts)) == 3
    for message, again in (("written to its topic again", 4), ("skipped: already written to its topic again", 4)):
        done = onebit("dead-letters", "requeue", "--reason", "malformed").out.splitlines()
        assert done[0].endswith(f": {message}")
        assert len(pipeline.records(TOPICS.contexts)) == again
