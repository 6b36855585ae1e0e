"""The commands and the program in docs/tutorial.md, run unchanged against the tests' Kafka broker."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stream.devkafka.local_kafka import LocalKafka
from tests.processes import CLIENTS

TUTORIAL = Path(__file__).parents[2] / "docs/tutorial.md"
SEPARATE_TERMINAL = "# in a second terminal"


def commands() -> list[str]:
    """Return the commands that follow a prompt. Installation commands have no prompt."""
    return re.findall(r"^\$ (.*)$", TUTORIAL.read_text(), flags=re.MULTILINE)


def test_tutorial_commands_have_the_documented_results(kafka: LocalKafka, tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", TUTORIAL.read_text(), flags=re.DOTALL)
    (tmp_path / "shop.py").write_text(program)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ONEBIT_")} | {
        "ONEBIT_BOOTSTRAP": kafka.bootstrap,
        "ONEBIT_CLIENT": CLIENTS[0],
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    log = tmp_path / "learn.log"
    learners, days = [], []
    try:
        for command in commands():
            if command.endswith(SEPARATE_TERMINAL):
                with log.open("wb") as output:
                    learners.append(
                        subprocess.Popen(
                            ["bash", "-c", f"exec {command}"], env=environment, stdout=output, stderr=subprocess.STDOUT
                        )
                    )
                continue
            done = subprocess.run(
                ["bash", "-c", command], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120,
                check=False,
            )  # fmt: skip
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}{log.read_text()}"
            if command == "python shop.py":
                days.append([int(taken) for taken in re.findall(r": (\d+) of 20", done.stdout)])
            if "verify" in command:
                assert "the ledger adds up" in done.stdout + done.stderr
    finally:
        for learner in learners:
            learner.kill()
            learner.wait()
    assert [learner.returncode for learner in learners] == [-9, -9]
    first, second = days
    assert sum(first[3:]) >= 0.9 * 20 * 9  # the tutorial says: "from the third on nearly all"
    assert sum(second) >= 0.9 * 20 * 12  # the restarted learner has forgotten nothing


@pytest.mark.parametrize("count", [8])
def test_tutorial_commands_are_found(count: int) -> None:
    assert len(commands()) == count
