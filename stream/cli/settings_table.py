"""`onebit settings`: every setting, its default, and what it does."""

import sys
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from stream.app.settings import CONNECTED, Panel, Program
from stream.app.sources import Described, described
from stream.cli.console import out, print_json
from stream.cli.flags import Json, with_log_flags

app = typer.Typer()


@app.command()
@with_log_flags
def settings(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print docs/settings.md instead.")] = False,
    json: Json = False,
) -> None:
    """List every setting with its default.

    `onebit config show` shows the effective values.
    """
    if markdown:
        sys.stdout.write(as_markdown())
        return
    if json:
        print_json({one.name: {"default": one.shown_default, "help": one.setting.help} for one in described()})
        return
    table = Table("setting", "default", "what", box=None, header_style="bold underline", padding=(0, 2, 0, 0))
    for one in described():
        table.add_row(one.written, escape(one.shown_default), escape(one.setting.help))
    out.print(table, highlight=False)


def as_markdown() -> str:
    """All settings as docs/settings.md lists them."""
    lines = [
        "# Settings",
        "",
        "`onebit settings --markdown` writes this page; a test holds it equal to the code.",
        "",
        "Every setting is a flag (`--on-expiry`), a variable (`ONEBIT_ON_EXPIRY`), and a name in a TOML file",
        "(`on_expiry` in `onebit.toml`, or in the file of `--config`). Flags win over variables, they over the file.",
        "A duration is a number and a unit: `250ms`, `10s`, `5m`, `1.5h`. A list is written `a,b`. A whole number may",
        "have underscores between its digits, as in `100_000`.",
        "A secret is a variable, or a name in the file, and no flag: everybody on a machine can read command lines.",
        "`onebit config show` shows what holds in a shell, and where it comes from.",
    ]
    for panel in Panel:
        rows = [_row(one) for one in described() if one.setting.panel is panel]
        if rows:
            header = ["", f"## {panel}", "", "| flag | default | accepted | what | flag of |", "|---|---|---|---|---|"]
            lines += [*header, *rows]
    return "\n".join(lines) + "\n"


def _row(one: Described) -> str:
    cells = (f"`{one.written}`", _code(one), one.accepted, one.setting.help, _programs(one))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _code(one: Described) -> str:
    return one.shown_default if one.default in (None, [], False) else f"`{one.shown_default}`"


def _programs(one: Described) -> str:
    programs = one.setting.programs
    if programs >= CONNECTED:
        return "all" if Program.LOCAL in programs else "all that connect to Kafka"
    return ", ".join(str(program) for program in Program if program in programs) or "none"
