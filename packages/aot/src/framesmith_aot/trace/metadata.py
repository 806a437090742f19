"""Records of a traced graph's inputs, slots and outputs, read by every later stage.

Note [Outputs]: a *slot* is a fresh tensor that the ATen graph returns. Each output of the user's graph is a constant,
an input itself, a view of an input, a slot, or a view of a slot. Views are replayed outside the graph, on the run-time
tensors, so that they alias (and differentiate) as in eager mode.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from framesmith_aot.trace.views import NumberAt, Steps


@dataclass(frozen=True)
class Constant:
    """An output that is no tensor: the same at every call."""

    value: Any


@dataclass(frozen=True)
class SameInput:
    """An output that is the same object as input `index`."""

    index: int


@dataclass(frozen=True)
class InputView:
    """An output that is a view of input `index`; `no_grad`: replayed in no_grad.

    `over`: the output, a view as well, that the steps begin at (None: the input). `history`: the slot whose autograd
    history the view has (None: that of the steps), where an autograd.Function led to it. `leaf`: it has no history, and
    requires gradients.
    """

    index: int
    steps: Steps
    no_grad: bool
    over: int | None = None
    history: int | None = None
    leaf: bool = False


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
    history: int | None = None
    leaf: bool = False


@dataclass(frozen=True)
class Repeat:
    """An output that is the same object as output `index`."""

    index: int


Output = Constant | NumberAt | SameInput | InputView | Slot | SlotView | Repeat


@dataclass(frozen=True)
class CopyBack:
    """Input `index` receives slot `slot` after the graph; `no_grad`: autograd must not record it."""

    index: int
    slot: int
    no_grad: bool


@dataclass(frozen=True)
class Origin:
    """The tensor of a slot in a run of the torch-level graph: an output, its base, or an input it mutated."""

    kind: Literal["output", "base", "input"]
    index: int

    def find(self, inputs: Sequence[torch.Tensor], outputs: Sequence[Any]) -> torch.Tensor:
        if self.kind == "input":
            return inputs[self.index]
        found: torch.Tensor = outputs[self.index]
        if self.kind == "output" or found._base is None:
            return found
        return found._base


@dataclass(frozen=True)
class InputMeta:
    """One input. `written`: the ATen graph itself overwrites it; `copy`: it receives a slot after the graph.

    `versioned`: its version counter moves (not through `.data`). `writer`: the torch-level node that gives a mutated
    input its final history.
    """

    requires_grad: bool
    is_leaf: bool
    versioned: bool
    written: bool
    copy: CopyBack | None
    writer: str | None

    @property
    def mutated(self) -> bool:
        return self.written or self.copy is not None

    @property
    def has_node(self) -> bool:
        """Whether an autograd node made the input."""
        return self.requires_grad and not self.is_leaf


@dataclass(frozen=True)
class SlotMeta:
    """One slot. `differentiable`: gradients flow through it; `origin`: None where no run of the graph shows it."""

    differentiable: bool
    origin: Origin | None


@dataclass(frozen=True)
class OutputMeta:
    """One output. `recorded`: a view through which gradients flow to its base; autograd nodes end there too.

    Torch-level nodes: `maker` makes it, `writer` gives a mutated output its final history. `led`: the outputs, this one
    among them, that one autograd node makes of their bases, which hooks of a module wait for (see `through_one_node`).
    """

    role: Output
    recorded: bool
    maker: str | None
    writer: str | None
    led: tuple[int, ...] = ()


@dataclass(frozen=True)
class GraphMeta:
    """The inputs, slots and outputs by position, and the grad mode that the call leaves (None: unchanged)."""

    inputs: tuple[InputMeta, ...]
    slots: tuple[SlotMeta, ...]
    outputs: tuple[OutputMeta, ...]
    grad_mode_after: bool | None

    @property
    def differentiable(self) -> bool:
        return any(slot.differentiable for slot in self.slots)

    @functools.cached_property
    def written(self) -> list[int]:
        return [at for at, one in enumerate(self.inputs) if one.written]

    @functools.cached_property
    def copies(self) -> list[CopyBack]:
        return [one.copy for one in self.inputs if one.copy is not None]

    @functools.cached_property
    def mutated(self) -> list[int]:
        """The inputs that the graph or a copy writes to."""
        return [*self.written, *(copy.index for copy in self.copies)]

    @functools.cached_property
    def early_copies(self) -> dict[int, CopyBack]:
        """The copies, by slot, that run as soon as an autograd node reads the input: it has its new history by then."""
        return {copy.slot: copy for copy in self.copies if not copy.no_grad and self.inputs[copy.index].versioned}

    def base_slot(self, position: int) -> int | None:
        """Return the slot that an output is a view of, also through an input that receives it, or None."""
        role = self.outputs[position].role
        if isinstance(role, SlotView):
            return role.index
        return next((slot for slot, copy in self.early_copies.items() if copy.index == role.index), None)  # type: ignore[union-attr]

    def base_slots(self, position: int) -> tuple[int, ...]:
        """Return the slots that an output that is a view is made of, with those made by the same autograd node."""
        together = self.outputs[position].led or (position,)
        found = (self.base_slot(at) for at in together if isinstance(self.outputs[at].role, InputView | SlotView))
        return tuple(slot for slot in found if slot is not None)

    @property
    def recorded_views(self) -> dict[int, tuple[int, ...]]:
        """The recorded views by position among the outputs, and the slots whose gradients lead there."""
        found = {at: self.base_slots(at) for at, output in enumerate(self.outputs) if output.recorded}
        return {at: tuple(one for one in slots if self.slots[one].differentiable) for at, slots in found.items()}

    @functools.cached_property
    def read_together(self) -> tuple[frozenset[int], ...]:
        """Return sets of slots of which only one autograd node is made: users see their gradients together."""
        of_slot: dict[int, set[tuple[int, ...]]] = {}
        for output in self.outputs:
            role = output.role
            if isinstance(role, Slot | SlotView):
                alone = isinstance(role, Slot) or role.history is not None
                of_slot.setdefault(role.index, set()).add(() if alone else output.led)
                if isinstance(role, SlotView) and role.history is not None:
                    of_slot.setdefault(role.history, set()).add(())
        for copy in self.copies:
            of_slot.setdefault(copy.slot, set()).add(())
        sets: dict[tuple[int, ...], set[int]] = {}
        for slot, readers in of_slot.items():
            reader, *others = readers
            if reader and not others and self.slots[slot].differentiable:
                sets.setdefault(reader, set()).add(slot)
        return tuple(frozenset(slots) for slots in sets.values() if len(slots) > 1)

    @functools.cached_property
    def graph_first(self) -> bool:
        """Whether the graph runs before all nodes, which read what it computes: leaves, and what is led with others."""
        leaves = (isinstance(one.role, InputView | SlotView) and one.role.leaf for one in self.outputs)
        return any(leaves) or any(len(one.led) > 1 for one in self.outputs)
