"""Security for a local Kafka broker: certificates, a user, and the broker's settings.

Clients use TLS and SCRAM-SHA-512, and ACLs control their access. The broker and its controller authenticate with
the broker's certificate. All files are in one directory, which only the current user can read:

    security/ca.pem              the CA certificate for clients
    security/broker.pem          the broker's key and certificate
    security/client.properties   client settings for the user, by default the administrator `admin`
    security/format.args         arguments for the storage tool, in a file to keep the password off the command line

docker/compose.secure.yaml uses the same files.
"""

import secrets
import ssl
from collections.abc import Sequence
from pathlib import Path

ADMIN = "admin"
MECHANISM = "SCRAM-SHA-512"
LISTENER, INTERNAL, CONTROLLER = "SASL_SSL", "INTERNAL", "CONTROLLER"

_BROKER = "broker"  # the name in the broker's certificate; the broker is a super user
_PRIVATE = 0o600


class LocalSecurity:
    """The security files in a home directory. Clients log in as `user`. The certificate covers the hosts in `names`."""

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
        """Whether the broker that uses this home directory is secured."""
        return self.client_config.exists()

    def make(self) -> str:
        """Create the certificates and the user's password. Return the password."""
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
        """Write the broker's address into the client properties file. A client needs no other file."""
        others = [line for line in self.client_config.read_text().splitlines() if not line.startswith("bootstrap.")]
        _write_private(self.client_config, "\n".join([f"bootstrap.servers={bootstrap}", *others]) + "\n")

    def password(self) -> str:
        """Return the user's password."""
        lines = dict(line.split("=", 1) for line in self.client_config.read_text().splitlines())
        return lines["sasl.password"]

    def settings(self) -> dict[str, str]:
        """Return the broker's settings other than its listeners."""
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
        """Return a TLS context with the broker's certificate."""
        context = ssl.create_default_context(cafile=str(self.ca))
        context.load_cert_chain(self.broker)
        return context

    def scram(self) -> str:
        """Return the user's credential in the storage tool's format."""
        return f"{MECHANISM}=[name={self.user},password={self.password()}]"

    def write_format_arguments(self, arguments: list[str]) -> None:
        """Write an argument file for the Java process."""
        quoted = ('"' + argument.replace("\\", "\\\\").replace('"', '\\"') + '"' for argument in arguments)
        _write_private(self.format_arguments, "\n".join(quoted))

    def _issue_certificates(self) -> None:
        import trustme
        from cryptography.hazmat.primitives import serialization

        authority = trustme.CA(organization_name="Onebit's local Kafka")
        issued = authority.issue_cert(*self.names, common_name=_BROKER)
        # Kafka accepts only PKCS#8 keys.
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
