"""The mark of generated functions: their globals name a package and no module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def generated_namespace(package: str) -> dict[str, Any]:
    """Return new globals for generated functions of `package`.

    They have no `__name__`, by which torch.compile would import a module.
    """
    return {"__package__": package}


def is_generated(names: Mapping[str, object]) -> bool:
    """Whether the globals `names` of a function of these packages are those of generated functions."""
    return "__name__" not in names
