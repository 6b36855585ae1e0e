"""What makes a Kafka of one's own a secured one: certificates, a user, and the broker's settings.

Clients come in by TLS and SCRAM-SHA-512, and may do what ACLs allow. The broker and its controller know each other by
the broker's certificate. All of it lies in one folder, for this user's eyes alone:

    security/ca.pem              what clients trust
    security/broker.pem          the broker's key and certificate
    security/client.properties   how a client comes in; on this machine as `admin`, who may do everything
    security/format.args         while the storage is formatted: so the password stands in no command line

docker/compose.secure.yaml secures its Kafka with the same files. This module is all of Onebit that makes them.
"""

import secrets
import ssl
from collections.abc import Sequence
from pathlib import Path

ADMIN = "admin"
MECHANISM = "SCRAM-SHA-512"
LISTENER, INTERNAL, CONTROLLER = "SASL_SSL", "INTERNAL", "CONTROLLER"

_BROKER = "broker"  # the name in the broker's certificate, by which it may do everything
_PRIVATE = 0o600


class LocalSecurity:
    """The files of a secured broker's home: for clients that are `user`, of a broker that is known by `names`."""

    def __init__(self, home: Path, user: str = ADMIN, names: Sequence[str] = ("localhost", "127.0.0.1", "::1")) -> None:
        self.user = user
        self.names = names
        self.folder = home / "security"
        self.ca = self.folder / "ca.pem"
        self.broker = self.folder / "broker.pem"
        self.client_config = self.folder / "client.properties"
        self.format_arguments = self.folder / "format.args"

    @property
    def exists(self) -> bool:
        """Whether the home is that of a secured broker."""
        return self.client_config.exists()

    def make(self) -> str:
        """Make certificates, and the password of the user, which is returned."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self._issue_certificates()
        password = secrets.token_urlsafe(24)
        _write_private(
            self.client_config,
            f"security.protocol=SASL_SSL\nsasl.mechanism={MECHANISM}\nsasl.username={self.user}\n"
            f"sasl.password={password}\nssl.ca.location={self.ca}\n",
        )
        return password

    def write_address(self, bootstrap: str) -> None:
        """Set the address in the client's properties, so that the file is all that a client needs."""
        others = [line for line in self.client_config.read_text().splitlines() if not line.startswith("bootstrap.")]
        _write_private(self.client_config, "\n".join([f"bootstrap.servers={bootstrap}", *others]) + "\n")

    def password(self) -> str:
        """The password of the user."""
        lines = dict(line.split("=", 1) for line in self.client_config.read_text().splitlines())
        return lines["sasl.password"]

    def settings(self) -> dict[str, str]:
        """The broker's settings beside its listeners."""
        return {
            "inter.broker.listener.name": INTERNAL,
            "listener.security.protocol.map": f"{LISTENER}:SASL_SSL,{INTERNAL}:SSL,{CONTROLLER}:SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.broker),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca),
            f"listener.name.{INTERNAL.lower()}.ssl.client.auth": "required",
            f"listener.name.{CONTROLLER.lower()}.ssl.client.auth": "required",
            "ssl.principal.mapping.rules": "RULE:^CN=(.*?),.*$/$1/",
            "sasl.enabled.mechanisms": MECHANISM,
            f"listener.name.{LISTENER.lower()}.{MECHANISM.lower()}.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:{ADMIN};User:{_BROKER}",
        }

    def own_context(self) -> ssl.SSLContext:
        """TLS as the broker itself."""
        context = ssl.create_default_context(cafile=str(self.ca))
        context.load_cert_chain(self.broker)
        return context

    def scram(self) -> str:
        """The credential of the user as the storage is formatted with it."""
        return f"{MECHANISM}=[name={self.user},password={self.password()}]"

    def write_format_arguments(self, arguments: list[str]) -> None:
        """Write the arguments of a Java machine to the file that it reads them from."""
        quoted = ('"' + argument.replace("\\", "\\\\").replace('"', '\\"') + '"' for argument in arguments)
        _write_private(self.format_arguments, "\n".join(quoted))

    def _issue_certificates(self) -> None:
        import trustme
        from cryptography.hazmat.primitives import serialization

        authority = trustme.CA(organization_name="Onebit's local Kafka")
        issued = authority.issue_cert(*self.names, common_name=_BROKER)
        # Kafka reads PKCS#8 alone.
        key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), password=None).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        certificates = b"".join(part.bytes() for part in issued.cert_chain_pems)
        _write_private(self.broker, (key + certificates).decode())
        _write_private(self.ca, authority.cert_pem.bytes().decode())


def _write_private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    path.touch(mode=_PRIVATE)
    path.write_text(text)
