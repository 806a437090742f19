"""Calls of functions marked by torch's decorators: see Note [Switches] in `torch_switches`."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final

from framesmith_dynamo.admission.frame_policy import does_nothing
from framesmith_dynamo.admission.owners import part_of_torch
from framesmith_dynamo.breaks import COMPILER_CALL, NOT_CONSTANT, GraphBreak, register_break
from framesmith_dynamo.torch_switches import decorators, torch_names
from framesmith_dynamo.torch_switches.settings import warn_once
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.callables import Handler, answering
from framesmith_guards import AttrSource, ItemSource, ModuleSource

DISABLED = register_break(
    "disabled-by-torch",
    what="a function marked by torch.compiler.disable is called",
    why="the program requires that it runs eagerly",
    hint="remove the mark, or call it outside the compiled function",
)
REQUESTED = register_break(
    "requested-break",
    what="the program asks for a graph break",
    why="torch._dynamo.graph_break() is called, or a function marked by disallow_in_graph",
    hint="remove the call",
)
LEAF = register_break(
    "leaf-function",
    what="a function made with leaf_function is called",
    why="its Python code must run at each call, and a graph contains none",
    hint="it runs eagerly between two graphs; a custom operator with a fake implementation is recorded in the graph",
)

#: The context manager that `override_cudagraphs` makes.
CUDA_GRAPHS: Final = "CudagraphOverrideContextManager"

#: Functions of torch's compiler, which is not loaded when the tables of torch's functions are built: by module and
#: name.
LATE: Final[dict[tuple[str, str], Handler]] = {
    ("torch._dynamo.external_utils", "is_compiling"): answering(True),
}


def handler_of(function: Any) -> Handler | None:
    """Return the handler of calls of a function by its marks, or None."""
    if not torch_names.is_loaded():
        return None
    if isinstance(function, FunctionType):
        known = LATE.get((function.__globals__.get("__name__", ""), function.__qualname__))
        disabled = None if known is not None else decorators.disabled(function)
        if known is not None or disabled is not None:
            return known or _breaking(DISABLED, function, "" if disabled is None else disabled.reason)
        if type(decorators.decorating(function)).__name__ == CUDA_GRAPHS:
            warn_once(
                "torch._dynamo.override_cudagraphs has no effect: mode= of framesmith.compile decides what is captured"
            )
    for applies, handler in ROWS:
        if applies(function):
            return handler(function)
    polyfill = decorators.substitute(function)
    return None if polyfill is None else _substituting(polyfill)


def _name(function: Any) -> str:
    return f"{getattr(function, '__module__', None)}.{getattr(function, '__qualname__', function)}"


def _breaking(kind: Any, function: Any, detail: str = "") -> Handler:
    def handler(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        raise GraphBreak(kind, f"{_name(function)}: {detail}" if detail else _name(function))

    return handler


def _requested(function: Any) -> Handler:
    """Return the handler of a function that breaks the graph in user code and does nothing in torch's own code.

    torch's own code (`Optimizer.step`) calls `graph_break` for the sake of torch.compile.
    """
    breaks = _breaking(REQUESTED, function)

    def handler(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        of_torch = part_of_torch(str(tr.globals.get("__name__"))) is not None
        if of_torch and isinstance(function, FunctionType) and does_nothing(function.__code__):
            return tr.constant(None)
        return breaks(tr, args, kwargs)

    return handler


# Functions recorded in the graph as they are


def _into_graph(function: Any) -> Handler:
    target = _named(function)
    return lambda tr, args, kwargs: tr.call_torch(target, args, kwargs)


_targets: weakref.WeakKeyDictionary[FunctionType, FunctionType] = weakref.WeakKeyDictionary()


def _named(function: Any) -> Any:
    """Return a function that calls this one, under a name that a graph's source can express; the same one each time."""
    if not isinstance(function, FunctionType):
        return function
    known = _targets.get(function)
    if known is None:
        alive = weakref.ref(function)
        known = _targets[function] = _calling(alive, function.__name__)
    return known


def _calling(alive: Callable[[], Any], name: str) -> FunctionType:
    def call(*args: Any, **kwargs: Any) -> Any:
        return alive()(*args, **kwargs)

    call.__name__ = call.__qualname__ = re.sub(r"\W", "_", name)
    call.__module__ = __name__
    assert isinstance(call, FunctionType)
    return call


# Objects that compiled code loads from this module

#: By id.
KEPT: Final[dict[int, Any]] = {}


def _keep(tr: Tracer, obj: Any, owner: Any) -> Value:
    """Return the value of an object that compiled code loads from this module while `owner` lives."""
    key = id(obj)
    if key not in KEPT:
        KEPT[key] = obj
        if owner is not obj:
            weakref.finalize(owner, KEPT.pop, key, None)
    return tr.wrap(obj, ItemSource(AttrSource(ModuleSource(__name__), "KEPT"), key))


def _substituting(polyfill: FunctionType) -> Handler:
    return lambda tr, args, kwargs: tr.call(_keep(tr, polyfill, polyfill), args, kwargs)


# Functions with constant results


def _constant_result(function: Any) -> Handler:
    """Return the handler of a function passed to `assume_constant_result`: it is called now."""

    def handler(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        result = function(*(_real(tr, arg) for arg in args), **{name: _real(tr, arg) for name, arg in kwargs.items()})
        if result is None or type(result) in (bool, int, float, complex, str, bytes):
            return tr.constant(result)
        return _keep(tr, result, function)

    return handler


def _real(tr: Tracer, arg: Value) -> Any:
    """Return the real object of an argument: a constant, or an unchanged object found by the trace."""
    if arg.can_be_constant():
        return arg.as_constant()
    obj = getattr(arg, "obj", None)
    if obj is None or arg.source is None or tr.journal.is_mutated(arg):
        raise GraphBreak(NOT_CONSTANT, f"{arg.describe()}, given to a function of constant result")
    tr.guard(arg.source, "ID_MATCH", obj)
    return obj


Row = tuple[Callable[[Any], bool], Callable[[Any], Handler]]

#: (test, handler of calls): the first test that holds decides.
ROWS: Final[tuple[Row, ...]] = (
    (decorators.is_forbidden, lambda function: _breaking(COMPILER_CALL, function)),
    (decorators.is_disallowed, _requested),
    (decorators.is_constant, _constant_result),
    (decorators.is_leaf, lambda function: _breaking(LEAF, function)),
    (decorators.is_allowed, _into_graph),
)
