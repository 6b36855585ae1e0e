"""Remedies, as flags, for errors of lower layers."""

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
"""Remedies for unsupported policies, by reason."""


def hint_of(error: OnebitError) -> str:
    """Return the remedy for an error; empty if none is known."""
    if isinstance(error, AccessError):
        return access_hint(error)
    if isinstance(error, LocalKafkaPortError):
        return "choose another port with --port"
    if (
        "stream.task.settings" in sys.modules
    ):  # loading the module would load the compiler; if it is not loaded, it cannot have raised the error
        from stream.journal.format import UnrecoverableError
        from stream.task.settings import PolicyError

        if isinstance(error, PolicyError):
            return POLICY_HINTS[error.reason.name]
        if isinstance(error, UnrecoverableError):
            return "start a new pipeline with another --topic-prefix"
    return error.hint
