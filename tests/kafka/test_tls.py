"""TLS: error messages for unusable files and untrusted brokers."""

import gc
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from onebit.cli.app import main
from stream.errors import ExitCode
from stream.kafka.client_config import ClientConfig, ClientConfigError
from stream.kafka.connection import ADAPTERS, ConnectionSettings, connect
from stream.kafka.port import AccessError, BrokerUnavailableError
from stream.kafka.tls import context_of

AUTHORITY = trustme.CA()
OWN = AUTHORITY.issue_cert("client")
EXPIRED = AUTHORITY.issue_cert(
    "127.0.0.1", not_before=datetime(2020, 1, 1, tzinfo=UTC), not_after=datetime(2020, 1, 2, tzinfo=UTC)
)


@pytest.fixture
def ca(tmp_path: Path) -> str:
    AUTHORITY.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return str(tmp_path / "ca.pem")


@contextmanager
def server(certificate: trustme.LeafCert | None, *, wants_certificate: bool = False) -> Iterator[str]:
    """A server that does not speak Kafka's protocol. It uses TLS if a certificate is given, otherwise plain TCP."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if certificate is not None:
        certificate.configure_cert(context)
    if wants_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
        AUTHORITY.configure_trust(context)

    def answer(plain: socket.socket) -> None:
        try:
            if certificate is None:
                plain.recv(1000)
                plain.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            else:
                with context.wrap_socket(plain, server_side=True) as secured:
                    secured.recv(1000)
        except OSError:
            pass
        finally:
            plain.close()

    def serve() -> None:
        while True:
            try:
                plain, _ = listening.accept()
            except OSError:
                return
            answer(plain)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
    thread.join()


def refusal(bootstrap: str, config: ClientConfig, client: str) -> str:
    with pytest.raises(AccessError) as raised:
        connect(ConnectionSettings(bootstrap, config, connect_timeout_ms=3_000), client)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def tls(ca: str | None = None, **more: str) -> ClientConfig:
    return ClientConfig(security_protocol="SSL", ssl_ca_location=ca, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("client", ADAPTERS)
@pytest.mark.parametrize(
    ("certificate", "why"),
    [
        (EXPIRED, "certificate has expired; renew"),
        (trustme.CA().issue_cert("127.0.0.1"), "certificate is not trusted: it is not signed by the authority in"),
        (AUTHORITY.issue_cert("kafka.example.com"), "certificate is for a different name"),
        (None, "the broker does not use TLS on this port"),
    ],
    ids=["expired", "untrusted", "wrong name", "no TLS"],
)  # fmt: skip
def test_untrusted_broker_is_rejected_immediately_with_the_reason(
    ca: str, certificate: trustme.LeafCert | None, why: str, client: str
) -> None:
    with server(certificate) as bootstrap:
        assert why in refusal(bootstrap, tls(ca), client)


@pytest.mark.timeout(60)
def test_handshake_without_a_response_times_out(ca: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections but sends nothing
        with pytest.raises(BrokerUnavailableError):
            connect(ConnectionSettings(f"127.0.0.1:{silent.getsockname()[1]}", tls(ca), connect_timeout_ms=300))
        gc.collect()  # collecting an unclosed socket causes a warning, which fails the test


@pytest.mark.parametrize("client", ADAPTERS)
def test_expired_certificate_ends_a_command_with_one_line_and_exit_code_2(
    ca: str, client: str, capsys: pytest.CaptureFixture[str]
) -> None:
    access = ("--security-protocol", "SSL", "--ssl-ca-location", ca)
    with server(EXPIRED) as bootstrap, pytest.raises(SystemExit) as ended:
        main(["topics", "describe", "--bootstrap", bootstrap, "--client", client, *access])
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == ExitCode.USAGE
    assert line.startswith(f"error: no connection to Kafka at {bootstrap}: the broker's certificate has expired")


@pytest.mark.parametrize("client", ADAPTERS)
def test_required_client_certificate_is_reported(ca: str, client: str) -> None:
    with server(AUTHORITY.issue_cert("127.0.0.1"), wants_certificate=True) as bootstrap:
        assert "ssl.certificate.location and ssl.key.location" in refusal(bootstrap, tls(ca), client)


def test_host_name_check_can_be_disabled(ca: str) -> None:
    assert context_of(tls(ca)).check_hostname
    assert not context_of(tls(ca, ssl_endpoint_identification_algorithm="none")).check_hostname


def test_client_certificate_and_key_are_read_from_files(ca: str, tmp_path: Path) -> None:
    own = tmp_path / "own.pem"
    OWN.private_key_and_cert_chain_pem.write_to_path(str(own))
    context_of(tls(ca, ssl_certificate_location=str(own), ssl_key_location=str(own)))


@pytest.mark.parametrize(
    "content",
    [None, b"\xfe\xed\xfe\xed\0\0", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"],
    ids=["no file", "no PEM", "no certificate"],
)
def test_invalid_ca_file_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "ca"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ClientConfigError) as raised:
        context_of(tls(str(path)))
    assert str(raised.value).startswith(f"ssl.ca.location {path}: ")


def test_invalid_key_is_rejected_without_showing_its_password(ca: str, tmp_path: Path) -> None:
    certificate, other, locked = (str(tmp_path / name) for name in ("own.pem", "other.pem", "locked.pem"))
    OWN.cert_chain_pems[0].write_to_path(certificate)
    AUTHORITY.issue_cert("other").private_key_pem.write_to_path(other)
    key = serialization.load_pem_private_key(OWN.private_key_pem.bytes(), None)
    Path(locked).write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"correct-horse"),
        )
    )
    with pytest.raises(ClientConfigError):
        context_of(tls(ca, ssl_certificate_location=certificate, ssl_key_location=other))
    with pytest.raises(ClientConfigError):
        context_of(tls(ca, ssl_certificate_location=certificate, ssl_key_location=locked))
