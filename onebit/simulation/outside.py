"""Clients other than learners, which send contexts, feedback and other records according to a schedule."""

from contextlib import suppress
from typing import Any

import orjson
from msgspec.structs import asdict

from onebit.simulation.schedule import N_CLASSES, N_FEATURES, SHOWN, Item, ItemKind, class_name, feature_name, offer_of
from onebit.simulation.tracing import FOREIGN_IN_LOG, Trace
from stream.kafka.embedded import EmbeddedBroker
from stream.kafka.port import BrokerUnavailableError, Producer, TransactionalProducer
from stream.recovery.control import read_requests
from stream.task.answers import PARTS_MAX
from stream.task.settings import TaskSettings
from stream.task.stored_settings import stored_settings
from stream.wire.codec import HEADERS
from stream.wire.control import Replaced, Request, encode_request
from stream.wire.records import Headers, TopicPartition
from stream.wire.topics import Topics, partition_for

PREFIX = "sim."
TOPICS = Topics.with_prefix(PREFIX)
INPUTS = (TOPICS.contexts, TOPICS.feedback)
LOG = TopicPartition(TOPICS.updates, 0)

Content = tuple[bytes | None, Headers]
"""A record's value and headers."""

# These records are malformed with all sizes that a request can ask for.
POISON_CONTEXTS: tuple[Content, ...] = (
    (b"{", HEADERS),
    (None, HEADERS),
    (b"[]", HEADERS),
    (b'{"x":{"i":[0]}}', HEADERS),
    (b'{"id":"p","x":{"i":[2,1]}}', HEADERS),
    (b'{"id":"p","x":{"i":[99]}}', HEADERS),
    (b'{"id":"p","x":[1,2]}', HEADERS),
    (b'{"id":"p","x":{"i":[0]},"deferred":null}', HEADERS),
    (b'{"id":"p","x":{"i":[0]}}', (("onebit-version", b"9"),)),
)
POISON_FEEDBACK: tuple[Content, ...] = (
    (b"", HEADERS),
    (None, HEADERS),
    (b'{"id":"p","reward":2,"label":0}', HEADERS),
    (b'{"id":"p","reward":"1","label":0}', HEADERS),
    (b'{"id":"p","reward":1,"label":0,"action":99}', HEADERS),
    (b'{"reward":1,"label":0}', HEADERS),
    (b'{"id":"p","reward":1,"label":99}', HEADERS),
    (b'{"id":"","reward":1,"label":0}', HEADERS),
    (b'{"id":"p","shown":false}', HEADERS),
    (b'{"id":"p","shown":1}', HEADERS),
)
FOREIGN_OUTPUTS: tuple[Content, ...] = (
    (b"{", ()),
    (None, (("onebit-step", b"x"),)),
    (b'{"id":"e0"}', HEADERS),
)

_FEATURES = tuple({"i": [n % 3, 3 + n % 2, 5 + n % (N_FEATURES - 5)], "v": [1 + n % 4, 0.5, -1.25]} for n in range(24))

Place = tuple[TopicPartition, int]
"""A partition and an offset."""


def label_of(event_id: str) -> int:
    """Return the true class to include in feedback for learners that use it."""
    return int(event_id[1:]) % N_CLASSES


def reward_of(item: Item, task: TaskSettings) -> float:
    """Return the reward in feedback: the item's bit, or a number that depends on the bit, the event and the part.

    Some parts of a sum are outside the range.
    """
    if task.graded is None:
        return item.bit
    number = (2 * int(item.id[1:]) + item.bit + 3 * item.part * (task.feedback != "first")) % 7
    return task.graded.value((number - 2) / 3 if task.feedback == "sum" else number / 6)


def action_of(k: int) -> dict[str, Any]:
    """Return an action with its features, as in a context. Some of the features are 0 or missing."""
    return {"id": class_name(k), "x": [0.5 * k, 1.0 - k]} if k % 3 else {"id": class_name(k)}


class Outside:
    """All clients except the learners."""

    def __init__(self, broker: EmbeddedBroker, partitions: int, trace: Trace, task: TaskSettings) -> None:
        # Each input record's item, by topic, partition and offset, so that the checks need not decode the record.
        self.sent: dict[tuple[str, int, int], Item] = {}
        self.foreign_outputs: set[Place] = set()  # committed records from other clients in the learners' topics
        self._broker = broker
        self._partitions = partitions
        self._trace = trace
        self._task = task
        self._producer: Producer = broker.producer()
        # Other clients' open transactions by number, each with its records in the learners' topics.
        self._foreign: dict[int, tuple[TransactionalProducer, list[Place]]] = {}
        self._latest_fed = -1

    def do(self, item: Item) -> None:
        """Execute an item in the schedule."""
        self._trace.note("world", item.text())
        kind = item.kind
        if kind in (ItemKind.CONTEXT, ItemKind.CONTEXT_AGAIN, ItemKind.FOREIGN_CONTEXT):
            self._send_context(item)
        elif kind in (ItemKind.CONTEXT_POISON, ItemKind.FEEDBACK_POISON):
            self._send_poison(item)
        elif kind is ItemKind.FOREIGN_BEGIN:
            producer = self._broker.transactional_producer(f"foreign-{item.number}")
            producer.begin()
            self._foreign[item.number] = producer, []
        elif kind is ItemKind.FOREIGN_OUTPUT:
            self._send_output(item)
        elif kind in (ItemKind.FOREIGN_COMMIT, ItemKind.FOREIGN_ABORT):
            self._end_foreign(item.number, commits=kind is ItemKind.FOREIGN_COMMIT)
        elif kind in SHOWN:
            self._send_event(item, TOPICS.feedback, {"shown": True})
        elif kind is ItemKind.CHANGE:
            self._send_request(item)
        elif kind is ItemKind.FEEDBACK_MANY:
            for part in range(PARTS_MAX + 1):
                self._send_feedback(item._replace(part=part))
        elif kind not in (ItemKind.FEEDBACK_LOST, ItemKind.SHOWN_NEVER, ItemKind.TIME):
            self._send_feedback(item)
        self._trace.fired[kind] += 1

    def abort_transactions(self) -> None:
        """Abort other clients' open transactions."""
        for number in list(self._foreign):
            self._end_foreign(number, commits=False)

    def _send_context(self, item: Item) -> None:
        x: dict[str, Any] = dict(_FEATURES[int(item.id[1:]) % len(_FEATURES)])
        if item.feature is not None:
            x = {"i": [*x["i"], item.feature], "v": [*x["v"], 2.0]}
        if item.has_names:
            x = dict(zip(map(feature_name, x["i"]), x["v"], strict=True))
        fields: dict[str, Any] = {"x": x}
        if item.logged is not None:
            fields["logged"] = asdict(item.logged)
        has_names = self._task.open_classes or self._task.class_names is not None
        if self._task.actions is not None:
            has_names = True
            fields["actions"] = [action_of(k) for k in offer_of(item.id)]
        if item.eligible is not None:
            fields["eligible"] = [class_name(k) if has_names else k for k in item.eligible]
        if item.baseline is not None:
            fields["baseline"] = class_name(item.baseline) if has_names else item.baseline
        if item.deferred:
            fields["deferred"] = True
        self._send_event(item, TOPICS.contexts, fields)

    def _send_feedback(self, item: Item) -> None:
        action = class_name(item.action) if item.action is not None and self._task.actions is not None else item.action
        reward, label = reward_of(item, self._task), label_of(item.id)
        fields: dict[str, Any] = {"reward": reward, "label": label, "action": action}
        if self._task.feedback != "first":
            fields |= {"part": f"p{item.part}", "final": item.final}
        self._send_event(item, TOPICS.feedback, fields)
        if item.kind is ItemKind.FEEDBACK:
            event = int(item.id[1:])
            self._trace.fired["reordered feedback"] += event < self._latest_fed
            self._latest_fed = max(self._latest_fed, event)

    def _send_event(self, item: Item, topic: str, fields: dict[str, Any]) -> None:
        key, value = item.id.encode(), orjson.dumps({"id": item.id, **fields})
        self._send(item, TopicPartition(topic, partition_for(key, self._partitions)), key, (value, HEADERS))

    def _send_request(self, item: Item) -> None:
        requests = read_requests(self._broker, TOPICS)
        now = stored_settings(requests.after(self._task, 0).settings)
        changes = {name: Replaced("stale" if item.is_stale else now.get(name), value) for name, value in item.changes}
        number = requests.end - (requests.end % 4 == 3)  # every fourth id is that of the request before
        request = Request(f"r{number}", "outside", changes)
        self._producer.send(TOPICS.control, 0, None, encode_request(request), HEADERS)

    def _send_poison(self, item: Item) -> None:
        contexts = item.kind is ItemKind.CONTEXT_POISON
        topic = TOPICS.contexts if contexts else TOPICS.feedback
        poisons = POISON_CONTEXTS if contexts else POISON_FEEDBACK
        tp = TopicPartition(topic, item.number % self._partitions)
        self._send(item, tp, None, poisons[item.number % len(poisons)])

    def _send_output(self, item: Item) -> None:
        if item.number not in self._foreign:
            return
        producer, places = self._foreign[item.number]
        in_log = PREFIX + item.call == TOPICS.updates
        tp = TopicPartition(PREFIX + item.call, 0 if in_log else item.member % self._partitions)
        places.append((tp, self._broker.log(tp).end()))
        producer.send(*tp, b"foreign", *FOREIGN_OUTPUTS[item.member % len(FOREIGN_OUTPUTS)])
        self._trace.fired[FOREIGN_IN_LOG] += in_log

    def _send(self, item: Item, tp: TopicPartition, key: bytes | None, content: Content) -> None:
        self.sent[*tp, self._broker.log(tp).end()] = item
        is_foreign = item.kind in (ItemKind.FOREIGN_CONTEXT, ItemKind.FOREIGN_FEEDBACK) and item.number in self._foreign
        producer = self._foreign[item.number][0] if is_foreign else self._producer
        producer.send(*tp, key, *content)

    def _end_foreign(self, number: int, *, commits: bool) -> None:
        if number not in self._foreign:
            return
        producer, places = self._foreign.pop(number)
        if commits:
            with suppress(BrokerUnavailableError):  # raised if the records are not replicated
                producer.commit()
                self.foreign_outputs |= set(places)
        producer.abort()  # does nothing after a commit
