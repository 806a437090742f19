"""Counters of compilations since the last reset, over the whole process."""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields


@dataclass
class Stats:
    """`frames_seen`: frames that the hook saw for the first time or on a cache miss; the others are their outcomes.

    `frames_failed` counts frames that ran eagerly because the compiler failed on them, `costly_functions` functions
    that are skipped because compiling or inlining them cost more than it saved. `breaks` counts each graph break once,
    by its instruction and kind; `breaks_met` counts it in each caller of the function, and in each recompilation.
    """

    frames_seen: int = 0
    frames_compiled: int = 0
    frames_skipped: int = 0
    frames_run_once: int = 0
    frames_failed: int = 0
    graphs: int = 0
    breaks: int = 0
    breaks_met: int = 0
    recompilations: int = 0
    recompile_limits: int = 0
    costly_functions: int = 0


_counters = Stats()
_sites: set[tuple[object, ...]] = set()
_lock = threading.Lock()


def count(name: str, by: int = 1) -> None:
    """Add to one counter."""
    with _lock:
        setattr(_counters, name, getattr(_counters, name) + by)


def count_break(site: tuple[object, ...]) -> bool:
    """Count a break that was met; whether it is a new one."""
    with _lock:
        is_new = site not in _sites
        _sites.add(site)
        _counters.breaks += is_new
        _counters.breaks_met += 1
    return is_new


def stats() -> dict[str, int]:
    """The counters, by name, since the last `framesmith.reset()`."""
    with _lock:
        return {field.name: getattr(_counters, field.name) for field in fields(Stats)}


def clear() -> None:
    """Set every counter to zero."""
    with _lock:
        _sites.clear()
        for field in fields(Stats):
            setattr(_counters, field.name, 0)
