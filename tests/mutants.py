"""Mutation testing with mutmut: runs the fast tests on a random sample of mutants (`make mutants`).

A mutant is one small change to one function: `<` instead of `<=`, `and` instead of `or`, a different number, or None
instead of an argument. The tests catch a mutant if a test that calls the function fails or times out. The
[tool.mutmut] section of pyproject.toml lists the tests and the files to mutate.

The sample excludes mutants that change only messages (string literals and f-strings that contain a space), because
tests should not assert the wording of a message. mutmut itself skips decorated functions and code outside functions.

benchmarks/results/mutants.md contains the latest results, and explains why some mutants survive.
"""

import argparse
import ast
import difflib
import hashlib
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path
from typing import NamedTuple

WORK_DIR = Path("mutants")
CAUGHT = ("killed", "timeout", "segfault", "check was interrupted by user")
"""The mutmut statuses that count as caught. The last status means that pytest could not import a test file."""

CAUGHT_SHARE = 0.95
"""Minimum share of mutants that the tests must catch. Below this share, the command fails."""


class Change(NamedTuple):
    """A function's source before and after a mutation."""

    path: Path
    before: str
    after: str

    def diff(self) -> str:
        lines = difflib.unified_diff(
            self.before.splitlines(), self.after.splitlines(), str(self.path), n=2, lineterm=""
        )
        return "\n".join(line for line in lines if not line.startswith(("---", "+++")))


def main(arguments: Sequence[str]) -> int:
    """Draw a sample of mutants, run the tests on each, print the survivors, and return the exit code."""
    parser = argparse.ArgumentParser(prog="mutants", description="Run the fast tests on a random sample of mutants.")
    parser.add_argument("--sample", type=int, default=120, help="number of mutants; 0 runs all")
    parser.add_argument("--seed", type=int, default=1, help="seed that determines the sample")
    parser.add_argument("--only", default="*", help="mutate only files whose path matches this pattern")
    parser.add_argument("--logic", action="store_true", help="mutate only conditions, operators and literals")
    parser.add_argument("--children", type=int, default=2, help="number of processes that run tests")
    parser.add_argument("--list", action="store_true", help="print the mutants and exit")
    given = parser.parse_args(arguments)

    changes = mutants(given.only)
    if given.logic:
        changes = {name: change for name, change in changes.items() if not is_crude(change.before, change.after)}
    names = drawn(changes, given.seed, given.sample or len(changes))
    if given.list:
        for name in names:
            print(f"{name}\n{changes[name].diff()}\n")
        return 0
    # mutmut would reuse copies from an earlier run, and miss later changes to tests and to files that are not mutated.
    shutil.rmtree(WORK_DIR, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "mutmut", "run", "--max-children", str(given.children), *names], check=True)
    statuses = outcomes(names, changes)
    print(report(statuses, changes))
    return int(caught(statuses) < CAUGHT_SHARE * len(names))


def mutants(only: str) -> dict[str, Change]:
    """All mutants of the files whose paths match a pattern, keyed by mutmut's names."""
    from mutmut.mutation.file_mutation import mutate_file_contents
    from mutmut.utils.file_utils import walk_mutatable_files
    from mutmut.utils.format_utils import get_mutant_name

    changes = {}
    for path in sorted(walk_mutatable_files()):
        if not fnmatch(str(path), only):
            continue
        mutated = mutate_file_contents(str(path), path.read_text(encoding="utf-8"))
        lines = mutated.code.splitlines()
        sources = {
            name: textwrap.dedent("\n".join(lines[span.start - 1 : span.end])).replace(name, "function")
            for name, span in mutated.line_span_by_function_name.items()
        }
        for name in mutated.mutant_names:
            original = name.partition("__mutmut_")[0] + "__mutmut_orig"
            changes[get_mutant_name(path, name)] = Change(path, sources[original], sources[name])
    return changes


def drawn(changes: Mapping[str, Change], seed: int, size: int) -> list[str]:
    """The names of a random sample of mutants. Excludes mutants that change only messages.

    A hash of the names determines the order. If a function changes, the sample keeps the mutants of other functions.
    """
    by_chance = sorted(changes, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest())
    return list(islice((name for name in by_chance if not is_of_text(changes[name].before, changes[name].after)), size))


class _Texts(ast.NodeTransformer):
    """Replaces messages with None."""

    def visit_Constant(self, node: ast.Constant) -> ast.AST:  # ast requires this method name
        return ast.Constant(None) if isinstance(node.value, str) and " " in node.value else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        literals = [part.value for part in node.values if isinstance(part, ast.Constant)]
        return ast.Constant(None) if any(" " in str(literal) for literal in literals) else node


def is_of_text(before: str, after: str) -> bool:
    """Whether two functions differ only in messages.

    >>> is_of_text('raise KeyError(f"no key {n + 1}")', 'raise KeyError(f"no key {n - 1}")')
    True
    >>> is_of_text('fail("too long")', "fail(None)")
    True
    >>> is_of_text('found["id"]', 'found["ID"]')
    False
    """
    one, other = (ast.dump(_Texts().visit(ast.parse(source))) for source in (before, after))
    return one == other


def is_crude(before: str, after: str) -> bool:
    """Whether a mutant replaces an expression with None or omits an argument. Tests nearly always catch such mutants.

    >>> is_crude("f(a, b)", "f(a, None)"), is_crude("f(a, b)", "f(b)"), is_crude("f(a < b)", "f(a <= b)")
    (True, True, False)
    """
    nones, arguments = [], []
    for source in (before, after):
        nodes = list(ast.walk(ast.parse(source)))
        nones.append(sum(isinstance(node, ast.Constant) and node.value is None for node in nodes))
        arguments.append(sum(len(node.args) + len(node.keywords) for node in nodes if isinstance(node, ast.Call)))
    return nones[1] > nones[0] or arguments[1] < arguments[0]


def outcomes(names: Iterable[str], changes: Mapping[str, Change]) -> dict[str, str]:
    """Each mutant's mutmut status."""
    from mutmut.mutation.data import SourceFileMutationData
    from mutmut.stats import status_by_exit_code

    statuses = {}
    for name in names:
        found = SourceFileMutationData(path=changes[name].path)
        found.load()
        statuses[name] = str(status_by_exit_code[found.exit_code_by_key[name]])
    return statuses


def caught(statuses: Mapping[str, str]) -> int:
    return sum(status in CAUGHT for status in statuses.values())


def report(statuses: Mapping[str, str], changes: Mapping[str, Change]) -> str:
    """The report: each surviving mutant with its change, and the share of mutants that the tests caught."""
    survivors = [
        f"{name}: {status}\n{changes[name].path}\n{changes[name].diff()}\n"
        for name, status in sorted(statuses.items())
        if status not in CAUGHT
    ]
    share = f"{caught(statuses)} of {len(statuses)} caught ({caught(statuses) / max(1, len(statuses)):.1%})"
    return "\n".join([*survivors, share])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
