"""Marks that torch's decorators leave on functions: attributes, and identities in torch's tables."""

from __future__ import annotations

from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any, Final

from framesmith_dynamo.torch_switches import torch_names

#: Attributes that torch's decorators set.
DISABLED: Final = "_torchdynamo_disable"
DISABLED_CALLS: Final = "_torchdynamo_disable_recursive"
REASON: Final = "_torchdynamo_disable_msg"
#: The attribute in which a wrapper made by torch stores the wrapped function.
WRAPPED: Final = "_torchdynamo_orig_callable"
WRAPPER: Final = "_torchdynamo_wrapper_id"
CONSTANT: Final = "_dynamo_marked_constant"
FORBIDDEN: Final = "_dynamo_forbidden"
NESTED_REGION: Final = "__marked_compile_region_fn__"


@dataclass(frozen=True)
class Disabled:
    """The mark of a function that runs eagerly, with or without its callees. `inner`: the function inside torch's
    wrapper.
    """

    reason: str
    calls_too: bool
    inner: Any = None


def disabled(function: FunctionType) -> Disabled | None:
    """Return the mark of `torch.compiler.disable` or `torch._dynamo.skip` on a function, or None.

    `functools.wraps` copies these attributes to a user's wrapper, which they do not mark.
    """
    marks = function.__dict__
    if not marks or not marks.get(DISABLED) or marks.get(WRAPPER, id(function)) != id(function):
        return None
    reason = marks.get(REASON)
    said = "disabled with torch.compiler.disable" + (f": {reason}" if reason else "")
    return Disabled(said, bool(marks.get(DISABLED_CALLS)), marks.get(WRAPPED))


def innermost(target: Any) -> Any:
    """Return the function inside torch's `compile` and `disable` wrappers; other objects unchanged.

    The wrapper applied last counts, as for torch.compile: compiling a disabled function compiles the function.
    """
    while not isinstance(target, MethodType):  # a method reads the attributes of its function
        attributes = getattr(target, "__dict__", {})
        if attributes.get(WRAPPER) != id(target) or WRAPPED not in attributes:
            break
        original = attributes.get("_modules", {}).get("_orig_mod")  # a module's wrapper is made of the module
        target = attributes[WRAPPED] if original is None else original
    return target


def decorating(function: FunctionType) -> Any:
    """Return the context manager of torch that decorates a function, if it can be traced; else None."""
    if function.__code__.co_qualname != "wrap_dunder_call_ctx_manager.<locals>.inner":
        return None
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    return cells["self"].cell_contents if "self" in cells else None


def is_nested_region(function: FunctionType) -> bool:
    """Whether `nested_compile_region` made it."""
    made_in = function.__globals__.get("__name__")
    return NESTED_REGION in function.__dict__ and made_in == "torch._higher_order_ops.invoke_subgraph"


def _is_in(place: torch_names.TorchName, function: Any) -> bool:
    known = torch_names.read(place)
    return known is not None and id(function) in known


def is_constant(function: Any) -> bool:
    """Whether `assume_constant_result` was called for it."""
    return bool(getattr(function, CONSTANT, False))


def is_forbidden(function: Any) -> bool:
    """Whether it acts on the compiler and must not be traced: `set_stance`, `mark_dynamic` and their like."""
    return bool(getattr(function, FORBIDDEN, False))


def is_disallowed(function: Any) -> bool:
    """Whether a call breaks the graph: `graph_break` itself, or a function passed to `disallow_in_graph`."""
    return _is_in(torch_names.DISALLOWED, function)


def is_allowed(function: Any) -> bool:
    """Whether `allow_in_graph` or `nonstrict_trace` was called for it."""
    return _is_in(torch_names.ALLOWED, function) and not is_leaf(function)


def is_leaf(function: Any) -> bool:
    """Whether `leaf_function` made it."""
    return _is_in(torch_names.LEAVES, function)


def substitute(function: Any) -> FunctionType | None:
    """Return the program's replacement by `substitute_in_graph`; torch's own polyfills do not count."""
    kind = torch_names.read(torch_names.POLYFILLED)
    handlers: dict[Any, Any] = getattr(kind, "_get_polyfill_handlers", dict)()
    try:
        polyfill = getattr(handlers.get(function), "__torch_dynamo_polyfill__", None)
    except TypeError:  # unhashable
        return None
    own = isinstance(polyfill, FunctionType) and not polyfill.__module__.startswith("torch.")
    return polyfill if own else None
