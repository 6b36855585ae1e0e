"""Remedies for the errors of the layers below, which do not know the flags."""

import sys

from stream.app.sources import access_hint
from stream.devkafka.local_kafka import LocalKafkaPortError
from stream.errors import OnebitError
from stream.kafka.port import AccessError

POLICY_HINTS = {
    "NO_LABEL": "use --on-expiry drop",
    "NOTHING_ASSUMED": "--late correct needs --on-expiry negative",
    "NOT_RETRACTABLE": "use --late ignore, or late-ucb with --param drift=off",
    "NOT_FROM_LOGS": "use another --learner, or --play match",
    "ONE_RIGHT_CLASS": "use another --learner",
}
"""What to do about a policy that a learner cannot follow, by the name of the reason."""


def hint_of(error: OnebitError) -> str:
    """The remedy for an error; empty if none is known."""
    if isinstance(error, AccessError):
        return access_hint(error)
    if isinstance(error, LocalKafkaPortError):
        return "choose another port with --port"
    if "stream.task.settings" in sys.modules:  # else nothing can have raised what it has, and it loads the compiler
        from stream.journal.format import UnrecoverableError
        from stream.task.settings import PolicyError

        if isinstance(error, PolicyError):
            return POLICY_HINTS[error.reason.name]
        if isinstance(error, UnrecoverableError):
            return "start a new pipeline with another --topic-prefix"
    return error.hint
