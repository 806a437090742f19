"""Results of a capture, over its own memory or as copies of it, and whether anybody holds them.

See Note [Capture].
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from framesmith_aten.layouts import span
from framesmith_backends.launch.source import below_autograd
from framesmith_backends.torch_adapter import unstable


class NotCaptured(Exception):
    """The reason why something cannot be captured, as the user is warned."""


@dataclass(slots=True)
class Results:
    """Results to hand out: new tensors over the capture's memory, inputs, parts of inputs, other values.

    `made` are positions among the results, the capture's own tensors, sizes and strides; `repeated` pairs of positions,
    `given` pairs of a place and an input, `shown` these and where in that input. What is `made` is handed out as a copy
    where there is a `copying`.
    """

    pattern: list[Any] = field(default_factory=list)
    made: list[tuple[int, torch.Tensor, tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)
    repeated: list[tuple[int, int]] = field(default_factory=list)
    given: list[tuple[int, int]] = field(default_factory=list)
    shown: list[tuple[int, int, tuple[int, ...], tuple[int, ...], int]] = field(default_factory=list)
    copying: Copying | None = None

    def hand_out(self, args: Sequence[Any]) -> list[Any]:
        results = [*self.pattern]
        if self.copying is None:
            for at, tensor, size, stride in self.made:
                results[at] = view(tensor, size, stride, 0)
        else:
            copies = self.copying.copies()
            for (at, _, size, stride), (index, offset) in zip(self.made, self.copying.positions, strict=True):
                results[at] = view(copies[index], size, stride, offset)
        for at, position in self.given:
            results[at] = args[position]
        for at, position, size, stride, offset in self.shown:
            results[at] = view(args[position], size, stride, offset)
        for at, earlier in self.repeated:
            results[at] = results[earlier]
        return results


class Copying:
    """Copies of all memory that results lie in, so that those which share it do so still.

    `positions` has, for each result, the index of its copy, and the offset in it, in elements.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.wholes: list[torch.Tensor] = []
        self.positions: list[tuple[int, int]] = []
        known: dict[int, int] = {}
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage._cdata not in known:
                known[storage._cdata] = len(self.wholes)
                self.wholes.append(tensor.as_strided((storage.nbytes() // tensor.element_size(),), (1,), 0))
            self.positions.append((known[storage._cdata], int(tensor.storage_offset())))

    def copies(self) -> list[torch.Tensor]:
        with below_autograd():
            copies = [torch.empty_like(whole) for whole in self.wholes]
            if copies:
                unstable.foreach_copy_(copies, self.wholes)
        return copies


class Memory:
    """The storages of a capture's results, and whether anybody else holds one of them."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.storages: list[torch.UntypedStorage] = []
        held: dict[int, int] = {}
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage._cdata not in held:
                self.storages.append(storage)
            held[storage._cdata] = held.get(storage._cdata, -1) + 1
        holders, references = _counts_alone()
        self.cells = [*held]
        self.counts = [holders + more for more in held.values()]
        self.references = [references] * len(held)
        self.tensors = [*tensors]
        self.addresses = [tensor.data_ptr() for tensor in tensors]

    def is_free(self) -> bool:
        """Whether nobody holds a tensor over it, or one of its storages, or has made one of these another."""
        return (
            [_holders(cell) for cell in self.cells] == self.counts
            and _references(self.storages) == self.references
            and [tensor.data_ptr() for tensor in self.tensors] == self.addresses
        )

    def why_not_copied(self, most: int) -> str | None:
        """Why results cannot be handed out as copies of this memory, of that many bytes at most; or None."""
        if sum(storage.nbytes() for storage in self.storages) > most:
            return f"they are more than {most >> 20} MiB"
        if len({(tensor.untyped_storage()._cdata, tensor.dtype) for tensor in self.tensors}) > len(self.storages):
            return "some that share memory are of different types"
        return None


@functools.cache
def _counts_alone() -> tuple[int, int]:
    """Holders and references of a storage that a single tensor and its own Python object hold."""
    tensor = torch.empty(1, device="cpu")
    storages = [tensor.untyped_storage()]
    holders, references = _holders(storages[0]._cdata), _references(storages)[0]
    another = tensor.detach()
    if _holders(storages[0]._cdata) != holders + 1:
        raise NotCaptured("this version of torch does not say who holds a tensor's memory")
    del another
    return holders, references


def _holders(cell: int) -> int:
    return int(unstable.storage_Use_Count(cell))


def _references(storages: Sequence[torch.UntypedStorage]) -> list[int]:
    return [sys.getrefcount(storage) for storage in storages]


def view(tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int) -> torch.Tensor:
    """A new tensor over the memory, with a version counter of its own, of which autograd knows nothing."""
    return unstable.reinterpret_tensor(tensor, size, stride, offset)  # type: ignore[no-any-return]


def place_of(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses that a tensor lies between."""
    first, end = span(tensor)
    beginning = tensor.data_ptr()
    return beginning, beginning + end - first


def results_of(values: Sequence[Any], inputs: Sequence[Any], tensors: Sequence[int], device: torch.device) -> Results:
    """The graph's results for these inputs, as a replay hands them out."""
    found, seen = Results(), dict[int, int]()
    objects = {id(inputs[at]): at for at in tensors}
    storages = {inputs[at].untyped_storage().data_ptr(): at for at in reversed(tensors) if inputs[at].numel()}
    for at, value in enumerate(values):
        found.pattern.append(None if isinstance(value, torch.Tensor) else value)
        if not isinstance(value, torch.Tensor):
            continue
        if id(value) in seen:
            found.repeated.append((at, seen[id(value)]))
            continue
        seen[id(value)] = at
        size, stride = tuple(value.shape), value.stride()
        if id(value) in objects:
            found.given.append((at, objects[id(value)]))
        elif value.device != device or value.layout is not torch.strided or value.requires_grad:
            raise NotCaptured(f"result {at} is no plain tensor on {device}")
        elif value.is_conj() or value.is_neg():  # a new tensor over its memory would be without that
            raise NotCaptured(f"result {at} is shown conjugated or negated, and not computed so")
        elif value.numel() and value.untyped_storage().data_ptr() in storages:
            position, offset = _part_of_input(value, [(p, inputs[p]) for p in tensors])
            found.shown.append((at, position, size, stride, offset))
        else:
            found.made.append((at, view(value, size, stride, 0), size, stride))
    return found


def _part_of_input(result: torch.Tensor, inputs: Sequence[tuple[int, torch.Tensor]]) -> tuple[int, int]:
    """An input that a result is a part of, and where in it the part begins, in elements."""
    first, end = place_of(result)
    for at, tensor in inputs:
        beginning, limit = place_of(tensor)
        if tensor.dtype == result.dtype and beginning <= first and end <= limit:
            return at, (first - beginning) // tensor.element_size()
    raise NotCaptured("a result is a view of an input that reaches beyond it, or of another type")
