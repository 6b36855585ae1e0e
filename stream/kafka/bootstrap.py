"""The addresses at which a Kafka is asked for first."""

import re

from stream.kafka.port import BrokerError

_SERVER = re.compile(r"(?P<host>[^\s:,/@\[\]]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})")
_PORT_MAX = 65_535


class BootstrapError(BrokerError):
    """What was given is not an address of a Kafka."""


def servers_of(bootstrap: str) -> list[str]:
    """The servers of `HOST:PORT[,HOST:PORT]`; a host may be an IPv6 address in brackets.

    Raises:
        BootstrapError: something else was given; the message says what was expected.
    """
    servers = [server.strip() for server in bootstrap.split(",")]
    for server in servers:
        found = _SERVER.fullmatch(server)
        if found is None or not 0 < int(found["port"]) <= _PORT_MAX:
            raise BootstrapError(
                f"the address of Kafka {bootstrap!r}: expected HOST:PORT[,HOST:PORT], such as localhost:9092, with a "
                f"port from 1 to {_PORT_MAX}; got {server!r}"
            )
    return servers
