"""The predictions of a task's steps are read back step by step, and are those of the journal or refused."""

import numpy as np
import pytest

from stream.journal.commit import predictions_digest
from stream.journal.format import JournalStep, LogStep, UnrecoverableError
from stream.journal.published import Published
from stream.kafka.embedded import EmbeddedBroker
from stream.wire.codec import encode_prediction, step_headers
from stream.wire.events import Decision, Prediction
from stream.wire.ledger import Ledger
from stream.wire.records import Foreign
from tests.pipeline import TOPICS

STEPS = {2: ["a", "b"], 3: [], 4: ["c"], 5: ["d", "e", "f"]}


def value(event_id: str) -> bytes:
    return encode_prediction(Prediction(event_id, Decision(1, 1, 0.5, np.zeros(3)), 0), 0)


def journal_step(number: int, ids: list[str]) -> JournalStep:
    log = LogStep(0, 0, 0, len(ids), predictions_digest(map(value, ids)))
    return JournalStep(number, (0, 0), (0, 0), 0, Ledger(), log=log)


def written() -> EmbeddedBroker:
    """The predictions of all steps."""
    broker = EmbeddedBroker()
    broker.create_topics(TOPICS.specs(1, shares_model=True))
    for number, ids in STEPS.items():
        for event_id in ids:
            send(broker, number, event_id)
    return broker


def send(broker: EmbeddedBroker, number: int, event_id: str) -> None:
    broker.producer().send(TOPICS.predictions, 0, event_id.encode(), value(event_id), step_headers(number))


def read(published: Published, number: int) -> list[str]:
    return [event_id for event_id, _ in published.decisions(journal_step(number, STEPS[number]))]


@pytest.mark.parametrize(("first", "steps"), [(0, [2, 3, 4, 5]), (0, [4, 5]), (2, [3, 4, 5]), (1, [5])])
def test_steps_are_read_from_any_step_on(first: int, steps: list[int]) -> None:
    published = Published(written(), TOPICS, 0, first)
    assert [read(published, number) for number in steps] == [STEPS[number] for number in steps]


def test_records_without_the_number_of_a_step_are_skipped_and_counted() -> None:
    broker = written()
    broker.producer().send(TOPICS.predictions, 0, None, b"{}", ())
    after = journal_step(6, ["g"])
    send(broker, 6, "g")
    published = Published(broker, TOPICS, 0, 0)
    assert [event_id for event_id, _ in published.decisions(after)] == ["g"]
    assert published.foreign == Foreign(1, f"{TOPICS.predictions}/0 offset 6")


@pytest.mark.parametrize("ids", [["a", "b", "c"], ["b", "a"], ["a", "x"]], ids=["more", "other order", "another"])
def test_predictions_that_differ_from_the_digest_are_refused(ids: list[str]) -> None:
    published = Published(written(), TOPICS, 0, 0)
    with pytest.raises(UnrecoverableError):
        published.decisions(journal_step(2, ids))


def test_predictions_that_were_deleted_are_refused() -> None:
    broker = written()
    broker.delete_topics([TOPICS.predictions])
    broker.create_topics(TOPICS.specs(1, shares_model=True))
    with pytest.raises(UnrecoverableError):
        read(Published(broker, TOPICS, 0, 0), 2)


def test_records_that_were_appended_again_hide_no_step() -> None:
    broker = written()
    for number in (4, 2, 3, 2):
        for _ in range(5):
            send(broker, number, "again")
    after = {6: ["g"], 7: ["h", "i"]}
    for number, ids in after.items():
        for event_id in ids:
            send(broker, number, event_id)
    for first in (5, 6, 7):
        published = Published(broker, TOPICS, 0, first)
        for number, ids in {5: STEPS[5], **after}.items():
            if number >= first:
                assert [event_id for event_id, _ in published.decisions(journal_step(number, ids))] == ids
