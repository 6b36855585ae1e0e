"""`onebit topics` on an embedded broker."""

from collections.abc import Callable

from stream.errors import ExitCode
from stream.kafka.embedded import EmbeddedBroker
from stream.kafka.port import Broker
from tests.cli.conftest import Onebit
from tests.pipeline import TOPICS


def test_topics_with_retention_require_a_flag_and_cause_a_warning(
    onebit: Onebit, on_broker: Callable[[Broker], None]
) -> None:
    broker = EmbeddedBroker()
    on_broker(broker)
    assert onebit("topics", "create", "--retention", "24h").code == ExitCode.OK
    kept_ms = {name: found.retention_ms for name, found in broker.describe_topics(list(TOPICS)).items()}
    assert kept_ms == {name: 86_400_000 if name in TOPICS.of_events() else -1 for name in TOPICS}
    differs = onebit("topics", "create")
    assert differs.code == ExitCode.USAGE
    assert f"topic {TOPICS.contexts}: retention_ms is 86400000, expected -1" in differs.err
    assert "--retention 24h" in differs.err
    assert onebit("topics", "create", "--retention", "24h").code == ExitCode.OK
    assert "warning" not in onebit("topics", "describe").out
    assert (
        f"warning: {TOPICS.contexts} keeps records for 24h"
        in onebit("topics", "describe", "--snapshot-interval", "12h").out
    )
    forbidden = onebit("topics", "create", "--retention", "0s")
    assert forbidden.code == ExitCode.USAGE
    assert "--retention: expected a duration above 0ms, or forever" in forbidden.err
