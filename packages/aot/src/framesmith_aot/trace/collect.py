"""Collects the mutations, aliases and outputs of a graph that has just run on functional tensors."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.autograd.graph import GradientEdge, get_gradient_edge

from framesmith_aot.errors import AotUnsupported
from framesmith_aot.torch_adapter import unstable
from framesmith_aot.trace import functional
from framesmith_aot.trace.interpret import Ran, is_view_by_function
from framesmith_aot.trace.metadata import (
    Constant,
    CopyBack,
    GraphMeta,
    InputMeta,
    InputView,
    Origin,
    Output,
    OutputMeta,
    Repeat,
    SameInput,
    Slot,
    SlotMeta,
    SlotView,
)
from framesmith_aot.trace.views import DATA, NumberAt, Restride, Steps, ViewStep, chain, restride, with_numbers
from framesmith_aten.graphs.nodes import view_root
from framesmith_aten.layouts import is_dense, storage_id
from framesmith_aten.symbolic import is_symbolic
from framesmith_aten.tracing.tracer import GraphTracer
from framesmith_guards.torch_adapter import aten


@dataclass(frozen=True)
class InputPair:
    """One input while tracing: the tensor whose gradient is asked for, and the one that the graph runs on.

    A number is both. `history` and `version`: `grad_fn` and version counter of `run` before the graph ran.
    """

    leaf: torch.Tensor
    run: torch.Tensor
    requires_grad: bool
    is_leaf: bool
    history: Any = None
    version: int = 0

    @property
    def is_tensor(self) -> bool:
        return isinstance(self.run, torch.Tensor)


@dataclass(frozen=True)
class Collected:
    """`meta`, the wrappers of slots and of recorded views, the final values (fake tensors) of written inputs.

    `leaves`: see `Ran`.
    """

    meta: GraphMeta
    slots: list[torch.Tensor]
    written: list[torch.Tensor]
    views: dict[int, torch.Tensor]
    numbers: ScalarOutputs
    leaves: Sequence[torch.Tensor]


def collect(
    inputs: Sequence[InputPair],
    ran: Ran,
    tracer: GraphTracer,
    *,
    keep_input_mutations: bool,
    grad_mode_after: bool | None,
    alone: bool,
) -> Collected:
    """Return the mutations and aliases after the graph ran. Raises AotUnsupported. `alone`: see `_Slots`."""
    outputs = ran.outputs
    slots = _Slots(tracer, alone)
    mutations = {at: _mutation(at, pair, slots, keep_input_mutations) for at, pair in _tensors(inputs)}
    roles = _roles(inputs, ran, slots)
    metas = tuple(_input_meta(pair, mutations.get(at), ran.writers) for at, pair in enumerate(inputs))
    late = {at for at, one in enumerate(metas) if one.copy is not None and (one.copy.no_grad or not one.versioned)}
    views = {at: outputs[at] for at, role in enumerate(roles) if _is_recorded_view(outputs[at], role, late)}
    led = _led(ran, roles, views)
    for at in views:
        if not roles[at].leaf:
            roles[at] = _over_another(roles[at], at, views, slots)
    origins = _origins(inputs, outputs)
    origins.update((id(history), Origin("output", at)) for at, history in ran.histories.items())
    meta = GraphMeta(
        inputs=metas,
        slots=tuple(SlotMeta(functional.differentiable(one), origins.get(id(one))) for one in slots.wrappers),
        outputs=tuple(
            OutputMeta(
                role,
                at in views,
                *_maker_and_writer(outputs[at], role, ran.makers[at], ran.writers),
                led.get(at, ()),
            )
            for at, role in enumerate(roles)
        ),
        grad_mode_after=grad_mode_after,
    )
    values = [functional.current_value(inputs[at].run) for at in meta.written]
    return Collected(meta, slots.wrappers, values, views, slots.numbers, ran.leaves)


def _input_meta(pair: InputPair, mutation: CopyBack | bool | None, writers: Mapping[int, str]) -> InputMeta:
    copy = mutation if isinstance(mutation, CopyBack) else None
    return InputMeta(
        pair.requires_grad,
        pair.is_leaf,
        versioned=pair.is_tensor and pair.run._version != pair.version,
        written=mutation is True,
        copy=copy,
        writer=None if copy is None or copy.no_grad else writers[storage_id(pair.run)],
    )


def _maker_and_writer(
    value: Any, role: Output, maker: str, writers: Mapping[int, str]
) -> tuple[str | None, str | None]:
    """Return `OutputMeta.maker` and `.writer`; None where an eager replay does not need them."""
    if not functional.is_functional(value) or not maker:
        return None, None
    if functional.mutation_count(value) == 0:
        return maker, None
    writer = writers.get(storage_id(value)) if value._base is None and isinstance(role, Slot) else None
    return (None, None) if writer is None else (maker, writer)


def _tensors(inputs: Sequence[InputPair]) -> Iterator[tuple[int, InputPair]]:
    return ((at, pair) for at, pair in enumerate(inputs) if pair.is_tensor)


def _is_recorded_view(value: Any, role: Output, late: Collection[int]) -> bool:
    """Whether gradients flow through a replayed view to a base other than `late` inputs, final after all nodes."""
    if not isinstance(role, InputView | SlotView) or role.no_grad or not functional.differentiable(value):
        return False
    if role.history is not None:
        return False
    return isinstance(role, SlotView) or role.index not in late


def _over_another(role: Any, position: int, views: Mapping[int, torch.Tensor], slots: _Slots) -> Output:
    """Return the role of a view that is a view of another output, as such."""
    value = views[position]
    memory = storage_id(value)
    others = {get_gradient_edge(v): at for at, v in views.items() if at != position and storage_id(v) == memory}
    computed = None if value._base is None else value._base.grad_fn
    node: Any = value.grad_fn
    while others and node is not None and node is not computed and node.next_functions:
        edge = GradientEdge(*node.next_functions[0])
        if edge in others:
            other = views[others[edge]]
            steps = slots.steps(value, other)
            if steps is None and (step := restride(value, other)) is not None:
                steps = slots.with_numbers(
                    (step,)
                )  # their base was written to, and functionalisation made each view of it again
            found: Output = role if steps is None else replace(role, steps=steps, over=others[edge])
            return found
        node = edge.node
    unchanged: Output = role
    return unchanged


def _led(ran: Ran, roles: Sequence[Any], views: Mapping[int, torch.Tensor]) -> dict[int, tuple[int, ...]]:
    """Return `OutputMeta.led` of the outputs that are views made by one autograd node.

    Those of a call of which some are no outputs have no hooks.
    """
    found: dict[int, tuple[int, ...]] = {}
    positions = {id(value): at for at, value in reversed([*enumerate(ran.outputs)])}
    for call in ran.led:
        together = tuple(positions.get(id(value), -1) for value in call)
        if -1 in together:
            continue
        led = [at for at in together if isinstance(roles[at], InputView | SlotView)]
        if any(roles[at].no_grad for at in led) or any(
            functional.differentiable(ran.outputs[at]) and at not in views for at in together
        ):
            why = "an input that the graph changes goes into a module with backward hooks"
            raise AotUnsupported("view-replay", "views made by one autograd node", why)
        found.update(dict.fromkeys(led, together))
    return found


def _origins(inputs: Sequence[InputPair], outputs: Sequence[Any]) -> dict[int, Origin]:
    tensors = [(index, value) for index, value in enumerate(outputs) if isinstance(value, torch.Tensor)]
    found = {id(value._base): Origin("base", index) for index, value in tensors if value._base is not None}
    found.update((id(value), Origin("output", index)) for index, value in tensors)
    found.update((id(pair.run), Origin("input", index)) for index, pair in enumerate(inputs))
    return found


class ScalarOutputs:
    """The numbers that a call needs beside the graph: as outputs, or to replay views."""

    def __init__(self, tracer: GraphTracer) -> None:
        self.tracer = tracer
        self.nodes: list[fx.Node] = []

    def of(self, number: Any) -> Any:
        """Return where a call finds the number of a node or symbol; a constant is itself."""
        node = number if isinstance(number, fx.Node) else self.tracer.number_of(number)
        if not isinstance(node, fx.Node):
            return node
        if node not in self.nodes:
            self.nodes.append(node)
        return NumberAt(self.nodes.index(node))


class _Slots:
    """The fresh tensors that the graph must return, each once.

    `alone`: an output that shares memory with no other one is a slot itself, though eager mode's is a view.
    """

    def __init__(self, tracer: GraphTracer, alone: bool) -> None:
        self.tracer = tracer
        self.alone = alone
        self.numbers = ScalarOutputs(tracer)
        self.wrappers: list[torch.Tensor] = []
        self._index: dict[int, int] = {}

    def add(self, wrapper: torch.Tensor) -> int:
        if id(wrapper) not in self._index:
            self._index[id(wrapper)] = len(self.wrappers)
            self.wrappers.append(wrapper)
        return self._index[id(wrapper)]

    def steps(self, wrapper: torch.Tensor, base: torch.Tensor) -> Steps | None:
        node = self.tracer.node_of(functional.current_value(wrapper))
        return self.with_numbers(chain(node, self.tracer.node_of(functional.current_value(base))))

    def with_numbers(self, steps: Steps | None) -> Steps | None:
        """Return the steps with `NumberAt` in place of nodes and symbols."""
        return None if steps is None else tuple(with_numbers(step, self.numbers.of) for step in steps)


def _mutation(index: int, pair: InputPair, slots: _Slots, keep: bool) -> CopyBack | bool:
    """Return how the call writes to an input: True where the ATen graph does it itself (if `keep`), or False."""
    if functional.has_metadata_mutation(pair.run):
        raise AotUnsupported(
            "metadata-mutation", f"input {index}", "its shape, strides or storage are changed in place"
        )
    if not functional.has_data_mutation(pair.run):
        if pair.run.requires_grad != pair.requires_grad:
            raise AotUnsupported("requires-grad-change", f"input {index}", "its requires_grad is changed in place")
        return False
    # Mutated in no_grad, or through a detached alias: autograd does not see it.
    hidden = pair.run.grad_fn is pair.history
    if hidden and keep:
        return True
    # Another object than the input's wrapper, which stands for the input.
    final = functional.wrap(functional.current_value(pair.run)) if hidden else pair.run
    return CopyBack(index, slots.add(final), hidden)


def _roles(inputs: Sequence[InputPair], ran: Ran, slots: _Slots) -> list[Any]:
    outputs, histories = ran.outputs, ran.histories
    owners = {storage_id(pair.run): index for index, pair in _tensors(inputs)}
    leaves = _leaf_outputs(ran, owners)
    objects = {id(pair.run): index for index, pair in _tensors(inputs)}
    groups: dict[int, list[torch.Tensor]] = {}
    for position, value in enumerate(outputs):
        if not functional.is_functional(value) or position in histories:
            continue
        if storage_id(value) not in owners and leaves.position(value) is None:
            groups.setdefault(storage_id(value), []).append(value)
    bases = {storage: _common_base(group, slots) for storage, group in groups.items()}
    roles: list[Any] = []
    seen: dict[int, int] = {}
    for position, value in enumerate(outputs):
        if is_symbolic(value):
            known = slots.numbers.of(value)
            roles.append(known if isinstance(known, NumberAt) else Constant(known))
        elif not functional.is_functional(value):
            roles.append(_constant(value, position))
        elif seen.setdefault(id(value), position) != position:
            roles.append(Repeat(seen[id(value)]))
        elif id(value) in objects:
            roles.append(SameInput(objects[id(value)]))
        elif (leaf := leaves.position(value)) is not None:
            roles.append(_leaf(position, leaf, outputs, inputs, owners, slots))
        elif position in histories:
            roles.append(_view_by_function(position, value, histories[position], inputs, owners, bases, slots))
        elif (owner := owners.get(storage_id(value))) is not None:
            roles.append(_input_view(inputs[owner].run, value, owner, slots))
        else:
            if value.requires_grad and value.is_leaf and not value._is_view():
                why = "the graph makes a leaf that requires gradients"
                raise AotUnsupported("leaf-output", f"output {position}", why)
            roles.append(_slot(value, *bases[storage_id(value)], slots))
    return roles


@dataclass(frozen=True)
class _Leaves:
    """The outputs that are leaves made by the graph, by `id`, and by the storage if that is no input's."""

    by_id: Mapping[int, int]
    by_storage: Mapping[int, int]

    def position(self, value: torch.Tensor) -> int | None:
        """Return the position of the leaf that an output is, or is a view of."""
        found = self.by_id.get(id(value))
        if found is None and value._base is not None:
            found = self.by_id.get(id(value._base))
        return self.by_storage.get(storage_id(value)) if found is None else found


def _leaf_outputs(ran: Ran, owners: Mapping[int, int]) -> _Leaves:
    made = {id(leaf) for leaf in ran.leaves}
    found = {at: value for at, value in enumerate(ran.outputs) if id(value) in made}
    first = {id(value): at for at, value in reversed(found.items())}
    of_storages = {storage_id(value): at for at, value in reversed(found.items()) if storage_id(value) not in owners}
    if len(of_storages) < sum(storage_id(ran.outputs[at]) not in owners for at in first.values()):
        raise AotUnsupported("aliased-outputs", "leaves that share memory", "one of them would be made of the other")
    return _Leaves(first, of_storages)


def _leaf(
    position: int,
    leaf: int,
    outputs: Sequence[Any],
    inputs: Sequence[InputPair],
    owners: Mapping[int, int],
    slots: _Slots,
) -> InputView | SlotView:
    """Return the role of a leaf that the graph makes, or of an output that shares its memory."""
    value, made = outputs[position], outputs[leaf]
    owner = owners.get(storage_id(value))
    if value is made and owner is None:
        return SlotView(slots.add(functional.wrap(functional.current_value(made))), (), no_grad=False, leaf=True)
    if value is made:
        assert owner is not None
        base = inputs[owner].run
        steps = slots.steps(value, base) or slots.with_numbers(_restrided(value, base, f"a leaf over input {owner}"))
        return InputView(owner, steps or (), no_grad=False, leaf=True)
    way = slots.steps(value, made)
    if way is None:
        way = slots.with_numbers(_restrided(value, made, f"output {position}, which shares memory with a leaf")) or ()
    steps, no_grad = _replayed(value, made, way)
    if owner is not None:
        return InputView(owner, steps, no_grad, over=leaf)
    return SlotView(slots.add(functional.wrap(functional.current_value(made))), steps, no_grad, over=leaf)


def _constant(value: Any, position: int) -> Constant:
    if isinstance(value, torch.Tensor):
        raise AotUnsupported("foreign-output", f"output {position}", "a tensor that the graph did not compute")
    return Constant(value)


def _input_view(base: torch.Tensor, value: torch.Tensor, index: int, slots: _Slots) -> InputView:
    steps = slots.steps(value, base)
    if steps is None:
        steps = slots.with_numbers(_restrided(value, base, f"a view of input {index}")) or ()
    return InputView(index, *_replayed(value, base, steps))


def _view_by_function(
    position: int,
    value: torch.Tensor,
    history: torch.Tensor,
    inputs: Sequence[InputPair],
    owners: Mapping[int, int],
    bases: Mapping[int, tuple[torch.Tensor, dict[int, Steps]]],
    slots: _Slots,
) -> InputView | SlotView:
    """Return the role of a view that an autograd.Function leads to: the memory of its base, another history."""
    owner, what = owners.get(storage_id(value)), f"output {position}, a view that an autograd.Function returns"
    if owner is not None:
        base = inputs[owner].run
    else:
        found = bases.get(storage_id(value))
        shared = value._base if found is None else found[0]
        assert shared is not None
        base = shared
    steps = slots.steps(value, base)
    if steps is None:
        steps = slots.with_numbers(_restrided(value, base, what)) or ()
    if owner is None:
        return SlotView(slots.add(base), steps, no_grad=False, history=slots.add(history))
    return InputView(owner, steps, no_grad=False, history=slots.add(history))


def _slot(value: torch.Tensor, base: torch.Tensor, ways: dict[int, Steps], slots: _Slots) -> Slot | SlotView:
    index = slots.add(base)
    if value is base:
        # A view that a Function made shows its memory alone: it is one of the slot, as its base is of no one else.
        by_function = is_view_by_function(value) and not slots.alone
        return SlotView(index, (), no_grad=False, history=index) if by_function else Slot(index)
    steps = ways[id(value)]
    return SlotView(index, *_replayed(value, base, steps))


def _common_base(group: list[torch.Tensor], slots: _Slots) -> tuple[torch.Tensor, dict[int, Steps]]:
    """Return a base of all views in a group, and the steps to each of them by `id`."""
    alone = all(value is group[0] for value in group)
    if alone and is_view_by_function(group[0]):  # nothing else shows its memory
        return group[0], {}
    distinct = _shows_history(group[0]) or _is_guarded_part(group[0])
    if alone and not distinct and (slots.alone or group[0]._base is None):
        return group[0], {}
    bases = [value._base for value in group if value._base is not None]
    candidates = [*(value for value in group if value._base is None), *bases]
    needs_grad = any(functional.differentiable(value) or _shows_history(value) for value in group)
    if not needs_grad:
        root = view_root(slots.tracer.node_of(functional.current_value(group[0])))
        candidates.append(functional.wrap(root.meta["val"]))
    for way_to, among in ((slots.steps, candidates), (_strided_steps, candidates), (slots.steps, group)):
        for candidate in among:
            if needs_grad and not functional.differentiable(candidate):
                continue
            steps = {id(value): way_to(value, candidate) for value in group}
            known = {key: slots.with_numbers(way) or () for key, way in steps.items() if way is not None}
            if len(known) == len(steps):
                return candidate, known
    raise AotUnsupported("aliased-outputs", "outputs that share memory", "their common base is not known")


def _leads_to(value: torch.Tensor, base: torch.Tensor) -> bool:
    """Whether the history of a view leads to its base. (It ends at a view that was made in no_grad.)"""
    node = value.grad_fn
    while node is not None and node is not base.grad_fn and getattr(node, "variable", None) is not base:
        node = node.next_functions[0][0] if node.next_functions else None
    return node is not None


def _shows_history(value: torch.Tensor) -> bool:
    """Whether this is a view made in no_grad of a tensor with gradients: it reports its base's `requires_grad`."""
    return value.requires_grad and not functional.differentiable(value) and value._base is not None


def _is_guarded_part(value: torch.Tensor) -> bool:
    """Whether this is one of several views, with gradients, of one operator: autograd forbids mutating it."""
    if not (value._is_view() and functional.differentiable(value)):
        return False
    return bool(unstable.get_creation_meta(value) == unstable.CreationMeta.MULTI_OUTPUT_NODE)


def _restrided(value: torch.Tensor, base: torch.Tensor, what: str) -> tuple[Restride]:
    step = restride(value, base)
    if step is None:
        raise AotUnsupported("view-replay", what, "no chain of view operators leads to it")
    return (step,)


def _strided_steps(value: torch.Tensor, base: torch.Tensor) -> Steps | None:
    """Return the view by its strides where `base` is its base for autograd, and dense."""
    if value is base:
        return ()
    step = restride(value, base) if value._base is base and is_dense(base.shape, base.stride()) else None
    return None if step is None else (step,)


def _replayed(value: torch.Tensor, base: torch.Tensor, steps: Steps) -> tuple[Steps, bool]:
    """Return the steps to a view, and whether they have to run in no_grad."""
    detached = any(isinstance(step, ViewStep) and step.target is aten.detach.default for step in steps)
    without = base.requires_grad and not value.requires_grad and not detached
    by_data = without and not functional.counted_together(value, base)
    if by_data or not steps:  # made by `.data`, not by an operator
        if functional.differentiable(value):
            raise AotUnsupported("view-replay", "a tensor made by `.data`", "it was changed, and has gradients since")
        return (DATA, *steps), False
    return steps, _outside_autograd(value, base, detached)


def _outside_autograd(value: torch.Tensor, base: torch.Tensor, detached: bool) -> bool:
    """Whether the base has gradients that do not flow through the view."""
    if not functional.differentiable(value):
        if not base.requires_grad or not detached or not value._is_view():
            return base.requires_grad
        # Autograd records no mutations of such a view.
        return bool(unstable.get_creation_meta(value) != unstable.CreationMeta.DEFAULT)
    whole = base if base._base is None else base._base
    related = value is whole or value._base is whole
    if detached or not base.requires_grad or not related or not _leads_to(value, base):
        raise AotUnsupported("view-replay", "a view with gradients", "they do not come from its base")
    return False
