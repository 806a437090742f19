"""The one typed configuration: made by `compile()`, passed down as explicit arguments, part of every cache key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from framesmith.backends import MEMORY_BUDGET, BackendLike, backend_options, resolve_backend, takes_mode_here
from framesmith.choices import check_bool, check_choice, listed, nearest
from framesmith.reports.failures import FramesmithWarning
from framesmith_aten.contract import MODES
from framesmith_backends.options import present_options
from framesmith_guards import warn_user


@dataclass(frozen=True)
class CompileConfig:
    """Checked settings of one `compile()` call."""

    backend: BackendLike = "auto"
    fullgraph: bool = False
    dynamic: bool | None = None
    mode: str = "default"
    options: Mapping[str, object] = field(default_factory=dict)
    strict: bool = False
    verify: int = 0
    recompile_limit: int | None = None


def make_config(
    *,
    backend: object = "auto",
    fullgraph: object = False,
    dynamic: object = None,
    mode: object = None,
    options: object = None,
    strict: object = False,
    verify: object = False,
    recompile_limit: object = None,
) -> CompileConfig:
    """Check every argument of `compile()`. Raises TypeError or ValueError naming the nearest valid choice."""
    chosen = resolve_backend(backend)
    return CompileConfig(
        backend=chosen,
        fullgraph=check_bool("fullgraph", fullgraph),
        dynamic=None if dynamic is None else check_bool("dynamic", dynamic),
        mode=check_mode(chosen, mode),
        options=check_options(chosen, options),
        strict=check_bool("strict", strict),
        verify=check_verify(verify),
        recompile_limit=check_limit(recompile_limit),
    )


def check_mode(backend: BackendLike, mode: object) -> str:
    """Return a mode by name; warn of one that the backend does not take."""
    if mode is None:
        return "default"
    chosen = check_choice("mode", mode, MODES)
    if chosen == "default" or takes_mode_here(backend):
        return chosen
    known = backend_options(backend)
    why = "this backend takes no mode"
    if "mode" in known:
        why = "none of the backends that take a mode can run here"
    elif known:
        why += f"; what it does take are the options {listed(known)}"
    warn_user(FramesmithWarning(f"mode={chosen!r} has no effect: {why}"))
    return chosen


def check_options(backend: BackendLike, options: object) -> Mapping[str, object]:
    """Return `options` as a dict whose keys the backend declares; a deprecated name warns once."""
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise TypeError(f"options must be a dict from option name to value; got {type(options).__name__}")
    known = backend_options(backend)
    present = present_options(options, known)
    for name in present:
        if name not in known:
            expected = f"expected one of {listed(known)}{nearest(str(name), known)}" if known else "it takes no options"
            raise ValueError(f"unknown option {name!r} for this backend; {expected}")
    check_budget(present.get(MEMORY_BUDGET))
    return present


def check_budget(budget: object) -> None:
    """Check the option `memory_budget`: a number from 0 to 1, or None."""
    if budget is not None and (isinstance(budget, bool) or not isinstance(budget, (int, float))):
        raise TypeError(f"memory_budget must be a number from 0 to 1; got {type(budget).__name__}")
    if budget is not None and not 0 <= budget <= 1:
        raise ValueError(f"memory_budget must be a number from 0 (save as little as possible) to 1; got {budget!r}")


def check_verify(verify: object) -> int:
    """Return the number of calls of each graph to verify: a bool, or an int of at least 0."""
    if not isinstance(verify, int) or verify < 0:
        raise TypeError(f"verify must be True, False or a number of calls; got {verify!r}")
    return int(verify)


def check_limit(limit: object) -> int | None:
    """The recompile limit: a positive int, or None for what torch's configuration says (8)."""
    if limit is None:
        return None
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise ValueError(f"recompile_limit must be an int of at least 1; got {limit!r}")
    return limit
