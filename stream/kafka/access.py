"""What somebody is told whom a broker forbids something: in the same words by every client."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from stream.kafka.client_config import ClientConfig
from stream.kafka.port import AccessError, Acl

Lacking = Callable[[Sequence[Acl]], Sequence[Acl]]
"""Tells those of some ACLs that are lacking."""


def everything(needs: Sequence[Acl]) -> Sequence[Acl]:
    """All of them, where nobody can tell."""
    return needs


class Asked(NamedTuple):
    """What a broker was asked for, and has refused."""

    what: str  # could not be done
    bootstrap: str
    config: ClientConfig  # how the client came in
    needs: Iterable[Acl] = ()  # all that must be allowed for it
    lacking: Lacking = everything  # of several that the refusal may be about

    def forbidden(self, kind: str, is_named: Callable[[str], bool]) -> AccessError:
        """The error for a refusal; if it names nothing, it is about all that the first need of its kind is like.

        Args:
            kind: of the resource that it is about.
            is_named: whether it names a resource.
        """
        of_kind = list(dict.fromkeys(acl for acl in self.needs if acl.kind == kind))
        named = [acl for acl in of_kind if is_named(acl.name)]
        return self.lacks(self.lacking(named or [acl for acl in of_kind if acl.operation == of_kind[0].operation]))

    def lacks(self, missing: Sequence[Acl]) -> AccessError:
        """The error for ACLs that are missing."""
        acts = "; ".join(f"{acl.operation} on {acl.kind} {acl.name}" for acl in missing) or self.what
        return AccessError(
            f"could not {self.what}: Kafka at {self.bootstrap} does not allow {user_of(self.config)} all of this: "
            f"{acts}",
            missing,
            self.config.sasl_username if self.config.uses_sasl else None,
        )


def user_of(config: ClientConfig) -> str:
    """Whom the broker sees, for people."""
    if config.uses_sasl and config.sasl_username is not None:
        return f"user {config.sasl_username}"
    return "the owner of this token" if config.uses_sasl else "this client"
