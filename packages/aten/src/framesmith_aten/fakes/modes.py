"""Torch's fake tensors: the one maker of FakeTensorMode, and the search for the mode of given values.

Note [The thread that sets the device guard]: a torch built with CUDA, on a machine without a GPU, lets the first mode
that is entered replace the guard of CUDA devices. In torch 2.11 the new one belongs to that thread, and all threads use
it after the thread has ended: a crash. So a thread sets it that does not end.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, TypeVar

import torch

from framesmith_aten.fakes.light_fakes import plain_fake
from framesmith_aten.fakes.light_refs import lighten
from framesmith_aten.fakes.light_torch import discard_report, rebuilt, rebuilt_globals, report_slow
from framesmith_aten.fakes.rules import (
    elementwise,
    norms,
    packed_numbers,
    padding,
    reductions,
    tangents,
    upsampling,
    views,
)
from framesmith_aten.fakes.rules.memory_reads import refuse_memory
from framesmith_aten.fakes.rules.static_results import StaticResults
from framesmith_aten.fakes.rules.symbolic_results import dispatched
from framesmith_guards.errors import GuardError
from framesmith_guards.torch_adapter import (
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorConverter,
    FakeTensorMode,
    MetaConverter,
    MetaTensorDescriber,
    aten,
    meta_utils,
    unstable,
)

T = TypeVar("T")

#: All modes share torch's cache of operators' fake results, which has an entry for each number among their arguments
#: and no end of its own.
MOST_RESULTS = 2048

#: Operators whose results are data-dependent with symbols too: torch's rule for packing a padded sequence gives batch
#: sizes of the data's dtype and data of one sequence's shape.
_WRONG_RULES = frozenset({aten._pack_padded_sequence.default})

#: Primitives that are views by another operator, which torch's cache of results knows to be one. The primitive declares
#: a write, and gave an empty tensor a storage of its own from the second time on.
_VIEWS = {torch.ops.prims.as_strided.default: torch.ops.aten.as_strided.default}

#: Operators whose rules call others on fakes while no mode is active. The first such call in a process has torch import
#: torch.distributed.tensor, which takes longer than to compile a small function.
_CALLING = frozenset(
    {
        aten.view.default,
        aten._unsafe_view.default,
        aten.select.int,
    }
)

#: Operators whose rules may return their first argument, which kernels copy (dropout that drops nothing).
_COPYING = frozenset({aten.native_dropout.default})


@cache
def _light_mode_class() -> type[FakeTensorMode]:
    """Return FakeTensorMode with methods rebuilt that import torch._dynamo; see light_torch.py."""
    names = _names(rebuilt_globals(vars(meta_utils), trace_structured=discard_report))
    light_meta = _rebuilt_class(MetaConverter, names, "__call__", "meta_tensor", "_empty_create_subclass")
    light_converter = type(
        "FakeTensorConverter",
        (FakeTensorConverter,),
        {"from_real_tensor": _without_values(rebuilt(FakeTensorConverter.from_real_tensor))},
    )
    light_describer = _rebuilt_class(MetaTensorDescriber, names, "describe_storage", "describe_tensor")
    initialise = rebuilt(FakeTensorMode.__init__)

    def __init__(self: FakeTensorMode, **options: Any) -> None:
        initialise(self, **options)
        converter = self.fake_tensor_converter
        converter.__class__ = light_converter
        converter.meta_converter.__class__ = light_meta
        converter.meta_converter.describer.__class__ = light_describer

    def from_tensor(self: FakeTensorMode, tensor: torch.Tensor, **options: Any) -> torch.Tensor:
        known = self.fake_tensor_converter._get_memo(tensor)
        if known is None and _is_static(self, options):
            known = plain_fake(self, tensor)
        return known if known is not None else FakeTensorMode.from_tensor(self, tensor, **options)

    def _dispatch_impl(self: FakeTensorMode, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return _result(self, func, args, kwargs, lambda args: dispatch_impl(self, func, types, args, kwargs))

    dispatch_impl = rebuilt(FakeTensorMode._dispatch_impl)
    members = {
        "__init__": __init__,
        "from_tensor": from_tensor,
        "__torch_dispatch__": _light_dispatch(),
        "_dispatch_impl": _dispatch_impl,
        "_should_skip_dynamo": classmethod(lambda cls: False),
    }
    return type("FakeTensorMode", (FakeTensorMode,), members)


@cache
def _silent_classes() -> tuple[type[MetaConverter[Any]], type[MetaTensorDescriber]]:
    """Return torch's classes, reading no gradients of tensors that are not leaves."""
    names = _names(dict(vars(meta_utils)))
    converter = _rebuilt_class(MetaConverter, names, "meta_tensor")
    return converter, _rebuilt_class(MetaTensorDescriber, names, "describe_tensor")


@cache
def _forgetful_converter() -> type[FakeTensorConverter]:
    make = _without_values(FakeTensorConverter.from_real_tensor)
    return type("FakeTensorConverter", (FakeTensorConverter,), {"from_real_tensor": make})


def _without_values(make: Callable[..., FakeTensor]) -> Callable[..., FakeTensor]:
    """Return torch's maker of fakes, whose fakes of numbers do not hold the number: the next call may have another.

    From torch 2.15 on those made without symbols do.
    """

    def from_real_tensor(
        self: Any, mode: Any, tensor: Any, make_constant: bool = False, *rest: Any, **more: Any
    ) -> Any:
        fake = make(self, mode, tensor, make_constant, *rest, **more)
        if not make_constant and isinstance(getattr(fake, "item_memo", None), int | float):
            fake.item_memo = None
        return fake

    return from_real_tensor


def _names(names: dict[str, Any]) -> dict[str, Any]:
    """Return the globals of torch's functions that make fakes, with our own way to read gradients."""
    names["safe_grad"] = _gradient
    names["assert_metadata_eq"] = rebuilt(meta_utils.assert_metadata_eq, names)
    return names


def _rebuilt_class(parent: type[T], names: dict[str, Any], *methods: str) -> type[T]:
    """Return the class with those of these methods that it has, with other globals."""
    own = {name: rebuilt(vars(parent)[name], names) for name in methods if name in vars(parent)}
    return type(parent.__name__, (parent,), own)


def _gradient(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a leaf's gradient, in place of torch's function: reading others' warns, which may be an error.

    Without one that does not fit the tensor's size, its data having been replaced since.
    """
    grad = tensor.grad if meta_utils.safe_is_leaf(tensor) else None
    if grad is None or (grad.shape, grad.dtype, grad.device) != (tensor.shape, tensor.dtype, tensor.device):
        return None
    return grad


def _light_dispatch() -> Callable[..., Any]:
    """The mode's dispatch, with results remembered, without switching torch's frame hook off while there is none."""
    wrapped: Any = getattr(FakeTensorMode, "__torch_dispatch__", None)
    plain = getattr(wrapped, "__wrapped__", wrapped)

    def __torch_dispatch__(self: FakeTensorMode, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        func = _VIEWS.get(func, func)
        rule = tangents.rule_for(func, args, kwargs or {})
        if rule is not None:  # before anything remembers it
            with self:
                return rule()

        def run() -> Any:
            return (wrapped if "torch._dynamo" in sys.modules else plain)(self, func, types, args, kwargs)

        return _results_of(self).of(self, func, args, kwargs or {}, run)

    return __torch_dispatch__


def _results_of(mode: FakeTensorMode) -> StaticResults:
    """Return the mode's remembered results."""
    found = vars(mode).get("static_results")
    if found is None:
        found = vars(mode)["static_results"] = StaticResults()
    return found


class _FakeTensorMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Torch's mode, with a memo for symbols and other reads of tensors."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.fake_tensor_converter.__class__ = _forgetful_converter()
        converter = self.fake_tensor_converter.meta_converter
        converter.__class__, converter.describer.__class__ = _silent_classes()

    def _dispatch_impl(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        run = super()._dispatch_impl
        return _result(self, func, args, kwargs, lambda args: run(func, types, args, kwargs))


# Not in the class body: see `LightDispatchMode`.
setattr(_FakeTensorMode, "__torch_dispatch__", _light_dispatch())  # noqa: B010


def _result(mode: FakeTensorMode, func: Any, args: Any, kwargs: Any, run: Callable[[Any], Any]) -> Any:
    """Return an operator's result: for symbols, the remembered one.

    `run` calls torch's rule with other positional arguments.
    """
    if mode.shape_env is not None and func in _WRONG_RULES:
        raise DynamicOutputShapeException(func)
    rule = packed_numbers.rule_for(func, args, kwargs)
    if rule is not None:
        with mode:
            return rule()
    if func in _CALLING:
        run = _within(mode, run)
    if (typed := norms.typed(mode, func, args, run)) is not None:
        return typed
    if func in _COPYING:
        return _without(mode, args[0], run(args))
    if mode.shape_env is not None:
        for family in (upsampling, elementwise):
            if (grad := family.gradient(mode, func, args)) is not None:
                return grad
    try:
        if mode.shape_env is None:
            return run(args)
        return dispatched(mode, func, args, kwargs, lambda: _computed(mode, func, args, run))
    except ZeroDivisionError:
        # Rules for losses divide by the number of elements; the derivative of the sum has the layout of the mean's.
        named = [argument.name for argument in func._schema.arguments[: len(args)]]
        if "reduction" not in named or args[at := named.index("reduction")] != unstable.Reduction.MEAN.value:
            raise
        return run((*args[:at], unstable.Reduction.SUM.value, *args[at + 1 :]))


def _without(mode: FakeTensorMode, argument: torch.Tensor, results: Any) -> tuple[torch.Tensor, ...]:
    """Return the results, with a copy where one is the argument itself."""
    with mode:
        return tuple(result.clone() if result is argument else result for result in results)


def _within(mode: FakeTensorMode, run: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def ran(args: Any) -> Any:
        with mode:
            return run(args)

    return ran


def _computed(mode: FakeTensorMode, func: Any, args: Any, run: Callable[[Any], Any]) -> Any:
    """Return an operator's result for symbols, by a rule of this folder where there is one."""
    for rule in (views.view, padding.padded, reductions.reduced):
        if (result := rule(mode, func, args)) is not None:
            return result
    return run(reductions.with_dimensions(func, args))


def _is_static(mode: FakeTensorMode, options: Mapping[str, Any]) -> bool:
    static = options.get("static_shapes")
    return options.get("symbolic_context") is None and bool(mode.static_shapes if static is None else static)


def new_fake_mode(shape_env: Any = None, **options: Any) -> FakeTensorMode:
    """Return a FakeTensorMode, made without importing torch._dynamo if nothing has imported it yet.

    `shape_env` is a torch ShapeEnv for symbolic sizes (which import torch._dynamo on first use), or None for static
    ones; `options` are the constructor's.
    """
    if len(FakeTensorMode.cache) > MOST_RESULTS:
        FakeTensorMode.cache_clear()
    mode = _made(shape_env, options)
    refuse_memory(mode)
    if mode.avoid_device_init and torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        _set_device_guard()
    return mode


@cache
def _set_device_guard() -> None:
    """Set the device guard that every mode sets on entry; see Note [The thread that sets the device guard]."""
    if threading.current_thread() is threading.main_thread():
        unstable.ensure_device_guard()
        return
    is_set = threading.Event()

    def stay() -> None:
        try:
            unstable.ensure_device_guard()
        finally:
            is_set.set()
        threading.Event().wait()

    threading.Thread(target=stay, name="framesmith-device-guard", daemon=True).start()
    is_set.wait()


def _made(shape_env: Any, options: Mapping[str, Any]) -> FakeTensorMode:
    if "torch._dynamo" in sys.modules:
        return _FakeTensorMode(shape_env=shape_env, **options)
    try:
        lighten()
        return _light_mode_class()(shape_env=shape_env, **options)
    except (AttributeError, ImportError, TypeError, KeyError) as error:
        report_slow(f"FakeTensorMode is otherwise than it is known here ({type(error).__name__}: {error})")
        # The slow way raises the caller's error.
        return _FakeTensorMode(shape_env=shape_env, **options)


def _modes_of(values: Any) -> Iterator[FakeTensorMode]:
    pending = unstable.tree_leaves(values)
    while pending:
        value = pending.pop()
        if isinstance(value, FakeTensor):
            yield value.fake_mode
        elif unstable.is_traceable_wrapper_subclass(value):
            names, _ = value.__tensor_flatten__()
            pending += [getattr(value, name) for name in names]


def fake_mode_of(values: Any) -> FakeTensorMode | None:
    """Return the fake mode of the fakes among `values` (any nesting of containers), or None.

    GuardError if they are of different modes.
    """
    found: FakeTensorMode | None = None
    for mode in _modes_of(values):
        if found is not None and mode is not found:
            raise GuardError("the values hold fake tensors of two different fake modes; they cannot be used together")
        found = mode
    return found
