"""Messages from `make test-compose` and `make test-cluster` when Docker is not installed or not running."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ("test-compose", "test-cluster")


def ended(script: str, programs: Path) -> subprocess.CompletedProcess[str]:
    """Run a script with a PATH that contains only `programs`, bash and dirname."""
    for name in ("bash", "dirname"):
        (programs / name).symlink_to(shutil.which(name) or name)
    command = ["/usr/bin/env", "bash", str(ROOT / f"docker/{script}.sh")]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": str(programs)})


@pytest.mark.parametrize("script", SCRIPTS)
def test_missing_docker_is_reported_in_one_line(script: str, tmp_path: Path) -> None:
    done = ended(script, tmp_path)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"{script}: docker is not installed; install Docker with Compose v2\n"


@pytest.mark.parametrize("script", SCRIPTS)
def test_message_about_a_stopped_docker_engine_includes_dockers_error(script: str, tmp_path: Path) -> None:
    docker = tmp_path / "docker"
    docker.write_text("#!/usr/bin/env bash\necho 'permission denied' >&2\nexit 1\n")
    docker.chmod(0o755)
    done = ended(script, tmp_path)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"permission denied\n{script}: the Docker engine is not running\n"
