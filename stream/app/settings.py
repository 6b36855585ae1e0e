"""The settings of a pipeline, and their one home.

A field of `Settings` says all that there is to say about a setting: its name, type and range, its default, its help,
and which programs take it. Its flag, its `ONEBIT_*` variable, its name in the TOML file, `onebit settings`,
docs/settings.md and the report follow from that. To add a setting, add a field here, and read it where it is used.

A field's name ends with its unit (`window_ms`); people write the unit with the value, and so the setting's own name
goes without it: `--window 5s`, `ONEBIT_WINDOW=5s`, `window = "5s"`.
"""

import json
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple, TypeVar

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from producers.datasets.log import OnBadRow
from stream.app.setting_values import (
    FOR_EVER,
    PREFIX,
    Delay,
    Duration,
    Feedback,
    Names,
    Probability,
    Replay,
    Retention,
    Secret,
    Source,
    Speed,
    Texts,
    Time,
    config_path,
    setting_name,
    variable_of,
)
from stream.errors import OnebitError
from stream.task.join import JoinSettings
from stream.wire.topics import DEFAULT_PREFIX, Topics

AUTO: Final = "auto"
"""Stands for what fits: the learner for the data, the model for the partitions. It is resolved before anything is
stored."""


Group = TypeVar("Group", Source, Replay, Feedback)


class SettingsError(OnebitError, ValueError):
    """A setting that cannot be used; the message names it, its value, and what is accepted."""


class Panel(StrEnum):
    """Under which heading a setting stands in the help."""

    DATA = "What is replayed"
    LEARNER = "Who learns"
    FEEDBACK = "How the feedback comes"
    JOIN = "How long is waited"
    KAFKA = "Kafka"
    ACCESS = "How a secured Kafka is entered"
    WATCHING = "How it is watched"
    OUTPUT = "Output"


class Program(StrEnum):
    """What a setting is a setting of: the commands whose flags it is among."""

    RUN = "run"
    REPLAY = "replay"
    LEARN = "learn"
    FEEDBACK = "feedback"
    MONITOR = "monitor"
    CREATE = "topics create"
    DESCRIBE = "topics describe"
    VERIFY = "verify"
    CONNECT = "every other command that connects to Kafka"
    LOCAL = "every command that does not"


CONNECTED = frozenset(Program) - {Program.LOCAL}
"""The programs that connect to Kafka; `onebit run` does with --kafka."""

_PIPELINE = frozenset((Program.RUN, Program.REPLAY, Program.LEARN, Program.FEEDBACK))
_REPLAY = frozenset((Program.RUN, Program.REPLAY))
_EVENTS = _REPLAY | {Program.VERIFY}  # what tells how many events a replay writes
_LEARN = frozenset((Program.RUN, Program.LEARN))
_FEEDBACK = frozenset((Program.RUN, Program.FEEDBACK))
_WATCHED = frozenset((Program.REPLAY, Program.LEARN, Program.FEEDBACK))
_MONITOR = frozenset((Program.MONITOR,))
_NO_FLAG: frozenset[Program] = frozenset()  # of secrets: everybody on a machine can read command lines


class Setting(NamedTuple):
    """What people are told about a setting, and where it is a flag."""

    panel: Panel
    programs: frozenset[Program]
    help: str
    metavar: str | None = None  # None: by its type
    unset: str | None = None  # what counts when it is None
    is_secret: bool = False  # it is never shown


class Settings(BaseSettings):
    """All that a run depends on."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_prefix_target="all",
        extra="forbid",
        frozen=True,
        alias_generator=setting_name,
        hide_input_in_errors=True,
    )

    data: Annotated[
        str,
        Setting(
            Panel.DATA,
            _PIPELINE | {Program.VERIFY},
            "A data set (see `onebit data list`), an svmlight file, or a log of decisions (`onebit data show FILE`).",
            "NAME|FILE",
        ),
    ] = "optdigits"
    map: Annotated[
        str | None,
        Setting(
            Panel.DATA,
            _PIPELINE | {Program.VERIFY},
            "Of a log in a table: which column is what, as a file that `onebit data show` guesses, or in short "
            "(action=item,reward=click,numeric=age,categorical=device+region).",
            "FILE.toml|PAIRS",
            unset="none",
        ),
    ] = None
    on_bad_row: Annotated[
        OnBadRow,
        Setting(Panel.DATA, _PIPELINE | {Program.VERIFY}, "Stop at a row of a log that cannot be used, or skip it."),
    ] = "stop"
    reward_above: Annotated[
        float | None,
        Setting(
            Panel.DATA,
            _PIPELINE | {Program.VERIFY},
            "Of a log: a reward above this is 1, any other 0.",
            unset="rewards are 0 or 1",
        ),
    ] = None
    n_features: Annotated[
        int | None,
        Field(ge=1),
        Setting(
            Panel.DATA,
            _PIPELINE,
            "The number of features: of a file whose last ones may be empty, or of contexts that are of no data set.",
            unset="the greatest in the file",
        ),
    ] = None
    events: Annotated[
        int | None,
        Field(ge=1),
        Setting(
            Panel.DATA,
            _EVENTS,
            "The number of events to replay; beyond the last row the rows begin again.",
            unset="all rows",
        ),
    ] = None
    epochs: Annotated[
        int | None, Field(ge=1), Setting(Panel.DATA, _EVENTS, "How often the rows are replayed.", unset="1")
    ] = None
    shuffle: Annotated[bool, Setting(Panel.DATA, _REPLAY, "Every epoch has an order of its own.")] = False
    rate_per_s: Annotated[
        float,
        Field(gt=0.0),
        Setting(Panel.DATA, _REPLAY, "The pace of the replay, in events per second.", "EVENTS_PER_S"),
    ] = 100.0
    speed: Annotated[
        Speed,
        Setting(
            Panel.DATA,
            _REPLAY | {Program.FEEDBACK},
            "Replay a log in its own time, so many times faster: 1x, 60x, or max; --rate then counts for nothing. With "
            "--delay logged, its feedback too.",
            "FACTORx|max",
            unset="by the rate",
        ),
    ] = None
    from_time: Annotated[
        Time,
        Setting(Panel.DATA, _EVENTS, "Replay a log from this time on: 2019-11-24T08:30, or ms.", "TIME", unset="all"),
    ] = None
    to_time: Annotated[
        Time,
        Setting(Panel.DATA, _EVENTS, "Replay a log up to, and without, this time.", "TIME", unset="all"),
    ] = None
    limit: Annotated[
        int | None,
        Field(ge=1),
        Setting(Panel.DATA, _EVENTS, "Replay so many rows of a log, the first ones.", unset="all"),
    ] = None
    loop: Annotated[
        bool, Setting(Panel.DATA, frozenset((Program.REPLAY,)), "Begin again at the end, until stopped.")
    ] = False
    seed: Annotated[
        int,
        Field(ge=0, lt=2**63),
        Setting(Panel.DATA, _PIPELINE, "Every draw follows from this seed, and so do the rows of synthetic data."),
    ] = 0
    learner: Annotated[
        Names,
        Field(min_length=1),
        Setting(
            Panel.LEARNER,
            _LEARN,
            "See `onebit learners`; auto takes the one that fits the data. `onebit run` takes several, as a,b or "
            "repeated: each meets the same events and the same draws.",
            "NAME",
        ),
    ] = [AUTO]
    param: Annotated[
        Texts,
        Setting(
            Panel.LEARNER,
            _LEARN,
            "A parameter of the learner; repeat it for more. With several learners write LEARNER.NAME=VALUE.",
            "NAME=VALUE",
        ),
    ] = []
    n_classes: Annotated[
        int | None,
        Field(ge=2),
        Setting(
            Panel.LEARNER,
            frozenset((Program.LEARN,)),
            "The number of classes, with --n-features: for contexts that are of no data set.",
            unset="those of the data set",
        ),
    ] = None
    features: Annotated[
        Path | None,
        Setting(
            Panel.LEARNER,
            frozenset((Program.LEARN,)),
            "Which index each named feature of a context has: a file that `onebit data show --save-features` writes.",
            "FILE",
            unset="contexts have none",
        ),
    ] = None
    delay: Annotated[
        Delay,
        Setting(
            Panel.FEEDBACK,
            _FEEDBACK,
            "none, fixed:10s, geometric:10s, exponential:10s, lognormal:10s,1.0 (median, sigma), weibull:10s,0.7 "
            "(scale, shape), empirical:FILE (one delay in ms a line); per true class: 0=fixed:1s;*=none; logged: as "
            "the log has them.",
            "SPEC",
        ),
    ] = "lognormal:1s,1.0"
    loss: Annotated[Probability, Setting(Panel.FEEDBACK, _FEEDBACK, "The share of feedback that never comes.", "P")] = (
        0.0
    )
    duplicates: Annotated[
        Probability, Setting(Panel.FEEDBACK, _FEEDBACK, "The share of feedback that comes twice.", "P")
    ] = 0.0
    with_label: Annotated[
        bool,
        Setting(
            Panel.FEEDBACK,
            frozenset((Program.FEEDBACK,)),
            "Feedback tells the true class too, which full-information learners need.",
        ),
    ] = False
    window_ms: Annotated[
        Duration,
        Setting(Panel.JOIN, _LEARN | {Program.DESCRIBE}, "How long a decision waits for its feedback: 250ms, 10s, 5m."),
    ] = 300_000
    on_expiry: Annotated[
        Literal["drop", "negative"],
        Setting(Panel.JOIN, _LEARN, "What an expired decision teaches: nothing, or that it was wrong."),
    ] = "drop"
    late: Annotated[
        Literal["ignore", "correct"],
        Setting(
            Panel.JOIN,
            _LEARN,
            "What feedback after the window does: nothing, or take back the 0 that --on-expiry negative assumed.",
        ),
    ] = "ignore"
    play: Annotated[
        Literal["own", "logged", "match"],
        Setting(
            Panel.LEARNER,
            _LEARN,
            "What is done with the decision of a log: nothing; its action is played and learned from; or the learner's "
            "own counts where the log has the same.",
        ),
    ] = "own"
    model: Annotated[
        Literal["auto", "own", "shared"],
        Setting(
            Panel.LEARNER,
            _LEARN | {Program.CREATE},
            "Whose model decides: that of each partition, or one of all partitions, which is a log in a topic. By "
            "default a new pipeline with several partitions has one of all, unless its topics lack that log or it "
            "plays a log's decisions.",
        ),
    ] = AUTO
    model_lag_max_ms: Annotated[
        Retention,
        Setting(
            Panel.LEARNER,
            frozenset((Program.LEARN,)),
            "Of a shared model: after its log could not be read on for so long, since a transaction is open in it, no "
            "more decisions are made.",
            "DURATION",
        ),
    ] = -1
    reward: Annotated[
        Literal["exclusive", "any"],
        Setting(
            Panel.LEARNER,
            _LEARN,
            "How many classes may be right for one context: exactly one, or any number, as with clicks.",
        ),
    ] = "exclusive"
    propensity_min: Annotated[
        float,
        Field(ge=0.0, le=1.0),
        Setting(
            Panel.LEARNER,
            _LEARN,
            "With --play logged, the least propensity of the log that is learned from; smaller ones are taken for it. "
            "With --play match, the log's least: 0 for a uniform log.",
            "P",
        ),
    ] = 0.0
    estimate: Annotated[
        bool,
        Setting(
            Panel.LEARNER,
            _LEARN,
            "With --play logged, tell what the learner's own decisions would have earned, over the settled ones.",
        ),
    ] = False
    orphan_window_ms: Annotated[Duration, Setting(Panel.JOIN, _LEARN, "How long feedback waits for its context.")] = (
        300_000
    )
    retain_ms: Annotated[
        Duration,
        Setting(Panel.JOIN, _LEARN, "How long a settled id is remembered, so that duplicates and late bits are known."),
    ] = 3_600_000
    pending_max: Annotated[
        int, Field(ge=1), Setting(Panel.JOIN, _LEARN, "Limit of pending decisions; beyond it the oldest expires.")
    ] = 150_000
    orphans_max: Annotated[
        int, Field(ge=1), Setting(Panel.JOIN, _LEARN, "Limit of waiting feedback; beyond it the oldest is dropped.")
    ] = 50_000
    retained_max: Annotated[
        int, Field(ge=1), Setting(Panel.JOIN, _LEARN, "Limit of remembered ids; beyond it the oldest is forgotten.")
    ] = 1_000_000
    instance: Annotated[
        str,
        Field(pattern=r"^[A-Za-z0-9._-]{1,100}$"),
        Setting(
            Panel.KAFKA,
            frozenset((Program.LEARN, Program.FEEDBACK, Program.MONITOR)),
            "The name of this process across restarts; of several that run at once each needs its own.",
            "NAME",
        ),
    ] = "1"
    ready_file: Annotated[
        str | None,
        Field(min_length=1),
        Setting(
            Panel.KAFKA,
            frozenset((Program.LEARN,)),
            "A file for health checks: it is touched every second while this process's partitions are recovered and "
            "run, and else removed. A check should ask for its age too.",
            "FILE",
            unset="none",
        ),
    ] = None
    snapshot_interval_ms: Annotated[
        Duration,
        Setting(
            Panel.KAFKA,
            frozenset((Program.LEARN, Program.DESCRIBE)),
            "From one snapshot of the state to the next. With 0s there are none, and a recovery applies the whole "
            "journal again.",
        ),
    ] = 60_000
    step_max_ms: Annotated[
        Duration,
        Field(ge=1, le=500),
        Setting(
            Panel.KAFKA,
            _LEARN,
            "How long a learner works on one step, at most: a short one answers a backlog sooner, a long one answers "
            "more of it in one transaction. From 1ms to 500ms; a window below 10s makes it shorter.",
        ),
    ] = 500
    partitions: Annotated[
        int,
        Field(ge=1, le=1_000),
        Setting(
            Panel.KAFKA,
            frozenset((Program.RUN, Program.CREATE)),
            "The partitions of every topic; each can be in another learner process.",
        ),
    ] = 1
    replication: Annotated[
        int, Field(ge=1), Setting(Panel.KAFKA, frozenset((Program.CREATE,)), "The copies of every partition.")
    ] = 1
    retention_ms: Annotated[
        Retention,
        Setting(
            Panel.KAFKA,
            frozenset((Program.CREATE,)),
            "How long contexts, feedback, predictions, examples and dead letters are kept; journal and snapshots are "
            "kept for ever.",
            f"DURATION|{FOR_EVER}",
        ),
    ] = -1
    bootstrap: Annotated[str, Setting(Panel.KAFKA, CONNECTED, "The address at which Kafka answers.", "HOST:PORT")] = (
        "localhost:9092"
    )
    client: Annotated[
        Literal["auto", "kafka-python", "confluent"],
        Setting(
            Panel.KAFKA,
            CONNECTED,
            "The client that talks to Kafka; auto takes confluent, the faster one, where confluent-kafka is installed.",
        ),
    ] = "auto"
    topic_prefix: Annotated[
        str,
        Field(pattern=r"^[A-Za-z0-9._-]{1,200}$"),
        Setting(Panel.KAFKA, CONNECTED, "The names of all topics begin with this.", "PREFIX"),
    ] = DEFAULT_PREFIX
    connect_timeout_ms: Annotated[
        Duration, Setting(Panel.KAFKA, CONNECTED, "How long a program waits for a broker that is away.")
    ] = 30_000
    client_config: Annotated[
        Path | None,
        Setting(
            Panel.ACCESS,
            CONNECTED,
            "A file of properties for clients, as librdkafka or Kafka's Java client reads it; the settings below win "
            "over it.",
            "FILE",
            unset="none",
        ),
    ] = None
    security_protocol: Annotated[
        str | None,
        Setting(Panel.ACCESS, CONNECTED, "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.", "NAME", unset="PLAINTEXT"),
    ] = None
    sasl_mechanism: Annotated[
        str | None,
        Setting(Panel.ACCESS, CONNECTED, "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER.", "NAME", unset="none"),
    ] = None
    sasl_username: Annotated[str | None, Setting(Panel.ACCESS, CONNECTED, "The user's name.", "NAME", unset="none")] = (
        None
    )
    sasl_password: Annotated[
        Secret | None,
        Setting(Panel.ACCESS, _NO_FLAG, "The user's password.", unset="none", is_secret=True),
    ] = None
    sasl_oauthbearer_token_command: Annotated[
        str | None,
        Setting(
            Panel.ACCESS,
            CONNECTED,
            "A command that prints a token for OAUTHBEARER; it is run again when the token is about to end.",
            "COMMAND",
            unset="none",
        ),
    ] = None
    ssl_ca_location: Annotated[
        str | None,
        Setting(
            Panel.ACCESS,
            CONNECTED,
            "The certificates of the authorities that are trusted, in PEM.",
            "FILE",
            unset="those that this machine trusts",
        ),
    ] = None
    ssl_certificate_location: Annotated[
        str | None, Setting(Panel.ACCESS, CONNECTED, "The client's own certificate, in PEM.", "FILE", unset="none")
    ] = None
    ssl_key_location: Annotated[
        str | None, Setting(Panel.ACCESS, CONNECTED, "The key of that certificate, in PEM.", "FILE", unset="none")
    ] = None
    ssl_key_password: Annotated[
        Secret | None, Setting(Panel.ACCESS, _NO_FLAG, "The password of that key.", unset="none", is_secret=True)
    ] = None
    session_timeout_ms: Annotated[
        Duration,
        Setting(
            Panel.KAFKA,
            frozenset((Program.LEARN, Program.FEEDBACK)),
            "After so long a silence the group gives a process's partitions to another one.",
        ),
    ] = 10_000
    transaction_timeout_ms: Annotated[
        Duration,
        Setting(
            Panel.KAFKA, frozenset((Program.LEARN,)), "After so long a time the broker ends a transaction that is open."
        ),
    ] = 20_000

    log_format: Annotated[
        Literal["text", "json"],
        Setting(Panel.OUTPUT, frozenset(Program), "What a line of the log on stderr is: a text, or one JSON object."),
    ] = "text"
    log_level: Annotated[
        Literal["info", "warning", "error"],
        Setting(Panel.OUTPUT, frozenset(Program), "Lines of the log that matter less than this are left out."),
    ] = "info"
    debug: Annotated[bool, Setting(Panel.OUTPUT, frozenset(Program), "Print the traceback of an error.")] = False
    profile: Annotated[
        str | None,
        Field(min_length=1),
        Setting(
            Panel.OUTPUT,
            _PIPELINE,
            "Where it is written at the end what this process did with its time; `python -m pstats FILE` reads it.",
            "FILE",
            unset="nowhere",
        ),
    ] = None
    metrics_port: Annotated[
        int,
        Field(ge=0, le=65_535),
        Setting(
            Panel.WATCHING,
            _WATCHED,
            "Where the program answers /metrics (Prometheus), /healthz and /readyz by HTTP; 0: nowhere.",
            "PORT",
        ),
    ] = 0
    page_port: Annotated[
        int,
        Field(ge=1, le=65_535),
        Setting(
            Panel.WATCHING,
            _MONITOR,
            "Where the monitor has its page, and /metrics, /healthz and /readyz beside it.",
            "PORT",
        ),
    ] = 9470
    metrics_host: Annotated[
        str,
        Field(min_length=1),
        Setting(
            Panel.WATCHING,
            _WATCHED | _MONITOR,
            "Interface to bind; 0.0.0.0 for all.",
            "ADDRESS",
        ),
    ] = "127.0.0.1"
    allow_host: Annotated[
        Names,
        Setting(
            Panel.WATCHING,
            _MONITOR,
            "Host name in the address of the monitor's page, beyond localhost and --metrics-host; repeat it for more.",
            "NAME",
        ),
    ] = []

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags win over variables, variables over the file."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, config_path())

    @property
    def topics(self) -> Topics:
        """The topics of the pipeline."""
        return Topics.with_prefix(self.topic_prefix)

    def model_of(self, partitions: int) -> Literal["own", "shared"]:
        """The model of a new pipeline: by default a shared one if there are several partitions."""
        if self.model != AUTO:
            return self.model
        return "shared" if partitions > 1 and self.play == "own" else "own"

    @property
    def given(self) -> frozenset[str]:
        """The fields (`window_ms`) that a flag, a variable or the file gave; the others have their defaults."""
        return frozenset(self.model_fields_set)

    @property
    def source(self) -> Source:
        """The settings of the data set."""
        return self._group(Source)

    @property
    def replay(self) -> Replay:
        """The settings of its replay."""
        return self._group(Replay)

    @property
    def feedback(self) -> Feedback:
        """The settings of the simulated environment."""
        return self._group(Feedback)

    @property
    def join(self) -> JoinSettings:
        """The windows and limits of the join."""
        return JoinSettings(
            window_ms=self.window_ms,
            orphan_ms=self.orphan_window_ms,
            retain_ms=self.retain_ms,
            pending_max=self.pending_max,
            orphans_max=self.orphans_max,
            retained_max=self.retained_max,
        )

    def _group(self, kind: type[Group]) -> Group:
        return kind(**{field.name: getattr(self, field.name) for field in fields(kind)})

    def shown(self) -> dict[str, object]:
        """The effective settings as people write them, by the settings' names."""
        return self.model_dump(by_alias=True)

    def changed(self) -> tuple[str, ...]:
        """The names of the settings whose value is not the default, whoever gave it."""
        defaults = type(self).model_construct().shown()
        return tuple(name for name, value in self.shown().items() if value != defaults[name])

    def environment(self) -> dict[str, str]:
        """The settings that were given, as variables for a process that is started with the same ones."""
        given = self.model_dump(by_alias=True, include=set(self.given)) | {
            name: value.get_secret_value() for name in self.given if isinstance(value := getattr(self, name), SecretStr)
        }
        return {variable_of(name): _as_variable(value) for name, value in given.items() if value is not None}


def _as_variable(value: object) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list) else str(value)
