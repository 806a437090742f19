"""The names in torch's compiler modules that hold the program's settings; they are read, and never imported."""

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
AUTOGRAD_CONFIG: Final = "torch._functorch.config"


@dataclass(frozen=True)
class TorchName:
    """A name in a module of torch's compiler; `lost` describes the effect of its absence."""

    module: str
    name: str
    lost: str


STANCE: Final = TorchName(EVAL_FRAME, "_stance", "torch.compiler.set_stance has no effect")
BACKENDS: Final = TorchName(EVAL_FRAME, "cached_backends", "torch.compiler.reset() does not reset Framesmith")
ERROR_ON_BREAK: Final = TorchName(
    "torch._dynamo.utils", "_error_on_graph_break", "torch._dynamo.error_on_graph_break has no effect"
)
ALLOWED: Final = TorchName("torch._dynamo.trace_rules", "_allowed_callable_ids", "allow_in_graph has no effect")
LEAVES: Final = TorchName("torch._dynamo.trace_rules", "_leaf_function_ids", "leaf_function has no effect")
DISALLOWED: Final = TorchName("torch._dynamo.trace_rules", "_disallowed_callable_ids", "graph_break() has no effect")
POLYFILLED: Final = TorchName(
    "torch._dynamo.variables.functions", "PolyfilledFunctionVariable", "substitute_in_graph has no effect"
)

_missing: set[TorchName] = set()


def is_loaded() -> bool:
    """Whether torch's compiler is imported, as it is in a program that has used one of its switches."""
    return DYNAMO in sys.modules


def module(name: str) -> ModuleType | None:
    """Return a fully imported module of torch, or None."""
    found = sys.modules.get(name)
    return None if found is None or getattr(found.__spec__, "_initializing", False) else found


def owner_module(place: TorchName) -> ModuleType | None:
    """Return the module of a name; None if it is not loaded, or has no such name, which is logged."""
    found = module(place.module)
    if found is not None and not hasattr(found, place.name):
        warn_of_missing(place)
        return None
    return found


def read(place: TorchName, default: Any = None) -> Any:
    """Return the value of a name; the default if it does not exist."""
    found = owner_module(place)
    return default if found is None else getattr(found, place.name)


def warn_of_missing(place: TorchName) -> None:
    """Log once that this torch lacks a name."""
    if place not in _missing:
        _missing.add(place)
        needs.report_missing(f"there is no {place.module}.{place.name}", place.lost)
