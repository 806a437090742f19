"""A function of any arguments recorded as a torch-level graph of its tensors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from framesmith_aot.capture.recorder import Recorder
from framesmith_aot.torch_adapter import unstable
from framesmith_aten.fakes import fake_mode_of, new_fake_mode
from framesmith_aten.fakes.symbols import symbolic_fake
from framesmith_aten.symbolic import is_symbolic
from framesmith_guards import ItemSource, LocalSource, Source
from framesmith_guards.torch_adapter import FakeTensor, FakeTensorMode

#: The argument of a check: the flat list of the leaves of a call's arguments.
LEAVES: Final = LocalSource("leaves")


@dataclass(frozen=True)
class Given:
    """A tensor among the arguments: the real one, its fakes while recording and as the graph's example, its source."""

    real: torch.Tensor
    fake: torch.Tensor
    example: torch.Tensor
    source: Source


@dataclass(frozen=True)
class Results:
    """The structure of what a function returns: `tree` with `leaves`, of which those of `computed` are the graph's."""

    tree: Any
    leaves: tuple[Any, ...]
    computed: tuple[int, ...]

    def of(self, values: Sequence[Any]) -> Any:
        """Return the function's result for the graph's results."""
        leaves = list(self.leaves)
        for at, value in zip(self.computed, values, strict=True):
            leaves[at] = value
        return unstable.tree_unflatten(leaves, self.tree)


@dataclass(frozen=True)
class Recorded:
    """The graph, what it takes and returns, and the mode of its fakes."""

    module: fx.GraphModule
    given: list[Given]
    results: Results
    fake_mode: FakeTensorMode


def source_of(leaf: int) -> Source:
    """Return the source of a leaf of the arguments."""
    return ItemSource(LEAVES, leaf)


def record(
    function: Callable[..., Any], leaves: Sequence[Any], tree: Any, *, modules: Mapping[int, str], dynamic: bool
) -> Recorded:
    """Return the graph of a call whose arguments and keyword arguments are the `leaves` of `tree`.

    `modules`: the paths of modules, by their ids. `dynamic`: tensors have symbolic sizes. The same tensor twice is one
    input. Raises AotUnsupported for what a flat graph cannot hold, and the function's own errors.
    """
    mode = fake_mode_of(leaves) or new_fake_mode()
    recorder = Recorder(mode, sys._getframe(), modules)
    given: dict[int, Given] = {}
    values = list(leaves)
    for at, real in enumerate(leaves):
        if not isinstance(real, torch.Tensor):
            continue
        if id(real) not in given:
            one = given[id(real)] = _given(mode, real, source_of(at), dynamic)
            recorder.input(f"arg_{at}", one.fake, real)
        values[at] = given[id(real)].fake
    args, kwargs = unstable.tree_unflatten(values, tree)
    with recorder.recording():
        flat, tree_of_results = unstable.tree_flatten(function(*args, **kwargs))
    computed = tuple(at for at, one in enumerate(flat) if isinstance(one, torch.Tensor) or is_symbolic(one))
    module = recorder.finish([flat[at] for at in computed])
    constants = tuple(None if at in computed else one for at, one in enumerate(flat))
    return Recorded(module, [*given.values()], Results(tree_of_results, constants, computed), mode)


def _given(mode: FakeTensorMode, real: torch.Tensor, source: Source, dynamic: bool) -> Given:
    if isinstance(real, FakeTensor):
        return Given(real, _twin(mode, real), real, source)
    if not dynamic:
        return Given(real, mode.from_tensor(real, static_shapes=True), real, source)
    fake = symbolic_fake(mode, real, source, range(real.dim()))
    return Given(real, fake, _twin(mode, fake), source)


def _twin(mode: FakeTensorMode, fake: torch.Tensor) -> torch.Tensor:
    """Return a second fake of the same metadata, with memory of its own."""
    with mode, torch.no_grad():
        twin = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)
    twin.requires_grad_(fake.requires_grad)
    return twin if fake.is_leaf else twin.view_as(twin)
