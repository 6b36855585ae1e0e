"""TLS as properties ask for it, and what went wrong with it in words for people."""

import re
import ssl
from collections.abc import Iterator
from pathlib import Path

from stream.kafka.client_config import ClientConfig, ClientConfigError

_EXPORT = {
    b"\xfe\xed\xfe\xed": "a Java key store (JKS)",
    b"\xce\xce\xce\xce": "a Java key store (JCEKS)",
    b"\x30\x82": "DER or a key store (PKCS12)",
    b"\x30\x80": "DER or a key store (PKCS12)",
}
"""What files that are no PEM begin with."""

_EXPIRED, _NOT_YET = 10, 9
_OTHER_NAME = (62, 64)  # of a host; of an address


def context_of(config: ClientConfig) -> ssl.SSLContext:
    """TLS 1.2 or later, with the certificates that are named.

    Raises:
        ClientConfigError: a file is missing, is not in PEM, or does not hold what it should.
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
                f"ssl.ca.location {config.ssl_ca_location}: a certificate in it cannot be read ({_said(error)})"
            ) from None
    if config.ssl_certificate_location is not None and config.ssl_key_location is not None:
        _load_own(context, config, config.ssl_certificate_location, config.ssl_key_location)
    return context


def reason_of(error: BaseException, config: ClientConfig) -> str | None:
    """Why a connection by TLS failed, for people, and what to do; None when that was not TLS's doing."""
    found = next((one for one in _chain(error) if isinstance(one, ssl.SSLError)), None)
    if isinstance(found, ssl.SSLCertVerificationError):
        return _distrusted(found, config)
    if found is None:
        return None
    said = _said(found)
    if re.search("wrong version number|record layer failure|unknown protocol", said, re.IGNORECASE):
        return "it speaks no TLS at this port; is security.protocol right (PLAINTEXT, SASL_PLAINTEXT), or the port?"
    if re.search(
        "alert (certificate required|handshake failure|bad certificate)|certificate required|eof occurred", said
    ):
        return f"it may want another certificate of the client ({said}): ssl.certificate.location and ssl.key.location"
    if "unknown ca" in said or re.search("alert.*certificate", said):
        return f"it does not accept the client's certificate {config.ssl_certificate_location} ({said})"
    return f"no TLS connection came about ({said})"


def _distrusted(error: ssl.SSLCertVerificationError, config: ClientConfig) -> str:
    if error.verify_code == _EXPIRED:
        return "its certificate has expired; whoever runs that Kafka must renew it (or is this machine's clock wrong?)"
    if error.verify_code == _NOT_YET:
        return "its certificate is not valid yet; is this machine's clock right?"
    if error.verify_code in _OTHER_NAME:
        return (
            f"its certificate is for another name ({error.verify_message}); give the address by the name that the "
            "certificate has, or, if you must, ssl.endpoint.identification.algorithm=none"
        )
    by = f"the authority in {config.ssl_ca_location}" if config.ssl_ca_location else "one that this machine trusts"
    return (
        f"its certificate is not trusted: it is not signed by {by} ({error.verify_message}); give the right "
        "authority's certificate by ssl.ca.location"
    )


def _load_own(context: ssl.SSLContext, config: ClientConfig, certificate: str, key: str) -> None:
    _require_pem("ssl.certificate.location", certificate, "CERTIFICATE")
    _require_pem("ssl.key.location", key, "PRIVATE KEY")
    secret = config.ssl_key_password
    # Without a password OpenSSL would ask for one at the terminal; with this empty one it fails.
    password = secret.get_secret_value() if secret is not None else ""
    try:
        context.load_cert_chain(certificate, key, password)
    except ssl.SSLError as error:
        said = _said(error)
        why = (
            f"the key in {key} is not that of the certificate in {certificate}"
            if "mismatch" in said
            else f"the key in {key} cannot be read ({said}); if it is encrypted, is ssl.key.password right?"
        )
        raise ClientConfigError(f"ssl.key.location: {why}") from None


def _require_pem(name: str, path: str, what: str) -> None:
    """Refuse a file that is not there, or has no such part in PEM; what it is instead, if that can be seen."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ClientConfigError(f"{name} {path}: the file cannot be read: {error.strerror}") from None
    if re.search(rb"-----BEGIN [A-Z ]*" + what.encode() + b"-----", content):
        return
    looks = next((what for start, what in _EXPORT.items() if content.startswith(start)), None)
    got = f"; got {looks}: export it to PEM, see docs/security.md" if looks else ""
    raise ClientConfigError(f"{name} {path}: expected PEM, with -----BEGIN {what}-----{got}")


def _said(error: ssl.SSLError) -> str:
    """OpenSSL's reason in words."""
    return (error.reason or str(error)).lower().replace("_", " ")


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error, and those that it came from."""
    seen: list[BaseException] = [error]
    for one in seen:
        yield one
        causes = [one.__cause__, one.__context__, *one.args]
        seen += [cause for cause in causes if isinstance(cause, BaseException) and cause not in seen]
