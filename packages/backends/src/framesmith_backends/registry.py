"""Backends by name, found through the entry point group `framesmith.backends`."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from framesmith_backends.contract import Backend
from framesmith_backends.options import nearest

GROUP = "framesmith.backends"

# This distribution's own entry points, so that a source tree without metadata has them too.
OWN = tuple(EntryPoint(name, f"framesmith_backends.{name}:backend", GROUP) for name in ("eager", "cpu", "cuda"))


def _points() -> dict[str, EntryPoint]:
    return {point.name: point for point in (*OWN, *entry_points(group=GROUP))}


def list_backends() -> list[str]:
    """The names of all installed backends, sorted."""
    return sorted(_points())


def find_backend(name: str) -> Backend:
    """The backend of that name; a ValueError with the nearest name if there is none."""
    points = _points()
    if name not in points:
        raise ValueError(f"no backend named {name!r}: expected one of {sorted(points)}{nearest(name, points)}")
    found = points[name].load()
    if not isinstance(found, Backend):
        raise TypeError(f"entry point {points[name].value} of backend {name!r} is not a Backend: {found!r}")
    return found
