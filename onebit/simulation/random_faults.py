"""Random faults, transactions of other producers, and deletions by retention."""

from itertools import pairwise

from onebit.simulation.schedule import IN_COMMIT, SHARED_FAULTS, START_MS, TIMED_FAULTS, TIMELESS_FAULTS, Item, ItemKind
from stream.randomness.draws import Luck
from stream.recovery.commit import COMMIT_STEPS

CALLS = ("poll", "ends", "begin", "flush", "send_offsets", "commit", "transactional_producer", "group_consumer")
"""Broker operations during which a learner can crash, or that the broker can refuse."""

NUMBERS = {
    ItemKind.CRASH_IN_RECOVERY: (1, 4),  # number of the call, counted from when the fault is armed
    ItemKind.CRASH_IN_SNAPSHOT: (1, 4),
    ItemKind.COMMIT_REPEATED: (1, 8),  # number of the write in the next transaction
    ItemKind.MOVE_IN_SNAPSHOT: (1, 4),
    ItemKind.PAUSE: (1, 30),  # 30 calls cover several steps, or most of a recovery
    ItemKind.SLOW: (1, 4),  # ms per operation
    ItemKind.LAG: (1, 40),  # number of requests answered with the old end
    ItemKind.HOLD: (0, 2),  # the partition
}
"""The range of an item's `number`, by kind of fault."""

HELD_TOPICS = (
    "feedback", "feedback", "feedback", "feedback", "contexts", "contexts", "predictions", "examples", "dead-letter",
    "journal", "snapshots",
)  # fmt: skip
"""Topics whose replication can stop, so that their high watermarks do not advance."""

TARGETS = {ItemKind.CRASH_IN_CALL: CALLS, ItemKind.REFUSED: CALLS, ItemKind.HOLD: HELD_TOPICS}
"""The operations or topics that a fault can affect."""

FOREIGN_TOPICS = ("predictions", "examples", "dead-letter")
"""The learners' topics that other clients write to. Writing to the snapshots topic would break the pipeline."""


def draw_faults(luck: Luck, end_ms: int, *, timeless: bool) -> list[Item]:
    """Generate up to 16 faults at random times."""
    kinds = TIMELESS_FAULTS if timeless else TIMED_FAULTS
    faults = [luck.choice(kinds) for _ in range(luck.between(0, 6))]
    if not timeless:
        faults += [ItemKind.PAUSE] * luck.choice((0, 0, 2, 10))
    return [draw_fault(luck, kind, end_ms, timeless=timeless) for kind in faults]


def draw_fault(luck: Luck, kind: ItemKind, end_ms: int, *, timeless: bool) -> Item:
    """Generate a fault of this kind at a random time."""
    number, call = 0, ""
    if kind in IN_COMMIT:
        number = luck.choice(COMMIT_STEPS)
    elif kind in NUMBERS:
        number = luck.between(*NUMBERS[kind])
    if kind in TARGETS:
        call = luck.choice(TARGETS[kind])
    takes_ms = luck.choice((0, 5, 20, 80))
    if kind in (ItemKind.OUTAGE, ItemKind.SLEEP, ItemKind.HOLD):
        takes_ms = max(takes_ms, 5)
    elif kind is ItemKind.SLOW:
        takes_ms = luck.choice((100, 200, 400))
    elif kind is ItemKind.PAUSE:
        takes_ms = max(takes_ms, luck.between(1, 12))
    return Item(
        luck.between(START_MS, end_ms),
        kind,
        member=luck.below(3),
        number=number,
        call=call,
        for_ms=0 if timeless or kind is ItemKind.LAG else takes_ms,
    )


def draw_shared(luck: Luck, end_ms: int, *, timeless: bool) -> list[Item]:
    """Generate faults in the shared model's log, and records that another producer writes to the log by mistake."""
    faults = [luck.choice(SHARED_FAULTS) for _ in range(luck.below(4))]
    items = [draw_fault(luck, kind, end_ms, timeless=timeless) for kind in faults]
    if not timeless and luck.chance(30):
        items.append(draw_fault(luck, ItemKind.HOLD, end_ms, timeless=False)._replace(call=_LOG_TOPIC))
    for number in range(_FOREIGN_TO_LOG, _FOREIGN_TO_LOG + luck.choice((0, 0, 1, 2))):
        first_ms = luck.between(START_MS, end_ms)
        last_ms = first_ms + luck.choice((0, 10, 60))
        ends = ItemKind.FOREIGN_COMMIT if luck.chance(60) else ItemKind.FOREIGN_ABORT
        items.append(Item(first_ms, ItemKind.FOREIGN_BEGIN, number=number))
        items += [
            Item(first_ms, ItemKind.FOREIGN_OUTPUT, member=luck.below(6), number=number, call=_LOG_TOPIC)
            for _ in range(luck.between(1, 2))
        ]
        items.append(Item(last_ms, ends, number=number))
    return items


_FOREIGN_TO_LOG = 10
"""Lowest number of a transaction in which another producer writes to the shared model's log. Other kinds of
transactions have lower numbers.
"""

_LOG_TOPIC = "updates"


def put_in_transactions(luck: Luck, items: list[Item]) -> None:
    """Have another producer write some contexts and feedback in transactions that commit later or abort.

    The producer also writes to the learners' topics by mistake.
    """
    kinds = luck.choice(
        (_FOREIGN, {ItemKind.CONTEXT: ItemKind.FOREIGN_CONTEXT}, {ItemKind.FEEDBACK: ItemKind.FOREIGN_FEEDBACK})
    )
    for number in range(luck.between(1, 2)):
        chosen = [index for index, item in enumerate(items) if item.kind in kinds and luck.chance(15)]
        if not chosen:
            continue
        for index in chosen:
            items[index] = items[index]._replace(kind=kinds[items[index].kind], number=number)
        first_ms = min(items[index].at_ms for index in chosen)
        last_ms = max(items[index].at_ms for index in chosen)
        for _ in range(luck.below(3)):
            at_ms, topic = luck.between(first_ms, last_ms), luck.choice(FOREIGN_TOPICS)
            items.append(Item(at_ms, ItemKind.FOREIGN_OUTPUT, member=luck.below(6), number=number, call=topic))
        items.insert(0, Item(first_ms, ItemKind.FOREIGN_BEGIN, number=number))
        ends = ItemKind.FOREIGN_COMMIT if luck.chance(70) else ItemKind.FOREIGN_ABORT
        items.append(Item(last_ms + luck.between(0, 60), ends, number=number))


_FOREIGN = {ItemKind.CONTEXT: ItemKind.FOREIGN_CONTEXT, ItemKind.FEEDBACK: ItemKind.FOREIGN_FEEDBACK}


def with_retention(luck: Luck, items: list[Item]) -> list[Item]:
    """Insert one or two periods without traffic that last longer than the retention, which deletes old records.

    No producer has an open transaction at these times: a transaction ends long before the records after it are deleted.
    In some of the periods, all learners stop. Faults occur afterwards, so that all tasks are running before the stop.
    """
    open_count, quiet_ms = 0, []
    for item, later in pairwise(items):
        open_count += (item.kind is ItemKind.FOREIGN_BEGIN) - (item.kind in _FOREIGN_ENDS)
        if open_count == 0 and item.at_ms < later.at_ms:
            quiet_ms.append(item.at_ms)
    for after_ms in sorted(
        (luck.choice(quiet_ms) for _ in range(luck.choice((1, 1, 2)) if quiet_ms else 0)), reverse=True
    ):
        begin_ms = after_ms + 1
        first_ms = begin_ms + KEEP_MS // 2
        end_ms = first_ms + KEEP_MS * luck.between(1, 3)
        added = [Item(at_ms, ItemKind.TIME) for at_ms in range(begin_ms, end_ms, KEEP_MS // 16)]
        if luck.chance(40):
            stopped_ms = KEEP_MS * luck.between(1, 2) + KEEP_MS // 8
            added.append(Item(first_ms, ItemKind.STOP, for_ms=stopped_ms, polls=False))
            first_ms += stopped_ms
            end_ms = max(end_ms, first_ms + KEEP_MS)
            added.append(Item(first_ms - 1, ItemKind.RETENTION, number=luck.below(100), polls=False))
        kinds = [luck.choice(TIMED_FAULTS) for _ in range(luck.below(4))]
        added += [
            draw_fault(luck, kind, 0, timeless=False)._replace(at_ms=luck.between(first_ms, end_ms)) for kind in kinds
        ]
        added += [
            Item(luck.between(first_ms, end_ms), ItemKind.RETENTION, number=luck.below(100))
            for _ in range(luck.between(1, 3))
        ]
        shift_ms = end_ms - after_ms
        items = [item._replace(at_ms=item.at_ms + (shift_ms if item.at_ms > after_ms else 0)) for item in items] + added
        items.sort(key=lambda item: item.at_ms)
    return items


KEEP_MS = 4_000
"""The retention in runs in which records are deleted. No combination of faults delays a renewal by so much."""

_FOREIGN_ENDS = (ItemKind.FOREIGN_COMMIT, ItemKind.FOREIGN_ABORT)
