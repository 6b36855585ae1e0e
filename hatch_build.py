"""The compiled wheel: what every event passes through, as C by mypyc.

    ONEBIT_COMPILE=1 pip install '.[confluent]'

It needs a C compiler and Python's headers. Without the variable, and by `pip install -e .`, the same modules run as
Python: there is one source, and the bits are the same. The wheel has the sources too, which tracebacks show.
"""

import os
import shutil
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

C_FLAGS = ["-ffp-contract=off"]  # where a processor can multiply and add in one, Python does not


class CompiledWheel(BuildHookInterface[Any]):
    """Compiles the modules that pyproject.toml names, outside of the tree, and adds them to the wheel."""

    _made_in: Path | None = None

    def dependencies(self) -> list[str]:
        """What the build environment must have: mypyc goes by the types of all that a module imports."""
        if not _is_asked_for():
            return []
        metadata = self.metadata.core
        return [*self.config["compilers"], *metadata.dependencies, *metadata.optional_dependencies["confluent"]]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See BuildHookInterface."""
        if version == "editable" or not _is_asked_for():
            return
        from mypyc.build import mypycify
        from setuptools import Distribution

        self._made_in = Path(mkdtemp(prefix="onebit-wheel-"))
        libraries = self._made_in / "libraries"
        arguments = ["--config-file", "pyproject.toml", "--cache-dir", str(self._made_in), *self.config["modules"]]
        extensions = mypycify(arguments, target_dir=str(self._made_in / "c"), group_name="onebit")
        for extension in extensions:
            extension.extra_compile_args += C_FLAGS
        command = Distribution({"name": "onebit", "ext_modules": extensions}).get_command_obj("build_ext")
        command.build_lib, command.build_temp = str(libraries), str(self._made_in / "objects")
        command.ensure_finalized()
        command.run()
        for library in sorted(path for path in libraries.rglob("*") if path.is_file()):
            build_data["force_include"][str(library)] = library.relative_to(libraries).as_posix()
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """See BuildHookInterface."""
        if self._made_in is not None:
            shutil.rmtree(self._made_in)


def _is_asked_for() -> bool:
    return os.environ.get("ONEBIT_COMPILE", "0") not in ("", "0")
