"""One capture of a graph's launches: the inputs that it reads in place or copies, and its results.

Nothing here asks for a GPU: a `Capturer` captures, and `capturer.py` has that of CUDA.
"""

from __future__ import annotations

import itertools
import operator
import weakref
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from framesmith_aten.contract import BoxedFn
from framesmith_aten.layouts import is_interleaved
from framesmith_backends.cuda_graphs.capturable import Parameters
from framesmith_backends.cuda_graphs.results import Copying, Memory, NotCaptured, Results, place_of, results_of, view
from framesmith_backends.launch.source import below_autograd
from framesmith_backends.torch_adapter import unstable

#: Bytes of inputs, and of results, that a capture copies: beyond it, copying costs what replaying saves.
MOST_COPIED = 256 << 20
#: Addresses at which captures have results, and the number of such captures.
OF_CAPTURES: Counter[int] = Counter()


class Replayable(Protocol):
    """Captured launches, to be replayed."""

    def ready(self) -> None:
        """Called before anything is written to what the capture reads: what still uses it is waited for."""
        ...

    def replay(self) -> None: ...


class Capturer(Protocol):
    """Captures launches on one device."""

    @property
    def device(self) -> torch.device: ...

    def busy(self) -> bool:
        """Whether somebody else captures at present: what is launched then is to be part of that."""
        ...

    def capture(
        self, run: BoxedFn, inputs: list[Any], buffers: Sequence[torch.Tensor]
    ) -> tuple[Sequence[Any], Replayable]:
        """The results of `run` on these inputs and what it launches, without doing it.

        The results have their contents after each replay; the capturer holds none of them. `buffers` are over those
        inputs that only it reads.
        """
        ...

    def settings(self) -> tuple[object, ...]:
        """The switches that the launches depend on, which the user may turn between two calls."""
        ...

    def make_room(self) -> None:
        """Called when there was not enough memory to capture."""
        ...


@dataclass(slots=True)
class CopiedInputs:
    """Inputs that are copied into buffers before a replay, and out of them where the graph writes to them.

    A dimension of stride 0 is copied as one of a single element: `narrowed` has the sizes and strides of those inputs
    that have one.
    """

    positions: tuple[int, ...] = ()
    buffers: list[torch.Tensor] = field(default_factory=list)
    narrowed: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    written: list[int] = field(default_factory=list)

    def sources(self, args: Sequence[Any]) -> list[torch.Tensor]:
        found = [args[at] for at in self.positions]
        for index, (size, stride) in self.narrowed.items():
            found[index] = view(found[index], size, stride, 0)
        return found


class Capture:
    """One capture: what it takes where, and what it gives.

    `fixed` has the addresses of the tensors that it reads where they lie. One that `lends` hands out its own memory;
    the others give copies, and are always free.
    """

    def __init__(
        self,
        captured: Replayable,
        addresses: Sequence[int],
        copied: Sequence[int],
        copies: CopiedInputs,
        results: Results,
        writes: Writes | None,
        lends: bool,
    ) -> None:
        self.replayable = captured
        self.fixed = {place: address for place, address in enumerate(addresses) if place not in copied}
        self.copies = copies
        self.results = results
        self.writes = writes
        self.lends = lends
        tensors = [tensor for _, tensor, *_ in results.made]
        self.memory = Memory(tensors)
        if not self.memory.is_free():
            raise NotCaptured("something else holds its results")
        self._addresses_of: Callable[[Sequence[int]], Any] = lambda addresses: ()
        if self.fixed:
            self._addresses_of = operator.itemgetter(*self.fixed)
        self._expected = self._addresses_of(addresses)
        if not lends:
            results.copying = Copying(tensors)
            return
        own = [address for address in self.memory.addresses if address]
        OF_CAPTURES.update(own)
        weakref.finalize(self, _forget, own).atexit = False

    def takes(self, addresses: Sequence[int]) -> bool:
        return bool(self._addresses_of(addresses) == self._expected)

    def is_free(self) -> bool:
        return not self.lends or self.memory.is_free()

    def may_take(self, args: Sequence[Any]) -> bool:
        """Whether no copied input overlaps a written one."""
        return self.writes is None or self.writes.are_disjoint(args)

    def why_not_copied(self) -> str | None:
        """Why results like these cannot be handed out as copies, or None."""
        return self.memory.why_not_copied(MOST_COPIED)

    def replay(self, args: Sequence[Any]) -> list[Any]:
        self.replayable.ready()
        copies = self.copies
        if not copies.positions:
            self.replayable.replay()
        else:
            with below_autograd():
                sources = copies.sources(args)
                unstable.foreach_copy_(copies.buffers, sources)
                self.replayable.replay()
                if written := copies.written:
                    unstable.foreach_copy_([sources[k] for k in written], [copies.buffers[k] for k in written])
        return self.results.hand_out(args)


def _forget(addresses: Sequence[int]) -> None:
    for address in addresses:
        OF_CAPTURES[address] -= 1
        if not OF_CAPTURES[address]:
            del OF_CAPTURES[address]


class Writes:
    """The inputs that may not share memory, because one of them is copied and one of them written to.

    Copies of memory that is written to elsewhere would miss what is written, or undo it.
    """

    def __init__(self, args: Sequence[Any], parameters: Parameters, copied: Sequence[int]) -> None:
        self.written = [at for at in copied if at in parameters.written]
        self.read = [at for at in copied if at not in parameters.written]
        fixed = [at for at in parameters.tensors if at not in copied]
        self.fixed_written = _Ranges([place_of(args[at]) for at in fixed if at in parameters.written])
        self.fixed = _Ranges([place_of(args[at]) for at in fixed] if self.written else [])

    def are_disjoint(self, args: Sequence[Any]) -> bool:
        written = [place_of(args[at]) for at in self.written]
        read = [place_of(args[at]) for at in self.read]
        if any(map(self.fixed_written.meet, read)) or any(map(self.fixed.meet, written)):
            return False
        pairs = itertools.chain(itertools.product(written, read), itertools.combinations(written, 2))
        return not any(one[0] < other[1] and other[0] < one[1] for one, other in pairs)


class _Ranges:
    """Ranges of memory by their beginnings, with the furthest end up to each."""

    def __init__(self, ranges: list[tuple[int, int]]) -> None:
        ranges = sorted(range_ for range_ in ranges if range_[0] < range_[1])
        self.beginnings = [beginning for beginning, _ in ranges]
        self.ends = list(itertools.accumulate((end for _, end in ranges), max))

    def meet(self, place: tuple[int, int]) -> bool:
        before = bisect_left(self.beginnings, place[1])
        return place[0] < place[1] and before > 0 and self.ends[before - 1] > place[0]


def capture_launches(
    run: BoxedFn,
    capturer: Capturer,
    parameters: Parameters,
    args: Sequence[Any],
    addresses: Sequence[int],
    copied: Sequence[int],
    lends: bool,
) -> Capture:
    """A capture that copies these tensors and reads all others where they lie. Raises NotCaptured."""
    _check(args, capturer.device)
    positions = tuple(parameters.tensors[place] for place in copied)
    copies, inputs = _copies(args, positions, parameters.written)
    values, captured = capturer.capture(run, [*inputs], copies.buffers)
    results = results_of(values, inputs, parameters.tensors, capturer.device)
    del values  # a tensor that something else holds as well, a constant, is seen by that
    writes = Writes(args, parameters, positions) if parameters.written and copied else None
    return Capture(captured, addresses, copied, copies, results, writes, lends)


def _check(args: Sequence[Any], device: torch.device) -> None:
    for at, value in enumerate(args):
        if isinstance(value, torch.Tensor):
            if value.device != device:
                raise NotCaptured(f"input {at} is on {value.device}, and the graph on {device}")
            if value.layout is not torch.strided:
                raise NotCaptured(f"input {at} is {value.layout}")
        elif not (value is None or isinstance(value, (int, float))):
            raise NotCaptured(f"input {at} is a {type(value).__name__}")


def _copies(args: Sequence[Any], positions: tuple[int, ...], written: frozenset[int]) -> tuple[CopiedInputs, list[Any]]:
    """The copies of these inputs, and the inputs with their buffers in the place of these."""
    copies, inputs = CopiedInputs(positions), [*args]
    if sum(args[at].nbytes for at in positions) > MOST_COPIED:
        raise NotCaptured(f"inputs of more than {MOST_COPIED >> 20} MiB come at changing addresses")
    for index, at in enumerate(positions):
        tensor = args[at]
        size, stride = tuple(tensor.shape), tensor.stride()
        if is_interleaved(tensor) or tensor.is_conj() or tensor.is_neg():
            raise NotCaptured(f"input {at} comes at changing addresses and cannot be copied element by element")
        buffer = inputs[at] = torch.empty_strided(size, stride, dtype=tensor.dtype, device=tensor.device)
        if any(step == 0 and length > 1 for length, step in zip(size, stride, strict=True)):
            if at in written:
                raise NotCaptured(f"input {at} comes at changing addresses, is written to and overlaps itself")
            narrow = tuple(min(length, 1) if step == 0 else length for length, step in zip(size, stride, strict=True))
            copies.narrowed[index] = narrow, stride
            buffer = view(buffer, narrow, stride, 0)
        copies.buffers.append(buffer)
    copies.written = [index for index, at in enumerate(positions) if at in written]
    return copies, inputs
