"""Calls of nested compile regions that repeat an earlier call: they are recorded as calls of its body, not traced.

Note [Repeated regions]: what the trace of a call has read is in its guards. If those on the objects among its arguments
hold for the objects of a later call, and all else is as it was, the later call would be traced to equal nodes: the same
guards are added for its own objects, and the tensors found there become operands of a call of the body. What the guards
do not cover is compared or must be absent: changes of objects that are older than the trace, the form of other
arguments, torch's modes, and the facts that a trace keeps beside its guards. Everything else is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx

from framesmith_aten.graphs.control_flow import TensorLayout
from framesmith_aten.meta import EXAMPLE
from framesmith_aten.recording import effects_of
from framesmith_aten.symbolic import has_symbols, is_symbolic
from framesmith_dynamo.graph.regions import RegionCall, call_of
from framesmith_dynamo.graph.subgraphs import nodes_after
from framesmith_dynamo.tensor_calls.calls import tensor_value
from framesmith_dynamo.torch_adapter import unstable
from framesmith_dynamo.values.attribute_dicts.owners import note_instance_dict
from framesmith_dynamo.values.constants.symbolic import SymbolicNumber
from framesmith_dynamo.values.containers.base import ContainerValue
from framesmith_dynamo.values.containers.tuple import TupleValue
from framesmith_dynamo.values.lookup.libraries import is_settled
from framesmith_dynamo.values.objects.objects import ObjectValue
from framesmith_dynamo.values.tensors.tensor import TensorValue
from framesmith_guards.values.constants import typed_key

if TYPE_CHECKING:
    from framesmith_aten.meta import Effects
    from framesmith_dynamo.trace_state import TraceState
    from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
    from framesmith_guards import Guard, Source

#: Guards that relate an object to another one that they name.
_SAME_OBJECT: Final = "DUPLICATE_INPUT"


def call_region(tr: Tracer, state: TraceState, function: Value, args: Args, kwargs: Kwargs) -> Value:
    """Call the function of a nested compile region."""
    if state.builder.is_in_region or not _is_plain(state):
        return _traced(tr, function, args, kwargs)
    given = _Arguments.of(state, args, kwargs)
    if given is None:
        return _traced(tr, function, args, kwargs)
    known: list[_Traced] = state.regions.setdefault(id(function), [])
    for earlier in known:
        found = earlier.repeated(tr, state, given)
        if found is not None:
            return found
    before, last = _stamp(state), next(iter(reversed(state.builder.graph.nodes)), None)
    result = _traced(tr, function, args, kwargs)
    if _is_plain(state) and _stamp(state) == before:
        made = _Traced.of(state, given, last, result)
        if made is not None:
            known.append(made)
    return result


def _traced(tr: Tracer, function: Value, args: Args, kwargs: Kwargs) -> Value:
    with tr.builder.in_region():
        return tr.call(function, args, kwargs)


def _is_plain(state: TraceState) -> bool:
    """Whether the trace has changed nothing that exists, and is in no body and no handler of an exception."""
    body = state.facts.body
    nested = body.level or body.functions or body.cached_calls or body.elementwise_subscripts or state.journal.is_nested
    return not nested and state.builder.checkpoint is None and state.handled is None and state.journal.is_empty()


def _stamp(state: TraceState) -> tuple[int, ...]:
    """Return the numbers of torch's modes that were changed, and of facts beside guards."""
    facts, builder = state.facts, state.builder
    kept: tuple[Sized, ...] = (
        facts.identity_keys, facts.entered_autocast, facts.tensor_items, facts.caches, facts.cached_results,
        facts.hooked, facts.retains_grad, facts.hook_nodes, facts.shared_dicts, builder.leaf_views, builder.parts,
    )  # fmt: skip
    return builder.state.changes, builder.assumptions, *map(len, kept)


@dataclass(frozen=True)
class _Arguments:
    """The arguments of a call: the objects among them and where they are, tensors, and the `form` of it all."""

    form: Hashable
    objects: Mapping[Source, object]
    tensors: Sequence[TensorValue]

    @classmethod
    def of(cls, state: TraceState, args: Args, kwargs: Kwargs) -> _Arguments | None:
        """Return None where an argument is of another kind."""
        objects: dict[Source, object] = {}
        tensors: list[TensorValue] = []

        def form(value: Value) -> Hashable:
            if isinstance(value, TensorValue):
                tensors.append(value)
                if value.source is not None:
                    objects[_path(value.source)] = value.ref.real
                return _form_of_tensor(state, value)
            if isinstance(value, SymbolicNumber):
                return SymbolicNumber, value.ref.number.node.expr
            if value.is_constant():
                return typed_key(value.as_constant())
            if value.source is not None and (real := _real(value)) is not None:
                objects[_path(value.source)] = real
                return type(value), type(real)
            if type(value) is TupleValue:
                return TupleValue, tuple(map(form, value.items))
            raise _Other

        try:
            found = tuple(map(form, args)), tuple([(name, form(one)) for name, one in kwargs.items()])
        except _Other:
            return None
        return cls(found, objects, tensors)


def _form_of_tensor(state: TraceState, value: TensorValue) -> Hashable:
    """Return what a trace can see of a tensor, beside the guards on an input."""
    fake, ref = value.fake, value.ref
    if fake.layout is not torch.strided or state.journal.is_mutated(value):
        raise _Other
    if any(fake is one for one in state.builder.leaf_views):
        raise _Other
    bits = fake.is_leaf, fake.is_inference(), fake.is_conj(), fake.is_neg(), fake._is_view()
    place = value.source is None, ref.source is None, _number(fake.storage_offset())
    return value.cls, place, _compared(TensorLayout.of(fake)), bits


def _path(source: Source) -> Source:
    """Return a source under which what a trace reads is guarded."""
    if is_settled(source):
        raise _Other
    return source


class _Other(Exception):
    """An argument of a kind that is not compared."""


def _real(value: Value) -> object:
    if isinstance(value, ObjectValue) and not value.is_new:
        return value.obj
    return value.real_object() if isinstance(value, ContainerValue) else None


def _number(value: Any) -> Hashable:
    found: Hashable = value.node.expr if is_symbolic(value) else value
    return found


def _compared(layout: TensorLayout) -> Hashable:
    sizes = tuple(map(_number, layout.shape)), tuple(map(_number, layout.strides))
    return *sizes, layout.dtype, layout.device, layout.requires_grad


class _Objects:
    """The objects of a later call on the paths of an earlier one, whose starts are objects of the later call."""

    def __init__(self, starts: Mapping[Source, object]) -> None:
        self._found: dict[Source, object] = dict(starts)

    def at(self, source: Source) -> object:
        """Return the object at a path. Any exception means that there is none."""
        if source not in self._found:
            assert source.base is not None
            self._found[source] = source.read(self.at(source.base), {}, _nothing)  # type: ignore[arg-type]
        return self._found[source]

    def has_all(self, sources: Iterable[Source]) -> bool:
        """Whether there are objects at all these paths."""
        try:
            for source in sources:
                self.at(source)
        except Exception:
            return False
        return True


def _nothing() -> None:
    """Stands for the compiled function: the steps of a path do not read it."""


@dataclass(frozen=True)
class _Traced:
    """A call that was traced.

    `guards`: those on paths that begin at its objects. `known`: such paths to objects that have values, with these
    objects and the form of tensors. `noted`: those to objects whose `__dict__` was noted. `operands` return the nodes
    of a later call.
    """

    given: _Arguments
    stamp: tuple[int, ...]
    call: RegionCall
    effects: Effects
    guards: Sequence[Guard]
    known: Mapping[Source, tuple[object, Hashable]]
    noted: Sequence[Source]
    operands: Sequence[_Operand]
    results: Sequence[TensorLayout]
    is_tuple: bool
    #: The name of the body, once another call has used it.
    name: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, state: TraceState, given: _Arguments, last: fx.Node | None, result: Value) -> _Traced | None:
        """Return None for a call that can't be repeated by its nodes alone."""
        results = _results(result)
        starts = given.objects
        if results is None:
            return None
        recorded = state.builder.graph.nodes if last is None else nodes_after(last)
        nodes = [node for node in recorded if node.op != "placeholder"]
        call = call_of(_live(nodes, [one.ref.node for one in results]), [one.ref.node for one in results])
        effects = None if call is None else call.effects()
        if call is None or effects is None or effects.irreversible or effects.external:
            return None
        guards = [guard for guard in state.guards if _begins(guard.source, starts)]
        if not all(_is_of_one(guard, starts) for guard in guards):
            return None
        found = {source: value for source, value in state.by_source.items() if _begins(source, starts)}
        met = {id(value): obj for obj, value, _ in state.by_identity.values()}
        try:
            known = {
                source: (met[id(value)], _form(state, value)) for source, value in found.items() if id(value) in met
            }
        except _Other:
            return None
        if any(isinstance(value, SymbolicNumber) for value in found.values()):
            return None
        owners = [owner.source for owner in state.facts.instance_dicts.values() if owner.source is not None]
        operands = [_operand(state, given, node) for node in call.operands]
        if any(one is None for one in operands):
            return None
        return cls(
            given,
            _stamp(state),
            call,
            effects,
            guards,
            known,
            [source for source in owners if _begins(source, starts)],
            [one for one in operands if one is not None],
            [TensorLayout.of(one.fake) for one in results],
            isinstance(result, TupleValue),
        )

    def repeated(self, tr: Tracer, state: TraceState, given: _Arguments) -> Value | None:
        """Record a call with other arguments and return its result; None if it may differ."""
        if given.form != self.given.form or _stamp(state) != self.stamp:
            return None
        starts = dict(zip(self.given.objects, given.objects, strict=True))
        if len({*starts.values()}) != len(starts):
            return None
        there = _Objects(dict(zip(self.given.objects, given.objects.values(), strict=True)))
        with unstable.DisableTorchFunction():
            if not all(_holds(state, guard, there) for guard in self.guards):
                return None
        if not there.has_all(self.known) or not self._is_one_to_one(given, there):
            return None
        values = {source: tr.wrap(there.at(source), _moved(source, starts)) for source in self.known}
        try:
            if any(_form(state, values[source]) != form for source, (_, form) in self.known.items()):
                return None
        except _Other:
            return None
        for guard in self.guards:
            state.guards.add(guard.at(_moved(guard.source, starts)))
        for source in self.noted:
            note_instance_dict(tr, values[source])
        if not self.name:
            self.name.append(state.builder.region_body(self.call))
        operands = [operand(given, values) for operand in self.operands]
        refs = state.builder.call_body(self.name[0], operands, self.results, self.effects)
        made = [tensor_value(tr, ref.fake, ref.node) for ref in refs]  # type: ignore[arg-type]
        return TupleValue(made) if self.is_tuple else made[0]

    def _is_one_to_one(self, given: _Arguments, there: _Objects) -> bool:
        """Whether what was one object is one object again, and what was two is two."""
        pairs = {(id(obj), id(there.at(source))) for source, (obj, _) in self.known.items()}
        for one, other in zip(self.given.tensors, given.tensors, strict=True):
            pairs.add((id(one.ref), id(other.ref)))
            if one.source is not None:
                pairs.add((id(one.ref.real), id(other.ref.real)))
        return len(pairs) == len({one for one, _ in pairs}) == len({other for _, other in pairs})


def _moved(source: Source, starts: dict[Source, Source]) -> Source:
    found = source.moved(starts)
    assert found is not None
    return found


def _begins(source: Source, starts: Container[Source]) -> bool:
    return any(one in starts for one in source.chain())


def _is_of_one(guard: Guard, starts: Container[Source]) -> bool:
    """Whether a guard is about one object, or that it is one which is not among the arguments."""
    others = guard.operands
    return not others or (guard.kind.name == _SAME_OBJECT and not _begins(others[0], starts))


def _holds(state: TraceState, guard: Guard, there: _Objects) -> bool:
    try:
        obj = there.at(guard.source)
        if guard.operands:
            met = state.by_identity.get(id(obj))
            return met is not None and met[0] is obj and met[2] is guard.operands[0]
        return guard.kind.holds(obj, guard.expected)
    except Exception:  # there is nothing at the source, as a guard's own check finds
        return False


def _results(result: Value) -> list[TensorValue] | None:
    """Return the tensors of a call's result, if it gives nothing else, and they are new."""
    items = list(result.items) if type(result) is TupleValue and result.source is None else [result]
    found = [one for one in items if isinstance(one, TensorValue) and _is_new(one)]
    return found if items and len(found) == len(items) == len({id(one) for one in found}) else None


def _is_new(value: TensorValue) -> bool:
    fake = value.fake
    if value.source is not None or value.cls is not torch.Tensor or fake.layout is not torch.strided:
        return False
    odd = fake._is_view() or fake.is_conj() or fake.is_neg() or fake.is_inference() or fake.storage_offset()
    return not odd and not (fake.requires_grad and fake.is_leaf)


def _form(state: TraceState, value: Value) -> Hashable:
    """Return the form of a known object; _Other for a tensor of symbolic sizes, which its path names."""
    if not isinstance(value, TensorValue):
        return type(value).__qualname__
    if has_symbols(value.fake):
        raise _Other
    return _form_of_tensor(state, value)


def _live(nodes: Sequence[fx.Node], results: Sequence[fx.Node]) -> list[fx.Node]:
    """Return the nodes without those that nothing needs."""
    needed: set[fx.Node] = {*results}
    for node in reversed(nodes):
        if node in needed or effects_of(node).forbid_removal:
            needed.update((node, *node.all_input_nodes))
    return [node for node in nodes if node in needed]


#: Returns the node of a later call, from its arguments and the values of what is known, by the earlier call's paths.
_Operand = Callable[[_Arguments, Mapping["Source", "Value"]], fx.Node]


def _operand(state: TraceState, given: _Arguments, node: fx.Node) -> _Operand | None:
    """Return a function that gives the node of a later call in place of this one."""
    for index, value in enumerate(given.tensors):
        if value.ref.is_used and value.ref.node is node:
            return lambda later, values: later.tensors[index].ref.node
    ref = next((ref for ref in state.builder.inputs if ref.node is node), None)
    if ref is not None and ref.source is not None and _begins(ref.source, given.objects):
        path = ref.source
        return lambda later, values: _node_of(values[path])
    if ref is not None or is_symbolic(EXAMPLE.get(node)):
        return lambda later, values: node
    return None


def _node_of(value: Value) -> fx.Node:
    assert isinstance(value, TensorValue)
    return value.ref.node
