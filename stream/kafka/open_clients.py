"""The producers and consumers that a broker's user has open, whichever client they are of."""

from contextlib import suppress
from typing import Protocol, TypeVar

from stream.kafka.port import BrokerError


class Client(Protocol):
    """A producer or consumer that is open."""

    def close(self) -> None:
        """Release it."""


Opened = TypeVar("Opened", bound=Client)


class OpenClients:
    """Remembers them, to close them at the end."""

    def __init__(self) -> None:
        self._clients: list[Client] = []

    def opened(self, client: Opened) -> Opened:
        """Remember a client."""
        self._clients.append(client)
        return client

    def forget(self, client: Client) -> None:
        """A client was closed."""
        if client in self._clients:
            self._clients.remove(client)

    def close_clients(self) -> None:
        """Close those that are open."""
        for client in list(self._clients):
            with suppress(BrokerError):
                client.close()
