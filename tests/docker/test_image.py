"""The image omits only those parts of its libraries that Onebit does not use."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_onebit_does_not_import_parts_of_scipy_that_the_image_lacks() -> None:
    gone = set(re.findall(r"\bscipy/(\w+)", (ROOT / "docker/Dockerfile").read_text()))
    sources = [
        path for folder in ("onebit", "stream", "producers", "consumers") for path in (ROOT / folder).rglob("*.py")
    ]
    found = re.findall(
        r"^\s*(?:from|import) scipy(?:\.(\w+)| import (.+))", "\n".join(map(Path.read_text, sources)), re.MULTILINE
    )
    used = {name for module, names in found for name in re.findall(r"\w+", module or names)}

    assert "stats" in gone
    assert "linalg" in used
    assert gone & used == set()
