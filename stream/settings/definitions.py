"""Definitions of all settings.

Each field defines a setting: its name, type, range, default, help, and the programs that accept it. The flag, the
`ONEBIT_*` variable, the name in the TOML file, `onebit settings`, docs/settings.md and the report are derived from the
field. To add a setting, add a field to one of the groups, and use the field in the code. `Settings` inherits the fields
of all groups, so field names must be unique. A function that needs only one group has a parameter of that group's type.

A field's name ends with its unit (`window_ms`). The setting's name has no unit, because users write the unit with the
value: `--window 5s`, `ONEBIT_WINDOW=5s`, `window = "5s"`.
"""

import json
import tomllib
from dataclasses import fields
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, SecretStr
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from stream.errors import OnebitError
from stream.parsing import UNITS_MS
from stream.settings.model import (
    CONNECTED,
    EVENTS,
    FEEDBACK,
    LEARN,
    LOG,
    MONITOR,
    NO_FLAG,
    PIPELINE,
    REPLAY,
    SERVE,
    TOPIC_PROGRAMS,
    WATCHED,
    Group,
    Panel,
    Program,
    Setting,
)
from stream.settings.task_fields import DataFields, ExpiryFields, JoinSettings, LearnerFields
from stream.settings.values import (
    PREFIX,
    UNLIMITED,
    Delay,
    Duration,
    Line,
    Names,
    OnBadRow,
    Probability,
    Retention,
    Secret,
    Speed,
    Texts,
    Time,
    Tokens,
    config_path,
    variable_of,
    variables_of_settings,
)
from stream.text import read_text
from stream.wire.actions import ACTIONS_MAX
from stream.wire.topics import DEFAULT_PREFIX, Topics

AUTO: Final = "auto"
"""Placeholder for the automatic choice of a learner or kind of model. It is replaced before settings are
stored."""


class SourceSettings(Group, DataFields, frozen=True):
    """Settings for the data set."""

    panel = Panel.DATA

    data: Annotated[
        str,
        Setting(
            PIPELINE | {Program.VERIFY, Program.TRAIN},
            "Data set (see `onebit data list`), svmlight file, or log of decisions (see `onebit data show FILE`)",
            "NAME|FILE",
            determines=("class_names", "n_classes", "n_features"),
        ),
    ] = "optdigits"
    map: Annotated[
        str | None,
        Setting(
            LOG,
            "Columns of a tabular log: a mapping file (`onebit data show` guesses one), or pairs such as "
            "action=item,reward=click,numeric=age,categorical=device+region",
            "FILE.toml|PAIRS",
            unset="none",
        ),
    ] = None
    on_bad_row: Annotated[OnBadRow, Setting(LOG, "Stop at an invalid row of a log, or skip the row")] = "stop"
    reward_above: Annotated[
        float | None,
        Setting(
            LOG | {Program.SHOW},
            "Convert a log's rewards to bits: 1 above this value, otherwise 0",
            unset="rewards are 0 or 1",
        ),
    ] = None
    n_features: Annotated[
        int | None,
        Field(ge=1),
        Setting(
            PIPELINE | {Program.CHANGE},
            "Number of features in an svmlight file, or in contexts without a data set",
            unset="the largest index in the file",
        ),
    ] = None
    from_time: Annotated[
        Time,
        Setting(
            EVENTS,
            "Start of the replayed part of a log: 2019-11-24T08:30, or milliseconds since 1970",
            "TIME",
            unset="all",
        ),
    ] = None
    to_time: Annotated[Time, Setting(EVENTS, "End of the replayed part of a log, exclusive", "TIME", unset="all")] = (
        None
    )
    limit: Annotated[
        int | None,
        Field(ge=1),
        Setting(EVENTS | {Program.TRAIN}, "Number of log rows to replay, or of rows to train with", unset="all"),
    ] = None


class ReplaySettings(SourceSettings, frozen=True):
    """Settings for replaying a data set."""

    events: Annotated[
        int | None,
        Field(ge=1),
        Setting(EVENTS, "Number of events to replay; the replay starts over after the last row", unset="all rows"),
    ] = None
    epochs: Annotated[
        int | None, Field(ge=1), Setting(EVENTS | {Program.TRAIN}, "Number of passes over the rows", unset="1")
    ] = None
    shuffle: Annotated[bool, Setting(REPLAY, "Shuffle the rows in every epoch")] = False
    rate_per_s: Annotated[float, Field(gt=0.0), Setting(REPLAY, "Replay rate in events per second", "EVENTS_PER_S")] = (
        100.0
    )
    speed: Annotated[
        Speed,
        Setting(
            REPLAY | {Program.FEEDBACK},
            "Replay a log at the recorded pace times this factor: 1x, 60x, or max. Replaces --rate. With --delay "
            "logged, also applies to the feedback",
            "FACTORx|max",
            unset="uses --rate",
        ),
    ] = None
    loop: Annotated[bool, Setting(frozenset((Program.REPLAY,)), "Repeat the replay until stopped")] = False


class FeedbackSettings(ReplaySettings, frozen=True):
    """Settings for the simulated feedback in a replay."""

    panel = Panel.FEEDBACK

    delay: Annotated[
        Delay,
        Setting(
            FEEDBACK,
            "Feedback delay: none, fixed:10s, geometric:10s, exponential:10s, lognormal:10s,1.0 (median, sigma), "
            "weibull:10s,0.7 (scale, shape), empirical:FILE (one delay in ms per line), logged (from the log), or by "
            "true class: 0=fixed:1s;*=none",
            "SPEC",
        ),
    ] = "lognormal:1s,1.0"
    loss: Annotated[Probability, Setting(FEEDBACK, "Fraction of feedback that is lost", "P")] = 0.0
    duplicates: Annotated[Probability, Setting(FEEDBACK, "Fraction of feedback that is sent twice", "P")] = 0.0
    with_label: Annotated[
        bool, Setting(frozenset((Program.FEEDBACK,)), "Add the true class to feedback, for full-information learners")
    ] = False


class LearnerSettings(Group, LearnerFields, frozen=True):
    """Settings for the learner, the holdout and the challengers."""

    panel = Panel.LEARNER

    learner: Annotated[
        Names,
        Field(min_length=1),
        Setting(
            LEARN | {Program.TRAIN},
            "Learner (see `onebit learners`); auto chooses one for the data. `onebit run` accepts several, written as "
            "a,b or repeated; all use the same events and random draws",
            "NAME",
        ),
    ] = [AUTO]
    param: Annotated[
        Texts,
        Setting(
            LEARN | {Program.CHANGE, Program.TRAIN},
            "Learner parameter; repeatable. With several learners: LEARNER.NAME=VALUE",
            "NAME=VALUE",
        ),
    ] = []
    challenger: Annotated[
        Texts,
        Setting(
            LEARN | {Program.CHANGE},
            "Learner that learns from the champion's decisions, and makes decisions only as the champion (`onebit "
            "change --champion`); can be given up to four times. Use this setting with --floor",
            "NAME[:PARAM=VALUE,...]",
            determines=("challengers",),
        ),
    ] = []
    n_classes: Annotated[
        int | None,
        Field(ge=2),
        Setting(
            frozenset((Program.LEARN,)),
            "Number of classes if there is no data set; requires --n-features",
            unset="from the data set",
            determines=("n_classes", "open_classes"),
        ),
    ] = None
    classes_max: Annotated[
        int | None,
        Field(ge=2),
        Setting(
            frozenset((Program.LEARN, Program.CHANGE, Program.TRAIN)),
            "Maximum number of different classes in the `eligible` fields of all contexts; replaces --n-classes",
            "K",
            unset="a fixed number of classes",
            determines=("n_classes", "open_classes"),
        ),
    ] = None
    actions_max: Annotated[
        int | None,
        Field(ge=2, le=ACTIONS_MAX),
        Setting(
            frozenset((Program.LEARN, Program.TRAIN)),
            "Maximum number of actions per context, for contexts that list actions with features; replaces --n-classes",
            "K",
            unset="for training, the largest number in the log; otherwise, contexts have no actions",
            determines=("n_classes", "n_features", "actions"),
        ),
    ] = None
    action_features: Annotated[
        int | None,
        Field(ge=1),
        Setting(
            frozenset((Program.LEARN,)),
            "Number of features of an action, unless the file of --features describes them; requires --actions-max",
            "N",
            unset="from --features",
            determines=("n_features", "actions"),
        ),
    ] = None
    features: Annotated[
        Path | None,
        Setting(
            frozenset((Program.LEARN, Program.CHANGE, Program.TRAIN, Program.ESTIMATE)),
            "File that maps feature names to indices, from `onebit data show --save-features`",
            "FILE",
            unset="no named features",
        ),
    ] = None
    model: Annotated[
        Literal["auto", "own", "shared"],
        Setting(
            LEARN | {Program.CREATE},
            "One model per partition, or one model shared by all partitions. auto: shared in a new pipeline with "
            "several partitions, if it has an updates topic and plays the learner's own actions",
        ),
    ] = AUTO
    model_lag_max_ms: Annotated[
        Retention,
        Setting(
            frozenset((Program.LEARN,)),
            "Stop deciding after an open transaction has blocked the shared model's log for this long",
            "DURATION",
        ),
    ] = -1
    estimate: Annotated[
        bool,
        Setting(
            LEARN, "With --play logged, estimate the mean reward of the learner's own policy from settled decisions"
        ),
    ] = False
    holdout_policy: Annotated[
        str,
        Setting(
            LEARN | {Program.CHANGE},
            "Holdout policy: uniform, constant:CLASS, baseline (the class or action that each context names), or "
            "model:FILE from `onebit model export`",
            "POLICY",
        ),
    ] = "uniform"

    def model_of(self, partitions: int) -> Literal["own", "shared"]:
        """Return the kind of model for a new pipeline. The default is shared if there are several partitions."""
        if self.model != AUTO:
            return self.model
        return "shared" if partitions > 1 and self.play == "own" else "own"


class WindowSettings(Group, JoinSettings, ExpiryFields, frozen=True):
    """Settings for the join's windows and limits."""

    panel = Panel.JOIN

    @property
    def join(self) -> JoinSettings:
        """The join's windows and limits."""
        return JoinSettings(**{field.name: getattr(self, field.name) for field in fields(JoinSettings)})


class AccessSettings(Group, frozen=True):
    """Settings for authentication and encryption."""

    panel = Panel.ACCESS

    client_config: Annotated[
        Path | None,
        Setting(
            CONNECTED,
            "Kafka client properties file, in librdkafka or Java format; other settings override it",
            "FILE",
            unset="none",
        ),
    ] = None
    security_protocol: Annotated[
        str | None,
        Setting(CONNECTED, "Security protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL", "NAME", unset="PLAINTEXT"),
    ] = None
    sasl_mechanism: Annotated[
        str | None,
        Setting(CONNECTED, "SASL mechanism: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER", "NAME", unset="none"),
    ] = None
    sasl_username: Annotated[Line | None, Setting(CONNECTED, "User name", "NAME", unset="none")] = None
    sasl_password: Annotated[Secret | None, Setting(NO_FLAG, "The user's password", unset="none", is_secret=True)] = (
        None
    )
    sasl_oauthbearer_token_command: Annotated[
        str | None,
        Setting(
            CONNECTED,
            "Command that prints an OAUTHBEARER token. Onebit runs the command again before the token expires",
            "COMMAND",
            unset="none",
        ),
    ] = None
    ssl_ca_location: Annotated[
        str | None, Setting(CONNECTED, "Trusted CA certificates (PEM)", "FILE", unset="the system's certificates")
    ] = None
    ssl_certificate_location: Annotated[
        str | None, Setting(CONNECTED, "Client certificate (PEM)", "FILE", unset="none")
    ] = None
    ssl_key_location: Annotated[
        str | None, Setting(CONNECTED, "Key for the client certificate (PEM)", "FILE", unset="none")
    ] = None
    ssl_key_password: Annotated[
        Secret | None, Setting(NO_FLAG, "Password for the client key", unset="none", is_secret=True)
    ] = None


class KafkaSettings(AccessSettings, frozen=True):
    """Settings for the connection to Kafka, and for the topics."""

    panel = Panel.KAFKA

    instance: Annotated[
        str,
        Field(pattern=r"^[A-Za-z0-9._-]{1,100}$"),
        Setting(
            frozenset((Program.LEARN, Program.FEEDBACK, Program.MONITOR)),
            "Name of this process. Must be unique among concurrent processes, and the same after a restart",
            "NAME",
        ),
    ] = "1"
    ready_file: Annotated[
        str | None,
        Field(min_length=1),
        Setting(
            frozenset((Program.LEARN,)),
            "File for health checks, touched every second while the learner is ready, otherwise removed. Health "
            "checks should also test the file's age",
            "FILE",
            unset="none",
        ),
    ] = None
    snapshot_interval_ms: Annotated[
        Duration,
        Setting(
            frozenset((Program.LEARN,)) | TOPIC_PROGRAMS,
            "Time between snapshots of the state; 0s for none (recovery then replays the whole journal)",
        ),
    ] = 60_000
    step_max_ms: Annotated[
        Duration,
        Field(ge=1, le=500),
        Setting(
            LEARN,
            "Maximum duration of a step, 1ms to 500ms. Use a lower value if the window is shorter than 10s. Shorter "
            "steps reduce latency, and longer steps put more records in each transaction",
        ),
    ] = 500
    partitions: Annotated[
        int,
        Field(ge=1, le=1_000),
        Setting(
            frozenset((Program.RUN, Program.CREATE)),
            "Number of partitions in every topic; limits the number of learner processes",
        ),
    ] = 1
    replication: Annotated[
        int, Field(ge=1), Setting(frozenset((Program.CREATE,)), "Replication factor for every topic")
    ] = 1
    keep_ms: Annotated[
        Retention,
        Setting(
            frozenset((Program.CREATE, Program.ALTER)),
            "Retention of all topics. Must be at least four times the sum of the windows, --retain and "
            "--snapshot-interval",
            f"DURATION|{UNLIMITED}",
        ),
    ] = 30 * UNITS_MS["d"]
    bootstrap: Annotated[str, Setting(CONNECTED, "Address of a Kafka broker", "HOST:PORT")] = "localhost:9092"
    client: Annotated[
        Literal["auto", "kafka-python", "confluent"],
        Setting(CONNECTED, "Kafka client; auto uses confluent, which is faster, if confluent-kafka is installed"),
    ] = "auto"
    topic_prefix: Annotated[
        str, Field(pattern=r"^[A-Za-z0-9._-]{1,200}$"), Setting(CONNECTED, "Prefix for all topic names", "PREFIX")
    ] = DEFAULT_PREFIX
    connect_timeout_ms: Annotated[Duration, Setting(CONNECTED, "Time to wait for an unavailable broker")] = 30_000
    session_timeout_ms: Annotated[
        Duration,
        Setting(
            frozenset((Program.LEARN, Program.FEEDBACK)),
            "Time without a heartbeat after which the group reassigns a process's partitions",
        ),
    ] = 10_000
    transaction_timeout_ms: Annotated[
        Duration, Setting(frozenset((Program.LEARN,)), "Time after which the broker aborts an open transaction")
    ] = 20_000

    @property
    def topics(self) -> Topics:
        """The pipeline's topics."""
        return Topics.with_prefix(self.topic_prefix)


class GatewaySettings(Group, frozen=True):
    """Settings for the HTTP gateway."""

    panel = Panel.SERVING

    serve_port: Annotated[
        int,
        Field(ge=1, le=65_535),
        Setting(SERVE, "HTTP port for decisions and feedback, /metrics, /healthz and /readyz", "PORT"),
    ] = 8080
    timeout_ms: Annotated[
        Duration,
        Field(ge=1),
        Setting(SERVE, "Time to wait for a decision before responding with 504 or the fallback"),
    ] = 1_000
    fallback: Annotated[
        str | None,
        Field(min_length=1),
        Setting(
            SERVE,
            "Response after the timeout: a class, by name or number; an action, by its place in the list; or uniform",
            "CLASS|PLACE|uniform",
            unset="status 504",
        ),
    ] = None
    personalizer: Annotated[
        bool,
        Setting(SERVE, "Also serve the REST interface of Azure Personalizer, for pipelines with actions"),
    ] = False
    remember_ms: Annotated[
        Duration,
        Setting(
            SERVE,
            "Time to remember decisions for repeated ids; at startup, predictions up to this age are read",
        ),
    ] = 600_000
    rate_max_per_s: Annotated[
        float | None,
        Field(gt=0.0),
        Setting(
            SERVE,
            "Maximum request rate per process; excess requests get status 429",
            "REQUESTS_PER_S",
            unset="no limit",
        ),
    ] = None
    serve_token: Annotated[
        Tokens | None,
        Setting(
            NO_FLAG,
            "Bearer token that requests must contain; two separated by a comma while the token changes",
            unset="none",
            is_secret=True,
        ),
    ] = None
    serve_certificate: Annotated[
        Path | None, Setting(SERVE, "Certificate for the HTTP port (PEM)", "FILE", unset="no TLS")
    ] = None
    serve_key: Annotated[Path | None, Setting(SERVE, "Key for the certificate (PEM)", "FILE", unset="no TLS")] = None


class WatchSettings(Group, frozen=True):
    """Settings for the HTTP servers: health checks, metrics and the monitor's page."""

    panel = Panel.WATCHING

    metrics_port: Annotated[
        int,
        Field(ge=0, le=65_535),
        Setting(WATCHED, "HTTP port for /metrics (Prometheus), /healthz and /readyz; 0 disables it", "PORT"),
    ] = 0
    traces: Annotated[
        bool,
        Setting(
            frozenset((Program.LEARN, Program.SERVE)),
            "Export OpenTelemetry spans; OTEL_* variables configure the exporter and the sampling",
        ),
    ] = False
    page_port: Annotated[
        int,
        Field(ge=1, le=65_535),
        Setting(MONITOR, "HTTP port for the monitor's page, /metrics, /healthz and /readyz", "PORT"),
    ] = 9470
    metrics_host: Annotated[
        str, Field(min_length=1), Setting(WATCHED | MONITOR | SERVE, "Interface to bind; 0.0.0.0 for all", "ADDRESS")
    ] = "127.0.0.1"
    allow_host: Annotated[
        Names,
        Setting(
            MONITOR | SERVE,
            "Additional host name allowed in the address of the monitor's page, or of a gateway without a token; "
            "repeatable",
            "NAME",
        ),
    ] = []


class OutputSettings(Group, frozen=True):
    """Settings for the log and other output."""

    panel = Panel.OUTPUT

    log_format: Annotated[
        Literal["text", "json"],
        Setting(frozenset(Program), "Format of the log on stderr: text, or one JSON object per line"),
    ] = "text"
    log_level: Annotated[
        Literal["info", "warning", "error"], Setting(frozenset(Program), "Lowest level of log lines to write")
    ] = "info"
    debug: Annotated[bool, Setting(frozenset(Program), "Print the traceback of an error")] = False
    profile: Annotated[
        str | None,
        Field(min_length=1),
        Setting(
            PIPELINE, "Write a cProfile to FILE on exit; read it with `python -m pstats FILE`", "FILE", unset="none"
        ),
    ] = None


class SettingsError(OnebitError, ValueError):
    """A setting is invalid. The message contains the name, the value and the accepted values."""


class Settings(  # type: ignore[misc]  # mypy does not know that BaseSettings can have frozen subclasses
    BaseSettings,
    OutputSettings,
    WatchSettings,
    GatewaySettings,
    KafkaSettings,
    WindowSettings,
    LearnerSettings,
    FeedbackSettings,
    frozen=True,
):
    """All settings. Pydantic lists the last base class's fields first."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_prefix_target="all", validate_default=False)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources in order of priority: flags, variables, file."""
        assert isinstance(env_settings, EnvSettingsSource)
        env_settings.env_vars = variables_of_settings(env_settings.env_vars)
        return init_settings, env_settings, _TomlFile(settings_cls, config_path())

    def shown(self) -> dict[str, object]:
        """Return the effective settings by name, in the form in which users write them."""
        return self.model_dump(by_alias=True)

    def changed(self) -> tuple[str, ...]:
        """Return the names of the settings that differ from their defaults."""
        defaults = type(self).model_construct().shown()
        return tuple(name for name, value in self.shown().items() if value != defaults[name])

    def environment(self) -> dict[str, str]:
        """Return the user's settings as environment variables for a subprocess."""
        given = self.model_dump(by_alias=True, include=set(self.given)) | {
            name: value.get_secret_value() for name in self.given if isinstance(value := getattr(self, name), SecretStr)
        }
        return {variable_of(name): _as_variable(value) for name, value in given.items() if value is not None}


class _TomlFile(TomlConfigSettingsSource):
    def _read_file(self, file_path: Traversable) -> dict[str, object]:
        return tomllib.loads(read_text(file_path))


def _as_variable(value: object) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list) else str(value)
