"""A capturer for CPU tensors: it replays by running again, at the addresses that were captured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from framesmith_aten.contract import BoxedFn

GARBAGE = 77


def at_its_address(tensor: torch.Tensor) -> torch.Tensor:
    """The memory where the tensor lies, which this does not keep alive."""
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    count = (last + 1) * tensor.element_size() if tensor.numel() else 0
    storage = torch._C._construct_storage_from_data_pointer(tensor.data_ptr(), tensor.device, count)
    return torch.empty(0, dtype=tensor.dtype).set_(storage, 0, tensor.shape, tensor.stride())  # type: ignore[call-overload]


def address_range(tensor: torch.Tensor) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


class StandIn:
    """Captures as a GPU does: nothing is computed while capturing, and what a replay reads lies where it lay then."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.capturing = False
        self.error: Exception | None = None
        self.at_end: Exception | None = None
        self.captured = self.replayed = self.made_room = self.copied = 0
        self.switch: object = None

    def busy(self) -> bool:
        return self.capturing

    def settings(self) -> tuple[object, ...]:
        return (self.switch,)

    def make_room(self) -> None:
        self.made_room += 1

    def capture(self, run: BoxedFn, inputs: list[Any], buffers: Sequence[torch.Tensor]) -> tuple[Sequence[Any], Replay]:
        self.captured += 1
        self.copied += len(buffers)
        own = {buffer.data_ptr() for buffer in buffers}
        before = [(at_its_address(t), t.clone()) for t in inputs if isinstance(t, torch.Tensor) and dense(t)]
        seed = torch.get_rng_state()
        for buffer in buffers:
            buffer.zero_()  # a GPU reads no indices while it captures
        self.capturing = True
        try:
            results = run([*inputs])
            if self.error is not None:
                raise self.error
        finally:
            self.capturing = False
            for tensor, kept in before:
                tensor.copy_(kept)
            torch.set_rng_state(seed)
            if self.at_end is not None:
                raise self.at_end
        taken = [at_its_address(t) if isinstance(t, torch.Tensor) and t.data_ptr() not in own else t for t in inputs]
        ranges = [address_range(t) for t in inputs if isinstance(t, torch.Tensor)]
        fresh = [
            (at, at_its_address(r))
            for at, r in enumerate(results)
            if isinstance(r, torch.Tensor) and not any(a <= r.data_ptr() < b for a, b in ranges)
        ]
        for tensor in (*buffers, *(result for _, result in fresh)):
            tensor.fill_(GARBAGE)
        return results, Replay(self, run, taken, fresh)


def dense(tensor: torch.Tensor) -> bool:
    return all(step or n <= 1 for n, step in zip(tensor.shape, tensor.stride(), strict=True))


class Replay:
    def __init__(
        self, capturer: StandIn, run: BoxedFn, taken: list[Any], fresh: list[tuple[int, torch.Tensor]]
    ) -> None:
        self.capturer, self.run, self.taken, self.fresh = capturer, run, taken, fresh
        self.is_ready = False

    def ready(self) -> None:
        self.is_ready = True

    def replay(self) -> None:
        assert self.is_ready
        self.is_ready = False
        self.capturer.replayed += 1
        again = self.run([*self.taken])
        for at, result in self.fresh:
            result.copy_(again[at])
