"""mkdocs hooks that add files from outside docs/ and generated references (commands, modules, learners) to the site.

mkdocs calls the `on_` functions (https://www.mkdocs.org/user-guide/configuration/#hooks). Links in the documents point
to repository files; `on_page_markdown` replaces them with the addresses of the same files in the site.
"""

import ast
import posixpath
import re
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer import Context
from typer.cli import get_docs_for_click
from typer.main import get_command

from onebit.cli.app import app
from stream.learners import Learner, registered

ROOT = Path(__file__).parents[2]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}
"""Pages from outside docs/, with their names on the site."""

LINK = re.compile(r"(?<=\]\()(?!https?://|mailto:|#)([^)\s#]+)")
MARKUP = re.compile(r"\[/?(?:bold|cyan|dim)?\]")


PACKAGES = ("onebit", "stream", "producers", "consumers")

DETAILS = ("formats.md", "ARCHITECTURE.md", "commands.md", "modules.md", "CHANGELOG.md", "source/")
"""Pages that the site's search ranks below the guides."""


def place_of(path: str) -> str:
    """Return the path of a repository file within the site."""
    return path.removeprefix("docs/") if path.startswith("docs/") else PAGES.get(path, f"source/{path}")


def linked_from(document: str) -> list[str]:
    """Return the repository files that a document links to."""
    folder = posixpath.dirname(document)
    return [posixpath.normpath(posixpath.join(folder, link)) for link in LINK.findall((ROOT / document).read_text())]


def linked_outside(documents: Iterable[str]) -> set[str]:
    """Return the files outside docs/ that the documents link to, directly or through linked Markdown files."""
    found: set[str] = set()
    to_read = list(documents)
    while to_read:
        new = {path for path in linked_from(to_read.pop()) if not path.startswith("docs/")} - found
        found |= new
        to_read += [path for path in new if path.endswith(".md") and (ROOT / path).is_file()]
    return found


def command_reference() -> str:
    """Return a Markdown reference for all commands and flags, generated from the code."""
    command = get_command(app)
    text = get_docs_for_click(obj=command, ctx=Context(command), name="onebit", title="Commands")
    return MARKUP.sub("", text)


def module_map() -> str:
    """Return a Markdown page that lists the modules of each package with the first lines of their docstrings."""
    lines = ["# Modules", ""]
    for package in sorted(path.parent for name in PACKAGES for path in (ROOT / name).rglob("__init__.py")):
        lines += [f"## {package.relative_to(ROOT).as_posix()}", "", summary(package / "__init__.py"), ""]
        modules = sorted(path for path in package.glob("*.py") if path.name != "__init__.py")
        if modules:
            lines += ["| module | description |", "|---|---|"]
            lines += [f"| `{path.name}` | {summary(path)} |" for path in modules]
            lines.append("")
    return "\n".join(lines)


LEARNERS = "<!-- docs/_site/hooks.py inserts the table of learners here -->"


def learner_table() -> str:
    """Return a Markdown table of all learners, generated from their classes."""
    lines = ["| learner | description | parameters | paper |", "|---|---|---|---|"]
    return "\n".join([*lines, *map(_learner_row, registered().values())])


def _learner_row(cls: type[Learner]) -> str:
    name = f"`{cls.name}`" + (" †" if cls.needs_label else "") + (" ‡" if cls.supports_eligible else "")
    parameters = ", ".join(f"`{one.name}={one.default}`" for one in cls.parameters) or "–"
    return f"| {name} | {cls.summary} | {parameters} | {cls.paper} |"


def summary(path: Path) -> str:
    """Return the first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Show the version at the foot of each page."""
    config.copyright = f"Onebit {version('onebit')}"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/: linked files and the generated references."""
    documents = [
        *PAGES,
        *(f"docs/{file.src_uri}" for file in files.documentation_pages() if file.src_uri.endswith(".md")),
    ]
    for path in sorted({*PAGES, *linked_outside(documents)}):
        if (ROOT / path).is_file():  # mkdocs itself reports links to missing files
            files.append(File.generated(config, place_of(path), abs_src_path=str(ROOT / path)))
    files.append(File.generated(config, "commands.md", content=command_reference()))
    files.append(File.generated(config, "modules.md", content=module_map()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Insert the table of learners, and replace links to repository files with links within the site."""
    here = page.file.src_uri
    if here.startswith(DETAILS):
        page.meta["search"] = {"boost": 0.5}
    markdown = markdown.replace(LEARNERS, learner_table())
    document = next((path for path, place in PAGES.items() if place == here), f"docs/{here}")
    if here.startswith("source/"):
        document = here.removeprefix("source/")

    def turned(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(document), link[1]))
        return posixpath.relpath(place_of(path), posixpath.dirname(here) or ".")

    return LINK.sub(turned, markdown)
