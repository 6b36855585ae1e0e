"""The model of a setting: how users see it, how a task stores it, and the groups of settings.

A setting is a field with a type, a range and a default, and with a `Setting` or a `Stored` as annotation. Flags,
variables, names in the TOML file and in the journal, checks of compatibility and docs/settings.md are derived from the
field.
"""

from enum import Enum, StrEnum, auto
from typing import ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict

from stream.settings.values import setting_name


class Panel(StrEnum):
    """The heading under which the help lists a setting."""

    DATA = "Data and replay"
    LEARNER = "Learner"
    FEEDBACK = "Feedback"
    JOIN = "Windows and limits"
    KAFKA = "Kafka"
    ACCESS = "Kafka security"
    SERVING = "HTTP"
    WATCHING = "Monitoring"
    OUTPUT = "Output"


class Program(StrEnum):
    """Commands that accept settings as flags."""

    RUN = "run"
    REPLAY = "replay"
    LEARN = "learn"
    FEEDBACK = "feedback"
    SERVE = "serve"
    MONITOR = "monitor"
    CREATE = "topics create"
    ALTER = "topics alter"
    DESCRIBE = "topics describe"
    VERIFY = "verify"
    SHOW = "data show"
    ESTIMATE = "estimate"
    TRAIN = "train"
    LEARNERS = "learners"
    CHANGE = "change"
    CONNECT = "every other command that connects to Kafka"
    LOCAL = "every command that does not connect to Kafka"


CONNECTED = frozenset(Program) - {Program.LOCAL, Program.SHOW, Program.ESTIMATE, Program.TRAIN, Program.LEARNERS}
"""The programs that connect to Kafka. `onebit run` connects only with --kafka."""

PIPELINE = frozenset((Program.RUN, Program.REPLAY, Program.LEARN, Program.FEEDBACK))
LOG = PIPELINE | {Program.VERIFY, Program.ESTIMATE, Program.TRAIN, Program.LEARNERS}
REPLAY = frozenset((Program.RUN, Program.REPLAY))
EVENTS = REPLAY | {Program.VERIFY}  # settings that determine the number of events in a replay
LEARN = frozenset((Program.RUN, Program.LEARN))
TOPIC_PROGRAMS = frozenset((Program.CREATE, Program.ALTER, Program.DESCRIBE))
FEEDBACK = frozenset((Program.RUN, Program.FEEDBACK))
WATCHED = frozenset((Program.REPLAY, Program.LEARN, Program.FEEDBACK))
MONITOR = frozenset((Program.MONITOR,))
SERVE = frozenset((Program.SERVE,))
NO_FLAG: frozenset[Program] = frozenset()  # for secrets, because every user of a machine can read command lines


class Setting(NamedTuple):
    """How users see a setting: the commands that accept it as a flag, its help, and its effect on a task."""

    programs: frozenset[Program]
    help: str
    metavar: str | None = None  # None if derived from the type
    unset: str | None = None  # the meaning of None as a value
    is_secret: bool = False  # never shown
    determines: tuple[str, ...] | None = (
        None  # fields of a task's settings; None for the field of the same name, if any
    )


class Change(Enum):
    """How a setting's change carries over in a running pipeline; see `stream.task.carry`."""

    REFUSED = auto()  # cannot change, for the reason in `Stored`
    FREE = auto()  # neither the model nor a pending decision depends on it
    MIXED = auto()  # the model is kept, and each pending decision keeps its propensity
    GROWN = auto()  # the model grows; new classes and features are as in a new model
    MEMBERS = auto()  # learners are kept by name; new learners are untrained


class Stored(NamedTuple):
    """How a task stores a setting."""

    shapes_model: bool = False  # whether a learner's state depends on it, so that it is stored with an exported model
    change: Change = Change.REFUSED
    reason: str = ""  # why it cannot change


class Group(BaseModel, frozen=True):
    """Settings that the help lists under one heading."""

    model_config = ConfigDict(extra="forbid", alias_generator=setting_name, hide_input_in_errors=True)

    panel: ClassVar[Panel]

    @property
    def given(self) -> frozenset[str]:
        """The fields (such as `window_ms`) that were set by a flag, an environment variable or the settings file."""
        return frozenset(self.model_fields_set)
