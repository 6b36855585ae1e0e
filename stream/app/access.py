"""How the settings let a client in at a secured Kafka, and what to do when it is not let in."""

import shlex

from pydantic import SecretStr

from stream.app.settings import Settings, SettingsError
from stream.kafka.client_config import (
    BOOTSTRAP,
    PROPERTIES,
    ClientConfig,
    ClientConfigError,
    client_config,
    read_properties,
)
from stream.kafka.port import AccessError

FIELDS = tuple(name.replace(".", "_") for name in PROPERTIES if name.replace(".", "_") in Settings.model_fields)
"""The settings that are properties of a client; the file of properties has more."""


def client_config_of(settings: Settings) -> ClientConfig:
    """How a client comes in: the file of properties, and over it the settings that were given.

    Raises:
        SettingsError: the file cannot be read, or properties cannot be used.
    """
    own = {field.replace("_", "."): getattr(settings, field) for field in FIELDS if field in settings.given}
    given = {
        name: value.get_secret_value() if isinstance(value, SecretStr) else str(value)
        for name, value in own.items()
        if value is not None
    }
    try:
        properties = read_properties(settings.client_config) if settings.client_config else {}
        return client_config(properties | given)
    except ClientConfigError as error:
        raise SettingsError(_where(error, settings)) from error


def with_address_of_file(settings: Settings) -> Settings:
    """Settings that have the address of the file of properties, if it names one and no other was given.

    Raises:
        SettingsError: the file cannot be read.
    """
    if settings.client_config is None or "bootstrap" in settings.given:
        return settings
    try:
        address = read_properties(settings.client_config).get(BOOTSTRAP)
    except ClientConfigError as error:
        raise SettingsError(_where(error, settings)) from error
    return settings if address is None else settings.model_copy(update={"bootstrap": address})


def access_hint(error: AccessError) -> str:
    """The command that grants the missing permissions; empty if none is missing."""
    if not error.missing:
        return ""
    user = shlex.quote(f"User:{error.user or 'NAME'}")
    first, *others = error.missing
    acts = f"--operation {first.operation} --{first.kind} {shlex.quote(first.name)}"
    more = f", and {len(others)} more of the kind" if others else ""
    return (
        f"ask an administrator of the cluster to run: kafka-acls --add --allow-principal {user} {acts}{more}; "
        "docs/security.md lists what each program needs"
    )


def _where(error: ClientConfigError, settings: Settings) -> str:
    path = settings.client_config
    return str(error) if path is None or str(error).startswith(str(path)) else f"{error} (see {path}, and the settings)"
