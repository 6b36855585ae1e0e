"""All paths, tests and links named in the documentation exist."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TESTS = ROOT / "tests"

DOCUMENTS = tuple(
    path.relative_to(ROOT).as_posix()
    for path in (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")))
)  # fmt: skip
PACKAGES = ("onebit", "stream", "producers", "consumers")
README_BYTES_MAX = 12_000

CODE_BLOCK = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
QUOTED = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
FILE = re.compile(r"[\w.-]+(/[\w.-]+)+\.(py|md|toml|txt|sh|yaml|html|css|typed)")
TEST = re.compile(r"test_\w+…?")


@cache
def text_of(document: str) -> str:
    """A document's text without its code blocks."""
    return CODE_BLOCK.sub("", (ROOT / document).read_text(encoding="utf-8"))


def quoted(document: str) -> list[str]:
    return QUOTED.findall(text_of(document))


def is_placeholder(name: str) -> bool:
    """Whether a path is a pattern such as `stream/learners/NAME.py`."""
    return re.search(r"NAME|VERSION", name) is not None


def paths_in(document: str) -> Iterator[str]:
    """The repository paths that a document names. A test's path can be relative to tests/."""
    top = {path.name for path in ROOT.iterdir()} - {"reports"}
    for name in quoted(document):
        if is_placeholder(name):
            continue
        is_of_the_repository = "/" in name and name.split("/")[0] in top and not re.search(r"[\s{*…]", name)
        if is_of_the_repository or (FILE.fullmatch(name) and name.split("/")[0] != "reports"):
            yield name


def slug(heading: str) -> str:
    """A heading's anchor.

    >>> slug("Docker compose: a `finite` run")
    'docker-compose-a-finite-run'
    """
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@cache
def functions_of(path: Path) -> tuple[str, ...]:
    return tuple(node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef))


def cited_tests(document: str) -> Iterator[tuple[Path, str]]:
    """Each test that a document names, with the last test file that the document names before that test."""
    path = None
    for name in quoted(document):
        if re.fullmatch(r"[\w/]+\.py", name) and Path(name).name.startswith("test_"):
            path = TESTS / name.removeprefix("tests/")
        elif TEST.fullmatch(name):
            assert path is not None, f"{document}: expected a test file before {name}"
            yield path, name


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_path_in_a_document_exists(document: str) -> None:
    missing = [name for name in paths_in(document) if not (ROOT / name).exists() and not (TESTS / name).exists()]
    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_in_a_document_has_a_target(document: str) -> None:
    broken = []
    for target in LINK.findall(text_of(document)):
        if target.startswith(("https://", "http://")):
            continue
        name, _, anchor = target.partition("#")
        path = (ROOT / document).parent / name if name else ROOT / document
        headings = HEADING.findall(CODE_BLOCK.sub("", path.read_text())) if anchor and path.is_file() else []
        if not path.exists() or (anchor and anchor not in map(slug, headings)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_test_in_a_document_exists(document: str) -> None:
    missing = []
    for path, name in cited_tests(document):
        known = functions_of(path) if path.is_file() else ()
        if not any(one == name or (name.endswith("…") and one.startswith(name[:-1])) for one in known):
            missing.append(f"{path.relative_to(ROOT)}: {name}")
    assert missing == []


def test_paths_tests_and_links_are_found_in_the_documents() -> None:
    assert "stream/settings/definitions.py" in set(paths_in("CONTRIBUTING.md"))
    assert "recovery/test_commit.py" in set(paths_in("docs/guarantees.md"))
    assert len(list(cited_tests("docs/guarantees.md"))) > 30
    assert len(LINK.findall(text_of("README.md"))) > 10


def test_readme_is_short_and_links_to_every_document() -> None:
    readme = ROOT / "README.md"
    linked = {target.partition("#")[0] for target in LINK.findall(text_of("README.md"))}
    assert len(readme.read_bytes()) <= README_BYTES_MAX
    assert sorted(set(DOCUMENTS) - linked - {"README.md"}) == []
