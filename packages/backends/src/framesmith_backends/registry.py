"""Backends by name, found through the entry point group `framesmith.backends`."""

from __future__ import annotations

import functools
from importlib.metadata import EntryPoint, entry_points

from framesmith_aten.contract import ENTRY_POINTS, Backend
from framesmith_backends.options import check_among

# This distribution's own entry points, so that a source tree without metadata has them too.
OWN = tuple(EntryPoint(name, f"framesmith_backends.{name}:backend", ENTRY_POINTS) for name in ("eager", "cpu", "cuda"))


@functools.cache
def _points() -> dict[str, EntryPoint]:
    return {point.name: point for point in (*OWN, *entry_points(group=ENTRY_POINTS))}


def list_backends() -> list[str]:
    """The names of all installed backends, sorted."""
    return sorted(_points())


def find_backend(name: str) -> Backend:
    """The backend of that name. Raises ValueError with the nearest name, or ImportError saying what to install."""
    points = _points()
    check_among(name, sorted(points), f"no backend named {name!r}")
    try:
        found = points[name].load()
    except ImportError as error:
        raise ImportError(
            f"the backend {name!r} needs a package that is not installed ({error}); "
            f"try: pip install 'framesmith-backends[{name}]'"
        ) from error
    if not isinstance(found, Backend):
        raise TypeError(f"entry point {points[name].value} of backend {name!r} is not a Backend: {found!r}")
    return found
