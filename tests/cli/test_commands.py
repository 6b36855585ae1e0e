"""Commands as a user types them."""

import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text

import stream
from consumers.learner.loop import lacks_log, model_notice
from onebit import models
from onebit.cli.app import COMMANDS, LoadedCommands
from onebit.cli.kafka import print_running
from onebit.cli.verify import print_findings
from onebit.models import time_ms
from stream.devkafka.local_kafka import LocalKafka
from stream.errors import ExitCode
from stream.kafka.embedded import EmbeddedBroker, VirtualClock
from stream.measures.errors import MatchedError
from stream.programs.connection import command_hint, require_topics
from stream.settings.definitions import SettingsError
from stream.settings.sources import load_settings
from stream.verifying.audit import Finding
from stream.verifying.models import TooEarlyError
from stream.wire.ledger import Ledger
from stream.wire.schemas import EVENTS, schema_of
from stream.wire.topics import Topics
from tests.cli.conftest import Onebit
from tests.processes import free_port


def test_version_is_printed(onebit: Onebit) -> None:
    assert onebit("--version") == (ExitCode.OK, f"onebit {stream.__version__}\n", "")


def test_help_lists_every_exit_code(onebit: Onebit) -> None:
    reported = onebit("--help").out
    assert [code for code in ExitCode if f" {code.value} {code.meaning.split(' ')[0]}" not in reported] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_text_in_brackets(name: str) -> None:
    """Typer renders a docstring as markup, in which an unescaped `[serve]` is a tag."""
    assert Text.from_markup(LoadedCommands()[name].help).spans == []


def test_n_classes_without_n_features_is_rejected(onebit: Onebit) -> None:
    ended = onebit("learn", "--n-classes", "12")
    assert ended.code == ExitCode.USAGE
    assert "--n-classes 12" in ended.err
    assert "--n-features" in ended.err


def test_single_learner_command_rejects_several_learners(onebit: Onebit) -> None:
    ended = onebit("learn", "--learner", "soba-diag,banditron")
    assert ended.code == ExitCode.USAGE
    assert "`onebit learn` runs one learner; got soba-diag, banditron" in ended.err


@pytest.mark.parametrize(
    ("flags", "reported"),
    [
        (("--epochs", "none"), "--epochs"),
        (("--events", "0"), "or equal to 1"),
        (("--on-expiry", "forget"), "drop"),
        (("--window", "5"), "--window: expected a duration"),
        (("--rate", "0"), "--rate: Input should be greater than 0"),
        (("--delay", "soon"), "--delay"),
        (("--learner", "nobody"), "unknown learner 'nobody'"),
        (("--data", "optdigit"), "did you mean optdigits"),
    ],
)
def test_invalid_flag_is_rejected_before_the_run_starts(flags: tuple[str, str], reported: str, onebit: Onebit) -> None:
    ended = onebit("run", *flags)
    assert (ended.code, ended.out) == (ExitCode.USAGE, "")
    assert reported in ended.err


def test_underscore_in_a_learner_parameter_is_rejected(onebit: Onebit) -> None:
    ended = onebit("run", "--learner", "banditron", "--param", "gamma=0_1")
    assert ended.code == ExitCode.USAGE
    assert "parameter gamma; expected a number in [0, 1], got '0_1'" in ended.err


@pytest.mark.parametrize("flags", [("--kafka", "--no-report"), ("--no-report", "--kafka"), ("--kafka",)])
def test_run_on_kafka_uses_bootstrap_from_environment(
    flags: tuple[str, ...], onebit: Onebit, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    monkeypatch.setenv("ONEBIT_BOOTSTRAP", f"127.0.0.1:{port}")
    monkeypatch.setenv("ONEBIT_CONNECT_TIMEOUT", "100ms")
    ended = onebit("run", *flags)
    assert ended.code == ExitCode.UNAVAILABLE
    assert f"no Kafka broker responded at 127.0.0.1:{port}" in ended.err
    assert f"onebit kafka up --port {port}" in ended.err


def test_run_without_flags_uses_learner_from_environment(onebit: Onebit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEBIT_LEARNER", "nobody")
    ended = onebit("run")
    assert ended.code == ExitCode.USAGE
    assert "unknown learner 'nobody'" in ended.err


def test_bootstrap_flag_overrides_environment(onebit: Onebit, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv("ONEBIT_BOOTSTRAP", "127.0.0.1:1")
    monkeypatch.setenv("ONEBIT_CONNECT_TIMEOUT", "100ms")
    assert (
        f"no Kafka broker responded at 127.0.0.1:{port} "
        in onebit("run", "--kafka", "--bootstrap", f"127.0.0.1:{port}").err
    )


def test_suggested_commands_contain_the_given_bootstrap_and_topic_prefix() -> None:
    broker = EmbeddedBroker(VirtualClock(0))
    settings = load_settings({"topic_prefix": "own.", "bootstrap": "kafka:1", "partitions": 2, "seed": 3})
    create = "onebit topics create --bootstrap kafka:1 --topic-prefix own. --partitions 2"
    with pytest.raises(SettingsError, match="own.contexts, .*" + re.escape(create)):
        require_topics(broker, settings)
    assert command_hint(load_settings({}), "topics create") == "onebit topics create"


@pytest.mark.parametrize("name", [name for name in Topics._fields if name != "snapshots"])
def test_compacted_event_topics_are_rejected(name: str) -> None:
    broker = EmbeddedBroker(VirtualClock(0))
    topic = getattr(Topics.with_prefix(), name)
    specs = Topics.with_prefix().specs(1)
    broker.create_topics([spec._replace(compacted=spec.compacted or spec.name == topic) for spec in specs])
    with pytest.raises(SettingsError, match=rf"topic {topic}: expected cleanup\.policy delete; got compact"):
        require_topics(broker, load_settings({}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (None, r"topic onebit\.updates .*create --partitions 2 --model shared$"),
        ({"partitions": 2}, r"topic onebit\.updates: expected one partition; got 2"),
        ({"compacted": True}, r"topic onebit\.updates: expected cleanup\.policy delete; got compact"),
    ],
)
def test_shared_model_log_requires_one_partition_and_full_retention(
    changes: dict[str, Any] | None, message: str
) -> None:
    broker = EmbeddedBroker(VirtualClock(0))
    control, log, *specs = Topics.with_prefix().specs(2, shares_model=True)
    broker.create_topics([control, *specs] if changes is None else [control, log._replace(**changes), *specs])
    with pytest.raises(SettingsError, match=message):
        require_topics(broker, load_settings({}), shares_model=True)
    assert require_topics(broker, load_settings({})) == 2


def test_control_topic_requires_one_partition() -> None:
    broker = EmbeddedBroker(VirtualClock(0))
    control, *specs = Topics.with_prefix().specs(2)
    broker.create_topics([control._replace(partitions=2), *specs])
    with pytest.raises(SettingsError, match=r"topic onebit\.control: expected one partition; got 2"):
        require_topics(broker, load_settings({}))


def test_topics_without_a_model_log_default_to_own_models() -> None:
    topics = Topics.with_prefix()
    for made, given, lacks in ((False, {}, True), (False, {"model": "shared"}, False), (True, {}, False)):
        broker = EmbeddedBroker(VirtualClock(0))
        broker.create_topics(topics.specs(2, shares_model=made))
        assert lacks_log(broker, load_settings(given), topics, 2) == lacks
        assert not lacks_log(broker, load_settings(given), topics, 1)
    assert topics.updates in model_notice("own", topics, 2, has_no_log=True)


def test_created_topics_are_accepted() -> None:
    broker = EmbeddedBroker(VirtualClock(0))
    broker.create_topics(Topics.with_prefix().specs(3, shares_model=True))
    assert require_topics(broker, load_settings({})) == 3
    assert require_topics(broker, load_settings({}), shares_model=True) == 3


def test_reports_and_suggested_commands_of_the_local_kafka_contain_its_data_dir(onebit: Onebit, tmp_path: Path) -> None:
    home = str(tmp_path / "my kafka")
    ended = onebit("kafka", "status", "--data-dir", home)
    assert ended.code == ExitCode.DIFFERS
    assert ended.out.endswith(f" {home}. Run: onebit kafka up --data-dir '{home}'\n")
    assert onebit("kafka", "down", "--data-dir", home).out.endswith(f" {home}\n")
    assert f"onebit kafka up --data-dir '{home}'" in onebit("kafka", "logs", "--data-dir", home).err


@pytest.mark.parametrize(("home", "stop"), [(None, "down"), (Path("my kafka"), "down --data-dir 'my kafka'")])
def test_report_of_a_running_kafka_contains_the_stop_command(
    home: Path | None, stop: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_running(LocalKafka("127.0.0.1:9092", 7, Path("home"), Path("home/data"), False, False), home, "is running")
    assert capsys.readouterr().out.splitlines() == [
        "Kafka is running at 127.0.0.1:9092, pid 7, records in home/data",
        f"to stop: onebit kafka {stop}",
    ]


def test_local_kafka_reports_its_default_data_dir(
    onebit: Onebit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    first, second = onebit("kafka", "status").out.splitlines()
    assert first.endswith(f" {tmp_path / 'onebit' / 'kafka'}. Run: onebit kafka up")
    assert second == "if the broker was started with --data-dir, use the same --data-dir"


@pytest.mark.parametrize(
    ("at", "first"),
    [
        ("1000000000", "1772366400123"),
        ("2026-01-01T12:00:00Z", "2026-03-01T12:00:00.123+00:00"),
        ("2026-01-01T12:00:00+05:30", "2026-03-01T17:30:00.123+05:30"),
        ("2026-01-01T12:00", "2026-03-01T12:00:00.123+00:00"),
    ],
)
def test_error_for_a_time_before_the_first_step_uses_the_given_time_zone(
    onebit: Onebit, monkeypatch: pytest.MonkeyPatch, at: str, first: str
) -> None:
    def too_early(*_: object, **__: object) -> None:
        raise TooEarlyError("onebit.journal/0", time_ms(at), 1_772_366_400_123)

    monkeypatch.setattr(models, "export_model", too_early)
    monkeypatch.setattr(models, "connected", lambda settings: nullcontext((None, None, 1)))
    ended = onebit("model", "export", "--at", at, "--out", "x.npz")
    assert ended.code == ExitCode.USAGE
    assert f"--at {at}: onebit.journal/0" in ended.err
    assert first in ended.err


@pytest.mark.parametrize(("partitions", "where"), [(1, "1 partition"), (2, "2 partitions")])
def test_verdict_reports_the_number_of_partitions(
    capsys: pytest.CaptureFixture[str], partitions: int, where: str
) -> None:
    findings = [Finding(number, Ledger(), Ledger(), (), 0, 0) for number in range(partitions)]
    print_findings(findings, MatchedError(0, 0, 0, 0))
    expected = f"✓ the ledger adds up in {where}; no feedback has been matched"
    assert capsys.readouterr().out.splitlines()[-1] == expected


@pytest.mark.parametrize("written", ["12_000", "12000"])
def test_integers_may_contain_underscores_in_every_source(
    onebit: Onebit, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    raised = onebit("replay", "--events", "1_2__0")
    assert (raised.code, "'--events': Input should be a valid integer" in raised.err) == (ExitCode.USAGE, True)
    assert load_settings({"events": written}).events == 12_000
    Path("onebit.toml").write_text(f"events = {written}\n", encoding="utf-8")
    monkeypatch.setenv("ONEBIT_CONFIG", "onebit.toml")
    assert load_settings({}).events == 12_000
    monkeypatch.setenv("ONEBIT_EVENTS", written.replace("12", "13"))
    assert load_settings({}).events == 13_000


def test_schema_of_each_topic_is_printed_without_kafka(onebit: Onebit) -> None:
    reported = onebit("topics", "describe", "--schema", "--topic-prefix", "my.", "--bootstrap", "nowhere:1")
    assert (reported.code, reported.err) == (0, "")
    assert json.loads(reported.out) == {f"my.{topic}": schema_of(topic) for topic in EVENTS}
