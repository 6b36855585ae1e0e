"""Command flags: `--profile`, the flags generated from settings, and shell completion."""

import functools
import inspect
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, get_args

import typer

from onebit.cli.console import write_log
from stream.programs.process import announce, warn
from stream.settings.definitions import AUTO, Settings, SettingsError
from stream.settings.model import Panel, Program
from stream.settings.sources import Described, described, load_settings, unknown_variables
from stream.settings.values import CONFIG_VARIABLE


@contextmanager
def profiled(path: str | None) -> Iterator[None]:
    """If a path is given, profile the enclosed code, and write the profile to this path on exit, even after an error.

    Raises:
        SettingsError: the file cannot be written.
    """
    if path is None:
        yield
        return
    from cProfile import Profile

    try:
        with open(path, "ab"):  # an unwritable file is reported here, before a long run
            pass
    except OSError as error:
        raise SettingsError(f"--profile {path}: cannot write: {error.strerror}") from error
    profile = Profile()
    profile.enable()
    try:
        yield
    finally:
        profile.disable()
        profile.dump_stats(path)
        announce(f"profile written to {path}. Run: python -m pstats {path}")


Command = Callable[..., None]

Json = Annotated[
    bool,
    typer.Option("--json", rich_help_panel=Panel.OUTPUT, help="Print a JSON object on stdout"),
]
Partition = Annotated[
    int, typer.Option(min=0, rich_help_panel=Panel.KAFKA, help="Partition, if each partition has its own model")
]
Config = Annotated[
    Path | None,
    typer.Option(
        rich_help_panel=Panel.OUTPUT,
        show_default="onebit.toml, if it exists",
        help="TOML file with settings; flags and ONEBIT_* variables override it",
    ),
]


def with_settings(
    program: Program, unset: Mapping[str, str] = MappingProxyType({}), repeated: str | None = None
) -> Callable[[Command], Command]:
    """Add --config and the flags of a program's settings to a command whose first argument is a `Settings`.

    The command's other parameters become additional flags, which are listed after the settings.

    Args:
        program: The program.
        unset: What the help shows instead of the default, by field.
        repeated: The field whose flag can be repeated. The first argument is then a list of `Settings`, one per value.
    """

    def decorate(command: Command) -> Command:
        _, *own = inspect.signature(command, eval_str=True).parameters.values()
        return _with_flags(command, program, own, command, unset, repeated)

    return decorate


def with_log_flags(command: Command) -> Command:
    """Add the flags that all commands have (log, --debug, --config) to a command without settings."""

    def run(_settings: Settings, **values: Any) -> None:
        command(**values)

    return _with_flags(command, Program.LOCAL, [*inspect.signature(command, eval_str=True).parameters.values()], run)


def _with_flags(
    command: Command,
    program: Program,
    own: list[inspect.Parameter],
    run: Command,
    unset: Mapping[str, str] = MappingProxyType({}),
    repeated: str | None = None,
) -> Command:
    taken = [one for one in described() if program in one.setting.programs]
    shows_all = program is Program.LOCAL and run is command  # `onebit config show`
    shared = [_parameter(one.field, _annotation(one, unset, one.field == repeated)) for one in taken] + [
        _parameter("config", Config)
    ]

    @functools.wraps(command)
    def command_with_flags(**values: Any) -> None:
        config = values.pop("config")
        flags = {one.name: values.pop(one.field) for one in taken}
        given = (flags.pop(repeated) or [None]) if repeated else []
        settings = settings_from(config, flags, None if shows_all else own_settings(program))
        several = [load_settings({**flags, repeated: one}, own_settings(program)) for one in given if repeated]
        with profiled(settings.profile if "profile" in flags else None):
            run(several if repeated else settings, **values)

    parameters = [*shared, *(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own)]
    command_with_flags.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command_with_flags.__annotations__ = {one.name: one.annotation for one in parameters}
    return command_with_flags


def own_settings(program: Program) -> frozenset[str]:
    """Return the names of the settings that a program uses: those with a flag, and secrets."""
    return frozenset(one.name for one in described() if program in one.setting.programs or one.setting.is_secret)


def settings_from(config: Path | None, flags: dict[str, Any], own: Collection[str] | None = None) -> Settings:
    """Load the settings from flags, variables and the settings file. Warn about unknown variables."""
    if config is not None:
        os.environ[CONFIG_VARIABLE] = str(config)
    try:
        settings = load_settings(flags, own)
        write_log(settings.log_format, settings.log_level, debug=settings.debug)
    finally:
        for message in unknown_variables():
            warn(message)
    return settings


def learner_names(incomplete: str) -> list[str]:
    """Return the learner names that start with the typed text."""
    return _starting(incomplete, *_learners())


def learner_choices(incomplete: str) -> list[str]:
    """Return the values of the `learner` setting, including `auto`, that start with the typed text."""
    return _starting(incomplete, AUTO, *_learners())


def data_names(incomplete: str) -> list[str]:
    """Return the data set names that start with the typed text. The shell completes file names."""
    from producers.datasets.named import entries

    return _starting(incomplete, *(entry.name for entry in entries()))


def policy_names(incomplete: str) -> list[str]:
    """Return the `onebit estimate` policies whose names start with the typed text."""
    return _starting(incomplete, "logged", "uniform", "baseline", "first", "constant:", "model:", *_learners())


ALIASES = {"serve_port": ("--port",), "page_port": ("--port",)}
"""Additional flags of settings that only one program accepts."""

COMPLETED = {"learner": learner_choices, "data": data_names}
"""Functions for shell completion, by setting."""


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _annotation(one: Described, unset: Mapping[str, str], is_repeated: bool) -> Any:
    """Return the annotation for a flag: its type, or a list if it can be repeated, or None; and its help."""
    kinds = [kind for kind in get_args(one.annotation) if kind is not type(None)]
    is_optional = len(kinds) == 1 and type(None) in get_args(one.annotation)
    kind: Any = str if one.is_duration or one.is_probability else kinds[0] if is_optional else one.annotation
    kind = list[str] if is_repeated else kind
    flags = f"{one.flag}/--no-{one.flag.removeprefix('--')}" if kind is bool else one.flag
    numeric = kind in (int, float)
    return Annotated[
        kind | None,
        typer.Option(
            flags,
            *ALIASES.get(one.name, ()),
            metavar=one.setting.metavar or ("DURATION" if one.is_duration else "N" if kind is int else None),
            rich_help_panel=one.panel,
            show_default=unset.get(one.field, one.shown_default),
            help=one.setting.help,
            min=one.low if numeric else None,
            max=one.high if numeric else None,
            autocompletion=COMPLETED.get(one.name),
        ),
    ]


def _learners() -> list[str]:
    from stream.learners import registered

    return list(registered())


def _starting(incomplete: str, *names: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
