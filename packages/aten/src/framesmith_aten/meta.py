"""The entries of `fx.Node.meta` that stages of the compiler set and read, each with its type.

Those of one package alone are declared there: native operators, inputs of a backward pass. Four more are torch's own,
read as such: `meta["val"]`, the fake tensor or number of a node of an ATen graph; `meta["stack_trace"]` and
`meta["nn_module_stack"]`, where in the user's program it comes from; `meta["fwd_nn_module_stack"]`, the modules of the
user's operation whose derivative it computes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, TypeVar

import torch
from torch import fx

from framesmith_aten.checks.overlaps import Part
from framesmith_guards import Location

T = TypeVar("T")

#: The pass of training that a node computes.
Phase = Literal["forward", "backward"]

#: The part of a training step that a call belongs to, also where the step is one graph.
StepPart = Literal["forward", "backward", "update"]


@dataclass(frozen=True, slots=True)
class Key(Generic[T]):
    """One entry of `node.meta`, by its name there."""

    name: str

    def of(self, node: fx.Node) -> T:
        """Return the entry; KeyError without one."""
        value: T = node.meta[self.name]
        return value

    def get(self, node: fx.Node) -> T | None:
        """Return the entry, or None."""
        return node.meta.get(self.name)

    def set(self, node: fx.Node, value: T) -> None:
        """Make `value` the entry."""
        node.meta[self.name] = value

    def on(self, node: fx.Node) -> bool:
        """Whether the node has the entry."""
        return self.name in node.meta


@dataclass(slots=True)
class Effects:
    """The effects of the operators under one call, beside its results.

    `written`: the tensors (fakes) whose elements or, if `reshaped`, whose sizes, strides or storage they change; those
    made under the call are among them. `parts`: views of symbolic sizes, and the layouts that they are parts of.
    `undone_by_sums`, `restrided`: operands of views that `table.Row.undone_by_sums` and `is_view_by_strides` hold of;
    `has_offset`: one of the latter gives a storage offset. `random`: they may draw random numbers. `may_fail`: they
    can raise on some data. `unproven`: no probe could show that their kernels accept such arguments.
    `irreversible`: they return no tensors, or are not torch's own, so they may do anything. `external`: one has an
    effect outside of tensors (`operators.has_external_effect`). `custom`: one is not torch's own, and may have an
    effect that it does not declare. `contracts`: one multiplies matrices, convolves or attends.
    """

    written: list[torch.Tensor] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    reshaped: bool = False
    undone_by_sums: list[torch.Tensor] = field(default_factory=list)
    restrided: list[torch.Tensor] = field(default_factory=list)
    has_offset: bool = False
    random: bool = False
    may_fail: bool = False
    unproven: bool = False
    irreversible: bool = False
    external: bool = False
    custom: bool = False
    contracts: bool = False

    @property
    def forbid_removal(self) -> bool:
        """Whether the call must stay though nothing uses its result."""
        return bool(self.written) or self.random or self.may_fail or self.unproven or self.irreversible

    def add_body(self, inner: Effects) -> None:
        """Add that the call runs another one in its body."""
        self.may_fail |= inner.may_fail
        self.unproven |= inner.unproven
        self.irreversible |= inner.irreversible
        self.custom |= inner.custom
        self.contracts |= inner.contracts


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A call of `torch.utils.checkpoint`, whose values the backward pass recomputes.

    `number` is unique in its graph, `around` the checkpoint that encloses it. `saves(op, args, kwargs, result)`:
    whether the result of an ATen operator is saved all the same; None: none is. `reentrant`: the backward pass of eager
    mode refuses `torch.autograd.grad`.
    """

    number: int
    around: Checkpoint | None = None
    saves: Callable[[Any, Any, Any, Any], bool] | None = None
    reentrant: bool = False

    @property
    def path(self) -> tuple[int, ...]:
        """The numbers of the checkpoints around it, outermost first, and its own."""
        return (self.number,) if self.around is None else (*self.around.path, self.number)

    def outwards(self) -> tuple[Checkpoint, ...]:
        """Return it and the checkpoints around it."""
        return (self,) if self.around is None else (self, *self.around.outwards())


#: Torch-level graphs: the result at capture, of fakes and symbolic numbers.
EXAMPLE: Final[Key[Any]] = Key("example_value")
#: Torch-level graphs: the effects of the operators under the call; see `recording.effects_of`.
EFFECTS: Final[Key[Effects]] = Key("effects")
#: Torch-level graphs: the user's line that made the call.
LOCATION: Final[Key[Location]] = Key("location")
#: Torch-level graphs: the innermost checkpoint that made the call.
CHECKPOINT: Final[Key[Checkpoint]] = Key("checkpoint")
#: Torch-level graphs: the number of the call of a nested compile region that made the call.
REGION: Final[Key[int]] = Key("region")
#: Torch-level graphs: the call changes a mode of torch (of gradients, of autocast, ...).
MODE_CHANGE: Final[Key[bool]] = Key("mode")
#: Placeholders of torch-level graphs: the code behind the graph may write to the tensor.
MUTATED_INPUT: Final[Key[bool]] = Key("mutated_input")
#: ATen graphs: the `Checkpoint.path` of the innermost checkpoint that computes the node, or recomputes it; in the
#: backward pass of a joint graph, of the one that the autograd node belongs to.
CHECKPOINT_PATH: Final[Key[tuple[int, ...]]] = Key("checkpoint_path")
#: Joint graphs: the numbers of the checkpoints whose policies save the node's value.
SAVED_IN: Final[Key[tuple[int, ...]]] = Key("saved_in")
#: Joint graphs: memory from outside of a checkpoint that its backward pass reads, as eager mode's does.
READ_AGAIN: Final[Key[bool]] = Key("read_again")
#: Backward passes: the node reads what a reentrant checkpoint would recompute; see `Checkpoint.reentrant`.
REENTRANT: Final[Key[bool]] = Key("reentrant")
#: The part of a training step that a call belongs to: torch-level graphs of a step with its backward pass and its
#: update inside, and ATen graphs made of them. See `graphs.step_parts`.
PART: Final[Key[StepPart]] = Key("part")
#: Backward passes: the node computes a value of a checkpoint, or of a segment of the memory budget, again.
RECOMPUTED: Final[Key[bool]] = Key("recomputed")
#: ATen graphs: the pass that the node belongs to.
PHASE: Final[Key[Phase]] = Key("phase")
#: ATen graphs: the stack trace of the user's operation whose derivative the node computes.
DERIVATIVE_OF: Final[Key[str]] = Key("derivative_of")
#: Placeholders of backward graphs: a gradient of a result, which is linear in it.
TANGENT: Final[Key[bool]] = Key("tangent")
#: Placeholders: others hold the tensor for as long as the graph runs; its last use there frees nothing.
HELD: Final[Key[bool]] = Key("held")
#: Joint graphs whose layouts a backend has propagated: the backward pass computes the node although it depends on no
#: gradient. Nothing of it is saved.
IN_BACKWARD: Final[Key[bool]] = Key("in_backward")
#: Graphs of the autograd engine: the name and index of the engine's node.
ORIGIN: Final[Key[str]] = Key("origin")
