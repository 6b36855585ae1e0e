"""Build the wheel and the sdist, and check them in empty environments (`make dist`).

The checks:

- two builds, from the repository and from the sdist, have the same bytes;
- the wheel contains the files of Onebit's packages in git, and nothing else; it installs no other top-level name;
- the description renders on a package index, and contains no link to a file of the repository;
- a package index has wheels of the required packages for each supported version of Python, on x86-64 and on arm64;
- with the newest and with the lowest versions of the required packages, README's Python example and `onebit run` work.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
PACKAGES = ("onebit", "stream", "producers", "consumers")
IN_SDIST = ("CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml")
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
PLATFORMS = ("x86_64-manylinux_2_28", "aarch64-manylinux_2_28")
RESOLUTIONS = ("highest", "lowest-direct")
"""The newest versions of the required packages, and the lowest ones that pyproject.toml allows."""


def main(arguments: Sequence[str]) -> int:
    """Build and check the distributions, and return the exit code."""
    parser = argparse.ArgumentParser(prog="distribution", description="Build and check the wheel and the sdist.")
    parser.add_argument("--python", action="append", help="interpreter of the empty environments; can be repeated")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for the distributions")
    given = parser.parse_args(arguments)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        wheel, sdist = build(ROOT, given.out)
        check_second_build(wheel, sdist, work)
        check_contents(wheel, sdist)
        check_description(wheel, sdist)
        print(
            f"built {wheel} ({wheel.stat().st_size:,} bytes) and {sdist} ({sdist.stat().st_size:,} bytes)", flush=True
        )
        for version, platform in product(VERSIONS, PLATFORMS):
            resolve(version, platform, "highest")
        print(
            f"wheels of all requirements exist for Python {', '.join(VERSIONS)} on {', '.join(PLATFORMS)}", flush=True
        )
        environments = list(product(given.python or [sys.executable], RESOLUTIONS))
        with ThreadPoolExecutor(max_workers=2) as pool:  # half of the time is compilation of kernels on one core
            for line in pool.map(lambda of: check_installed(wheel, of[0], of[1], work), environments):
                print(line, flush=True)
    print(f"passed in {time.monotonic() - started:.0f} s")
    return 0


def run(*command: str | Path, cwd: Path = ROOT, **variables: str) -> str:
    """Run a command and return its output; raise an error that contains the output if the command fails."""
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | variables, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{done.stdout}\n{' '.join(map(str, command))}: exit code {done.returncode}; expected 0")
    return done.stdout


def expect(found: object, expected: object, what: str) -> None:
    """End the program if two values differ."""
    if found != expected:
        raise SystemExit(f"{what}: {found}; expected {expected}")


def build(source: Path, out: Path) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from the sdist."""
    shutil.rmtree(out, ignore_errors=True)
    epoch = run("git", "log", "-1", "--format=%ct").strip()
    pins = ROOT / "requirements-dev.txt"
    run(BIN / "uv", "build", "--quiet", "--build-constraints", pins, "--out-dir", out, source, SOURCE_DATE_EPOCH=epoch)
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, sdist


def check_second_build(wheel: Path, sdist: Path, work: Path) -> None:
    """Build again from the unpacked sdist, whose files have other times, and compare the bytes."""
    with tarfile.open(sdist) as archive:
        archive.extractall(work / "unpacked", filter="data")
    (source,) = (work / "unpacked").iterdir()
    for path in source.rglob("*"):
        os.utime(path)
    for first, second in zip((wheel, sdist), build(source, work / "second"), strict=True):
        expect(second.name, first.name, "name of the second build")
        expect(second.read_bytes() == first.read_bytes(), True, f"the second build of {first.name} has the same bytes")


def check_contents(wheel: Path, sdist: Path) -> None:
    """Compare the distributions' files with those of the packages in git."""
    ours = {path for path in run("git", "ls-files", *PACKAGES).splitlines() if (ROOT / path).is_file()}
    named = "-".join(wheel.name.split("-")[:2])
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if not name.startswith(f"{named}.dist-info/")}
        licences = {name for name in archive.namelist() if name.startswith(f"{named}.dist-info/licenses/")}
    expect(sorted(inside ^ ours), [], "files in either the wheel or git")
    expect(len(licences), 3, f"licence files in {wheel.name}")
    expect({f"{package}/py.typed" for package in PACKAGES} - inside, set(), "missing py.typed files")
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    expect(sorted(packed ^ (ours | {*IN_SDIST, "PKG-INFO", ".gitignore"})), [], "files in either the sdist or git")


def check_description(wheel: Path, sdist: Path) -> None:
    """Render the description as a package index does."""
    run(BIN / "twine", "check", "--strict", wheel, sdist)
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
    expect(re.findall(r"\]\((?!https://)[^)]*\)", text), [], "relative links in the description")


def resolve(version: str, platform: str | None, resolution: str) -> str:
    """Resolve the required packages, of which only wheels are used, and return their versions, one per line."""
    on = ["--python-platform", platform] if platform else []
    return run(
        BIN / "uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--only-binary", ":all:",
        "--python-version", version, *on, "--resolution", resolution, "pyproject.toml",
    )  # fmt: skip


def check_installed(wheel: Path, interpreter: str, resolution: str, work: Path) -> str:
    """Install the wheel into an empty environment, run Onebit there, and return a summary."""
    version = run(interpreter, "-c", "import platform; print(platform.python_version())").strip()
    home = work / f"{version}-{resolution}"
    home.mkdir()
    python = home / "venv/bin/python"
    run(BIN / "uv", "venv", "--quiet", "--python", interpreter, home / "venv")
    pins = home / "pins.txt"
    pins.write_text(resolve(version, None, resolution))
    run(BIN / "uv", "pip", "install", "--quiet", "--python", python, "--constraints", pins, wheel)
    run(BIN / "uv", "pip", "check", "--quiet", "--python", python)
    top = "from importlib.metadata import files; print(*sorted({f.parts[0] for f in files('onebit')} - {'..'}))"
    expect(
        run(python, "-c", top, cwd=home).split(),
        sorted((*PACKAGES, "-".join(wheel.name.split("-")[:2]) + ".dist-info")),
        "names that the wheel installs",
    )

    own = {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "PYTHONPATH": ""}
    (example,) = re.findall(r"```python\n(import onebit\n.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (home / "example.py").write_text(example)
    printed = run(python, "example.py", cwd=home, **own)
    expect(printed.count("stack-igw") > 0 and (home / "run.html").is_file(), True, f"README's example ran: {printed}")
    printed = run(home / "venv/bin/onebit", "run", cwd=home, **own)
    expect("5,620 matched" in printed, True, f"`onebit run` matched all events: {printed}")
    expect("Warning" in printed, False, f"`onebit run` printed a warning: {printed}")
    return f"Python {version}, {resolution} versions: README's example and `onebit run` passed"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
