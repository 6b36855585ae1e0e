"""Helpers for tests against a secured Kafka broker: users, and the ACLs in docs/security.md."""

import re
import shlex
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from onebit.testing.processes import wait_for
from stream.devkafka.local_kafka import LocalKafka
from stream.kafka.client_config import client_config, read_properties
from stream.kafka.kafka_python.security import settings_of

PAGE = Path(__file__).parents[1] / "docs/security.md"
PASSWORD = "correct-horse-battery-staple"  # noqa: S105  # must not appear in any output
PLAIN_USER = "plain"

SETTINGS = {
    "sasl.enabled.mechanisms": "SCRAM-SHA-512,SCRAM-SHA-256,PLAIN,OAUTHBEARER",
    "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": (
        "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    ),
    "listener.name.sasl_ssl.plain.sasl.jaas.config": (
        f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{PLAIN_USER}="{PASSWORD}";'
    ),
    "listener.name.sasl_ssl.oauthbearer.sasl.jaas.config": (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
        'unsecuredLoginStringClaim_sub="broker";'
    ),
    "delete.topic.enable": "false",
}
"""Broker settings that enable all SASL mechanisms under test (by default, the local broker enables fewer), and that
disable topic deletion."""


class Allowed(NamedTuple):
    """An ACL that allows one user to perform one operation on one resource."""

    user: str
    operation: str
    kind: str  # "topic", "group" or "transactional-id"
    name: str
    prefixed: bool

    def __str__(self) -> str:
        return f"{self.user}-{self.operation}-{self.kind}-{self.name}"


def documented_acls() -> list[Allowed]:
    """The ACLs that the commands in docs/security.md add."""
    commands = re.findall(r"^\$ kafka-acls (.*)$", PAGE.read_text(), re.MULTILINE)
    return [one for command in commands for one in read_command(command)]


def read_command(command: str) -> Iterator[Allowed]:
    """The ACLs that a `kafka-acls` command adds."""
    parser = ArgumentParser(exit_on_error=False, allow_abbrev=False)
    parser.add_argument("admin")
    parser.add_argument("--add", action="store_true", required=True)
    parser.add_argument("--allow-principal", required=True)
    parser.add_argument("--operation", action="append", required=True)
    parser.add_argument("--resource-pattern-type", choices=("literal", "prefixed"), default="literal")
    for kind in ("topic", "group", "transactional-id"):
        parser.add_argument(f"--{kind}", action="append", default=[])
    found = parser.parse_args(shlex.split(command))
    for operation in found.operation:
        for kind in ("topic", "group", "transactional-id"):
            for name in getattr(found, kind.replace("-", "_")):
                user = found.allow_principal.removeprefix("User:")
                yield Allowed(user, operation, kind, name, found.resource_pattern_type == "prefixed")


class Secured:
    """A secured Kafka broker and its admin client."""

    def __init__(self, kafka: LocalKafka, folder: Path) -> None:
        assert kafka.client_config is not None
        self.kafka = kafka
        self.folder = folder
        self.properties = read_properties(kafka.client_config)
        self.admin: Any = KafkaAdminClient(
            bootstrap_servers=kafka.bootstrap, **settings_of(client_config(self.properties))
        )

    def add_users(self, *names: str) -> None:
        """Add users that authenticate with PASSWORD, using SCRAM-SHA-256 or SCRAM-SHA-512."""
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            wanted = [UserScramCredentialUpsertion(name, mechanism, PASSWORD.encode()) for name in names]
            assert self.admin.alter_user_scram_credentials(wanted) == dict.fromkeys(names)

    def file_of(self, user: str, **changes: str) -> Path:
        """Write a client properties file for a user. Property names in `changes` have underscores instead of dots."""
        path = self.folder / f"{user}-{len(list(self.folder.iterdir()))}.properties"
        own = {"bootstrap.servers": self.kafka.bootstrap, "sasl.username": user, "sasl.password": PASSWORD}
        properties = self.properties | own | {name.replace("_", "."): value for name, value in changes.items()}
        path.write_text("".join(f"{name}={value}\n" for name, value in properties.items() if value))
        return path

    def allow(self, allowed: Iterable[Allowed]) -> None:
        """Add ACLs and wait until they are in effect."""
        wanted = [_acl(one) for one in allowed]
        assert not self.admin.create_acls(wanted)["failed"]
        wait_for(lambda: all(self._counts(one) for one in wanted), "the ACLs are in effect")

    def forbid(self, one: Allowed) -> None:
        """Remove an ACL and wait until it is no longer in effect."""
        self.admin.delete_acls([_filter(_acl(one))])
        wait_for(lambda: not self._counts(_acl(one)), "the ACL is no longer in effect")

    @contextmanager
    def without(self, one: Allowed) -> Iterator[None]:
        """Remove an ACL temporarily."""
        self.forbid(one)
        try:
            yield
        finally:
            self.allow([one])

    def _counts(self, acl: ACL) -> bool:
        found, _ = self.admin.describe_acls(_filter(acl))
        return bool(found)


def _acl(one: Allowed) -> ACL:
    pattern = ResourcePattern(
        ResourceType[one.kind.upper().replace("-", "_")],
        one.name,
        ACLResourcePatternType.PREFIXED if one.prefixed else ACLResourcePatternType.LITERAL,
    )
    operation = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", one.operation).upper()
    return ACL(f"User:{one.user}", "*", ACLOperation[operation], ACLPermissionType.ALLOW, pattern)


def _filter(acl: ACL) -> ACLFilter:
    pattern = acl.resource_pattern
    return ACLFilter(
        acl.principal, acl.host, acl.operation, acl.permission_type,
        ResourcePatternFilter(pattern.resource_type, pattern.resource_name, pattern.pattern_type),
    )  # fmt: skip
