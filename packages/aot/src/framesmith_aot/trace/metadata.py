"""What a traced graph does besides computing: collected once, read by every later stage.

Note [Outputs]: a *slot* is a fresh tensor that the ATen graph returns. Each output of the user's
graph is a constant, an input itself, a view of an input, a slot, or a view of a slot. Views are made
again outside the graph, on the run-time tensors, so that they alias (and differentiate) as in eager.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import fx
from torch.autograd.graph import GradientEdge, get_gradient_edge

from framesmith_aot.errors import AotUnsupported
from framesmith_aot.torch_adapter import unstable
from framesmith_aot.trace import functional
from framesmith_aot.trace.interpret import Ran
from framesmith_aot.trace.views import DATA, NumberAt, Restride, Steps, ViewStep, chain, restride, with_numbers
from framesmith_aten.graphs.nodes import view_root
from framesmith_aten.layouts import is_dense, storage_id
from framesmith_aten.symbolic import is_symbolic
from framesmith_aten.tracing.tracer import GraphTracer
from framesmith_guards.torch_adapter import aten


@dataclass(frozen=True)
class Constant:
    """An output that is no tensor: the same at every call."""

    value: Any


@dataclass(frozen=True)
class SameInput:
    """An output that is the very object passed as input `index`."""

    index: int


@dataclass(frozen=True)
class InputView:
    """An output that is a view of input `index`; `no_grad`: made where autograd does not record.

    `over`: the output, a view as well, that the steps begin at (None: the input).
    """

    index: int
    steps: Steps
    no_grad: bool
    over: int | None = None


@dataclass(frozen=True)
class Slot:
    """An output that is the graph's slot `index`."""

    index: int


@dataclass(frozen=True)
class SlotView:
    """An output that is a view of slot `index`; see InputView."""

    index: int
    steps: Steps
    no_grad: bool
    over: int | None = None


@dataclass(frozen=True)
class Repeat:
    """An output that is the very object returned as output `index`."""

    index: int


Output = Constant | NumberAt | SameInput | InputView | Slot | SlotView | Repeat


@dataclass(frozen=True)
class CopyBack:
    """Input `index` receives slot `slot` after the graph; `no_grad`: autograd must not record it."""

    index: int
    slot: int
    no_grad: bool


@dataclass(frozen=True)
class GraphMeta:
    """Roles of the inputs and outputs. `slots` holds, for each slot, whether gradients flow through it.

    `written` are the inputs that the graph itself overwrites, `unversioned` those changed by way of `.data` only: their
    version counters stay.
    """

    requires_grad: tuple[bool, ...]
    is_leaf: tuple[bool, ...]
    slots: tuple[bool, ...]
    outputs: tuple[Output, ...]
    copy_back: tuple[CopyBack, ...]
    written: tuple[int, ...]
    unversioned: frozenset[int]
    grad_mode_after: bool | None

    @property
    def differentiable(self) -> bool:
        return any(self.slots)

    @property
    def changed(self) -> list[int]:
        """The inputs that the call writes to."""
        return [*self.written, *(copy.index for copy in self.copy_back)]

    @property
    def early(self) -> dict[int, CopyBack]:
        """The copies, by slot, with which inputs receive their history as soon as something reads it."""
        return {copy.slot: copy for copy in self.copy_back if not (copy.no_grad or copy.index in self.unversioned)}

    def base_slot(self, position: int) -> int | None:
        """The slot that an output is a view of, also by way of an input that receives it; None for other inputs."""
        form = self.outputs[position]
        if isinstance(form, SlotView):
            return form.index
        return next((slot for slot, copy in self.early.items() if copy.index == form.index), None)  # type: ignore[union-attr]


@dataclass(frozen=True)
class InputPair:
    """One input during tracing: the tensor gradients are asked for and the one the graph runs on, or twice a number.

    `history` and `version` are the `grad_fn` and the version counter of the latter before the graph ran.
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
class Origin:
    """Where a run of the torch-level graph has the tensor of a slot: an output, its base, or an input it changed."""

    kind: Literal["output", "base", "input"]
    index: int

    def find(self, inputs: Sequence[torch.Tensor], outputs: Sequence[Any]) -> torch.Tensor:
        """That tensor."""
        if self.kind == "input":
            return inputs[self.index]
        found: torch.Tensor = outputs[self.index]
        if self.kind == "output" or found._base is None:
            return found
        return found._base


@dataclass(frozen=True)
class Collected:
    """`meta`, the wrappers of the slots and where they come from, the written inputs' final values (fake tensors).

    `views` are wrappers of outputs by position: those through which gradients flow to their base. Nodes of the
    torch-level graph: `makers` are those that make outputs, by position, `writers` those from which what was changed
    has its history in the end: inputs by position, and outputs by n + theirs, where there are n inputs.
    """

    meta: GraphMeta
    slots: list[torch.Tensor]
    origins: dict[int, Origin]
    written: list[torch.Tensor]
    views: dict[int, torch.Tensor]
    makers: dict[int, str]
    writers: dict[int, str]
    numbers: Numbers


def collect(
    inputs: Sequence[InputPair],
    ran: Ran,
    tracer: GraphTracer,
    *,
    keep_input_mutations: bool,
    grad_mode_after: bool | None,
) -> Collected:
    """Reads off mutations and aliases after the graph ran. Raises AotUnsupported."""
    outputs = ran.outputs
    slots = _Slots(tracer)
    written, copies = _mutations(inputs, slots, keep_input_mutations)
    forms = _outputs(inputs, outputs, slots)
    unversioned = frozenset(at for at, pair in _tensors(inputs) if pair.run._version == pair.version)
    late = {copy.index for copy in copies if copy.no_grad or copy.index in unversioned}
    views = {at: outputs[at] for at, form in enumerate(forms) if _is_recorded_view(outputs[at], form, late)}
    for at in views:
        forms[at] = _over_another(forms[at], at, views, slots)
    meta = GraphMeta(
        requires_grad=tuple(pair.requires_grad for pair in inputs),
        is_leaf=tuple(pair.is_leaf for pair in inputs),
        slots=tuple(functional.differentiable(wrapper) for wrapper in slots.wrappers),
        outputs=tuple(forms),
        copy_back=tuple(copies),
        written=tuple(written),
        unversioned=unversioned,
        grad_mode_after=grad_mode_after,
    )
    values = [functional.current_value(inputs[index].run) for index in written]
    origins = dict(_origins(slots.wrappers, inputs, outputs))
    recorded = {copy.index: storage_id(inputs[copy.index].run) for copy in copies if not copy.no_grad}
    makers: dict[int, str] = {}
    for at, value in enumerate(outputs):
        if not functional.is_functional(value) or not ran.makers[at]:
            continue
        if functional.mutation_count(value) == 0:
            makers[at] = ran.makers[at]
        elif value._base is None and isinstance(forms[at], Slot) and storage_id(value) in ran.writers:
            makers[at] = ran.makers[at]
            recorded[len(inputs) + at] = storage_id(value)
    writers = {held: ran.writers[memory] for held, memory in recorded.items()}
    return Collected(meta, slots.wrappers, origins, values, views, makers, writers, slots.numbers)


def _tensors(inputs: Sequence[InputPair]) -> Iterator[tuple[int, InputPair]]:
    return ((at, pair) for at, pair in enumerate(inputs) if pair.is_tensor)


def _is_recorded_view(value: Any, form: Output, late: Collection[int]) -> bool:
    """Whether gradients flow through a view that is made anew, from a base that is not one of the inputs that are
    what they will be only behind all nodes (`late`)."""
    if not isinstance(form, InputView | SlotView) or form.no_grad or not functional.differentiable(value):
        return False
    return isinstance(form, SlotView) or form.index not in late


def _over_another(form: Any, position: int, views: Mapping[int, torch.Tensor], slots: _Slots) -> Output:
    """The form of a view that was made of another output, a view of the same memory: as a view of that one."""
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
                )  # what they are views of was written to, and each was made of it anew
            found: Output = form if steps is None else replace(form, steps=steps, over=others[edge])
            return found
        node = edge.node
    unchanged: Output = form
    return unchanged


def _origins(
    slots: Sequence[torch.Tensor], inputs: Sequence[InputPair], outputs: Sequence[Any]
) -> Iterator[tuple[int, Origin]]:
    tensors = [(index, value) for index, value in enumerate(outputs) if isinstance(value, torch.Tensor)]
    at = {id(value._base): Origin("base", index) for index, value in tensors if value._base is not None}
    at.update((id(value), Origin("output", index)) for index, value in tensors)
    at.update((id(pair.run), Origin("input", index)) for index, pair in enumerate(inputs))
    for slot, wrapper in enumerate(slots):
        if id(wrapper) in at:
            yield slot, at[id(wrapper)]


class Numbers:
    """The numbers that are needed at a call beside the graph: as outputs, or to make views again."""

    def __init__(self, tracer: GraphTracer) -> None:
        self.tracer = tracer
        self.nodes: list[fx.Node] = []

    def of(self, number: Any) -> Any:
        """Where the number of a node, or a symbolic one, will be found; a number that is known is itself."""
        node = number if isinstance(number, fx.Node) else self.tracer.number_of(number)
        if not isinstance(node, fx.Node):
            return node
        if node not in self.nodes:
            self.nodes.append(node)
        return NumberAt(self.nodes.index(node))


class _Slots:
    """The fresh tensors the graph must return, each once."""

    def __init__(self, tracer: GraphTracer) -> None:
        self.tracer = tracer
        self.numbers = Numbers(tracer)
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
        """The steps, with the places of numbers in place of nodes and symbols."""
        return None if steps is None else tuple(with_numbers(step, self.numbers.of) for step in steps)


def _mutations(inputs: Sequence[InputPair], slots: _Slots, keep: bool) -> tuple[list[int], list[CopyBack]]:
    written: list[int] = []
    copies: list[CopyBack] = []
    for index, pair in _tensors(inputs):
        if functional.has_metadata_mutation(pair.run):
            raise AotUnsupported(
                "metadata-mutation", f"input {index}", "its shape, strides or storage are changed in place"
            )
        if not functional.has_data_mutation(pair.run):
            if pair.run.requires_grad != pair.requires_grad:
                raise AotUnsupported("requires-grad-change", f"input {index}", "its requires_grad is changed in place")
            continue
        # Changed in no_grad, or through a detached alias: autograd knows nothing of it.
        hidden = pair.run.grad_fn is pair.history
        if hidden and keep:
            written.append(index)
        else:
            copies.append(CopyBack(index, slots.add(_mutated_value(pair, hidden)), hidden))
    return written, copies


def _mutated_value(pair: InputPair, hidden: bool) -> torch.Tensor:
    """A wrapper of the final value; its own object, since the input's wrapper stands for the input."""
    return functional.wrap(functional.current_value(pair.run)) if hidden else pair.run


def _outputs(inputs: Sequence[InputPair], outputs: Sequence[Any], slots: _Slots) -> list[Output]:
    owners = {storage_id(pair.run): index for index, pair in _tensors(inputs)}
    objects = {id(pair.run): index for index, pair in _tensors(inputs)}
    groups: dict[int, list[torch.Tensor]] = {}
    for value in outputs:
        if functional.is_functional(value) and storage_id(value) not in owners:
            groups.setdefault(storage_id(value), []).append(value)
    bases = {storage: _common_base(group, slots) for storage, group in groups.items()}
    forms: list[Output] = []
    seen: dict[int, int] = {}
    for position, value in enumerate(outputs):
        if is_symbolic(value):
            known = slots.numbers.of(value)
            forms.append(known if isinstance(known, NumberAt) else Constant(known))
        elif not functional.is_functional(value):
            forms.append(_constant(value, position))
        elif seen.setdefault(id(value), position) != position:
            forms.append(Repeat(seen[id(value)]))
        elif id(value) in objects:
            forms.append(SameInput(objects[id(value)]))
        elif (owner := owners.get(storage_id(value))) is not None:
            forms.append(_input_view(inputs[owner].run, value, owner, slots))
        else:
            _check_fresh(value, position)
            forms.append(_slot(value, *bases[storage_id(value)], slots))
    return forms


def _constant(value: Any, position: int) -> Constant:
    if isinstance(value, torch.Tensor):
        raise AotUnsupported("foreign-output", f"output {position}", "a tensor that the graph did not compute")
    return Constant(value)


def _check_fresh(value: torch.Tensor, position: int) -> None:
    if value.requires_grad and value.is_leaf and not value._is_view():
        raise AotUnsupported("leaf-output", f"output {position}", "a leaf that requires gradients made in the graph")


def _input_view(base: torch.Tensor, value: torch.Tensor, index: int, slots: _Slots) -> InputView:
    steps = slots.steps(value, base)
    if steps is None:
        steps = slots.with_numbers(_restrided(value, base, f"a view of input {index}")) or ()
    return InputView(index, *_replayed(value, base, steps))


def _slot(value: torch.Tensor, base: torch.Tensor, ways: dict[int, Steps], slots: _Slots) -> Slot | SlotView:
    index = slots.add(base)
    if value is base:
        return Slot(index)
    steps = ways[id(value)]
    return SlotView(index, *_replayed(value, base, steps))


def _common_base(group: list[torch.Tensor], slots: _Slots) -> tuple[torch.Tensor, dict[int, Steps]]:
    """The tensor that all of the group are views of, and the way to each of them."""
    alone = all(value is group[0] for value in group)
    distinct = _shows_history(group[0]) or _is_guarded_part(group[0])
    if alone and not distinct and group[0]._base is None:
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
    """Whether this is a view made in no_grad of what has gradients: autograd says of it what it says of its base."""
    return value.requires_grad and not functional.differentiable(value) and value._base is not None


def _is_guarded_part(value: torch.Tensor) -> bool:
    """Whether this is one of several views with gradients that one operator gave: autograd lets nobody change it."""
    if not (value._is_view() and functional.differentiable(value)):
        return False
    return bool(unstable.get_creation_meta(value) == unstable.CreationMeta.MULTI_OUTPUT_NODE)


def _restrided(value: torch.Tensor, base: torch.Tensor, what: str) -> tuple[Restride]:
    step = restride(value, base)
    if step is None:
        raise AotUnsupported("view-replay", what, "no chain of view operators leads to it")
    return (step,)


def _strided_steps(value: torch.Tensor, base: torch.Tensor) -> Steps | None:
    """The view by its strides, where `base` is what autograd knows as its base, and compact."""
    if value is base:
        return ()
    step = restride(value, base) if value._base is base and is_dense(base.shape, base.stride()) else None
    return None if step is None else (step,)


def _replayed(value: torch.Tensor, base: torch.Tensor, steps: Steps) -> tuple[Steps, bool]:
    """The steps to a view, and whether they have to be taken in no_grad."""
    detached = any(isinstance(step, ViewStep) and step.target is aten.detach.default for step in steps)
    without = base.requires_grad and not value.requires_grad and not detached
    by_data = without and not functional.counted_together(value, base)
    if by_data or not steps:  # another tensor, and no operator has made it
        if functional.differentiable(value):
            raise AotUnsupported("view-replay", "a tensor made by `.data`", "it was changed, and has gradients since")
        return (DATA, *steps), False
    return steps, _outside_autograd(value, base, detached)


def _is_recorded(value: torch.Tensor) -> bool:
    """Whether this is a view that autograd would have recorded: it may be changed with a history."""
    return value._is_view() and bool(unstable.get_creation_meta(value) == unstable.CreationMeta.DEFAULT)


def _outside_autograd(value: torch.Tensor, base: torch.Tensor, detached: bool) -> bool:
    """Whether the base has gradients that do not flow through a view."""
    if not functional.differentiable(value):
        return base.requires_grad and not (detached and _is_recorded(value))
    whole = base if base._base is None else base._base
    related = value is whole or value._base is whole
    if detached or not base.requires_grad or not related or not _leads_to(value, base):
        raise AotUnsupported("view-replay", "a view with gradients", "they do not come from its base")
    return False
