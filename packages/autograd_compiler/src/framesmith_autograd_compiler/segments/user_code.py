"""User code in segments: hooks, and backwards of Functions, without side effects are traced into the segment's graph.

Note [User code]: whoever makes the programs may give a `TraceCall`, which traces one call of a Python function and
says under which guards another call is the same. The guards are about the hook, or the Function's context, which is an
input of the segment; they are checked before the segment runs, and no user code that may have side effects runs within
it. Assumptions about gradients hold for the segment's own sizes and dtypes; those about symbolic sizes become guards of
the segment. Tensors that the code reads from elsewhere are further inputs, found by the same check.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Final, Protocol, cast

import torch
from torch import fx

from framesmith_aten.symbolic import has_symbols, hint_or_guess
from framesmith_autograd_compiler import calls, user_calls
from framesmith_autograd_compiler.segments.tracer import source_of
from framesmith_autograd_compiler.segments.variants import FUNCTION
from framesmith_autograd_compiler.torch_adapter import unstable
from framesmith_guards import (
    AttrSource,
    CheckProgram,
    Guard,
    InstanceDictSource,
    LocalSource,
    Source,
    TensorSpec,
    compile_guards,
)
from framesmith_guards.torch_adapter import FakeTensor

#: Versions of one hook, by what its code reads, before it stays uncompiled.
MOST_VERSIONS: Final = 4
#: New versions of all the hooks in one segment.
MOST_CHANGES: Final = 8


class PureCall(Protocol):
    """A traced call, a graph of the tensors at `inputs`; `result` has positions of its outputs in place of tensors."""

    @property
    def module(self) -> fx.GraphModule: ...
    @property
    def inputs(self) -> tuple[Source, ...]: ...
    @property
    def guards(self) -> tuple[Guard, ...]: ...
    @property
    def result(self) -> Any: ...


class TraceCall(Protocol):
    """Traces a call of a function without side effects, of one argument for each parameter; else says why not.

    `dynamic`: sizes are symbols, and guards of the kind SHAPE say what was assumed about them.
    """

    def __call__(self, function: FunctionType, arguments: Sequence[Any], *, dynamic: bool) -> PureCall | str: ...


class Untraced(Exception):
    """Some calls cannot be in this segment: by node, why they stay opaque; None for one that reads what is changed by
    the writes to `.grad` before it."""

    def __init__(self, why: Mapping[fx.Node, str | None]) -> None:
        super().__init__(", ".join(f"{node}: {reason}" for node, reason in why.items()))
        self.why = why


@dataclass(frozen=True)
class _Traceable:
    """A call as it is traced: known arguments, by where they are found from the hook or context, and given ones."""

    function: Callable[..., Any]
    known: Mapping[str, tuple[Callable[[Any], Any], Callable[[Source], Source]]]


def _itself(value: Any) -> Any:
    return value


def _backward_source(ctx: Source) -> Source:
    return AttrSource(AttrSource(ctx, "_forward_cls"), "backward")


_HOOK: Final = {"hook": (_itself, _itself)}
_CONTEXT: Final = {
    "backward": (lambda ctx: ctx._forward_cls.backward, _backward_source),
    "attributes": (lambda ctx: ctx.__dict__, InstanceDictSource),
    "needs_input_grad": (
        lambda ctx: ctx.needs_input_grad,
        lambda ctx: AttrSource(ctx, "needs_input_grad"),
    ),
}

#: Recorded calls of user code that may be traced.
TRACEABLE: Final[Mapping[Any, _Traceable]] = {
    user_calls.call_tensor_hook: _Traceable(user_calls.call_tensor_hook, _HOOK),
    user_calls.call_pre_hook: _Traceable(user_calls.call_pre_hook, _HOOK),
    user_calls.call_post_hook: _Traceable(user_calls.call_post_hook, _HOOK),
    calls.call_backward: _Traceable(user_calls.call_backward_of, _CONTEXT),
}


@dataclass
class UserCode:
    """The user code of one trace of a segment with these `inputs`.

    `guards`: those of each call, about `value_0`, ..., the segment's inputs. `captured`: further tensors, by where they
    are found. `open_calls` may read tensors that writes to `.grad` change; `refused`: see `Untraced`.
    """

    trace_call: TraceCall | None
    inputs: Sequence[fx.Node]
    open_calls: Collection[fx.Node]
    guards: dict[fx.Node, list[Guard]] = field(default_factory=dict)
    captured: dict[Source, Any] = field(default_factory=dict)
    refused: dict[fx.Node, str | None] = field(default_factory=dict)
    _specs: dict[Source, TensorSpec] = field(default_factory=dict)

    def run(self, node: fx.Node, values: Sequence[Any], capture: Callable[[torch.Tensor], Any]) -> Any:
        """Return the results of a call, computed on fakes by its graph; `values`: the hook or context, and fakes.

        `capture` makes an input of a tensor. A call that is refused seems to return the gradients that it got. Raises
        Untraced where that is not possible.
        """
        user, *operands = values
        if node.target is user_calls.call_tensor_hook and operands[0] is None:
            return None
        what = TRACEABLE[node.target]
        names = list(inspect.signature(what.function).parameters)
        given = dict(zip(names[len(what.known) :], operands, strict=True))
        arguments = {name: find(user) for name, (find, _) in what.known.items()} | given
        found = self._trace(cast(FunctionType, what.function), arguments)
        if isinstance(found, str):
            return self._refuse(node, found, operands)
        where = source_of(self.inputs.index(user_of(node)))
        starts: dict[Source, Source] = {LocalSource(name): at(where) for name, (_, at) in what.known.items()}
        why = self._take_guards(node, found, arguments, given, starts)
        if why is not None:
            return self._refuse(node, why, operands)
        if _reads_elsewhere(found, given) and node not in self.open_calls:
            self.refused[node] = None
        tensors = [self._input(source, arguments, given, starts, capture) for source in found.inputs]
        return _filled(found.result, found.module(*tensors))

    def _trace(self, function: FunctionType, arguments: Mapping[str, Any]) -> PureCall | str:
        dynamic = any(has_symbols(one) for one in _tensors(arguments.values()))
        with unstable.disable_current_modes():
            examples = [_example(value) for value in arguments.values()]
            assert self.trace_call is not None
            return self.trace_call(function, examples, dynamic=dynamic)

    def _refuse(self, node: fx.Node, why: str, operands: Sequence[Any]) -> Any:
        self.refused[node] = why
        if node.target is calls.call_backward:
            raise Untraced(self.refused)
        return operands[0]

    def _take_guards(
        self,
        node: fx.Node,
        found: PureCall,
        arguments: Mapping[str, Any],
        given: Mapping[str, Any],
        starts: dict[Source, Source],
    ) -> str | None:
        """Take over the guards of a call that are about user code; return why they cannot be checked, or None.

        Those about sizes are evaluated on the fakes, which makes guards of them where they are symbols.
        """
        taken: list[Guard] = []
        for guard in found.guards:
            about = {_root_name(source) for source in (guard.source, *guard.operands)} & arguments.keys()
            if guard.kind.name == "SHAPE":
                missed = guard.explain(arguments, FUNCTION)
                if missed is not None:
                    return f"its code depends on sizes: {missed}"
            elif about & given.keys():
                if about - given.keys():
                    return f"its code compares a gradient with something else: {guard}"
            else:
                moved = _moved(guard, starts)
                if moved is None:
                    return f"its code depends on something that cannot be checked: {guard}"
                taken.append(moved)
        self.guards[node] = taken
        return None

    def _input(
        self,
        source: Source,
        arguments: Mapping[str, Any],
        given: Mapping[str, Any],
        starts: dict[Source, Source],
        capture: Callable[[torch.Tensor], Any],
    ) -> Any:
        value: Any = source.evaluate(arguments, FUNCTION)
        if _root_name(source) in given:
            return value
        moved = _at(source, starts)
        if moved not in self.captured:
            self._specs[moved] = TensorSpec.of(value)
            self.captured[moved] = capture(value)
        return self.captured[moved]

    def check(self, node: fx.Node) -> CheckProgram:
        """Return the check of one call's guards, of the segment's values."""
        return self._check(self.guards[node], ())

    def whole_check(self) -> CheckProgram | None:
        """Return the check of all calls' guards, which finds what they capture; None without calls."""
        if not self.guards:
            return None
        return self._check([guard for taken in self.guards.values() for guard in taken], tuple(self.captured))

    def _check(self, guards: Sequence[Guard], inputs: Sequence[Source]) -> CheckProgram:
        specs = [Guard(source, "TENSOR_MATCH", self._specs[source]) for source in inputs]
        return compile_guards([*guards, *specs], [source_of(at).local for at in range(len(self.inputs))], inputs=inputs)


def user_of(node: fx.Node) -> fx.Node:
    """Return the hook, or the Function's context, that a recorded call of user code takes."""
    return cast(fx.Node, node.args[0])


def code_of(user: Any) -> object:
    """Return the code of a hook, the class of a context, or else the hook's class."""
    function = getattr(user, "__func__", user)
    cls = getattr(user, "_forward_cls", None)
    return getattr(function, "__code__", None) or cls or type(user)


def _root_name(source: Source) -> str | None:
    """Return the argument that a path starts from; None for other roots."""
    root = source.root
    return root.local if isinstance(root, LocalSource) else None


def _moved(guard: Guard, starts: dict[Source, Source]) -> Guard | None:
    """Return the guard about the segment's values in place of a call's arguments; None where it cannot be moved."""
    expected = guard.expected
    if guard.kind.takes_one_source:
        expected = _at(expected, starts)
    elif guard.operands:
        return None
    return Guard(_at(guard.source, starts), guard.kind, expected)


def _at(source: Source, starts: dict[Source, Source]) -> Source:
    """Return where the value at a source of a traced call is found from the segment's values."""
    moved = source.moved(starts) if isinstance(source.root, LocalSource) else source
    assert moved is not None
    return moved


def _reads_elsewhere(found: PureCall, given: Mapping[str, Any]) -> bool:
    """Whether a call reads tensors other than its arguments, or asks what kind of tensor they are."""
    if any(_root_name(source) not in given for source in found.inputs):
        return True
    return any(
        isinstance(guard.expected, TensorSpec) and _root_name(guard.source) not in given for guard in found.guards
    )


def _tensors(values: Any) -> list[torch.Tensor]:
    """Return the tensors among arguments, one list deep."""
    flat = [one for value in values for one in (value if isinstance(value, (list, tuple)) else (value,))]
    return [one for one in flat if isinstance(one, torch.Tensor)]


def _example(value: Any) -> Any:
    """Return tensors of a fake's kind in its place, also in lists."""
    if isinstance(value, FakeTensor):
        sizes, strides = (tuple(map(hint_or_guess, numbers)) for numbers in (value.shape, value.stride()))
        return torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device)
    return type(value)(map(_example, value)) if type(value) in (list, tuple) else value


def _filled(result: Any, tensors: Sequence[Any]) -> Any:
    if isinstance(result, tuple):
        return tuple(_filled(one, tensors) for one in result)
    return None if result is None else tensors[result]
