"""Handlers of torch's functions, made from the tables in `tables` by function object."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator, Sequence
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Final

import torch
import torch.distributed
import torch.nn.functional
import torch.utils.checkpoint

from framesmith_dynamo.breaks import UNSUPPORTED_CALL, GraphBreak
from framesmith_dynamo.polyfills import gradients, normalization
from framesmith_dynamo.torch_adapter import unstable
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.callables import (
    CALL_HANDLERS,
    Handler,
    answering,
    breaking,
    folding,
    handles,
    inlining,
    named,
    one,
)
from framesmith_dynamo.values.constants.constant import plain_arguments
from framesmith_dynamo.values.containers import TupleValue, new_dict, new_list
from framesmith_dynamo.values.tensors.tensor import TensorValue
from framesmith_dynamo.values.tensors.tensor_tables import BREAKING_METHODS, FOLDED_METHODS
from framesmith_dynamo.values.torch_api import tables
from framesmith_dynamo.values.wrap_registry import build
from framesmith_guards import AttrSource, ModuleSource
from framesmith_guards.needs import of_torch


def resolve(path: str) -> Any:
    """Return the object of a dotted path, or None when this torch has none; imports nothing."""
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        found: Any = sys.modules.get(".".join(parts[:count]))
        if found is not None:
            for name in parts[count:]:
                found = vars(found).get(name) if isinstance(found, ModuleType) else getattr(found, name, None)
            return found
    return None


def into_graph(function: Any) -> Handler:
    """Return the handler that records a call in the graph as it is."""
    return lambda tr, args, kwargs: tr.call_torch(function, args, kwargs)


def graph_functions() -> Iterator[Any]:
    """Return every callable that `tables` records in the graph."""
    for namespace in tables.GRAPH_NAMESPACES:
        owner = resolve(namespace)
        for name in dir(owner) if owner is not None else ():
            found = getattr(owner, name, None)
            if name not in tables.NOT_GRAPH and is_operation(found, name):
                yield found
    yield from (found for path in tables.GRAPH_FUNCTIONS if (found := resolve(path)) is not None)


def is_operation(function: Any, name: str) -> bool:
    """Whether a callable found in a graph namespace is a tensor operation."""
    if isinstance(function, FunctionType):
        return function.__module__ in tables.GRAPH_FUNCTION_MODULES
    if not isinstance(function, BuiltinFunctionType) or hasattr(object, name):  # `__new__` of any class is object's own
        return False
    if getattr(unstable.VariableFunctions, name, None) is function:
        return True
    return function.__module__ in ("torch._C._nn", "torch._C._special", "torch._C._linalg", "torch._C._fft")


def _public_functions(module: str) -> Iterator[Any]:
    owner = sys.modules.get(module)
    if owner is None:
        return
    for found in vars(owner).values():
        if isinstance(found, FunctionType) and found.__module__ == module:
            yield found


def _register(function: Any, handler: Handler) -> None:
    """Register a handler, unless there is one: rows are registered from the most to the least specific."""
    if function is not None and function not in CALL_HANDLERS:
        handles(function)(handler)


def _load() -> None:
    for path, kind in tables.BREAKING.items():
        _register(resolve(path), breaking(kind, path))
    for path, answer in tables.FIXED.items():
        _register(resolve(path), answering(answer))
    for path in tables.FOLDED:
        found = resolve(path)
        if found is not None and not isinstance(found, type):
            _register(found, folding(found))
    for name in (*FOLDED_METHODS, *BREAKING_METHODS):
        function = getattr(unstable.VariableFunctions, name, None)
        _register(function, _tensor_method(name, function))
    for module, kind in tables.BREAKING_MODULES.items():
        importlib.import_module(module)
        for function in _public_functions(module):
            _register(function, breaking(kind, f"{module}.{function.__name__}"))
    for function in graph_functions():
        _register(function, into_graph(function))


@handles(torch.is_tensor)
def is_tensor(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`torch.is_tensor(x)`."""
    value = one(tr, torch.is_tensor, args, kwargs)
    return tr.constant(issubclass(value.python_type(), torch.Tensor))


_ASSERT: Final = of_torch("torch._assert")


@handles(_ASSERT)
def assert_(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`torch._assert(condition, message)` on a condition known while tracing."""
    given = named(tr, _ASSERT, args, kwargs, ("condition", "message"), 2)
    if not given["condition"].bool_(tr):
        tr.raise_(AssertionError, given["message"])
    return tr.constant(None)


@handles(torch.get_device_module)
def get_device_module(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`torch.get_device_module(device)`: a module by constant arguments."""
    plain_args, plain_kwargs = plain_arguments(args, kwargs)
    return build(tr, torch.get_device_module(*plain_args, **plain_kwargs))


@handles(of_torch(tables.GROUPING))
def group_tensors(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """Group lists of tensors, with Nones beside them, by device and dtype: torch groups the fakes, in its own order."""
    lists = [given.unpack(tr) for given in args[0].unpack(tr)] if len(args) == 2 and not kwargs else []
    if not all(value.is_none() or isinstance(value, TensorValue) for values in lists for value in values):
        raise GraphBreak(UNSUPPORTED_CALL, f"{tables.GROUPING} of other things than tensors")
    fakes = [[value.fake if isinstance(value, TensorValue) else None for value in values] for values in lists]
    try:
        found = resolve(tables.GROUPING)(fakes, True)
    except RuntimeError as error:  # the program's own, when it runs the call
        raise GraphBreak(UNSUPPORTED_CALL, f"{tables.GROUPING} refuses: {error}") from error
    asked = args[1].bool_(tr)

    def group_of(indices: Sequence[int]) -> Value:
        columns = [new_list(tr, [values[index] for index in indices] if values else ()) for values in lists]
        return TupleValue((new_list(tr, columns), new_list(tr, map(tr.constant, indices if asked else ()))))

    keys = {key: TupleValue(map(tr.constant, key)) for key in found}
    return new_dict(tr, [(keys[key], group_of(indices)) for key, (_, indices) in found.items()])


@handles(torch.nn.functional.instance_norm)
def instance_norm(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """With running statistics to update, use the polyfill; else the operation."""
    bound = dict(zip(("input", "running_mean", "running_var"), args, strict=False)) | dict(kwargs)
    uses = args[5] if len(args) > 5 else kwargs.get("use_input_stats")
    updates = isinstance(bound.get("running_mean"), TensorValue) and (uses is None or uses.bool_(tr))
    casts = unstable.is_any_autocast_enabled()
    if updates and not casts and isinstance(bound.get("running_var"), TensorValue):
        return tr.call(tr.constant(normalization.instance_norm), args, kwargs)
    return tr.call_torch(torch.nn.functional.instance_norm, args, kwargs)


for _function, _polyfill in (
    (torch.optim.Optimizer.zero_grad, gradients.optimizer_zero_grad),
    (torch.nn.Module.zero_grad, gradients.module_zero_grad),
):
    _inner = inspect.unwrap(_function)
    handles(_inner)(inlining(_inner, _polyfill))


if torch.distributed.is_available():

    @handles(torch.distributed.is_initialized)
    def is_initialized(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        """`torch.distributed.is_initialized()`: guarded by the presence of the default process group."""
        group = AttrSource(ModuleSource("torch.distributed.distributed_c10d"), "GroupMember")
        answer = torch.distributed.is_initialized()
        tr.guard(AttrSource(group, "WORLD"), "NOT_NONE" if answer else "NONE_MATCH")
        return tr.constant(answer)


def _tensor_method(name: str, function: Any) -> Handler:
    """Return the handler of `torch.Tensor.name(x, ...)` and `torch.name(x, ...)`: the method, where `x` is a tensor."""

    def handler(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        first, *rest = args or (kwargs.get("input"),)
        if not isinstance(first, TensorValue):
            return tr.call_torch(function, args, kwargs)
        return first.call_method(tr, name, rest, {key: kwargs[key] for key in kwargs if key != "input" or args})

    return handler


def _load_tensor_methods() -> None:
    for owner in (torch.Tensor, unstable.TensorBase):
        for name, raw in vars(owner).items():
            if (
                callable(raw)
                and not isinstance(raw, type | staticmethod | classmethod)
                and name not in ("__new__", "__init__")
            ):
                _register(raw, _tensor_method(name, raw))


_load()
_load_tensor_methods()
