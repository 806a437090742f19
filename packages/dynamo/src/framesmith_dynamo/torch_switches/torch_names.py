"""Where torch keeps what a program has said to its compiler: names in modules that are read, and never imported."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from framesmith_guards import needs

DYNAMO: Final = "torch._dynamo"
#: The module with the stance, and the backends that a reset calls.
EVAL_FRAME: Final = "torch._dynamo.eval_frame"
CONFIG: Final = "torch._dynamo.config"


@dataclass(frozen=True)
class TorchName:
    """A name in a module of torch's compiler; `lost` is what is no longer heard without it."""

    module: str
    name: str
    lost: str


STANCE: Final = TorchName(EVAL_FRAME, "_stance", "torch.compiler.set_stance has no effect")
BACKENDS: Final = TorchName(EVAL_FRAME, "cached_backends", "torch.compiler.reset() does not reset Framesmith")
ERROR_ON_BREAK: Final = TorchName(
    "torch._dynamo.utils", "_error_on_graph_break", "torch._dynamo.error_on_graph_break has no effect"
)
ALLOWED: Final = TorchName("torch._dynamo.trace_rules", "_allowed_callable_ids", "allow_in_graph has no effect")
NONSTRICT: Final = TorchName(
    "torch._dynamo.trace_rules", "_nonstrict_trace_callable_ids", "nonstrict_trace has no effect"
)
LEAVES: Final = TorchName("torch._dynamo.trace_rules", "_leaf_function_ids", "leaf_function has no effect")
DISALLOWED: Final = TorchName("torch._dynamo.trace_rules", "_disallowed_callable_ids", "graph_break() has no effect")
POLYFILLED: Final = TorchName(
    "torch._dynamo.variables.functions", "PolyfilledFunctionVariable", "substitute_in_graph has no effect"
)

_missing: set[TorchName] = set()


def is_loaded() -> bool:
    """Whether torch's compiler is imported: a program that has said something to it has done so."""
    return DYNAMO in sys.modules


def module(name: str) -> ModuleType | None:
    """A module of torch's that the program has imported whole, or None."""
    found = sys.modules.get(name)
    return None if found is None or getattr(found.__spec__, "_initializing", False) else found


def holder(place: TorchName) -> ModuleType | None:
    """The module of a place; None where it is not loaded, or has no such name: that is logged."""
    found = module(place.module)
    if found is not None and not hasattr(found, place.name):
        warn_of_missing(place)
        return None
    return found


def read(place: TorchName, default: Any = None) -> Any:
    """What is kept at a place; the default where there is no such place."""
    found = holder(place)
    return default if found is None else getattr(found, place.name)


def warn_of_missing(place: TorchName) -> None:
    """Log, once, that this torch has nothing at a place."""
    if place not in _missing:
        _missing.add(place)
        needs.report_missing(f"there is no {place.module}.{place.name}", place.lost)
