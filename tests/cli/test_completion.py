"""Shell completion for the names of learners, data sets and policies."""

import pytest

from tests.cli.conftest import Onebit


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("run --learner late", {"late-ucb"}),
        ("run --learner aut", {"auto"}),
        ("run --data syn", {"synsep", "synnonsep"}),
        ("data show opt", {"optdigits"}),
        ("learners au", set()),  # `auto` is a value of the setting, not the name of a learner
        ("learners late", {"late-ucb"}),
        ("learners --data opt", {"optdigits"}),
        ("estimate --policy uni", {"uniform"}),
    ],
)
def test_shell_completion_suggests_matching_names(
    onebit: Onebit, monkeypatch: pytest.MonkeyPatch, typed: str, completed: set[str]
) -> None:
    monkeypatch.setenv("_ONEBIT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"onebit {typed}")
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split())))
    assert set(onebit().out.split()) == completed
