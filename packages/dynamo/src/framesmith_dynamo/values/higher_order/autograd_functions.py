"""`torch.autograd.Function.apply`: inlined where nothing needs a gradient, else one node with two subgraphs.

Note [Functions]: `forward` is traced on the arguments themselves, without gradients, and extracted as a subgraph; then
`backward` is traced on examples: of a gradient for each output, and of each tensor that `ctx` keeps. It is called with
a context of its own, which has the attributes that `forward` has set. The node `applied(forward, backward, ...)` is a
call of a real Function that runs the two graphs, so autograd's rules of written inputs, outputs without gradients and
second derivatives are torch's own.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Final

import torch
from torch.autograd.function import once_differentiable

from framesmith_aten.graphs.autograd_functions import FORWARD, JVP, SETUP, VMAP, Role, Settings, applied
from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.graph.subgraphs import Subgraph, cut, erase, extract_subgraph, held, last_node, nodes_after
from framesmith_dynamo.torch_adapter import unstable
from framesmith_dynamo.values.base import Args, Kwargs, TracedRaise, Tracer, Value
from framesmith_dynamo.values.callables import handles
from framesmith_dynamo.values.containers import TupleValue
from framesmith_dynamo.values.functions.functions import FunctionValue
from framesmith_dynamo.values.higher_order.checkpoint import REENTRANT
from framesmith_dynamo.values.higher_order.function_contexts import (
    Traced,
    context_of,
    kept_by,
    new_context,
    noted,
    saved_for_forward,
    stand_in,
)
from framesmith_dynamo.values.higher_order.function_rules import Rule, rule_of
from framesmith_dynamo.values.higher_order.subgraphs import BODY_RAISES, in_body, recorded
from framesmith_dynamo.values.lookup.static import type_lookup
from framesmith_dynamo.values.modules.backward_hooks import led_through_node
from framesmith_dynamo.values.tensors.tensor import TensorValue
from framesmith_dynamo.values.torch_api.contexts import GradModeValue, call_inside
from framesmith_dynamo.values.torch_api.tables import CUSTOM_AUTOGRAD
from framesmith_guards.contexts import ambient

if TYPE_CHECKING:
    from torch import fx

    from framesmith_dynamo.values.transform_levels import Kind

ASKS_GRAD_MODE = register_break(
    "backward-asks-grad-mode",
    what="the backward of a torch.autograd.Function asks whether gradients are recorded",
    why="it is traced once, for first and for higher derivatives",
    hint="it runs eagerly between two graphs; compute the same for both, or use once_differentiable",
)

#: The outputs with gradients of a Function that does not materialize them, whose backward is traced for each choice.
MOST_UNMATERIALIZED: Final = 3
#: The code of all methods that `once_differentiable` has made.
ONCE: Final = once_differentiable(lambda ctx: None).__code__


@handles(unstable.apply)
def apply(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`cls.apply(*args)`."""
    cls = args[0].as_constant()
    if cls is unstable.BackwardHookFunction:
        return led_through_node(tr, args[1:])
    name = f"{cls.__module__}.{cls.__qualname__}"
    with_setup = _is_own(cls, "setup_context")
    if tr.facts.body.level is not None and not with_setup:
        raise GraphBreak(CUSTOM_AUTOGRAD, f"{name}, which has no setup_context, under a transform")
    given = _with_defaults(tr, cls, args[1:], kwargs) if with_setup else args[1:]
    if kwargs and not with_setup:
        raise GraphBreak(CUSTOM_AUTOGRAD, f"{name} is applied to keywords")
    tensors = [arg for arg in given if isinstance(arg, TensorValue)]
    if not _needs_gradients(tr, tensors):
        return _inlined(tr, args[0], given, with_setup)
    return _Applying(tr, args[0], given, tensors, with_setup, name).recorded()


def _is_own(cls: type, method: str) -> bool:
    """Whether a Function has a method of its own, not torch's default."""
    found = type_lookup(cls, method)
    return found is not None and found.owner.__module__ != "torch.autograd.function"


def _needs_gradients(tr: Tracer, tensors: Sequence[TensorValue]) -> bool:
    """Whether the call becomes a node.

    A backward that is traced without gradients may itself be differentiated, and what is under a transform, too.
    """
    recording = tr.facts.body.backwards > 0 or tr.facts.body.level is not None
    return any(recording or (torch.is_grad_enabled() and one.fake.requires_grad) for one in tensors)


def _with_defaults(tr: Tracer, cls: type, args: Args, kwargs: Kwargs) -> Args:
    """Return all arguments by position, with the defaults of `forward`, as torch binds them for `setup_context`."""
    signature = inspect.signature(cls.forward)  # type: ignore[attr-defined]
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise GraphBreak(CUSTOM_AUTOGRAD, f"{cls.__qualname__}: {error}") from error
    given = bound.arguments
    for name, parameter in signature.parameters.items():
        if name not in given and parameter.default is not parameter.empty:
            given[name] = tr.constant(parameter.default)
    bound.arguments = {name: given[name] for name in signature.parameters if name in given}
    return bound.args


@handles(torch.is_grad_enabled)
def is_grad_enabled(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`torch.is_grad_enabled()`; each entry guards the mode it was made in."""
    if tr.facts.body.reentrant:
        raise GraphBreak(REENTRANT, "torch.is_grad_enabled() in the function")
    if tr.facts.body.backwards:
        raise GraphBreak(ASKS_GRAD_MODE)
    return tr.constant(torch.is_grad_enabled())


def _run_forward(
    tr: Tracer, cls: Value, ctx: Value, given: Args, with_setup: bool, between: Callable[[], fx.Node | None]
) -> tuple[Value, fx.Node | None]:
    """Return the result of `forward`, and what `between` gives before `setup_context` is called."""
    forward = cls.getattr_(tr, "forward")
    if not with_setup:
        return tr.call(forward, (ctx, *given), {}), None
    result = tr.call(forward, given, {})
    after = between()
    tr.call(cls.getattr_(tr, "setup_context"), (ctx, TupleValue([*given]), result), {})
    return result, after


def _inlined(tr: Tracer, cls: Value, given: Args, with_setup: bool) -> Value:
    """Return the result of `forward` where no backward will follow."""
    ctx = new_context(tr, tr.constant((False,) * len(given)))
    inside = GradModeValue(torch.no_grad, (), {})
    result = call_inside(tr, inside, lambda: _run_forward(tr, cls, ctx, given, with_setup, lambda: None)[0])
    written = noted(tr, ctx, "dirty_tensors")

    def given_back(one: Value) -> Value:
        """A tensor that is an argument is returned as a view of it, unless it was written to."""
        is_argument = isinstance(one, TensorValue) and any(one is each for each in given)
        if not is_argument or any(one is each for each in written):
            return one
        return tr.call_torch("view_as", (one, one), {})

    return TupleValue([*map(given_back, result.unpack(tr))]) if isinstance(result, TupleValue) else given_back(result)


@contextmanager
def _method(tr: Tracer, *, autocast: bool) -> Iterator[None]:
    """Context manager for tracing a method as autograd calls it: without gradients, `backward` without `autocast`.

    The switches are restored at its end, as autograd restores them; nothing of that is recorded.
    """
    tr.facts.body.functions += 1
    try:
        with ambient.preserved() as state:
            ambient.write(replace(state if autocast else ambient.without_autocast(state), grad=False))
            yield
    finally:
        tr.facts.body.functions -= 1


@dataclass(frozen=True)
class _Applying:
    """One call whose methods become subgraphs."""

    tr: Tracer
    cls: Value
    given: Args
    tensors: Sequence[TensorValue]
    with_setup: bool
    name: str

    def recorded(self) -> Value:
        tr, inputs = self.tr, [one.as_proxy() for one in self.tensors]  # placeholders come before the bodies
        rule = rule_of(tr, self.cls, self.given, self.name)
        last = last_node(self.tensors[0].ref.builder)
        with _method(tr, autocast=True):
            try:
                traced, after = self._forward()
            except TracedRaise as error:
                raise GraphBreak(BODY_RAISES, error.value.describe()) from error
        written = [self._position(one, self.tensors) for one in noted(tr, traced.ctx, "dirty_tensors")]
        fixed = [self._position(one, traced.outputs) for one in noted(tr, traced.ctx, "non_differentiable")]
        bodies = self._extracted(traced, (last, after), inputs, written)
        materialize = traced.ctx.getattr_(tr, "materialize_grads").bool_(tr)
        if self._transforms_reach("backward", "grad", rule):
            bodies |= self._backwards(traced, fixed, materialize)
        if self._transforms_reach("jvp", "jvp", rule):
            bodies[JVP] = self._jvp(traced)
        if rule is not None:
            bodies[VMAP] = rule.body
        settings = self._settings(traced, bodies, written, fixed, rule)
        nodes = tuple(one.node for one in bodies.values())
        made = recorded(tr, applied, (nodes, settings.as_tuple()), [*bodies.values()], self.tensors)
        return traced.with_outputs(tr, made)

    def _transforms_reach(self, method: str, kind: Kind, rule: Rule | None) -> bool:
        """Whether a transform may call `backward`, or `jvp`: one within the `vmap` whose rule stands for the call."""
        level = self.tr.facts.body.level
        if level is None:
            return method == "backward"
        if not _is_own(self.cls.as_constant(), method):
            return False
        if rule is None:
            return method == "backward" or any(one.kind == kind for one in level.outwards())
        return any(one.kind == kind for one in takewhile(lambda one: one is not rule.level, level.outwards()))

    def _settings(
        self,
        traced: Traced,
        bodies: Mapping[Role, Subgraph],
        written: Sequence[int],
        fixed: Sequence[int],
        rule: Rule | None,
    ) -> Settings:
        return Settings(
            roles=tuple(bodies),
            captured=tuple(len(one.captured) for one in bodies.values()),
            inputs=len(self.tensors),
            outputs=len(traced.outputs),
            saved=tuple(one.saved for one in traced.kept),
            saved_for_forward=saved_for_forward(self.tr, traced),
            written=tuple(written),
            undifferentiated=tuple(fixed),
            materialize=traced.ctx.getattr_(self.tr, "materialize_grads").bool_(self.tr),
            once=_once_differentiable(self.tr, self.cls.getattr_(self.tr, "backward")) is not None,
            has_vmap=_is_own(self.cls.as_constant(), "vmap"),
            generate_vmap_rule=self.cls.getattr_(self.tr, "generate_vmap_rule").bool_(self.tr),
            in_dims=() if rule is None else rule.in_dims,
            out_dims=() if rule is None else rule.out_dims,
        )

    def _forward(self) -> tuple[Traced, fx.Node | None]:
        """Return the traced `forward`, and the last node before those of `setup_context`."""
        tr, builder = self.tr, self.tensors[0].ref.builder
        needs = tuple(isinstance(arg, TensorValue) and _may_need(tr, arg) for arg in self.given)
        ctx = new_context(tr, tr.constant(needs))
        result, after = _run_forward(tr, self.cls, ctx, self.given, self.with_setup, lambda: last_node(builder))
        results = result.unpack(tr) if isinstance(result, TupleValue) else [result]
        outputs = [one for one in results if isinstance(one, TensorValue)]
        if not outputs:
            raise GraphBreak(CUSTOM_AUTOGRAD, f"{self.name} returns no tensor")
        return Traced(result, outputs, ctx, kept_by(tr, ctx)), after

    def _position(self, tensor: Value, among: Sequence[Value]) -> int:
        found = next((at for at, one in enumerate(among) if one is tensor), None)
        if found is None:
            text = f"{self.name} marks {tensor.describe()}, which is not among the tensors it may mark"
            raise GraphBreak(CUSTOM_AUTOGRAD, text)
        return found

    def _extracted(
        self,
        traced: Traced,
        before: tuple[fx.Node, fx.Node | None],
        inputs: Sequence[fx.Node],
        written: Sequence[int],
    ) -> dict[Role, Subgraph]:
        """Return the bodies of `forward` and `setup_context`; `before` are the last nodes before each."""
        builder, (last, after) = self.tensors[0].ref.builder, before
        outputs = [one.as_proxy() for one in traced.outputs]
        kept = [one.tensor.as_proxy() for one in traced.kept]
        writable = [inputs[at] for at in written]
        if after is None:
            return {FORWARD: extract_subgraph(builder, last, inputs, [*outputs, *kept], writable, modes=True)}
        setup = cut(builder, after, [*inputs, *outputs], kept, modes=True)
        forward = extract_subgraph(builder, last, inputs, outputs, writable, modes=True)
        return {FORWARD: forward, SETUP: held(builder, setup)}

    def _backwards(self, traced: Traced, fixed: Sequence[int], materialize: bool) -> dict[Role, Subgraph]:
        """Return the bodies of `backward`, by which of the gradients are given: all of them, if they materialize."""
        count, differentiable = len(traced.outputs), traced.differentiable(fixed)
        if materialize:
            return {(True,) * count: self._backward(traced, (True,) * count)}
        if len(differentiable) > MOST_UNMATERIALIZED:
            text = f"{self.name} has {len(differentiable)} outputs, and gradients that are not materialized"
            raise GraphBreak(CUSTOM_AUTOGRAD, text)
        given = [[False, True] if at in differentiable else [False] for at in range(count)]
        bodies = {one: self._backward(traced, one) for one in itertools.product(*given) if any(one)}
        return self._without_gradients(traced) | bodies

    def _without_gradients(self, traced: Traced) -> dict[Role, Subgraph]:
        """Return the body of `backward` for no gradient at all, where it gives a result: few programs come there."""
        builder, pattern = self.tensors[0].ref.builder, (False,) * len(traced.outputs)
        last = last_node(builder)
        try:
            return {pattern: self._backward(traced, pattern)}
        except GraphBreak as error:
            if error.kind not in (BODY_RAISES, CUSTOM_AUTOGRAD):
                raise
            erase(builder, nodes_after(last))
            return {}

    def _backward(self, traced: Traced, pattern: Sequence[bool]) -> Subgraph:
        """Trace `backward` on examples; return its subgraph."""
        tr = self.tr
        gradients = [stand_in(tr, self.name, one) for one in traced.outputs]
        kept = [stand_in(tr, self.name, one.tensor) for one in traced.kept]
        builder, last = gradients[0].ref.builder, last_node(gradients[0].ref.builder)
        passed = [one if given else tr.constant(None) for one, given in zip(gradients, pattern, strict=True)]
        method = self.cls.getattr_(tr, "backward")
        with _differentiated(tr, f"the backward of {self.name}", autocast=False):
            ctx = context_of(tr, traced, kept, "to_save")
            found = tr.call(_once_differentiable(tr, method) or method, (ctx, *traced.results(tr, passed)), {})
        nodes = self._gradients(found)
        return extract_subgraph(builder, last, [one.as_proxy() for one in (*gradients, *kept)], nodes, modes=True)

    def _gradients(self, found: Value) -> list[fx.Node | None]:
        """Return the gradients of the tensors among the arguments. Breaks where torch may refuse them."""
        results = found.unpack(self.tr) if isinstance(found, TupleValue) else [found]
        wanted = [isinstance(arg, TensorValue) for arg in self.given]
        for at, one in enumerate(results):
            if not (one.is_none() or (isinstance(one, TensorValue) and at < len(wanted) and wanted[at])):
                text = f"{self.name}.backward gives {one.describe()} for argument {at}"
                raise GraphBreak(CUSTOM_AUTOGRAD, text)
        if len(results) < len(wanted):
            text = f"{self.name}.backward gives {len(results)} gradients for {len(wanted)} arguments"
            raise GraphBreak(CUSTOM_AUTOGRAD, text)
        chosen = [one for one, of_tensor in zip(results, wanted, strict=False) if of_tensor]
        return [one.as_proxy() if isinstance(one, TensorValue) else None for one in chosen]

    def _jvp(self, traced: Traced) -> Subgraph:
        """Trace `jvp` on examples of tangents; return its subgraph."""
        tr = self.tr
        tangents = [stand_in(tr, self.name, one) for one in self.tensors]
        kept = [stand_in(tr, self.name, one.tensor) for one in traced.kept]
        builder, last = tangents[0].ref.builder, last_node(tangents[0].ref.builder)
        left = iter(tangents)
        passed = [next(left) if isinstance(one, TensorValue) else tr.constant(None) for one in self.given]
        with _differentiated(tr, f"the jvp of {self.name}", autocast=True):
            ctx = context_of(tr, traced, kept, "saved_for_forward")
            found = tr.call(self.cls.getattr_(tr, "jvp"), (ctx, *passed), {})
        results = found.unpack(tr) if isinstance(found, TupleValue) else [found]
        if len(results) != len(traced.outputs) or not all(isinstance(one, TensorValue) for one in results):
            raise GraphBreak(CUSTOM_AUTOGRAD, f"{self.name}.jvp gives {found.describe()}")
        examples = [one.as_proxy() for one in (*tangents, *kept)]
        return extract_subgraph(builder, last, examples, [one.as_proxy() for one in results], modes=True)


def _may_need(tr: Tracer, arg: TensorValue) -> bool:
    floats = arg.fake.is_floating_point() or arg.fake.is_complex()
    return arg.fake.requires_grad or ((tr.facts.body.backwards > 0 or tr.facts.body.level is not None) and floats)


def _once_differentiable(tr: Tracer, method: Value) -> Value | None:
    """Return the function in a method made by `once_differentiable`, or None."""
    if isinstance(method, FunctionValue) and method.function.__code__ is ONCE:
        return method.getattr_(tr, "__wrapped__")
    return None


@contextmanager
def _differentiated(tr: Tracer, what: str, *, autocast: bool) -> Iterator[None]:
    tr.facts.body.backwards += 1
    tr.facts.body.differentiated += 1
    try:
        with _method(tr, autocast=autocast), in_body(tr, what):
            yield
    finally:
        tr.facts.body.backwards -= 1
        tr.facts.body.differentiated -= 1
