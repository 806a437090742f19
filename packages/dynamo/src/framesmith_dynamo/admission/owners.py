"""The package that a function belongs to: by the module of its globals, else by its file."""

from __future__ import annotations

import importlib.util
import os
import sysconfig
from collections.abc import Mapping
from functools import lru_cache
from types import CodeType

import torch

from framesmith_guards.stacks import OWN_PACKAGES, is_own

_TORCH = torch.__name__
_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep
#: Folders inside the standard library's folder that are not part of it.
_INSTALLED = ("site-packages", "dist-packages")


class ModulePatterns:
    """Modules of a package by their names within it; a name that ends with a dot is a package with all its modules."""

    def __init__(self, *names: str) -> None:
        self._packages = tuple(name for name in names if name.endswith("."))
        self._modules = frozenset(names)

    def __contains__(self, module: str) -> bool:
        return module in self._modules or f"{module}.".startswith(self._packages)


def module_of(code: CodeType, names: Mapping[str, object]) -> str:
    """Return the module that a function belongs to, from its code and globals; "" if unknown.

    The file decides for torch and these packages, where the globals name another module or none.
    """
    name = names.get("__name__") or names.get("__package__")
    named = name if isinstance(name, str) else ""
    if package_of(named) == _TORCH or is_own(named):
        return named
    return _module_of_file(code.co_filename) or named


def part_of_torch(module: str) -> str | None:
    """Return the module's name within torch, or None outside torch."""
    return module[len(_TORCH) + 1 :] if package_of(module) == _TORCH else None


def package_of(module: str) -> str:
    """The top-level package of a module."""
    return module.partition(".")[0]


def inside_stdlib(filename: str) -> str | None:
    """The path of a file of the standard library within its folder; None for other files."""
    inside = filename.removeprefix(_STDLIB)
    return None if inside == filename or inside.startswith(_INSTALLED) else inside


@lru_cache(maxsize=1)
def _folders() -> tuple[tuple[str, str], ...]:
    """(package, installation folder): a checkout of this project may lie in a folder of the same name."""
    specs = {name: importlib.util.find_spec(name) for name in (_TORCH, *sorted(OWN_PACKAGES))}
    return tuple(
        (name, place + os.sep)
        for name, spec in specs.items()
        if spec is not None
        for place in spec.submodule_search_locations or ()
    )


@lru_cache(maxsize=4096)
def _module_of_file(filename: str) -> str:
    for package, folder in _folders():
        if filename.startswith(folder):
            inside = filename[len(folder) :].removesuffix(".py").removesuffix(f"{os.sep}__init__")
            return package if inside == "__init__" else f"{package}.{inside.replace(os.sep, '.')}"
    return ""
