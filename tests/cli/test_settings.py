"""Settings: their definitions, their sources (flags, environment variables and files), and their documentation."""

from pathlib import Path

import orjson
import pytest

from onebit.cli.app import markdown
from onebit.cli.change import NAMES as CHANGED
from onebit.cli.settings_table import as_markdown
from stream.errors import ExitCode
from stream.kafka.client_config import ClientConfig
from stream.programs.connection import command_hint
from stream.settings.definitions import SettingsError
from stream.settings.model import Panel, Program
from stream.settings.sources import (
    client_config_of,
    command_line,
    described,
    given_settings,
    load_settings,
    unknown_variables,
)
from stream.settings.values import HIDDEN, tokens_of
from tests.cli.conftest import Onebit

DOCS = Path(__file__).parents[2] / "docs"

COMMANDS = {
    Program.RUN: ("run",),
    Program.REPLAY: ("replay",),
    Program.LEARN: ("learn",),
    Program.FEEDBACK: ("feedback",),
    Program.SERVE: ("serve",),
    Program.MONITOR: ("monitor",),
    Program.CREATE: ("topics", "create"),
    Program.ALTER: ("topics", "alter"),
    Program.DESCRIBE: ("topics", "describe"),
    Program.VERIFY: ("verify",),
    Program.SHOW: ("data", "show"),
    Program.TRAIN: ("train",),
    Program.ESTIMATE: ("estimate",),
    Program.LEARNERS: ("learners",),
    Program.CHANGE: ("change",),
    Program.CONNECT: ("topics", "delete"),
    Program.LOCAL: ("config", "show"),
}


def test_docs_list_every_setting() -> None:
    assert (DOCS / "settings.md").read_text() == as_markdown()


def test_docs_list_every_exit_code() -> None:
    assert (DOCS / "exit-codes.md").read_text() == markdown()


OWN = {
    (program, flag)
    for program, flags in {
        Program.MONITOR: ("--estimate",),
        Program.VERIFY: ("--timeout",),
        Program.SHOW: ("--map", "--n-features", "--seed"),
        Program.ESTIMATE: ("--data", "--delay", "--propensity-min", "--reward", "--seed", "--report"),
        Program.CHANGE: ("--from",),
        Program.LEARNERS: ("--data", "--n-classes", "--n-features"),
    }.items()
    for flag in flags
}
"""Flags that share a setting's name but belong only to the command. The setting does not affect them."""


@pytest.mark.parametrize("program", Program)
def test_command_has_the_flags_of_its_program_with_their_help(
    program: Program, onebit: Onebit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("TERMINAL_WIDTH", "400")
    reported = onebit(*COMMANDS[program], "--help").out
    lines = [line.strip("│ ") for line in reported.splitlines()]
    for one in (each for each in described() if (program, each.flag) not in OWN):
        shown = [line for line in lines if line.split(" ")[0].split(",")[0] == one.flag]
        assert len(shown) == (program in one.setting.programs), one.flag
        if shown:
            assert one.setting.help in shown[0]
            is_unchanged = program is Program.CHANGE and one.field in CHANGED
            assert f"[default: ({'unchanged' if is_unchanged else one.shown_default})]" in shown[0]


def test_settings_follow_the_conventions_for_flags_units_and_help() -> None:
    for one in described():
        assert bool(one.setting.programs) != one.setting.is_secret, one.name
        assert one.is_duration == one.field.endswith("_ms"), one.field
        assert not one.setting.help.endswith("."), one.name
    assert {one.panel for one in described()} == set(Panel)


def test_flags_override_variables_and_variables_override_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("onebit.toml").write_text('window = "1s"\nretain = "2s"\norphan_window = "3s"\nepochs = 2\n')
    monkeypatch.setenv("ONEBIT_WINDOW", "10s")
    monkeypatch.setenv("ONEBIT_RETAIN", "20s")
    settings = load_settings({"window": "100s", "epochs": None})
    durations_ms = (settings.window_ms, settings.retain_ms, settings.orphan_window_ms, settings.connect_timeout_ms)
    assert durations_ms == (100_000, 20_000, 3_000, 30_000)
    assert settings.epochs == 2


def test_settings_from_every_source_are_recorded_as_given(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings({}).given == frozenset()
    Path("onebit.toml").write_text('on_expiry = "drop"\n')  # counts as given, although it is the default value
    monkeypatch.setenv("ONEBIT_WINDOW", "5m")
    assert load_settings({"rate": 7.0, "seed": None}).given == {"on_expiry", "window_ms", "rate_per_s"}


def test_environment_variables_contain_only_given_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "window": "1500ms", "keep": "unlimited", "learner": ["banditron", "soba"], "rate": 0.1, "shuffle": True,
        "param": ['comparator=1,2;3,"4'], "topic_prefix": "own.", "events": 7,
    }  # fmt: skip
    settings = load_settings(given)
    variables = settings.environment()
    assert set(variables) == {f"ONEBIT_{name.upper()}" for name in given}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert load_settings({}) == settings


@pytest.mark.parametrize(
    ("source", "named"),
    [("flag", "--window"), ("variable", "ONEBIT_WINDOW"), ("file", "window in onebit.toml")],
)
def test_invalid_value_is_reported_with_its_source(source: str, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if source == "variable":
        monkeypatch.setenv("ONEBIT_WINDOW", "5 minutes")
    elif source == "file":
        Path("onebit.toml").write_text('window = "5 minutes"\n')
    with pytest.raises(SettingsError, match=rf"^{named}: expected a duration.*; got '5 minutes'$"):
        load_settings({"window": "5 minutes"} if source == "flag" else {})


def test_unknown_name_in_file_is_rejected_with_a_suggestion() -> None:
    Path("onebit.toml").write_text('windows = "5s"\n')
    with pytest.raises(SettingsError, match=r"windows in onebit\.toml: .*did you mean window\b"):
        load_settings({})


SERVICE = {
    "SERVICE_HOST": "10.96.0.7", "SERVICE_PORT": "8080", "SERVICE_PORT_HTTP": "8080", "PORT": "tcp://10.96.0.7:8080",
    "PORT_8080_TCP": "tcp://10.96.0.7:8080", "PORT_8080_TCP_PROTO": "tcp", "PORT_8080_TCP_PORT": "8080",
    "PORT_8080_TCP_ADDR": "10.96.0.7",
}  # fmt: skip


@pytest.mark.parametrize("service", ["SERVE", "METRICS", "PAGE"])
@pytest.mark.parametrize("program", ["serve", "learn", "run"])
def test_variables_of_a_kubernetes_service_are_not_settings(
    service: str, program: str, onebit: Onebit, monkeypatch: pytest.MonkeyPatch
) -> None:
    default = load_settings({})
    for name, value in SERVICE.items():
        monkeypatch.setenv(f"ONEBIT_{service}_{name}", value)
    assert load_settings({}) == default
    assert [line.split(":")[0] for line in unknown_variables()] == [f"ONEBIT_{service}_PORT"]
    given = ("--events", "1", "--learner", "banditron") if program == "run" else ("--bootstrap", "127.0.0.1:1")
    ended = onebit(program, *given, *(() if program == "run" else ("--connect-timeout", "0ms")))
    assert ended.code == (ExitCode.OK if program == "run" else ExitCode.UNAVAILABLE)


@pytest.mark.parametrize(
    ("variable", "value"), [("SERVE_PORT", "none"), ("TIMEOUT", "1 parsec"), ("RATE_MAX", "-1"), ("PAGE_PORT", "0")]
)
def test_program_ignores_invalid_variables_of_other_programs(
    variable: str, value: str, onebit: Onebit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"ONEBIT_{variable}", value)
    assert onebit("run", "--events", "1", "--learner", "banditron").code == ExitCode.OK
    assert onebit("config", "show").code == ExitCode.USAGE


def test_program_rejects_invalid_variables_of_its_own(onebit: Onebit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEBIT_SERVE_PORT", "none")
    monkeypatch.setenv("ONEBIT_EVENTS", "0")
    ended = onebit("run", "--learner", "banditron")
    assert ended.code == ExitCode.USAGE
    assert "ONEBIT_EVENTS" in ended.err


def test_unknown_variable_is_reported_with_a_suggestion(onebit: Onebit, monkeypatch: pytest.MonkeyPatch) -> None:
    known = ("ONEBIT_WINDOW", "ONEBIT_KAFKA_PORT", "ONEBIT_KAFKA_HEAP", "ONEBIT_IMAGE", "ONEBIT_TEST_EVENTS")
    for name in known:
        monkeypatch.setenv(name, "5s")
    assert unknown_variables() == []
    monkeypatch.setenv("ONEBIT_WINDOWS", "5s")
    ended = onebit("config", "show")
    assert ended.code == ExitCode.OK
    assert "warning: ONEBIT_WINDOWS: unknown setting" in ended.err
    assert "did you mean ONEBIT_WINDOW" in ended.err


def test_commas_separate_learners_but_not_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings({"learner": ["soba,banditron", "confidit,soba"]}).learner == ["soba", "banditron", "confidit"]
    assert load_settings({"param": ["comparator=1,2"]}).param == ["comparator=1,2"]
    monkeypatch.setenv("ONEBIT_LEARNER", "soba, banditron")
    assert load_settings({}).learner == ["soba", "banditron"]


def test_config_show_prints_the_source_of_each_setting(onebit: Onebit, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("own.toml").write_text('seed = 3\nclient_config = "client.properties"\n')
    access = f"security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=ada\nsasl.password={SECRET}\n"
    Path("client.properties").write_text(f"bootstrap.servers=kafka:9094\n{access}")
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("ONEBIT_WINDOW", "90s")
    monkeypatch.setenv("ONEBIT_SASL_USERNAME", "bob")
    monkeypatch.setenv("ONEBIT_SSL_KEY_PASSWORD", SECRET)
    monkeypatch.setenv("ONEBIT_LEARNER", "soba,banditron")
    given = {
        "seed": {"value": "3", "from": "own.toml"},
        "learner": {"value": "soba,banditron", "from": "variable ONEBIT_LEARNER"},
        "window": {"value": "90s", "from": "variable ONEBIT_WINDOW"},
        "bootstrap": {"value": "kafka:9094", "from": "bootstrap.servers in client.properties"},
        "client_config": {"value": "client.properties", "from": "own.toml"},
        "sasl_username": {"value": "bob", "from": "variable ONEBIT_SASL_USERNAME"},
        "ssl_key_password": {"value": HIDDEN, "from": "variable ONEBIT_SSL_KEY_PASSWORD"},
        "security.protocol": {"value": "SASL_SSL", "from": "client.properties"},
        "sasl.mechanism": {"value": "PLAIN", "from": "client.properties"},
        "sasl.password": {"value": HIDDEN, "from": "client.properties"},
    }
    assert orjson.loads(onebit("config", "show", "--given", "--json", "--config", "own.toml").out) == given
    every = orjson.loads(onebit("config", "show", "--json", "--config", "own.toml").out)
    assert every["data"] == {"value": "optdigits", "from": "default"}
    assert given.items() <= every.items()
    assert list(every)[: len(list(described()))] == [one.name for one in described()]
    rows = [line.split() for line in onebit("config", "show", "--config", "own.toml").out.splitlines()]
    assert ["window", "90s", "variable", "ONEBIT_WINDOW"] in rows


def test_settings_command_lists_defaults(onebit: Onebit) -> None:
    rows = [line.split()[:2] for line in onebit("settings").out.splitlines()]
    assert ["--window", "5m"] in rows


SECRET = "correct-horse"  # noqa: S105  # must not appear in any output


def test_secret_is_hidden_but_passed_to_other_processes(onebit: Onebit, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("client.properties").write_text(f"security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.password={SECRET}\n")
    monkeypatch.setenv("ONEBIT_SASL_PASSWORD", SECRET)
    monkeypatch.setenv("ONEBIT_SSL_KEY_PASSWORD", SECRET)
    monkeypatch.setenv("ONEBIT_CLIENT_CONFIG", "client.properties")
    settings = load_settings({"sasl_username": "ada"})
    assert settings.environment()["ONEBIT_SASL_PASSWORD"] == SECRET
    assert repr(client_config_of(settings).sasl_password) == "SecretStr('**********')"

    ended = onebit("run", "--events", "20", "--learner", "banditron", "--json", "--report", "page.html")
    assert ended.code == ExitCode.OK
    shown = (repr(settings), str(settings.shown()), command_line(["run"]), Path("page.html").read_text())
    for text in (*shown, *ended[1:], *onebit("config", "show")[1:]):
        assert SECRET not in text
    assert settings.shown()["sasl_password"] == HIDDEN


@pytest.mark.parametrize("variable", ["SERVE_TOKEN", "SASL_PASSWORD", "SSL_KEY_PASSWORD"])
@pytest.mark.parametrize("ending", ["\n", "\r\n", "\n\n", ""])
def test_line_breaks_at_the_end_of_a_secret_are_removed(
    variable: str, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"ONEBIT_{variable}", SECRET + ending)
    secret = getattr(load_settings({}), variable.lower())
    assert secret.get_secret_value() == SECRET


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sasl_password", f"{SECRET}\n{SECRET}"), ("serve_token", f"{SECRET}\n{SECRET}"), ("serve_token", "a b"),
        ("serve_token", "\n"), ("serve_token", ",,"), ("serve_token", "clé"), ("serve_token", "a\tb"),
    ],
)  # fmt: skip
def test_unusable_secret_is_rejected_without_being_shown(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"^{name}: ") as raised:
        given_settings({name: value})
    assert value not in str(raised.value)


def test_several_tokens_are_separated_by_commas() -> None:
    token = given_settings({"serve_token": "new, old"}).serve_token
    assert token is not None
    assert tokens_of(token) == ("new", "old")


def test_non_string_secret_is_rejected_without_being_shown() -> None:
    Path("onebit.toml").write_text("sasl_password = 1234567890\n")
    with pytest.raises(SettingsError, match=r"sasl_password in onebit\.toml: ") as raised:
        load_settings({})
    assert "1234567890" not in str(raised.value)


def test_settings_override_client_properties() -> None:
    Path("client.properties").write_text("bootstrap.servers=kafka:9094\nsecurity.protocol=SSL\nclient.id=ours\n")
    settings = load_settings({"client_config": "client.properties", "security_protocol": "PLAINTEXT"})
    assert settings.bootstrap == "kafka:9094"
    assert client_config_of(settings) == ClientConfig(client_id="ours")
    assert command_hint(settings, "learn").startswith("onebit learn --bootstrap kafka:9094 --client-config client.prop")
    assert load_settings({"client_config": "client.properties", "bootstrap": "own:1"}).bootstrap == "own:1"


def test_invalid_client_properties_end_a_command_with_one_line(onebit: Onebit) -> None:
    Path("client.properties").write_text("sasl.mecanism=PLAIN\n")
    ended = onebit("topics", "describe", "--client-config", "client.properties")
    assert ended.code == ExitCode.USAGE
    assert ended.err.startswith("error: sasl.mecanism: ")
    assert ended.err.count("\n") == 1


def test_environment_variable_for_experiment_data_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEBIT_DATA_DIR", "data")
    assert unknown_variables() == []


def test_run_rejects_the_loop_setting(monkeypatch: pytest.MonkeyPatch, onebit: Onebit) -> None:
    monkeypatch.setenv("ONEBIT_LOOP", "true")
    ended = onebit("run", "--no-report")
    assert ended.code == ExitCode.USAGE
    assert "ONEBIT_LOOP" in ended.err
