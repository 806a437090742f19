"""Hatch build hook: the wheel carries the extension compiled for the interpreter that builds it.

A standard wheel gets a freshly compiled file from a temporary folder; an editable install gets it inside `src`.
"""

import importlib.util
import shutil
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class GuardsBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles the extension before a wheel is packed and tags the wheel for this interpreter and platform."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; `version` is "standard" or "editable"."""
        native = _load(Path(self.root) / "native_build.py")
        name: str = native.extension_name()
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        if version == "editable":
            native.compile_extension(native.PACKAGE / name)
            return
        self._scratch = Path(tempfile.mkdtemp(prefix="framesmith-guards-"))
        built = native.compile_extension(self._scratch / name)
        build_data["force_include"][str(built)] = f"framesmith_guards/{name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary folder."""
        scratch = getattr(self, "_scratch", None)
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("framesmith_guards_native_build", path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
