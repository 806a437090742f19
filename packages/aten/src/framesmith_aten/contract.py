"""The contract between producers and compilers of ATen graphs: roles, the graphs' form, backends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import fx

from framesmith_guards.torch_adapter import OpOverload

Role = Literal["inference", "forward", "backward"]
ROLES: tuple[Role, ...] = ("inference", "forward", "backward")

BoxedFn = Callable[[list[Any]], Sequence[Any]]
"""Takes a list, which it may empty so that memory is freed early, and returns a sequence of tensors."""

OnError = Callable[[str, Exception], None]
"""Called with the stage and the error of a failure that a backend works around. May raise."""

#: The values of the option `mode`, and what each asks for.
MODES: Mapping[str, str] = MappingProxyType(
    {
        "default": "balanced compile time and kernels",
        "reduce-overhead": "launch with as little Python as possible",
        "max-autotune": "choose between kernels by measuring them",
        "max-autotune-no-cudagraphs": "as max-autotune, without CUDA graphs",
    }
)

#: The entry point group in which backends register.
ENTRY_POINTS = "framesmith.backends"


class AssumptionFailed(RuntimeError):
    """Raised at a call whose data are not as the graph assumes; the message is the assumption.

    The captured program is right there, and is to be run instead.
    """


@dataclass(frozen=True, slots=True)
class Runner:
    """A function that runs a graph on its flat inputs, and facts about its calls.

    `rerunnable_after_error`: a call that raises leaves the inputs as if the graph had not run, or so that it can run
    again. `assumes`: a call may raise AssumptionFailed. `refusals`: what the backend declined to do ("no fused
    attention for softmax"), each with the reason. `boxed`: the same function of one list, which it empties so that
    inputs are freed as they are used; None where there is none.
    """

    run: Callable[..., Any]
    rerunnable_after_error: bool = False
    assumes: bool = False
    refusals: Sequence[str] = ()
    boxed: BoxedFn | None = None

    @classmethod
    def of(cls, found: Callable[..., Any] | Runner) -> Runner:
        """Return a runner as it is, and one of which nothing is known for a function."""
        return found if isinstance(found, Runner) else cls(found)


TransformStep = Callable[[fx.Graph], "fx.Graph | None"]
"""Return the joint graph of a training step, of the form of `Compiler`'s graphs, with other layouts and
operators between inputs and results, or None. Both keep their order and the strides of their `meta["val"]`,
placeholders their names, nodes their `meta`."""


class Compiler(Protocol):
    """Turns one functional ATen graph into a callable.

    The graph satisfies `verify`: functional ATen calls (and other libraries' operators), `meta["val"]` (a FakeTensor)
    on every node, input mutations as trailing `aten.copy_` calls onto placeholders. Calls with effects
    (`operators.is_effect`) run in the graph's order, used or not; other unused calls may raise, and run too. Outputs of
    inference and forward graphs are new tensors that alias neither each other nor an input, with the strides of their
    `meta["val"]`. A call that raises has written to no input, or only values that a second run would write again.
    """

    def __call__(self, gm: fx.GraphModule, inputs: Sequence[torch.Tensor], role: Role, /) -> BoxedFn: ...


@runtime_checkable
class Backend(Protocol):
    """A compiler of such graphs with a name.

    `devices` are the device types that it compiles kernels for, `roles` the graphs it takes, and `options` maps each
    option's name to its default; one called `mode` takes all of `MODES`. A backend may also be any of `FixedSizes`,
    `NeedsMachine` and `TransformsStep`.
    """

    @property
    def name(self) -> str: ...
    @property
    def devices(self) -> tuple[str, ...]: ...
    @property
    def roles(self) -> tuple[Role, ...]: ...
    @property
    def options(self) -> Mapping[str, object]: ...

    def lowers(self, op: OpOverload) -> bool:
        """Whether the backend lowers this operator itself, so that graphs may hold it undecomposed."""
        ...

    def compile(
        self,
        gm: fx.GraphModule,
        inputs: Sequence[torch.Tensor],
        role: Role = "inference",
        options: Mapping[str, object] | None = None,
        on_error: OnError | None = None,
    ) -> BoxedFn:
        """Compile the graph; `inputs` are the (fake) tensors of its placeholders.

        A failure inside is reported to `on_error` and worked around; without `on_error` it is raised.
        """
        ...

    def why_not(self, gm: fx.GraphModule) -> str | None:
        """Return why this backend cannot compile the graph, or None."""
        ...


@runtime_checkable
class FixedSizes(Protocol):
    """A backend that may compile kernels for fixed sizes alone: `dynamic=None` then makes no size symbolic."""

    @property
    def fixed_sizes(self) -> bool: ...


@runtime_checkable
class NeedsMachine(Protocol):
    """A backend that needs a device or a package."""

    def why_not_here(self) -> str | None:
        """Return what this machine lacks and how to install it, or None."""
        ...


@runtime_checkable
class TransformsStep(Protocol):
    """A backend that rewrites a training step as a whole, before it is partitioned into forward and backward."""

    def transform_step(
        self, graph: fx.Graph, options: Mapping[str, object] | None = None, on_error: OnError | None = None
    ) -> fx.Graph | None:
        """`TransformStep`, with the backend's options; failures inside are dealt with as those of `compile` are."""
        ...


@runtime_checkable
class EvaluatesBackward(Protocol):
    """A class of autograd functions whose backward pass may be traced: it reads and checks saved tensors alone."""

    def evaluate_backward(
        self, saved: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor | None], /
    ) -> Sequence[torch.Tensor | None]:
        """Return the gradients of the operands, by torch's own operators; a static method, without side effects."""
        ...
