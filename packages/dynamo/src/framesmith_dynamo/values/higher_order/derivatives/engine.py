"""Calls of autograd's engine in the compiled function: `torch.autograd.grad`, `torch.autograd.backward`, `backward()`.

Note [Engine calls]: fakes have the histories of the program's tensors, so the engine runs on them as it does in the
program; aot runs it again on the tensors of its trace, whose operators it records. A backward pass then is a part of
the graph. `.grad` of leaves is changed as autograd's own nodes change it: a first gradient is stored, later ones are
added in place. Hooks are run on the way: see Note [Hooks in a pass]. What else others may see of a pass (saved tensors,
parts of the history outside of the graph) leaves the call to the engine, behind a graph break.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from framesmith_aten.graphs.autograd_calls import fits_leaf, own_gradient
from framesmith_dynamo.breaks import GraphBreak
from framesmith_dynamo.torch_adapter import unstable
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.c_methods import c_method
from framesmith_dynamo.values.callables import handles
from framesmith_dynamo.values.containers import TupleValue
from framesmith_dynamo.values.higher_order.derivatives.engine_calls import Refused, record_engine, refuse
from framesmith_dynamo.values.higher_order.derivatives.hooked_passes import hooked_pass
from framesmith_dynamo.values.lookup.entries import value_by_name
from framesmith_dynamo.values.tensors.tensor import TensorValue
from framesmith_dynamo.values.tensors.tensor_tables import AUTOGRAD_CALL
from framesmith_guards import AttrSource
from framesmith_guards.kinds.leaves import HAS_GRAD_DTYPE, HOOKS

_GRAD = inspect.signature(torch.autograd.grad)
_BACKWARD = inspect.signature(torch.autograd.backward)
_METHOD = inspect.signature(torch.Tensor.backward)


@handles(torch.autograd.grad)
def grad(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`torch.autograd.grad` of tensors of the graph."""
    with _breaking("torch.autograd.grad"), tr.builder.recording_part("backward"):
        return _grad(tr, args, kwargs)


def _grad(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    given = _bound(tr, _GRAD, args, kwargs)
    outputs, inputs = _tensors(tr, given["outputs"]), _tensors(tr, given["inputs"])
    if _flag(given["is_grads_batched"]) or not _flag(given["only_inputs"]):
        refuse("batched gradients")
    _check(tr, outputs)
    if tr.facts.hooked or tr.facts.retains_grad or tr.facts.hook_nodes:
        refuse("hooks that the function has registered run in the pass")
    for one in inputs:
        _check_hooks(tr, one)
    older = [one for one in inputs if one.ref.real is not None]
    ends = [one for one in older if one.fake.grad_fn is not None]
    if older:  # gradients of others cannot pass through what is older than the call
        if ends and len({*map(id, older)}) > 1:
            refuse("inputs with a history outside of the compiled function")
        list(_leaves(tr, outputs, ends))
    create = _flag(given["create_graph"])
    materialize = _flag(given["materialize_grads"])
    unused = _flag(given["allow_unused"], materialize)
    found = _engine(tr, outputs, inputs, given["grad_outputs"], given["retain_graph"], create, unused, materialize)
    return TupleValue(found)


@handles(torch.autograd.backward)
def backward(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    with _breaking("torch.autograd.backward"), tr.builder.recording_part("backward"):
        given = _bound(tr, _BACKWARD, args, kwargs)
        if not given["grad_variables"].is_none():
            refuse("grad_variables")
        return _pass(tr, _tensors(tr, given["tensors"]), given["grad_tensors"], given)


@c_method("backward", torch.Tensor)
def backward_of(tr: Tracer, self: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    with _breaking("backward()"), tr.builder.recording_part("backward"):
        given = _bound(tr, _METHOD, (self, *args), kwargs)
        return _pass(tr, [self], given["gradient"], given)


def _pass(tr: Tracer, outputs: Sequence[TensorValue], cotangents: Value, given: dict[str, Value]) -> Value:
    """Run a pass that accumulates into `.grad` of leaves."""
    _check(tr, outputs)
    if _flag(given["create_graph"]):
        refuse("backward() with create_graph=True")
    reached = [*_leaves(tr, outputs)]
    if not given["inputs"].is_none():
        wanted = _tensors(tr, given["inputs"])
        if not wanted or not all(any(one is leaf for leaf in reached) for one in wanted):
            refuse("inputs that are no leaves of the graph")
        reached = [one for place, one in enumerate(wanted) if not any(one is other for other in wanted[:place])]
    for leaf in reached:
        _check_hooks(tr, leaf, may_run=True)
        _check_node(leaf)
    hooked = hooked_pass(tr, outputs, reached, given["inputs"].is_none())
    if hooked is not None:
        hooked.run(_given(tr, outputs, cotangents), _flag(given["retain_graph"]), _accumulate)
        return tr.constant(None)
    held = {*tr.builder.refs}
    found = _engine(tr, outputs, reached, cotangents, given["retain_graph"], False, True, False)
    enabled = torch.is_grad_enabled()
    if enabled:
        tr.emit_state(unstable.set_grad_enabled, False)
    repeats = Counter(id(one.fake) for one in found if isinstance(one, TensorValue))
    for leaf, gradient in zip(reached, found, strict=True):
        if isinstance(gradient, TensorValue):
            own = id(gradient.fake)
            _accumulate(tr, leaf, gradient, own in held or repeats[own] > 1)
    if enabled:
        tr.emit_state(unstable.set_grad_enabled, True)
    return tr.constant(None)


def _accumulate(tr: Tracer, leaf: TensorValue, gradient: TensorValue, is_held: bool) -> None:
    """Add a gradient to a leaf's, or store it; `is_held`: others have this very tensor, so that a copy is stored."""
    before = leaf.getattr_(tr, "grad")
    if not before.is_none():
        if not isinstance(before, TensorValue) or before.fake.requires_grad or before.fake.layout is not torch.strided:
            refuse("a gradient that has a history, or is sparse", early=False)
        tr.call_torch("add_", (before, gradient), {})
        return
    if is_held or not fits_leaf(gradient.fake, leaf.fake):
        made = tr.call_torch(own_gradient, (gradient, leaf), {})
        assert isinstance(made, TensorValue)
        gradient = made
    leaf.setattr_(tr, "grad", gradient)


def _engine(
    tr: Tracer,
    outputs: Sequence[TensorValue],
    inputs: Sequence[TensorValue],
    cotangents: Value,
    retain: Value,
    create: bool,
    unused: bool,
    materialize: bool,
) -> list[Value]:
    given = _given(tr, outputs, cotangents)
    settings: Any = {"create": create, "unused": unused, "materialize": materialize}
    return record_engine(tr, outputs, inputs, given, retained=_flag(retain, create), **settings)


def _given(tr: Tracer, outputs: Sequence[TensorValue], cotangents: Value) -> list[Value]:
    """Return the gradients that a pass begins with; None stands for ones."""
    given: list[Value] = [tr.constant(None)] * len(outputs)
    if not cotangents.is_none():
        given = [cotangents] if isinstance(cotangents, TensorValue) else cotangents.unpack(tr)
    for one in given:
        if not one.is_none() and not isinstance(one, TensorValue):
            refuse(f"the gradient {one.describe()}")
    return given


# What the call is about


def _bound(tr: Tracer, signature: inspect.Signature, args: Args, kwargs: Kwargs) -> dict[str, Value]:
    try:
        bound = signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        refuse(str(error))
    rest = {name: one.default for name, one in signature.parameters.items() if name not in bound}
    return {**{name: tr.constant(default) for name, default in rest.items()}, **bound}


def _tensors(tr: Tracer, value: Value) -> list[TensorValue]:
    found = [value] if isinstance(value, TensorValue) else value.unpack(tr)
    tensors = [one for one in found if isinstance(one, TensorValue)]
    if len(tensors) < len(found):
        refuse("edges, or objects that are no tensors")
    return tensors


def _flag(value: Value, default: bool = False) -> bool:
    if not value.can_be_constant():
        refuse(f"the setting {value.describe()}")
    found = value.as_constant()
    return default if found is None else bool(found)


@contextmanager
def _breaking(name: str) -> Iterator[None]:
    """Break the graph at a call that is refused inside, by its name."""
    try:
        yield
    except Refused as refused:
        raise GraphBreak(AUTOGRAD_CALL, f"{name}: {refused}", before_effects=refused.early) from refused


def _check(tr: Tracer, outputs: Sequence[TensorValue]) -> None:
    """Break where a pass shows more than its results."""
    body = tr.facts.body
    if body.level or body.functions or body.reentrant or tr.journal.is_nested or tr.builder.checkpoint is not None:
        refuse("inside of a transform, a Function or a checkpoint")
    if tr.builder.has_checkpoints:
        refuse("a graph with checkpoints, whose values a pass recomputes")
    if unstable.top_saved_tensors_default_hooks(True) is not None or torch.is_anomaly_enabled():
        refuse("saved-tensor hooks, or anomaly mode")
    if tr.facts.shared_data:
        refuse("a graph that sets the `.data` of an input")
    _check_distributed(tr)
    if not outputs or not all(one.fake.requires_grad for one in outputs):
        refuse("a tensor without gradients")


def _check_distributed(tr: Tracer) -> None:
    """Break where a process group exists; the answer is guarded."""
    distributed = torch.distributed
    if distributed.is_available() and tr.call(value_by_name(tr, distributed.is_initialized), (), {}).bool_(tr):
        refuse("a process group, whose reducers hook gradients")


def _check_hooks(tr: Tracer, tensor: TensorValue, *, may_run: bool = False) -> None:
    """Break where an input has hooks, unless they `may_run`, or gradients of another dtype; that is guarded."""
    real, source = tensor.ref.real, tensor.source
    if real is None or source is None:
        return
    if real.is_leaf and HAS_GRAD_DTYPE and real.grad_dtype is not real.dtype:
        refuse(f"the grad_dtype of {tensor.describe()}")
    hooked = [name for name in HOOKS if getattr(real, name)]
    if hooked and not may_run:
        refuse(f"hooks of {tensor.describe()}")
    if real.is_leaf and not hooked:
        tr.guard(source, "PLAIN_LEAF", real.dtype)
        return
    if real.is_leaf and HAS_GRAD_DTYPE:
        tr.guard(AttrSource(source, "grad_dtype"), "EQUALS_MATCH", real.dtype)
    for name in HOOKS:
        if name in hooked:
            continue  # guarded where they are run
        if getattr(real, name) is None:
            tr.guard(AttrSource(source, name), "NONE_MATCH")
        else:
            tr.guard(AttrSource(source, name), "LENGTH", 0)


def _check_node(leaf: TensorValue) -> None:
    """Break where the node that accumulates a leaf's gradient has hooks."""
    real = leaf.ref.real
    if real is None or not real.requires_grad:
        return
    node: Any = torch.autograd.graph.get_gradient_edge(real).node
    for register in (node.register_hook, node.register_prehook):
        handle = register(lambda *_: None)
        handle.remove()
        if handle.hooks_dict_ref():
            refuse(f"hooks of the node that accumulates the gradient of {leaf.describe()}")


def _leaves(tr: Tracer, outputs: Sequence[TensorValue], ends: Sequence[TensorValue] = ()) -> Iterator[TensorValue]:
    """Yield the leaves that a pass reaches, in its order; break where it leaves the graph elsewhere than at `ends`."""
    seen = {one.fake.grad_fn for one in ends}
    waiting = [one.fake.grad_fn for one in outputs if one.fake.grad_fn is not None and one.fake.grad_fn not in seen]
    seen.update(waiting)
    found = [one for one in outputs if one.fake.grad_fn is None]
    yield from found
    while waiting:
        node: Any = waiting.pop()
        variable = getattr(node, "variable", None)
        if variable is not None:
            leaf = tr.tensor_of(variable)
            if not isinstance(leaf, TensorValue) or (leaf.ref.real is not None and not leaf.ref.real.is_leaf):
                refuse("a loss with a history outside of the compiled function")
            elif not any(leaf is one for one in found):
                yield leaf
            continue
        for one, _ in node.next_functions:
            if one is not None and one not in seen:
                seen.add(one)
                waiting.append(one)
