"""What programs say while they run."""

import pytest

from stream.cli.console import Status


def test_status_is_said_again_only_when_it_has_changed(capsys: pytest.CaptureFixture[str]) -> None:
    status = Status()
    for lines in ([], ["a: 1", "b: 1"], ["a: 1", "b: 1"], ["a: 1", "b: 2"], ["a: 1", "b: 2"], ["a: 1"]):
        status.show(lines)
    said = [line.split(" ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert said == ["a: 1", "b: 1", "a: 1", "b: 2", "a: 1"]
