"""`onebit serve`: its own settings, and its pipeline's settings."""

from pathlib import Path

import pytest

from onebit.testing.embedded import EmbeddedPipeline
from producers.gateway.decisions import PipelineFacts
from producers.gateway.loop import read_facts
from stream.errors import ExitCode
from stream.settings.definitions import SettingsError
from stream.settings.sources import given_settings
from tests.cli.conftest import Onebit

PERSONALIZER = Path(__file__).parents[2] / "docker/personalizer.json"


@pytest.mark.parametrize("flag", ["--serve-certificate", "--serve-key"])
def test_certificate_without_key_is_rejected(flag: str, onebit: Onebit) -> None:
    ended = onebit("serve", flag, "file.pem")
    assert ended.code == ExitCode.USAGE
    assert "expected --serve-certificate and --serve-key; got only one of them" in ended.err


def test_serve_without_a_broker_exits_with_4(onebit: Onebit) -> None:
    ended = onebit("serve", "--bootstrap", "127.0.0.1:1", "--connect-timeout", "0ms")
    assert ended.code == ExitCode.UNAVAILABLE


@pytest.mark.parametrize("program", ["serve", "monitor"])
def test_port_can_be_given_as_port(program: str, onebit: Onebit) -> None:
    ended = onebit(program, "--port", "0", "--bootstrap", "127.0.0.1:1")
    assert ended.code == ExitCode.USAGE
    assert "No such option" not in ended.err
    assert onebit(program, "--port", "18080", "--bootstrap", "127.0.0.1:1", "--connect-timeout", "0ms").code == 4


@pytest.mark.parametrize("variable", ["ONEBIT_RATE_MAX", "ONEBIT_TIMEOUT", "ONEBIT_SERVE_PORT"])
def test_limits_must_be_positive(variable: str, onebit: Onebit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "0ms" if variable == "ONEBIT_TIMEOUT" else "0")
    ended = onebit("serve")
    assert ended.code == ExitCode.USAGE
    assert variable in ended.err


def test_empty_token_is_rejected(onebit: Onebit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEBIT_SERVE_TOKEN", "")
    ended = onebit("serve")
    assert ended.code == ExitCode.USAGE
    assert "ONEBIT_SERVE_TOKEN" in ended.err


def started(**settings: object) -> EmbeddedPipeline:
    """A pipeline whose learner has completed a step."""
    pipeline = EmbeddedPipeline(n_classes=3, n_features=2, seed=5, **settings)
    pipeline.context("visit-1", [1.0, 2.0])
    pipeline.work()
    return pipeline


def facts_of(pipeline: EmbeddedPipeline, **settings: object) -> PipelineFacts | None:
    return read_facts(pipeline.broker, given_settings(settings), pipeline.partitions)


def test_settings_of_the_pipeline_are_known_after_the_first_step() -> None:
    assert facts_of(EmbeddedPipeline(n_classes=3, n_features=2)) is None
    assert facts_of(started(learner="banditron")) == PipelineFacts(3, 2, 5)


def test_gateway_knows_that_a_challenger_cannot_decide_among_eligible_classes() -> None:
    facts = facts_of(started(learner="banditron", challenger=["rdue"]))
    assert facts is not None
    assert facts.unsupported == "rdue"


def test_gateway_encodes_named_features_like_the_learner(onebit: Onebit) -> None:
    Path("rows.csv").write_text("age,country,class\n" + "".join(f"{age},de,{age % 3}\n" for age in range(20)))
    saved = onebit(
        "data", "show", "rows.csv", "--map", "label=class,numeric=age,categorical=country",
        "--save-features", "features.json",
    )  # fmt: skip
    assert saved.code == ExitCode.OK
    pipeline = EmbeddedPipeline(n_classes=3, features="features.json", learner="banditron")
    pipeline.context("visit-1", {"age": 3, "country": "de"})
    pipeline.work()
    facts = facts_of(pipeline)
    assert facts is not None
    assert facts.encoder is not None
    assert facts.encoder.n_features == facts.n_features


def test_fallback_class_unknown_to_the_pipeline_is_rejected() -> None:
    pipeline = started(learner="banditron")
    assert facts_of(pipeline, fallback="2") is not None
    with pytest.raises(SettingsError, match="--fallback: expected uniform, or a class of the pipeline"):
        facts_of(pipeline, fallback="offers")


def test_personalizer_requires_actions_with_named_features() -> None:
    for settings in ({"n_classes": 3, "n_features": 2}, {"actions_max": 3, "n_features": 2, "action_features": 2}):
        pipeline = EmbeddedPipeline(**settings)
        pipeline.context("visit-1", [1.0, 2.0], **({"actions": [{"id": "a"}]} if "actions_max" in settings else {}))
        pipeline.work()
        assert facts_of(pipeline) is not None
        with pytest.raises(SettingsError, match="--personalizer"):
            facts_of(pipeline, personalizer=True)
    pipeline = EmbeddedPipeline(actions_max=3, features=PERSONALIZER)
    pipeline.context("visit-1", {"price": 3}, actions=[{"id": "a", "x": {"price": 4}}])
    pipeline.work()
    assert facts_of(pipeline, personalizer=True) is not None


def test_personalizer_with_a_fallback_is_rejected(onebit: Onebit) -> None:
    ended = onebit("serve", "--personalizer", "--fallback", "uniform")
    assert ended.code == ExitCode.USAGE
    assert "--fallback uniform" in ended.err


def test_pipeline_that_replays_a_log_is_rejected() -> None:
    pipeline = started(learner="banditron", play="match", propensity_min=0.1)
    pipeline.send("contexts", "visit-2", {"id": "visit-2", "x": [1.0, 2.0], "logged": {"action": 0, "propensity": 0.5}})
    pipeline.work()
    with pytest.raises(SettingsError, match="--play own; got match"):
        facts_of(pipeline)
