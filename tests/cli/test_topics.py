"""`onebit topics` on an embedded broker."""

from collections.abc import Callable

import orjson
import pytest

from stream.errors import ExitCode
from stream.kafka.embedded import EmbeddedBroker
from stream.kafka.port import Broker
from tests.cli.conftest import Onebit
from tests.pipeline import TOPICS

DAY_MS = 86_400_000
ALL = TOPICS.all_of(shares_model=True)


@pytest.fixture
def broker(on_broker: Callable[[Broker], None]) -> EmbeddedBroker:
    broker = EmbeddedBroker()
    on_broker(broker)
    return broker


def kept_ms(broker: EmbeddedBroker) -> set[int]:
    return {found.retention_ms for found in TOPICS.limited(broker.describe_topics(ALL)).values()}


def test_requested_changes_are_kept_for_ever(onebit: Onebit, broker: EmbeddedBroker) -> None:
    onebit("topics", "create", "--keep", "7d")
    onebit("topics", "alter", "--keep", "24h")
    assert broker.describe_topics([TOPICS.control])[TOPICS.control].retention_ms == -1


def test_all_topics_keep_records_for_30_days_by_default(onebit: Onebit, broker: EmbeddedBroker) -> None:
    assert onebit("topics", "create", "--partitions", "2").code == ExitCode.OK
    assert set(broker.describe_topics(ALL)) == set(ALL)
    assert kept_ms(broker) == {30 * DAY_MS}


@pytest.mark.parametrize(("text", "keep_ms"), [("7d", 7 * DAY_MS), ("24h", DAY_MS), ("unlimited", -1)])
def test_retention_can_be_set_and_altered(onebit: Onebit, broker: EmbeddedBroker, text: str, keep_ms: int) -> None:
    assert onebit("topics", "create", "--keep", text).code == ExitCode.OK
    assert kept_ms(broker) == {keep_ms}
    assert onebit("topics", "create", "--keep", text).code == ExitCode.OK
    assert onebit("topics", "alter", "--keep", "60d").code == ExitCode.OK
    assert kept_ms(broker) == {60 * DAY_MS}
    altered = onebit("topics", "alter", "--keep", text, "--json")
    assert orjson.loads(altered.out) == {"altered": list(TOPICS), "keep_ms": keep_ms}
    assert kept_ms(broker) == {keep_ms}


def test_existing_topics_with_another_retention_are_rejected_with_both_remedies(
    onebit: Onebit, broker: EmbeddedBroker
) -> None:
    onebit("topics", "create", "--keep", "24h")
    differs = onebit("topics", "create")
    assert differs.code == ExitCode.USAGE
    assert "--keep 1d" in differs.err
    assert "onebit topics alter" in differs.err


@pytest.mark.parametrize(
    "given",
    [
        ("--keep", "0s"),
        ("--keep", "1h"),
        ("--keep", "30d", "--retain", "10d"),
        ("--keep", "30d", "--snapshot-interval", "8d"),
        ("--keep", "30d", "--snapshot-interval", "0s"),
        ("--keep", "30d", "--window", "8d"),
        ("--keep", "30d", "--activation-window", "8d"),
    ],
)
def test_retention_below_four_times_the_windows_is_rejected(
    onebit: Onebit, broker: EmbeddedBroker, given: tuple[str, ...]
) -> None:
    created = onebit("topics", "create", *given)
    assert created.code == ExitCode.USAGE
    assert given[-2] in created.err
    assert broker.describe_topics(ALL) == {}
    onebit("topics", "create")
    assert onebit("topics", "alter", *given).code == ExitCode.USAGE
    assert kept_ms(broker) == {30 * DAY_MS}


def test_missing_topics_cannot_be_altered(onebit: Onebit, broker: EmbeddedBroker) -> None:
    assert onebit("topics", "alter", "--keep", "7d").code == ExitCode.USAGE


def test_description_warns_about_a_short_or_different_retention(onebit: Onebit, broker: EmbeddedBroker) -> None:
    onebit("topics", "create", "--keep", "7d")
    assert orjson.loads(onebit("topics", "describe", "--json").out)["warnings"] == []
    (short,) = orjson.loads(onebit("topics", "describe", "--json", "--retain", "3d").out)["warnings"]
    assert "--retain 3d" in short
    specs = [spec for spec in TOPICS.specs(1, keep_ms=-1) if spec.name == TOPICS.journal]
    broker.alter_topics(specs)
    (longer,) = orjson.loads(onebit("topics", "describe", "--json").out)["warnings"]
    assert longer.startswith(TOPICS.journal)
