"""Creates TLS contexts and explains why TLS connections fail."""

import re
import ssl
from pathlib import Path

from stream.kafka.client_config import ClientConfig, ClientConfigError

_FAILURES = {
    "wrong version number|record layer failure|unknown protocol": (
        "the broker does not use TLS on this port; check the port, or set security.protocol to PLAINTEXT or "
        "SASL_PLAINTEXT"
    ),
    "alert (certificate required|handshake failure|bad certificate)|certificate required|eof occurred": (
        "the broker may require a different client certificate ({said}); check ssl.certificate.location and "
        "ssl.key.location"
    ),
    "unknown ca|alert.*certificate": (
        "the broker does not accept the client's certificate {config.ssl_certificate_location} ({said})"
    ),
    "": "the TLS handshake failed ({said})",
}
"""Reasons for failed handshakes, keyed by patterns that match OpenSSL's messages. The first match is used."""

_WAITING = (ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""Raised during a handshake that is waiting for the other side. These exceptions are not TLS failures."""

_OTHER_NAME = (
    "the broker's certificate is for a different name ({said}); use an address that matches the certificate or, if "
    "that is impossible, set ssl.endpoint.identification.algorithm=none"
)
_DISTRUSTED = {
    9: "the broker's certificate is not valid yet; check this machine's clock",
    10: "the broker's certificate has expired; renew the certificate, or correct this machine's clock",
    62: _OTHER_NAME,
    64: _OTHER_NAME,
}
"""Reasons why a certificate is not trusted, keyed by OpenSSL error code."""
_UNSIGNED = (
    "the broker's certificate is not trusted: it is not signed by {by} ({said}); set ssl.ca.location to the "
    "certificate of the broker's CA"
)


def context_of(config: ClientConfig) -> ssl.SSLContext:
    """Create a context for TLS 1.2 or later, with the configured certificates.

    Raises:
        ClientConfigError: a file is missing, is not in PEM format, or contains no certificate or key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = config.ssl_endpoint_identification_algorithm == "https"
    if config.ssl_ca_location is None:
        context.load_default_certs()
    else:
        _require_pem("ssl.ca.location", config.ssl_ca_location, "CERTIFICATE")
        try:
            context.load_verify_locations(config.ssl_ca_location)
        except ssl.SSLError as error:
            raise ClientConfigError(
                f"ssl.ca.location {config.ssl_ca_location}: the file contains a certificate that cannot be read "
                f"({_said(error)})"
            ) from None
    certificate, key = config.ssl_certificate_location, config.ssl_key_location
    if certificate is not None and key is not None:
        _require_pem("ssl.certificate.location", certificate, "CERTIFICATE")
        _require_pem("ssl.key.location", key, "PRIVATE KEY")
        # Without a password, OpenSSL would prompt for a password at the terminal. With an empty password, it fails.
        password = config.ssl_key_password.get_secret_value() if config.ssl_key_password is not None else ""
        try:
            context.load_cert_chain(certificate, key, password)
        except ssl.SSLError as error:
            why = f"cannot be read ({_said(error)}); if it is encrypted, check ssl.key.password"
            if "mismatch" in why:
                why = f"does not belong to the certificate in {certificate}"
            raise ClientConfigError(f"ssl.key.location: the key in {key} {why}") from None
    return context


def tls_error_of(error: BaseException) -> ssl.SSLError | None:
    """Return the TLS error that caused a connection to fail, or None for other failures."""
    chain: list[BaseException] = [error]  # the error, followed by its causes
    for one in chain:
        causes = [one.__cause__, one.__context__, *one.args]
        chain += [cause for cause in causes if isinstance(cause, BaseException) and cause not in chain]
    return next((one for one in chain if isinstance(one, ssl.SSLError) and not isinstance(one, _WAITING)), None)


def reason_of(found: ssl.SSLError, config: ClientConfig) -> str:
    """Return the reason and remedy for a connection that failed because of TLS."""
    if isinstance(found, ssl.SSLCertVerificationError):
        by = f"the authority in {config.ssl_ca_location}" if config.ssl_ca_location else "a CA that this machine trusts"
        return _DISTRUSTED.get(found.verify_code, _UNSIGNED).format(by=by, said=found.verify_message)
    said = _said(found)
    reason = next(reason for pattern, reason in _FAILURES.items() if re.search(pattern, said))
    return reason.format(said=said, config=config)


def _require_pem(name: str, path: str, kind: str) -> None:
    """Raise ClientConfigError for a file that cannot be read or has no PEM block of this kind."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ClientConfigError(f"{name} {path}: cannot read the file: {error.strerror}") from None
    if not re.search(rb"-----BEGIN [A-Z ]*" + kind.encode() + b"-----", content):
        raise ClientConfigError(
            f"{name} {path}: expected PEM with -----BEGIN {kind}-----; see docs/security.md for how to export keystores"
        )


def _said(error: ssl.SSLError) -> str:
    """Return OpenSSL's reason as text."""
    return (error.reason or str(error)).lower().replace("_", " ")
