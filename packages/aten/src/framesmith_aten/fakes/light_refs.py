"""Torch's reference operators, made callable without importing torch._dynamo.

Note [Late disabling]: torch wraps its references so that its frame hook is off while they run; the wrapper imports
torch._dynamo on first use and stores the wrapped function as `__dynamo_disable`. While torch._dynamo is not loaded
there is no hook, so the attribute is set to a function that runs the reference directly, and replaced by torch's own
function once it is loaded. Unexpected wrappers stay unchanged.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType
from typing import Any, Final

from framesmith_guards.torch_adapter import unstable

#: Modules with references, in the releases that have them.
_MODULES: Final = (
    "torch._refs",
    "torch._refs.nn.functional",
    "torch._refs.special",
    "torch._decomp.decompositions",
    "torch._meta_registrations",
)


def _probe() -> None:
    """Wrapped once, for the code of torch's wrapper."""


_WRAPPER_CODE: Final = unstable.disable_dynamo and getattr(unstable.disable_dynamo(_probe), "__code__", None)


def _functions() -> Iterator[object]:
    for table in unstable.global_decomposition_table.values():
        yield from table.values()
    for name in _MODULES:
        with contextlib.suppress(ImportError):
            yield from vars(importlib.import_module(name)).values()


def _wrapped_targets(roots: Iterable[object]) -> Iterator[tuple[Callable[..., Any], bool]]:
    """Yield the functions inside torch's wrappers, through all decorators, and whether recursively disabled."""
    seen: set[int] = set()
    pending = list(roots)
    while pending:
        function = pending.pop()
        if not isinstance(function, FunctionType) or id(function) in seen:
            continue
        seen.add(id(function))
        held = dict(zip(function.__code__.co_freevars, map(_contents, function.__closure__ or ()), strict=True))
        if function.__code__ is _WRAPPER_CODE:
            yield held["fn"], held["recursive"]
        pending += [*held.values(), getattr(function, "__wrapped__", None)]


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _late(target: Callable[..., Any], recursive: bool) -> Callable[..., Any]:
    @functools.wraps(target)
    def late(*args: Any, **kwargs: Any) -> Any:
        dynamo = sys.modules.get("torch._dynamo")
        disable = getattr(dynamo, "disable", None)
        if disable is None:
            return target(*args, **kwargs)
        real = disable(target, recursive, wrapping=False)
        target.__dynamo_disable = real  # type: ignore[attr-defined]
        return real(*args, **kwargs)

    late._torchdynamo_disable = True  # type: ignore[attr-defined]
    late._torchdynamo_disable_msg = None  # type: ignore[attr-defined]
    late._torchdynamo_disable_recursive = recursive  # type: ignore[attr-defined]
    return late


@functools.cache
def lighten() -> int:
    """Let every reference run without importing torch._dynamo; return how many were changed. Once per process."""
    count = 0
    for target, recursive in _wrapped_targets(_functions()):
        if isinstance(target, FunctionType) and "__dynamo_disable" not in vars(target):
            target.__dynamo_disable = _late(target, recursive)  # type: ignore[attr-defined]
            count += 1
    return count
