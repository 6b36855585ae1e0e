"""`onebit config show`: effective settings and their sources."""

import sys
import tomllib
from typing import Annotated, NamedTuple

import orjson
import typer
from rich.markup import escape
from rich.table import Table

from onebit.cli.console import examples, out
from onebit.cli.flags import Json, with_settings
from stream.kafka.client_config import BOOTSTRAP, SECRETS, property_of, read_properties
from stream.settings.definitions import Settings
from stream.settings.model import Program
from stream.settings.sources import Described, client_config_of, described, is_set
from stream.settings.values import HIDDEN, config_path, variable_of
from stream.text import read_text

app = typer.Typer(help="Show the effective settings and their sources.", no_args_is_help=True)

DEFAULT = "default"


class Effective(NamedTuple):
    """A setting's effective value and its source."""

    name: str
    value: str
    origin: str


@app.callback()
def config() -> None:
    """Show the effective settings. `onebit settings` describes them."""


@app.command(epilog=examples("onebit config show", "onebit config show --given --json"))
@with_settings(Program.LOCAL)
def show(
    settings: Settings,
    given: Annotated[
        bool, typer.Option("--given", help="Show only settings that are set by an environment variable or a file")
    ] = False,
    json: Json = False,
) -> None:
    """Show all effective settings with their sources: a variable, a file, or the default.

    A command's flags override these settings. The effective properties from a client file (--client-config) are
    included. Secrets are hidden.
    """
    rows = [*_settings(settings), *_properties(settings)]
    shown = [row for row in rows if not given or row.origin != DEFAULT]
    if json:
        by_name = {row.name: {"value": row.value, "from": row.origin} for row in shown}
        sys.stdout.write(orjson.dumps(by_name, option=orjson.OPT_INDENT_2).decode() + "\n")
        return
    table = Table("setting", "value", "from", box=None, header_style="bold underline", padding=(0, 2, 0, 0))
    for row in shown:
        table.add_row(row.name, escape(row.value), escape(row.origin))
    out.print(table, highlight=False)


def _settings(settings: Settings) -> list[Effective]:
    path = config_path()
    in_file = tomllib.loads(read_text(path)) if path is not None else {}
    values = settings.shown()

    def effective(one: Described) -> Effective:
        value = values[one.name]
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        if is_set(one.name):
            return Effective(one.name, text, f"variable {variable_of(one.name)}")
        if one.name in in_file:
            return Effective(one.name, text, str(path))
        if one.field in settings.given:  # the address in the properties file; see `with_address_of_file`
            return Effective(one.name, text, f"{BOOTSTRAP} in {settings.client_config}")
        return Effective(one.name, one.shown_default, DEFAULT)

    return [effective(one) for one in described()]


def _properties(settings: Settings) -> list[Effective]:
    """Return the properties in the properties file that are not overridden by a setting."""
    if settings.client_config is None:
        return []
    client_config_of(settings)  # raises an error for unsupported properties
    own = {property_of(field) for field in settings.given} | {BOOTSTRAP}
    return [
        Effective(name, HIDDEN if _is_secret(name) else value, str(settings.client_config))
        for name, value in read_properties(settings.client_config).items()
        if name not in own
    ]


def _is_secret(name: str) -> bool:
    return name in SECRETS or name.endswith((".password", ".jaas.config"))
